"""Ops whose spans say what they are, by name or arguments: MegaScan, ByteDance, SimuMax, Paddle, JAX and their kin.

One file holds many devices. A process is a device, with these exceptions:

* threads named after ranks are devices (ByteDance: process ``DP rank [1]``, thread ``PP rank 2, TP rank 0, compute``);
* of several lanes that each hold forwards and backwards, each is a device (Paddle: threads ``GPU0``, ``GPU1``, ..);
* lanes that hold only forwards or only backwards belong together (SimuMax: ``fwd_compute`` and ``bwd_compute``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.schedule import Kind
from ...reconstruct.device_ops import UNKNOWN, Ints, Mask, RankOps, Transfers
from ..op_names import OpName, read_name
from ..run_files import natural
from .ops import column
from .tables import Number, Tables, ToldArgs

_PLACE = re.compile(r"(PP|TP|DP|CP|EP) rank \[?(\d+)")
_NUMBERED = re.compile(r"(?:rank|gpu|device|worker|stage|pp)[\s:_#\[-]*(\d{1,9})", re.IGNORECASE)
_DIRECTION = re.compile(r"fwd|forward|bwd|backward|^\d+_", re.IGNORECASE)
_MOST = 1 << 31  # of a step, micro-batch, chunk or rank
_STEP, _UNIT = ("iteration", "step"), ("microbatch", "micro_batch", "microbatch_id", "mb_id", "mb")
_CHUNK, _STAGE = ("model_chunk", "chunk"), ("stage",)


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Spans of one file.

    Args:
        lane: of each, int64[spans].
        name: what its name says.
        args: its arguments.
        start: int64[spans], nanoseconds.
        end: int64[spans].
    """

    lane: Ints
    name: list[OpName]
    args: list[ToldArgs]
    start: Ints
    end: Ints

    def only(self, rows: Ints) -> _Spans:
        picked = rows.tolist()
        names, args = [self.name[row] for row in picked], [self.args[row] for row in picked]
        return _Spans(self.lane[rows], names, args, self.start[rows], self.end[rows])

    def number(self, names: Sequence[str]) -> Ints:
        """The first of some arguments that each span has, int64[spans]; -1 if it has none."""
        found = np.full(len(self.args), UNKNOWN, np.int64)
        for name in reversed(names):  # what comes first has the last word
            for row, args in enumerate(self.args):
                value = getattr(args, name)
                if value is not None:
                    found[row] = _whole(value)
        return found

    def said(self, name: str) -> Ints:
        """What the name of each span says: one of ``OpName``'s numbers, -1 for None, int64[spans]."""
        found = np.empty(len(self.name), np.int64)
        for row, each in enumerate(self.name):
            value = getattr(each, name)
            found[row] = UNKNOWN if value is None else value
        return found


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a span ran, as far as names and arguments say; ``owner`` is the process or lane that is its device."""

    owner: tuple[str, int]
    position: int
    replica: int
    member: tuple[int, ...]


def told(tables: Tables, source: str) -> tuple[list[RankOps], list[str]]:
    """The devices of one file whose spans say what they are, and what was left out."""
    spans, orphans = _spans(tables)
    owner = _owners(tables, spans)
    rows: defaultdict[_Place, list[int]] = defaultdict(list)
    for row, (lane, args) in enumerate(zip(spans.lane.tolist(), spans.args, strict=True)):
        rows[_place(tables, lane, owner[lane], args)].append(row)
    places = sorted(rows)
    lanes = {place: int(spans.lane[rows[place][0]]) for place in places}
    devices = []
    for rank, place in zip(_ranks(tables, places, lanes), places, strict=True):
        device = _device(rank, place, source, spans.only(np.array(rows[place])))
        if len(device):
            devices.append(device)
    remarks = []
    if orphans:
        remarks.append(f"{orphans:,} spans have a begin or an end only, and were left out")
    return devices, remarks


def _spans(tables: Tables) -> tuple[_Spans, int]:
    """The spans of a file, whose arguments may stand at their end alone; and the number of unmatched events."""
    table = tables.columns["told"]
    phase, lane, word = table["phase"].tolist(), table["lane"].tolist(), table["word"].tolist()
    stops = table["end"].tolist()
    open_: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    begin, end, args, orphans = [], [], [], 0
    # Spans of one lane and name nest: an end belongs to the last begin that is open.
    for row, letter in enumerate(phase):
        opened = open_[lane[row], word[row]]
        if letter == ord("B"):
            opened.append(row)
        elif letter == ord("X"):
            begin.append(row)
            end.append(stops[row])
            args.append(tables.told_args[row])
        elif opened:
            first = opened.pop()
            begin.append(first)
            end.append(stops[row])
            args.append(_both(tables.told_args[first], tables.told_args[row]))
        else:
            orphans += 1
    orphans += sum(map(len, open_.values()))
    rows = np.array(begin, np.int64)
    said = {number: read_name(tables.names[number]) for number in set(word)}  # few names, millions of spans
    names = [said[word[row]] for row in begin]
    start = table["start"][rows].astype(np.int64)
    return _Spans(table["lane"][rows].astype(np.int64), names, args, start, np.array(end, np.int64)), orphans


def _both(first: ToldArgs, second: ToldArgs) -> ToldArgs:
    """What either says; the end of a span knows more than its begin."""
    merged = {}
    for name in ToldArgs.__struct_fields__:
        value = getattr(second, name)
        merged[name] = getattr(first, name) if value is None else value
    return ToldArgs(**merged)


def _whole(value: Number) -> int:
    """A number that a tracer wrote as it liked; -1 if it is none, or beyond all bounds."""
    try:
        number = int(float(value or 0))
    except (ValueError, OverflowError):
        return UNKNOWN
    if value is None or not -1 <= number < _MOST:
        return UNKNOWN
    return number


# Which lanes are one device.


def _owners(tables: Tables, spans: _Spans) -> dict[int, tuple[str, int]]:
    """The process or lane that is the device of each lane."""
    forward: defaultdict[int, set[bool]] = defaultdict(set)
    for lane, name in zip(spans.lane.tolist(), spans.name, strict=True):
        ways = forward[lane]
        if name.kind is not None:
            ways.add(name.kind == Kind.F)
    lanes: defaultdict[str, list[int]] = defaultdict(list)
    for lane in forward:
        lanes[str(tables.lanes[lane][0])].append(lane)
    owner: dict[int, tuple[str, int]] = {}
    for process, some in lanes.items():
        owner |= dict.fromkeys(some, (process, -1))
        groups = _groups(tables, some, forward)
        if len(groups) > 1:
            for number, group in enumerate(groups):
                owner |= dict.fromkeys(group, (process, number))
    return owner


def _groups(tables: Tables, lanes: list[int], forward: dict[int, set[bool]]) -> list[list[int]]:
    """Lanes of one process that are one device: each that holds both ways, else those whose names differ in the way."""
    lanes = sorted(lanes, key=lambda lane: natural(str(tables.lanes[lane][1])))
    both = [[lane] for lane in lanes if len(forward[lane]) == 2]
    if both:
        return both
    named: defaultdict[str, list[int]] = defaultdict(list)
    for lane in lanes:
        named[_DIRECTION.sub("", str(tables.threads.get(lane, tables.lanes[lane][1])))].append(lane)
    for group in named.values():
        ways = set().union(*map(forward.__getitem__, group))
        if len(ways) < 2:
            return [lanes]
    return list(named.values())


def _place(tables: Tables, lane: int, owner: tuple[str, int], args: ToldArgs) -> _Place:
    process = tables.lanes[lane][0]
    said = dict(_PLACE.findall(f"{tables.processes.get(process, '')} {tables.threads.get(lane, '')}"))
    position, replica = _whole(args.pp_rank), _whole(args.dp_rank)
    if position < 0:
        position = int(said.get("PP", UNKNOWN))
    if replica < 0:
        replica = int(said.get("DP", UNKNOWN))
    if said.get("PP"):  # names say all of the place: what process it was makes no difference
        owner = ("", -1)
    member = tuple(int(said.get(axis, 0)) for axis in ("TP", "CP", "EP"))
    return _Place(owner, position, replica, member)


def _ranks(tables: Tables, places: Sequence[_Place], lanes: dict[_Place, int]) -> list[int]:
    """A rank for each device: its process number, else that in its name, if all have another one; else in order."""
    owners = [place.owner for place in places]
    # Only if a device is a process or a lane of its own do their names tell ranks apart.
    if len(set(owners)) == len(owners):
        if all(number == -1 and process.isdecimal() and int(process) < _MOST for process, number in owners):
            return [int(process) for process, _ in owners]
        numbers = []
        for place in places:
            if (match := _NUMBERED.search(_title(tables, lanes[place], place.owner))) is not None:
                numbers.append(int(match[1]))
        if len(set(numbers)) == len(places):
            return numbers
    order = sorted(range(len(places)), key=lambda i: (natural(owners[i][0]), owners[i][1], places[i]))
    ranks = np.empty(len(places), np.int64)
    ranks[order] = np.arange(len(places))
    return ranks.tolist()


def _title(tables: Tables, lane: int, owner: tuple[str, int]) -> str:
    """What a device is called: its lane if that is one, else its process."""
    process, thread = tables.lanes[lane]
    if owner[1] >= 0:
        return f"{tables.threads.get(lane, '')} {thread}"
    return f"{tables.processes.get(process, '')} {process}"


# What a device did.


def _device(rank: int, place: _Place, source: str, spans: _Spans) -> RankOps:
    kinds = spans.said("kind")
    moves = (spans.said("transfers") > 0) & (spans.said("send") >= 0)
    step = spans.number(_STEP)
    # A tracer that times forward_step also times the forward that it calls: the outer one is the op.
    ops = np.flatnonzero((kinds >= 0) & ~_inside(kinds, spans.start, spans.end))
    work = spans.only(ops)

    def known(arguments: Sequence[str], name: str) -> NDArray[np.int32] | None:
        by_argument = work.number(arguments)
        values = np.where(by_argument >= 0, by_argument, work.said(name))
        return column(values.astype(np.int32))

    transfers = None
    if moves.any():
        transfers = _transfers(spans.only(np.flatnonzero(moves)), step[moves])
    return RankOps(
        rank=rank,
        source=source,
        step=step[ops],
        kind=kinds[ops].astype(np.uint8),
        start=work.start,
        end=work.end,
        stage=known(_STAGE, "stage"),
        chunk=known(_CHUNK, "chunk"),
        unit=known(_UNIT, "unit"),
        position=None if place.position < 0 else place.position,
        replica=None if place.replica < 0 else place.replica,
        transfers=transfers,
    )


def _inside(kinds: Ints, start: Ints, end: Ints) -> Mask:
    """Whether each span lies inside another one of its kind: tracers time what they call, and what that calls."""
    within = np.zeros(len(kinds), np.bool_)
    for kind in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == kind)
        # Of two that begin together the longer comes first, so that the shorter one lies inside.
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        reached = np.maximum.accumulate(end[rows])
        within[rows[1:]] = end[rows[1:]] <= reached[:-1]
    return within


def _transfers(spans: _Spans, step: Ints) -> Transfers:
    order = np.argsort(spans.start, kind="stable")
    spans, step = spans.only(order), step[order]
    return Transfers(
        step=step,
        send=spans.said("send") > 0,
        forward=spans.said("forward").astype(np.int8),
        peer=spans.number(("peer",)).astype(np.int32),
        start=spans.start,
        end=spans.end,
    )
