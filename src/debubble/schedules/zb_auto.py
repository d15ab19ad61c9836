"""ZB-1p, ZB-2p and every cap between and below: F, I and W placed one by one, by the clock, under a memory cap.

Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 3.1; details as in
sail-sg/zero-bubble-pipeline-parallelism, tag zero-bubble-v0.1.0.

now: when a rank is free. idle: its idle time since its first F. slack of a rank: the most that any rank has idled,
less its own. Three switches, 8 settings; all are tried, and the first with the shortest span wins. To *place* an op:

    (a) an F that would break the cap: W, until it fits
    (b) W that end before the input comes
    (c) if the input is still to come, one more W where the gap is longer than the slack, or with the switch `fill`
    (d) before an I, rank 0 flushes its W once it has no F left
    (e) the op

Steps:
    (1) warm-up: one F on every rank; then further F, counted from the last rank up, as long as they end (without the
        switch `gap`: begin) before the first I can arrive and fit under the cap, and fewer on each rank than on the
        one before it; then the first I on ranks p-1 down to 0
    (2) m-1 rounds: one F on the ranks that want one, then one I on each rank; a rank wants an F if the next one does,
        but with the switch `input first` not if it is 2 ahead and would keep the gradient of the next rank waiting
        for longer than its slack
    (3) flush W

p = 3, m = 5, F = I = W, cap 2p:

    rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4  .  .
    rank 1   . F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4  .
    rank 2   .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from ..core.costs import Costs, Rates
from ..core.errors import Fault, InputError
from ..core.schedule import Kind, Release, Schedule, Shape, loop_placement
from .entry import USUAL, Cap, Entry, caps_of, check, op_by_op
from .heuristic import Ranks, Stuck, Task, best_run, task_of
from .rows import linear

_MOST_CELLS = 1_000_000
_DEFAULT = Rates()


@dataclass(frozen=True, slots=True)
class _Switches:
    """One of the 8 settings; the first of equals wins, so the order of the fields and of their values counts."""

    gap: bool
    input_first: bool
    fill: bool


def zb_auto(
    shape: Shape, speed: Rates | Costs = _DEFAULT, *, cap: Cap = USUAL, release: Release = Release.HALF
) -> Schedule:
    """The zero-bubble schedule that the heuristic finds for these costs, for any p and m.

    Args:
        shape: of the pipeline, one chunk a rank.
        speed: how long F, I, W and a transfer take.
        cap: micro-batches that each rank may hold: ``1p`` gives ZB-1p, ``2p`` ZB-2p; at least 1.
        release: when activations are freed, by which the cap is judged.

    Raises:
        InputError: more than one chunk a rank, a cap below 1, or more ops than can be placed in a minute.
    """
    check("zb-auto", shape, op_by_op("zb-auto", shape, _MOST_CELLS))
    caps = caps_of(cap, shape.ranks)
    if min(caps) < 1:
        rule = "a rank that runs an F holds a micro-batch, so the least cap is 1"
        raise InputError(Fault(f"cap = {min(caps):g}", rule, "give 1 or more"))
    task = task_of(shape, loop_placement(shape.ranks, 1), speed, caps, release)
    return linear("zb-auto", shape, _search(task).order())


ENTRY = Entry(
    name="zb-auto",
    build=zb_auto,
    search=zb_auto,
    other_names=("ZB-1p",),
    paper="arXiv:2401.10241",
    placement="linear",
    needs="cap >= 1",
    splits=True,
    bubble="(p-1)(F+I-W)",
    bubble_holds="cap = p, W <= F <= I, m >= p",
    activations="min(p, m)",
)


def _search(task: Task) -> Ranks:
    """The first attempt of those with the shortest span; only what may be shorter is run to its end."""
    best = best_run((_Switches(*on) for on in product((True, False), repeat=3)), partial(_attempt, task))
    if best is None:
        raise Stuck("there is no setting")
    return best


def _attempt(task: Task, on: _Switches, shorter_than: float = math.inf) -> tuple[Ranks, set[str]]:
    """One setting, and the switches that decided anything; given up once it is not shorter than that."""
    ranks, mattered = Ranks(task), set[str]()
    p, m = task.shape.ranks, task.shape.microbatches
    for rank in range(p):  # (1)
        _place(ranks, Kind.F, rank, on, mattered)
    counts = _warm_up(ranks, on)
    if counts != _warm_up(ranks, replace(on, gap=not on.gap)):
        mattered.add("gap")
    for rank, count in enumerate(counts):
        for _ in range(count):
            _place(ranks, Kind.F, rank, on, mattered)
    for rank in reversed(range(p)):
        _place(ranks, Kind.I, rank, on, mattered)
    for _ in range(m - 1):  # (2)
        if ranks.least_span() >= shorter_than:
            return ranks, mattered
        for rank in _ranks_that_forward(ranks, on, mattered):
            _place(ranks, Kind.F, rank, on, mattered)
        for rank in reversed(range(p)):
            _place(ranks, Kind.I, rank, on, mattered)
    for rank in range(p):  # (3)
        ranks.flush(rank)
    return ranks, mattered


def _place(ranks: Ranks, kind: Kind, rank: int, on: _Switches, mattered: set[str]) -> None:
    arrival = ranks.arrival(kind, rank)
    if kind == Kind.F:
        ranks.make_room(rank)  # (a)
    if ranks.waiting[rank] and ranks.now[rank] <= arrival:
        ranks.fill_gap(rank, arrival)  # (b)
        gap = arrival - ranks.now[rank]
        if gap > 0 and ranks.waiting[rank]:  # (c)
            long = gap > _slack(ranks, rank)
            if not long:
                mattered.add("fill")
            if long or on.fill:
                ranks.run_w(rank)
    if kind == Kind.I and rank == 0 and ranks.done(Kind.F, 0) == ranks.task.shape.microbatches:  # (d)
        ranks.flush(rank)
    ranks.run(kind, rank, arrival)  # (e)


def _slack(ranks: Ranks, rank: int) -> int:
    return max(ranks.idle) - ranks.idle[rank]


def _warm_up(ranks: Ranks, on: _Switches) -> list[int]:
    """How many more F each rank runs before its first I."""
    task = ranks.task
    p, m = task.shape.ranks, task.shape.microbatches
    forward, gradient = task.spent[Kind.F], task.spent[Kind.I]
    counts = [0] * p
    back = ranks.now[p - 1] + gradient[p - 1]  # when the first I of the rank behind ends
    for rank in reversed(range(p - 1)):
        arrival = back + task.hop[Kind.I][rank]
        room = min((task.caps[rank] - ranks.held[rank]) // task.frees[Kind.F], m - 1)
        now = ranks.now[rank]
        while counts[rank] < room and (now + forward[rank] <= arrival if on.gap else now < arrival):
            now += forward[rank]
            counts[rank] += 1
        back = max(now, arrival) + gradient[rank]
    for rank in range(1, p):
        if counts[rank - 1] + 1 < m:
            counts[rank] = min(counts[rank], max(counts[rank - 1] - 1, 0))
    return counts


def _ranks_that_forward(ranks: Ranks, on: _Switches, mattered: set[str]) -> list[int]:
    """Ranks that run an F in this round; an unbroken run up to the last that has one left."""
    p, m = ranks.task.shape.ranks, ranks.task.shape.microbatches
    chosen: list[int] = []
    for rank in reversed(range(p)):
        if ranks.done(Kind.F, rank) == m:
            continue
        if rank < p - 1 and _would_delay(ranks, rank):
            mattered.add("input_first")
            if on.input_first:
                break
        chosen.append(rank)
    return chosen[::-1]


def _would_delay(ranks: Ranks, rank: int) -> bool:
    """Whether an F would keep the gradient of the next rank waiting for longer than the slack."""
    task, behind = ranks.task, rank + 1
    if ranks.done(Kind.F, rank) - ranks.done(Kind.F, behind) < 2:
        return False
    work = task.spent[Kind.F][behind] + task.spent[Kind.I][behind]
    due = ranks.now[behind] + work + task.hop[Kind.I][rank]
    now = ranks.now[rank]
    if now >= due:
        return True
    return now + _with_forced_w(ranks, rank) > due and due - now <= _slack(ranks, rank)


def _with_forced_w(ranks: Ranks, rank: int) -> int:
    """Duration of an F and of the W that must make room for it."""
    task = ranks.task
    over = ranks.held[rank] + task.frees[Kind.F] - task.caps[rank]
    forced = 0
    if over > 0 and task.frees[Kind.W]:
        forced = min(-(over // task.frees[Kind.W]), len(ranks.waiting[rank]))
    return task.spent[Kind.F][rank] + forced * task.spent[Kind.W][rank]
