"""Late starts and exposed hops of one window: between which ranks, and before which op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.needs import NOTHING, needs_of
from ...core.op import Kind
from ...core.timeline import Timeline
from ..measured_costs import hops, lane_free


@dataclass(frozen=True, slots=True)
class Hop:
    """One way between two ranks.

    Args:
        sender: rank whose op made the input.
        receiver: rank whose op needs it.
        forward: whether activations travel, or gradients.
        ops: how many of the receiver's ops wait for it.
        usual_ns: from the end of the input to the start of the op, the median, nanoseconds.
        row: the op that waited longest, in the schedule's numbering.
    """

    sender: int
    receiver: int
    forward: bool
    ops: int
    usual_ns: int
    row: int


@dataclass(frozen=True, slots=True)
class Late:
    """A rank whose ops start late though its lane is free and its inputs are there.

    Args:
        rank: position in the pipeline.
        late_ns: over the whole window, nanoseconds.
        row: the latest op, in the schedule's numbering.
        row_ns: how late it was.
    """

    rank: int
    late_ns: int
    row: int
    row_ns: int


def dearest_hop(timeline: Timeline) -> Hop | None:
    """The way between two ranks whose delays add up to most; None where there is none."""
    schedule = timeline.program.schedule
    need = needs_of(schedule)[0]
    rows = np.flatnonzero(need != NOTHING)
    delay = hops(timeline)[rows]
    if not delay.any():
        return None
    rank = schedule.rank_of()
    forward = schedule.kind[rows] == Kind.F
    way = (rank[need[rows]].astype(np.int64) * schedule.ranks + rank[rows]) * 2 + forward
    ways, index = np.unique(way, return_inverse=True)
    best = int(np.bincount(index, delay).argmax())
    mine = index == best
    pair, ahead = divmod(int(ways[best]), 2)
    longest = int(rows[mine][delay[mine].argmax()])
    usual = round(float(np.median(delay[mine])))
    return Hop(*divmod(pair, schedule.ranks), bool(ahead), int(mine.sum()), usual, longest)


def latest_rank(timeline: Timeline) -> Late | None:
    """The rank that loses most to late starts; None where no op starts late."""
    schedule = timeline.program.schedule
    late = lateness(timeline)
    if not late.any():
        return None
    by_rank = np.bincount(schedule.rank_of(), late, schedule.ranks)
    rank = int(by_rank.argmax())
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    row = rows.start + int(late[rows].argmax())
    return Late(rank, int(by_rank[rank]), row, int(late[row]))


def lateness(timeline: Timeline) -> NDArray[np.int64]:
    """How long after its lane was free and its inputs had come each op started, int64[ops], nanoseconds.

    The first op of a rank without an input from elsewhere is late by nothing: nothing says when it could have started.
    """
    schedule = timeline.program.schedule
    start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
    need = needs_of(schedule)[0]
    come = np.where(need != NOTHING, end[need] + hops(timeline), np.iinfo(np.int64).min // 2)
    could = np.maximum(lane_free(schedule, end), come)
    known = could > np.iinfo(np.int64).min // 4
    late: NDArray[np.int64] = np.maximum(np.where(known, start - could, 0), 0)
    return late
