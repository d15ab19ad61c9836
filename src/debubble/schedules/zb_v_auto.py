"""ZB-V for any costs: two chunks a rank, laid out as a V, and every op placed by the clock, under a memory cap.

Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241 (ZB-V); details as in
sail-sg/zero-bubble-pipeline-parallelism, tag zero-bubble-v0.1.0.

Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1); in front of the letter stands the chunk. now: when a rank is
free. idle: its idle time since its first op. approved: its idle time in the run before, at first 0. slack of a rank:
the most that any rank has idled or, if that is more, has been approved beyond this rank; less its own idle time.
W, always the oldest, come before an F or I of step (3):

    (a) before an F that would break the cap, until it fits
    (b) those that end before the input comes
    (c) one more where the gap is longer than the slack: before 0I always, before 1I and before F by a switch each

Steps:
    (1) one 0F on every rank; then for r = p-1 down to 0: while r has room for 2(r+1) more chunks and another 0F would
        end before the input of its 1F comes (two in any case on ranks before the last: uneven stages could leave
        step (2) without inputs), one more 0F on ranks 0 to r; then 1F on r
    (2) for r = 1 to p-1: while r has fewer F than r-1, or no more 1F: one F on ranks p-1 down to r, of the chunks in
        turn
    (3) 2m rounds of one I and one F a rank. I: 0I if fewer 0I than 1I are done and its input is there; else 1I.
        F: 0F if no fewer 1F than 0F are done; else 1F if its input is there; else 0F if its input is there; else none
    (4) flush W

Each setting of the two switches runs again, with the idle times found as approved ones, until the longest falls no
more; the setting with the shortest span wins.

p = 3, m = 5, F = I = W, cap p; small letters are chunk 1:

    rank 0  F0 F1 F2 F3 F4 f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1 f4 i4 I2 w4 I3 W2 I4 W3 W4  .  .
    rank 1   . F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 F4 I0 W0 f3 i2 w2 I1 W1 f4 i3 I2 i4 I3 w3 I4 W2 w4 W3 W4  .
    rank 2   .  . F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 F4 I1 W1 f4 i2 I2 i3 I3 i4 I4 w2 W2 w3 W3 w4 W4
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..core.costs import Costs, Rates
from ..core.errors import Fault, InputError
from ..core.schedule import Kind, Release, Schedule, Shape, v_placement
from .entry import USUAL, Cap, Entry, caps_of, check, op_by_op
from .heuristic import Ranks, Stuck, Task, best_run, task_of
from .rows import v_shaped

_MOST_CELLS = 200_000
_DEFAULT = Rates()


@dataclass(frozen=True, slots=True)
class _Setting:
    """Where W may fill a gap that is not whole."""

    before_1i: bool
    before_f: bool


def zb_v_auto(
    shape: Shape, speed: Rates | Costs = _DEFAULT, *, cap: Cap = USUAL, release: Release = Release.HALF
) -> Schedule:
    """The ZB-V that the heuristic finds for these costs, for any p and m.

    Args:
        shape: of the pipeline, two chunks a rank.
        speed: how long F, I, W and a transfer take.
        cap: micro-batches that each rank may hold.
        release: when activations are freed, by which the cap is judged.

    Raises:
        InputError: chunks other than 2, more ops than can be placed in a minute, or a cap below what the steps need,
            with the least that will do.
    """
    check("zb-v-auto", shape, op_by_op("zb-v-auto", shape, _MOST_CELLS), chunks=2)
    caps = caps_of(cap, shape.ranks)
    task = task_of(shape, v_placement(shape.ranks), speed, caps, release)
    ranks = _search(task)
    if ranks is None:
        raise InputError(_too_small(cap, task))
    return v_shaped("zb-v-auto", shape, ranks.order())


ENTRY = Entry(
    name="zb-v-auto",
    build=zb_v_auto,
    search=zb_v_auto,
    paper="arXiv:2401.10241",
    placement="V",
    chunks=2,
    needs="v = 2; cap >= p",
    splits=True,
    bubble="(p-1)F/2",
    bubble_holds="cap = p, F = I = W, m >= p",
    activations="min(p, m)",
)


def _search(task: Task) -> Ranks | None:
    """The best run of all settings, or None where the caps leave no room for any."""

    def run(on: _Setting, _: float) -> tuple[Ranks | None, set[str]]:
        # A run of this setting approves the idle times of its next one: none is given up for its span.
        mattered = set[str]()
        return _settled(task, on, mattered), mattered

    return best_run((_Setting(*on) for on in product((True, False), repeat=2)), run)


def _settled(task: Task, on: _Setting, mattered: set[str]) -> Ranks | None:
    """The best run of one setting: approved idle times are those of the run before, as long as that helps."""
    best = None
    approved = [0] * task.shape.ranks
    while True:
        limit = math.inf if best is None else max(best.idle)
        try:
            ranks = _attempt(task, on, approved, limit, mattered)
        except Stuck:
            return best
        best, approved = ranks, ranks.idle


def _attempt(task: Task, on: _Setting, approved: Sequence[int], limit: float, mattered: set[str]) -> Ranks:
    """One run.

    Raises:
        Stuck: the caps leave no room, or a rank idles as long as the limit or longer.
    """
    ranks = Ranks(task)
    p, m = task.shape.ranks, task.shape.microbatches
    ahead = [max(approved) - mine for mine in approved]
    _fill(ranks)
    _align(ranks)
    decide = _Decisions(ranks, on, ahead, mattered)
    for _ in range(2 * m):  # (3)
        if max(ranks.idle) >= limit:
            raise Stuck("it idles as long as what there is")
        back = [_wants_0i(ranks, rank) for rank in range(p)]
        zero = [rank for rank in reversed(range(p)) if back[rank]]
        one = [2 * p - 1 - rank for rank in range(p) if not back[rank]]
        for stage in zero + one:
            decide.place(Kind.I, stage)
        for rank in range(p):
            if (next_f := _next_f(ranks, rank)) is not None:
                decide.place(Kind.F, next_f)
    if max(ranks.idle) >= limit:
        raise Stuck("it idles as long as what there is")
    for rank in range(p):  # (4)
        ranks.flush(rank)
    return ranks


def _fill(ranks: Ranks) -> None:
    """(1)."""
    task = ranks.task
    p, m = task.shape.ranks, task.shape.microbatches
    for rank in range(p):
        _place_f(ranks, rank)
    for rank in reversed(range(p)):
        last = 2 * p - 1 - rank
        arrival = ranks.arrival(Kind.F, last)
        due = 2 if rank < p - 1 else 0
        while (
            ranks.done(Kind.F, rank) < m
            and ranks.held[rank] + 2 * (rank + 1) * task.frees[Kind.F] <= task.caps[rank]
            and (due > 0 or ranks.now[rank] + task.spent[Kind.F][rank] <= arrival)
        ):
            due -= 1
            for stage in range(rank + 1):
                _place_f(ranks, stage)
        _place_f(ranks, last)


def _align(ranks: Ranks) -> None:
    """(2)."""
    chunk = 0
    for rank in range(1, ranks.task.shape.ranks):
        while _lags(ranks, rank):
            _place_behind(ranks, rank, chunk)
            chunk = 1 - chunk


def _place_behind(ranks: Ranks, first: int, chunk: int) -> None:
    """One F of a chunk on each rank from this one on, the last rank first, where any is left."""
    p, m = ranks.task.shape.ranks, ranks.task.shape.microbatches
    for rank in reversed(range(first, p)):
        stage = 2 * p - 1 - rank if chunk else rank
        if ranks.done(Kind.F, stage) < m:
            _place_f(ranks, stage)


def _lags(ranks: Ranks, rank: int) -> bool:
    """Whether a rank has fewer F than the one before it, or no more 1F (and that one not all of them)."""
    p, m = ranks.task.shape.ranks, ranks.task.shape.microbatches
    zero, one = ranks.done(Kind.F, rank), ranks.done(Kind.F, 2 * p - 1 - rank)
    zero_before, one_before = ranks.done(Kind.F, rank - 1), ranks.done(Kind.F, 2 * p - rank)
    return zero + one < zero_before + one_before or one <= one_before < m


def _wants_0i(ranks: Ranks, rank: int) -> bool:
    p, m = ranks.task.shape.ranks, ranks.task.shape.microbatches
    one = ranks.done(Kind.I, 2 * p - 1 - rank)
    return ranks.done(Kind.I, rank) < one and (one == m or ranks.ready(Kind.I, rank))


def _next_f(ranks: Ranks, rank: int) -> int | None:
    """The stage whose F a rank runs next, or None."""
    p, m = ranks.task.shape.ranks, ranks.task.shape.microbatches
    last = 2 * p - 1 - rank
    zero, one = ranks.done(Kind.F, rank), ranks.done(Kind.F, last)
    if one < zero and ranks.ready(Kind.F, last):
        return last
    if zero < m and (one >= zero or ranks.ready(Kind.F, rank)):
        return rank
    return None


def _place_f(ranks: Ranks, stage: int) -> None:
    """An F before the first I."""
    ranks.make_room(ranks.task.home[stage])
    ranks.run(Kind.F, stage, ranks.arrival(Kind.F, stage))


class _Decisions:
    """Placing ops of step (3) by one setting.

    Args:
        ranks: where they are placed.
        on: the switches.
        ahead: how much less idle time than the most has been approved of each rank.
        mattered: takes the names of switches that decided something.
    """

    def __init__(self, ranks: Ranks, on: _Setting, ahead: Sequence[int], mattered: set[str]) -> None:
        self.ranks, self.ahead, self.mattered = ranks, ahead, mattered
        self._switch = [("before_f", on.before_f), ("before_1i", on.before_1i)]  # by kind; 0I has none

    def place(self, kind: Kind, stage: int) -> None:
        """An op, behind the W that its gap has room for."""
        ranks = self.ranks
        rank = ranks.task.home[stage]
        arrival = ranks.arrival(kind, stage)
        if kind == Kind.F:
            ranks.make_room(rank)  # (a)
        if ranks.waiting[rank] and ranks.now[rank] <= arrival:
            ranks.fill_gap(rank, arrival)  # (b)
            gap = arrival - ranks.now[rank]
            if gap > 0 and ranks.waiting[rank] and gap > self._slack(rank) and self._may(kind, stage):  # (c)
                ranks.run_w(rank)
        ranks.run(kind, stage, arrival)

    def _may(self, kind: Kind, stage: int) -> bool:
        """Whether W may fill a gap that is not whole: before 0I always."""
        if kind == Kind.I and stage < self.ranks.task.shape.ranks:
            return True
        name, value = self._switch[kind]
        self.mattered.add(name)
        return value

    def _slack(self, rank: int) -> int:
        idle = self.ranks.idle
        return max(max(idle), self.ahead[rank]) - idle[rank]


def _too_small(cap: Cap, task: Task) -> Fault:
    """The fault of caps that leave no room, with the least one for all ranks alike that does."""
    chunks = 1
    while _search(replace(task, caps=[2 * chunks] * task.shape.ranks)) is None:
        chunks += 1
    return Fault(
        f"cap = {cap}",
        f"zb-v-auto fills the pipeline with {chunks / 2:g} micro-batches on a rank before the first gradient",
        f"give {chunks / 2:g} or more, or take v-half or v-min, which hold less",
    )
