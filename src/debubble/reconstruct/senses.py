"""Send or receive, if a trace has kernels alone: by which streams of two ranks end together, and who works first.

    rank p       work  s            r  work        what goes down a hop has one stream at either side,
    rank p + 1         r  work work s              what comes back has two others

Of two neighbours the one that works first is nearer to the beginning of the pipeline, and of the two ways between them
the one that is used first leads down: nothing can come back before something went.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.op import Kind
from .device_ops import UNKNOWN, UNTOLD, Ints, Mask, RankOps, Transfers
from .pairing import TOGETHER, nearest

_MOST = 0.9  # of the transfers of a stream must end with those of the other: a few may be lost
_COMPARED = 256  # transfers of a stream
_REMEDY = "(give the exports of all ranks at once, or record NVTX ranges: NCCL names its sends and receives in them)"


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """The transfers of one stream of one rank.

    Args:
        owner: index of the device.
        rows: of its transfers, by their ends.
        end: when the first of them ended, int64[at most _COMPARED], nanoseconds.
    """

    owner: int
    rows: Ints
    end: Ints


def with_senses(devices: Sequence[RankOps]) -> tuple[tuple[RankOps, ...], list[str]]:
    """The devices with all transfers known as sends or receives, and why others were left out, a sentence each."""
    unsure = {i: move for i, device in enumerate(devices) if (move := device.transfers) is not None if _either(move)}
    if not unsure:
        return tuple(devices), []
    streams = [stream for i, moves in unsure.items() for stream in _streams(i, moves)]
    partner = _partners(streams)
    send = {i: moves.send.copy() for i, moves in unsure.items()}
    faults: dict[int, str] = {}
    hops: defaultdict[tuple[int, int], list[tuple[_Stream, _Stream]]] = defaultdict(list)
    for a, stream in enumerate(streams):
        if a not in partner:
            faults[stream.owner] = f"a stream of its transfers ends with that of no rank here, or of several {_REMEDY}"
        elif a < partner[a]:
            hops[stream.owner, streams[partner[a]].owner].append((stream, streams[partner[a]]))
    for both, ways in hops.items():
        upper, lower = sorted(both, key=lambda i: int(devices[i].start.min()))
        if fault := _unclear(ways, int(devices[lower].start.min())):
            faults |= dict.fromkeys(both, f"{fault} {_REMEDY}")
            continue
        for down, way in zip((True, False), sorted(ways, key=_begin), strict=True):
            for stream in way:
                send[stream.owner][stream.rows] = down == (stream.owner == upper)
    told = [_sensed(device, send[i]) if i in send else device for i, device in enumerate(devices)]
    remarks = [f"rank {devices[i].rank}: {fault}; it was left out" for i, fault in sorted(faults.items())]
    return tuple(device for i, device in enumerate(told) if i not in faults), remarks


def _sensed(device: RankOps, send: Mask) -> RankOps:
    """The device with known senses; what turned out to be a receive belongs to the op after it, not to that before."""
    moves = device.transfers
    if moves is None or moves.stream is None or moves.op is None:
        return device if moves is None else replace(device, transfers=replace(moves, send=send, stream=None))
    after = np.where(moves.op + 1 < len(device), moves.op + 1, UNKNOWN)
    op = np.where(send | (moves.stream == UNKNOWN), moves.op, after)
    kind = device.kind[op]
    forward = np.where((op < 0) | (kind == UNTOLD), UNKNOWN, kind == Kind.F).astype(np.int8)
    return replace(device, transfers=replace(moves, send=send, op=op, forward=forward, stream=None))


def _either(moves: Transfers) -> bool:
    return moves.stream is not None and bool((moves.stream != UNKNOWN).any())


def _streams(owner: int, moves: Transfers) -> list[_Stream]:
    number = np.full(len(moves), UNKNOWN) if moves.stream is None else moves.stream
    found = []
    for stream in np.unique(number[number != UNKNOWN]).tolist():
        rows = np.flatnonzero(number == stream)
        rows = rows[np.argsort(moves.end[rows], kind="stable")]
        found.append(_Stream(owner, rows, moves.end[rows[:_COMPARED]]))
    return found


def _partners(streams: Sequence[_Stream]) -> dict[int, int]:
    """The stream that ends together with each, by index, if two are each other's only one."""
    near: list[list[int]] = [[] for _ in streams]
    for b, other in enumerate(streams):
        for a, one in enumerate(streams[:b]):
            if one.owner != other.owner and _together(one.end, other.end):
                near[a].append(b)
                near[b].append(a)
    return {a: found[0] for a, found in enumerate(near) if len(found) == 1 and near[found[0]] == [a]}


def _together(one: Ints, other: Ints) -> bool:
    if min(len(one), len(other)) < _MOST * max(len(one), len(other)):
        return False
    zero = one[0]
    rows, _ = nearest((one - zero).astype(float), (other - zero).astype(float), TOGETHER)
    return len(rows) >= _MOST * max(len(one), len(other))


def _begin(way: tuple[_Stream, _Stream]) -> int:
    return int(way[0].end[0])


def _unclear(ways: Sequence[tuple[_Stream, _Stream]], begun: int) -> str:
    """Why it is not certain which of the ways between two ranks leads down, or an empty string.

    Args:
        ways: between two ranks, two streams each.
        begun: when the lower of them begins to work, nanoseconds.
    """
    if len(ways) != 2:
        return "the sends and receives of two ranks share one stream, or use more than two"
    down, up = (way[0].end for way in sorted(ways, key=_begin))
    order = np.argsort(np.concatenate([down, up]), kind="stable")[:_COMPARED]  # after that, one may be cut off
    flight = np.cumsum(np.where(order < len(down), 1, -1))
    if begun < down[0] - TOGETHER or (flight < 0).any():
        return "the trace begins in the middle of a step, so its first transfer may be no forward's"
    return ""
