"""Send or receive, where a trace has kernels alone: by which streams of two ranks end together, and who works first.

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
from numpy.typing import NDArray

from ...reconstruct.coincidence import crowd_of, most_together
from ...reconstruct.device_ops import Transfers
from ...reconstruct.matching import TOGETHER, match, only
from .undirected import NONE, Untold

_MOST = 0.9  # of the transfers of a stream must end with those of the other: a few may be lost
_COMPARED = 256  # transfers of a stream
_REMEDY = "(give the exports of all ranks at once, or record NVTX ranges: NCCL names its sends and receives in them)"


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """The transfers of one stream of one rank.

    Args:
        owner: index of the rank.
        rows: of its transfers, by their ends.
        moves: the first of them.
    """

    owner: int
    rows: NDArray[np.intp]
    moves: Transfers


def with_senses(ranks: Sequence[Untold]) -> tuple[list[Untold], dict[int, str]]:
    """The work of each rank with all transfers known as sends or receives, and why not, a clause by a rank's index."""
    streams = [stream for i, one in enumerate(ranks) for stream in _streams(i, one)]
    partner = _partners(streams)
    send = [work.transfers.send.copy() for work in ranks]
    faults: dict[int, str] = {}
    hops: defaultdict[tuple[int, int], list[tuple[_Stream, _Stream]]] = defaultdict(list)
    for a, stream in enumerate(streams):
        if a not in partner:
            faults[stream.owner] = f"a stream of its transfers ends with that of no rank here, or of several {_REMEDY}"
        elif a < partner[a]:
            hops[stream.owner, streams[partner[a]].owner].append((stream, streams[partner[a]]))
    for both, ways in hops.items():
        upper, lower = sorted(both, key=lambda i: int(ranks[i].start.min()))
        if fault := _unclear(ways, int(ranks[lower].start.min())):
            faults |= dict.fromkeys(both, f"{fault} {_REMEDY}")
            continue
        for down, way in zip((True, False), sorted(ways, key=_begin), strict=True):
            for stream in way:
                send[stream.owner][stream.rows] = down == (stream.owner == upper)
    return [
        replace(work, transfers=replace(work.transfers, send=sends)) for work, sends in zip(ranks, send, strict=True)
    ], faults


def _streams(owner: int, work: Untold) -> list[_Stream]:
    found = []
    for stream in np.unique(work.stream[work.stream != NONE]).tolist():
        rows = np.flatnonzero(work.stream == stream)
        rows = rows[np.argsort(work.transfers.end[rows], kind="stable")]
        found.append(_Stream(owner, rows, only(work.transfers, rows[:_COMPARED])))
    return found


def _partners(streams: Sequence[_Stream]) -> dict[int, int]:
    """The stream that ends together with each, by index, where two are each other's only one."""
    near: list[list[int]] = [[] for _ in streams]
    crowd = crowd_of([stream.moves.end for stream in streams])
    for a, one in enumerate(streams):
        most = most_together([(one.moves.end, crowd)], TOGETHER)[:a]
        for b in np.flatnonzero(most >= _MOST * len(one.moves)).tolist():
            if one.owner != streams[b].owner and _together(one.moves, streams[b].moves):
                near[a].append(b)
                near[b].append(a)
    return {a: found[0] for a, found in enumerate(near) if len(found) == 1 and near[found[0]] == [a]}


def _together(one: Transfers, other: Transfers) -> bool:
    if min(len(one), len(other)) < _MOST * max(len(one), len(other)):
        return False
    found = match(one, other, TOGETHER)
    return min(float(found.mine.mean()), float(found.theirs.mean())) >= _MOST


def _begin(way: tuple[_Stream, _Stream]) -> int:
    return int(way[0].moves.end[0])


def _unclear(ways: Sequence[tuple[_Stream, _Stream]], begun: int) -> str:
    """Why it is not certain which of the ways between two ranks leads down, or an empty string.

    Args:
        ways: between two ranks, two streams each.
        begun: when the lower of them begins to work, nanoseconds.
    """
    if len(ways) != 2:
        return "the sends and receives of two ranks share one stream, or use more than two"
    down, up = (way[0].moves.end for way in sorted(ways, key=_begin))
    order = np.argsort(np.concatenate([down, up]), kind="stable")[:_COMPARED]  # behind that, one may be cut off
    flight = np.cumsum(np.where(order < len(down), 1, -1))
    if begun < down[0] - TOGETHER or (flight < 0).any():
        return "the trace begins in the middle of a step, so its first transfer may be no forward's"
    return ""
