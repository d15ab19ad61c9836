"""The account of a timeline: where every nanosecond of every rank went, and the three numbers called bubble.

On each rank:  compute + warm_up + waiting + transfer + cool_down == window, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .engine import Occupies
from .laws import needs_of
from .program import Timeline
from .results import Pictured
from .units import MILLISECOND

PARTS = ("compute", "warm_up", "waiting", "transfer", "cool_down")


@dataclass(frozen=True, slots=True, eq=False)
class Account(Pictured):
    """Where time went, per rank, in nanoseconds.

    Args:
        window: from the first op of any rank to the last end of any rank.
        compute: F, I, W and B work, int64[ranks]; an overlapped pair counts once.
        warm_up: from the start of the window to the rank's own first op (or transfer that occupies it).
        waiting: gaps in which it was not on its way yet, or the host was late.
        transfer: gaps in which what the rank waited for was on its way, and time that transfers take up.
        cool_down: from the rank's own last op (or transfer that occupies it) to the end of the window.
        evidence: of the timeline.
    """

    window: int
    compute: NDArray[np.int64]
    warm_up: NDArray[np.int64]
    waiting: NDArray[np.int64]
    transfer: NDArray[np.int64]
    cool_down: NDArray[np.int64]
    evidence: str

    @property
    def idle_share(self) -> float:
        """Idle over ranks x window: (p-1)/(m+p-1) for even GPipe and 1F1B; 1 where nothing is any work."""
        whole = self.window * len(self.compute)
        if not whole:
            return 1.0
        return 1 - int(self.compute.sum()) / whole

    @property
    def bubble_ratio(self) -> float:
        """Idle over busy: (p-1)/m for even GPipe and 1F1B (Megatron-LM's convention); infinite without any work."""
        busy = int(self.compute.sum())
        if not busy:
            return float("inf")
        return (self.window * len(self.compute) - busy) / busy

    @property
    def span_idle_share(self) -> float:
        """Idle of the longest rank between its own first and last op: true only where no barrier ends the step.

        Zero-bubble papers print this one (https://arxiv.org/abs/2401.10241, section 5.3).
        """
        span = self.window - self.warm_up - self.cool_down
        longest = int(span.argmax())
        if not span[longest]:
            return 1.0
        return 1 - int(self.compute[longest]) / int(span[longest])


def account(timeline: Timeline) -> Account:
    """Split each rank's window into compute, time taken up by transfers, and gaps.

    In a gap, time is ``transfer`` in which what the rank waits for was on its way: under an engine from the moment at
    which both sides have come to it, under ``ideal`` and over links from the end of its producer. All other time is
    ``waiting``, that for an engine's lanes and batches too. Where a transfer occupies a rank (blocking sends,
    rendezvous), that time is ``transfer``, and the rank's own time begins and ends with it as with an op.
    """
    turns, offsets = _turns(timeline)
    start, end = timeline.start[turns], timeline.end[turns]
    first, last = timeline.window
    full = np.diff(offsets) > 0
    opens = offsets[:-1][full]
    before = np.concatenate([end[:1], end[:-1]])  # end of what had its turn before on the same rank
    before[opens] = start[opens]
    begin = np.maximum(start, before)  # measured ops may overlap a little
    busy = end - begin
    gap = begin - before  # 0 at the first of a rank: what is in front of that is warm-up
    if _lasts(timeline):
        on_its_way = np.minimum(gap, _since_made(timeline)[turns])
    else:
        on_its_way = np.minimum(gap, _carried(timeline, before, begin))
    own_start, own_end = np.full((2, len(full)), last)  # a rank without ops only warms up
    own_start[full], own_end[full] = start[opens], end[offsets[1:][full] - 1]
    arriving = _per_rank(on_its_way, offsets)
    waiting = _per_rank(gap, offsets) - arriving
    if not isinstance(turns, slice):  # transfers have turns, too: their time is no work
        sending = turns >= len(timeline.program.schedule)
        arriving += _per_rank(np.where(sending, busy, 0), offsets)
        busy[sending] = 0
    return Account(
        window=last - first,
        compute=_per_rank(busy, offsets),
        warm_up=own_start - first,
        waiting=waiting,
        transfer=arriving,
        cool_down=last - own_end,
        evidence=timeline.evidence,
    )


def _turns(timeline: Timeline) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
    """What had its turn on each rank, in order: ops, and transfers that occupy a rank; offsets, int64[ranks + 1]."""
    program = timeline.program
    schedule, ops = program.schedule, len(program.schedule)
    if program.engine.occupies is Occupies.NOBODY or not len(program.producer):
        return slice(0, ops), schedule.offsets
    rank_of = schedule.rank_of()
    number = program.order[(program.order >= 0) & (program.order < len(program))].astype(np.int64)  # in turn everywhere
    lanes = [np.concatenate([rank_of, rank_of[program.producer]])[number]]
    if program.engine.occupies is Occupies.BOTH:  # an op has no second lane; it goes to the end and is cut off
        lanes.append(np.concatenate([np.full(ops, schedule.ranks), rank_of[program.consumer]])[number])
    rank = np.stack(lanes, axis=1).ravel()
    turns = np.repeat(number, len(lanes))[np.argsort(rank, kind="stable")]
    size = np.bincount(rank, minlength=schedule.ranks)[: schedule.ranks]
    return turns[: size.sum()], np.concatenate([[0], np.cumsum(size)])


def _lasts(timeline: Timeline) -> bool:
    """Whether all time from the making of an input to its use counts as its transfer: no receiver has to come to it."""
    program = timeline.program
    return not (len(program.producer) and program.engine.meets and program.engine.occupies is Occupies.NOBODY)


def _since_made(timeline: Timeline) -> NDArray[np.int64]:
    """How long before each start its last input had been made on another rank, int64[rows]; 0 without one.

    An input counts as made when its op ended, or, where a send has its turn on the rank, when that began.
    """
    program = timeline.program
    schedule, ops, nothing = program.schedule, len(program.schedule), np.iinfo(np.int64).min
    needs = needs_of(schedule)
    made = np.append(timeline.end[:ops], nothing)
    if program.engine.occupies is not Occupies.NOBODY and len(program.producer):
        made[program.producer] = timeline.start[ops:]
    latest = np.full(len(timeline.start), nothing)
    latest[:ops] = made[needs].max(axis=0)
    since: NDArray[np.int64] = np.maximum(timeline.start - np.where(latest == nothing, timeline.start, latest), 0)
    return since


def _carried(timeline: Timeline, opens: NDArray[np.int64], closes: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long, in the gap before each op, any transfer lasted that its rank waited for, int64[ops]."""
    program, ops = timeline.program, len(timeline.program.schedule)
    op = program.holds.ravel()
    start, end = np.tile(timeline.start[ops:], 2), np.tile(timeline.end[ops:], 2)
    start, end = np.maximum(start, opens[op]), np.minimum(end, closes[op])
    left = np.flatnonzero((op >= 0) & (end > start))
    left = left[np.lexsort((start[left], op[left]))]
    carried, until = np.zeros(ops, np.int64), opens.copy()
    while len(left):  # the first of each op, then the second, ..
        first = np.ones(len(left), np.bool_)
        first[1:] = op[left[1:]] != op[left[:-1]]
        now = left[first]
        carried[op[now]] += np.maximum(end[now] - np.maximum(start[now], until[op[now]]), 0)
        until[op[now]] = np.maximum(until[op[now]], end[now])
        left = left[~first]
    return carried


def _per_rank(spent: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros(len(offsets) - 1, np.int64)
    full = np.diff(offsets) > 0
    sums[full] = np.add.reduceat(spent, offsets[:-1][full])
    return sums


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank of a window.

    Args:
        rank: position in the pipeline.
        compute_ms: F, I, W and B work.
        warm_up_ms: before its first op.
        waiting_ms: gaps in which its input had not been made.
        transfer_ms: gaps in which its input was on its way, and transfers that take up the rank.
        cool_down_ms: after its last op.
        busy_share: work over the window.
        peak_activations: micro-batches of a rank that it holds at most.
    """

    rank: int
    compute_ms: float
    warm_up_ms: float
    waiting_ms: float
    transfer_ms: float
    cool_down_ms: float
    busy_share: float
    peak_activations: float


def rank_times(spent: Account, peak: NDArray[np.float64]) -> tuple[RankTime, ...]:
    """One line a rank.

    Args:
        spent: where the time of a window went.
        peak: activations that each rank holds at most, float64[ranks].
    """
    columns = [(getattr(spent, part) / MILLISECOND).tolist() for part in PARTS]
    busy = (spent.compute / max(spent.window, 1)).tolist()
    rows = zip(*columns, busy, peak.tolist(), strict=True)
    return tuple(RankTime(rank, *row) for rank, row in enumerate(rows))
