"""Ops whose spans say it in their arguments: MegaScan's begin and end events, ByteDance's timelines.

One file holds many devices. A process is a device (MegaScan: pid is the rank), unless threads are named after ranks
(ByteDance: process ``DP rank [1]``, thread ``PP rank 2, TP rank 0, compute``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import UNKNOWN, RankOps, Transfers
from .names import move_of, told_kind
from .ops import column
from .tables import Ints, Tables, ToldArgs

_PLACE = re.compile(r"(PP|TP|DP|CP|EP) rank \[?(\d+)")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a span ran, as far as its names and arguments say."""

    replica: int
    position: int
    member: tuple[int, ...]
    process: int | str


def told(tables: Tables, source: str) -> tuple[list[RankOps], list[str]]:
    """The devices of one file whose spans name their ops in arguments, and what was left out."""
    begin, end, args, orphans = _spans(tables)
    words = tables.columns["told"]["word"][begin].tolist()
    lanes = tables.columns["told"]["lane"][begin].tolist()
    start = tables.columns["told"]["start"][begin].astype(np.int64)
    by_place: dict[_Place, list[int]] = {}
    for row, (lane, said) in enumerate(zip(lanes, args, strict=True)):
        by_place.setdefault(_place(tables, lane, said), []).append(row)
    names = [tables.names[word] for word in words]
    devices = [
        _device(_rank(place, number), place, source, [(names[r], args[r]) for r in rows], (start[rows], end[rows]))
        for number, (place, rows) in enumerate(sorted(by_place.items(), key=_order))
    ]
    remarks = [f"{orphans:,} spans have a begin or an end only, and were left out"] if orphans else []
    return [device for device in devices if len(device)], remarks


def _spans(tables: Tables) -> tuple[NDArray[np.intp], Ints, list[ToldArgs], int]:
    """Rows where spans begin, their ends, their arguments (of the end, where only it has any), and unmatched events."""
    table = tables.columns["told"]
    phase, lane, word = table["phase"].tolist(), table["lane"].tolist(), table["word"].tolist()
    stops = table["end"].tolist()
    open_: dict[tuple[int, int], list[int]] = {}
    begin, end, args, orphans = [], [], [], 0
    for row, letter in enumerate(phase):
        if letter == ord("B"):
            open_.setdefault((lane[row], word[row]), []).append(row)
        elif letter == ord("X"):
            begin.append(row)
            end.append(stops[row])
            args.append(tables.told_args[row])
        elif opened := open_.get((lane[row], word[row])):
            first = opened.pop()
            begin.append(first)
            end.append(stops[row])
            args.append(_both(tables.told_args[first], tables.told_args[row]))
        else:
            orphans += 1
    orphans += sum(map(len, open_.values()))
    return np.array(begin, np.intp), np.array(end, np.int64), args, orphans


def _both(first: ToldArgs, second: ToldArgs) -> ToldArgs:
    """What either says; the end of a span knows more than its begin."""
    merged = {
        name: value if (value := getattr(second, name)) is not None else getattr(first, name)
        for name in ToldArgs.__struct_fields__
    }
    return ToldArgs(**merged)


def _place(tables: Tables, lane: int, args: ToldArgs) -> _Place:
    process = tables.lanes[lane][0]
    said = dict(_PLACE.findall(f"{tables.processes.get(process, '')} {tables.threads.get(lane, '')}"))
    position = args.pp_rank if args.pp_rank is not None else int(said.get("PP", UNKNOWN))
    replica = args.dp_rank if args.dp_rank is not None else int(said.get("DP", UNKNOWN))
    member = tuple(int(said.get(axis, 0)) for axis in ("TP", "CP", "EP"))
    return _Place(replica, position, member, "" if said.get("PP") else process)


def _order(item: tuple[_Place, list[int]]) -> tuple[str, int, int, tuple[int, ...]]:
    place = item[0]
    key = f"{place.process:09d}" if isinstance(place.process, int) else place.process
    return key, place.position, place.replica, place.member


def _rank(place: _Place, number: int) -> int:
    return place.process if isinstance(place.process, int) else number


def _device(
    rank: int, place: _Place, source: str, said: list[tuple[str, ToldArgs]], times: tuple[Ints, Ints]
) -> RankOps:
    start, end = times
    kinds = [told_kind(name) for name, _ in said]
    work = np.array([kind is not None for kind in kinds], np.bool_)
    moves = np.array([move_of(name) is not None for name, _ in said], np.bool_)

    def of(*names: str) -> Ints:
        values = [next((v for n in names if (v := getattr(args, n)) is not None), UNKNOWN) for _, args in said]
        return np.array(values, np.int64)

    step = of("iteration", "step")
    return RankOps(
        rank=rank,
        source=source,
        step=step[work],
        kind=np.array([kind for kind in kinds if kind is not None], np.uint8),
        start=start[work],
        end=end[work],
        chunk=column(of("model_chunk")[work].astype(np.int32)),
        unit=column(of("microbatch", "mb_id")[work].astype(np.int32)),
        position=None if place.position < 0 else place.position,
        replica=None if place.replica < 0 else place.replica,
        transfers=_transfers(said, moves, step, times) if moves.any() else None,
    )


def _transfers(
    said: list[tuple[str, ToldArgs]], moves: NDArray[np.bool_], step: Ints, times: tuple[Ints, Ints]
) -> Transfers:
    senses = [sense for name, _ in said if (sense := move_of(name)) is not None]
    return Transfers(
        step=step[moves],
        send=np.array([send for send, _ in senses], np.bool_),
        forward=np.array([forward for _, forward in senses], np.int8),
        peer=np.full(len(senses), UNKNOWN, np.int32),
        start=times[0][moves],
        end=times[1][moves],
    )
