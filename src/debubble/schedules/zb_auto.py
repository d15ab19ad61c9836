"""Zero bubble for any costs: F, I and W placed one by one, by the clock, under a memory cap; on a line, and on a V.

Ranks run ops as they are placed: their clocks, idle times and memory are what both heuristics decide by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from operator import add
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs, Rates, costs_of
from ..core.errors import Fault, InputError
from ..core.schedule import (
    Kind,
    Op,
    Release,
    Schedule,
    Shape,
    changes_of_activations,
    from_rows,
    loop_placement,
    v_placement,
)
from .entry import USUAL, Cap, Entry, caps_of, check, op_by_op
from .rows import LANE, linear, v_shaped

_Setting = TypeVar("_Setting")


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a heuristic is given; plain integers and lists, because it looks up one number at a time.

    Args:
        shape: of the pipeline.
        home: rank of each stage.
        spent: duration of an F, I or W of each stage, nanoseconds, [kind][stage].
        hop: how long the input of an F or I of each stage is on its way, 0 within a rank, [kind][stage].
        code: each F, I or W of a stage as a byte of a row, [kind][stage].
        frees: change in half activations of a chunk at F, I and W.
        caps: half activations of a chunk that each rank may hold.
    """

    shape: Shape
    home: list[int]
    spent: list[list[int]]
    hop: list[list[int]]
    code: list[list[int]]
    frees: list[int]
    caps: list[int]


class Stuck(Exception):
    """Inside a search: its rules ask for an op that cannot run, because its rank is full or its input is never made."""


def task_of(
    shape: Shape,
    placement: NDArray[np.int32],
    speed: Rates | Costs,
    caps: tuple[float, ...],
    release: Release,
) -> Task:
    """Costs and caps as a heuristic reads them; where they differ between micro-batches it sees their mean.

    Args:
        shape: of the pipeline.
        placement: rank of each stage, int32[1, stages].
        speed: how long ops take.
        caps: micro-batches of a rank that each rank may hold.
        release: when activations are freed.
    """
    empty = from_rows("", [()] * shape.ranks, placement, shape.microbatches)
    costs = costs_of(speed, empty) if isinstance(speed, Rates) else speed
    home = placement[0]
    moves = np.zeros((2, len(home)), np.bool_)
    moves[Kind.F, 1:] = moves[Kind.I, :-1] = home[1:] != home[:-1]
    hop = np.where(moves, _mean(costs.hops())[: Kind.I + 1], 0)
    one = from_rows("", [[Op(kind, 0, 0) for kind in (Kind.F, Kind.I, Kind.W)]], [0], 1)
    return Task(
        shape=shape,
        home=home.tolist(),
        spent=_mean(costs.durations).tolist(),
        hop=hop.tolist(),
        code=[
            [kind + LANE * (stage >= shape.ranks) for stage in range(len(home))] for kind in (Kind.F, Kind.I, Kind.W)
        ],
        frees=changes_of_activations(one, release).tolist(),
        caps=[int(2 * shape.chunks * cap) for cap in caps],
    )


def _mean(table: NDArray[np.int64]) -> NDArray[np.int64]:
    mean: NDArray[np.int64] = np.rint(table.mean(axis=2)).astype(np.int64)
    return mean


class Ranks:
    """The state of every rank while ops are placed one after the other; what is placed stays placed.

    An op starts as soon as the op before it on its rank has ended and its input has come. Micro-batches of a stage
    are taken in order, so the next op of a stage and kind needs no number.
    """

    __slots__ = ("_source", "_work", "end", "first", "held", "idle", "now", "rows", "task", "waiting")

    def __init__(self, task: Task) -> None:
        ranks, stages = task.shape.ranks, task.shape.stages
        self.task = task
        self.now = [0] * ranks  # when each rank is free
        self.first = [-1] * ranks  # when it began, -1 before it has
        self.idle = [0] * ranks  # how long it has waited since
        self.held = [0] * ranks  # half activations of a chunk
        self.rows = [bytearray() for _ in range(ranks)]
        self.waiting: list[deque[int]] = [deque() for _ in range(ranks)]  # stages whose W waits, oldest first
        self.end: list[list[list[int]]] = [[[] for _ in range(stages)] for _ in range(2)]  # of each F and I placed
        forward, gradient = self.end
        self._source: list[list[list[int] | None]] = [[None, *forward[:-1]], [*gradient[1:], forward[-1]]]

        self._work = [0] * ranks  # of the whole step
        for stage, rank in enumerate(task.home):
            each = task.spent[Kind.F][stage] + task.spent[Kind.I][stage] + task.spent[Kind.W][stage]
            self._work[rank] += task.shape.microbatches * each

    def done(self, kind: Kind, stage: int) -> int:
        """How many F or I of a stage have been placed."""
        return len(self.end[kind][stage])

    def ready(self, kind: Kind, stage: int) -> bool:
        """Whether what makes the input of the next F or I of a stage has been placed."""
        source = self._source[kind][stage]
        return source is None or len(self.end[kind][stage]) < len(source)

    def arrival(self, kind: Kind, stage: int) -> int:
        """When the input of the next F or I of a stage comes.

        Raises:
            Stuck: nothing that makes it has been placed.
        """
        source = self._source[kind][stage]
        if source is None:
            return 0
        turn = len(self.end[kind][stage])
        if turn >= len(source):
            raise Stuck(f"stage {stage} has no input")
        return source[turn] + self.task.hop[kind][stage]

    def run(self, kind: Kind, stage: int, arrival: int = 0) -> None:
        """Place an op; it starts at ``arrival`` or, if that is later, when its rank is free."""
        task = self.task
        rank = task.home[stage]
        start = self.now[rank]
        if self.first[rank] < 0:
            self.first[rank] = start = max(start, arrival)
        elif arrival > start:
            self.idle[rank] += arrival - start
            start = arrival
        self.now[rank] = end = start + task.spent[kind][stage]
        self.held[rank] += task.frees[kind]
        self.rows[rank].append(task.code[kind][stage])
        if kind != Kind.W:
            self.end[kind][stage].append(end)
            if kind == Kind.I:
                self.waiting[rank].append(stage)

    def run_w(self, rank: int) -> None:
        """Place the oldest W that waits; it needs no input but what is there."""
        task, stage = self.task, self.waiting[rank].popleft()
        self.now[rank] += task.spent[Kind.W][stage]
        self.held[rank] += task.frees[Kind.W]
        self.rows[rank].append(task.code[Kind.W][stage])

    def make_room(self, rank: int) -> None:
        """Place W until one more F fits under the cap.

        Raises:
            Stuck: no W waits, and it still does not fit.
        """
        while self.held[rank] + self.task.frees[Kind.F] > self.task.caps[rank]:
            if not self.waiting[rank]:
                raise Stuck(f"rank {rank} is full")
            self.run_w(rank)

    def fill_gap(self, rank: int, until: int) -> None:
        """Place the W that end before a point in time."""
        waiting = self.waiting[rank]
        weight = self.task.spent[Kind.W]
        while waiting and self.now[rank] + weight[waiting[0]] <= until:
            self.run_w(rank)

    def flush(self, rank: int) -> None:
        """Place all W that wait."""
        while self.waiting[rank]:
            self.run_w(rank)

    def span(self) -> int:
        """The longest time of a rank from its first op to its last."""
        return max(now - first for now, first in zip(self.now, self.first, strict=True))

    def least_span(self) -> int:
        """What ``span`` will be at least: a rank works as long in any order, and idle time does not come back."""
        longest: int = max(map(add, self._work, self.idle))
        return longest

    def order(self) -> list[bytes]:
        """What was placed, as rows."""
        return [bytes(row) for row in self.rows]


def best_run(
    settings: Iterable[_Setting], attempt: Callable[[_Setting, float], tuple[Ranks | None, set[str]]]
) -> Ranks | None:
    """The first of the runs with the shortest span, or None if no setting gives one; only settings that may win run.

    A setting that differs from a former one in switches alone that decided nothing there would do the same again.

    Args:
        settings: dataclasses of switches; the first of equals wins, so their order counts.
        attempt: gives the run of a setting, None where there is no room for it, and the switches that decided
            anything in it; it may give up a run that can no longer be shorter than the span that it is told.
    """
    best: Ranks | None = None
    tried: list[tuple[_Setting, set[str]]] = []
    for on in settings:
        if any(not _differences(on, other) & mattered for other, mattered in tried):
            continue
        ranks, mattered = attempt(on, math.inf if best is None else best.span())
        tried.append((on, mattered))
        if ranks is not None and (best is None or ranks.least_span() < best.span()):
            best = ranks
    return best


def _differences(one: Any, other: Any) -> set[str]:
    """Names of the switches that are set otherwise."""
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


_MOST_CELLS = 1_000_000
_DEFAULT = Rates()


@dataclass(frozen=True, slots=True)
class _Switches:
    """One of the 8 settings; the first of equals wins, so the order of the fields and of their values counts."""

    gap: bool
    input_first: bool
    fill: bool


# ZB-1p, ZB-2p and every cap between and below: F, I and W placed one by one, by the clock, under a memory cap.
#
# Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 3.1; details as in
# sail-sg/zero-bubble-pipeline-parallelism, tag zero-bubble-v0.1.0.
#
# now: when a rank is free. idle: its idle time since its first F. slack of a rank: the most that any rank has idled,
# less its own. Three switches, 8 settings; all are tried, and the first with the shortest span wins. To *place* an op:
#
#     (a) an F that would break the cap: W, until it fits
#     (b) W that end before the input comes
#     (c) if the input is still to come, one more W where the gap is longer than the slack, or with the switch `fill`
#     (d) before an I, rank 0 flushes its W once it has no F left
#     (e) the op
#
# Steps:
#     (1) warm-up: one F on every rank; then further F, counted from the last rank up, as long as they end (without the
#         switch `gap`: begin) before the first I can arrive and fit under the cap, and fewer on each rank than on the
#         one before it; then the first I on ranks p-1 down to 0
#     (2) m-1 rounds: one F on the ranks that want one, then one I on each rank; a rank wants an F if the next one does,
#         but with the switch `input first` not if it is 2 ahead and would keep the gradient of the next rank waiting
#         for longer than its slack
#     (3) flush W
#
# p = 3, m = 5, F = I = W, cap 2p:
#
#     rank 0  F0 F1 F2 F3 F4 I0 W0 I1 W1 I2 W2 I3 W3 I4 W4  .  .
#     rank 1   . F0 F1 F2 I0 F3 I1 F4 I2 W0 I3 W1 I4 W2 W3 W4  .
#     rank 2   .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 W1 W2 W3 W4
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


ZB_AUTO = Entry(
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


_MOST_CELLS_ON_A_V = 200_000


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Where W may fill a gap that is not whole."""

    before_1i: bool
    before_f: bool


# ZB-V for any costs: two chunks a rank, laid out as a V, and every op placed by the clock, under a memory cap.
#
# Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241 (ZB-V); details as in
# sail-sg/zero-bubble-pipeline-parallelism, tag zero-bubble-v0.1.0.
#
# Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1); in front of the letter stands the chunk. now: when a rank is
# free. idle: its idle time since its first op. approved: its idle time in the run before, at first 0. slack of a rank:
# the most that any rank has idled or, if that is more, has been approved beyond this rank; less its own idle time.
# W, always the oldest, come before an F or I of step (3):
#
#     (a) before an F that would break the cap, until it fits
#     (b) those that end before the input comes
#     (c) one more where the gap is longer than the slack: before 0I always, before 1I and before F by a switch each
#
# Steps:
#     (1) one 0F on every rank; then for r = p-1 down to 0: while r has room for 2(r+1) more chunks and another 0F would
#         end before the input of its 1F comes (two in any case on ranks before the last: uneven stages could leave
#         step (2) without inputs), one more 0F on ranks 0 to r; then 1F on r
#     (2) for r = 1 to p-1: while r has fewer F than r-1, or no more 1F: one F on ranks p-1 down to r, of the chunks in
#         turn
#     (3) 2m rounds of one I and one F a rank. I: 0I if fewer 0I than 1I are done and its input is there; else 1I.
#         F: 0F if no fewer 1F than 0F are done; else 1F if its input is there; else 0F if its input is there; else none
#     (4) flush W
#
# Each setting of the two switches runs again, with the idle times found as approved ones, until the longest falls no
# more; the setting with the shortest span wins.
#
# p = 3, m = 5, F = I = W, cap p; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 F3 F4 f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1 f4 i4 I2 w4 I3 W2 I4 W3 W4  .  .
#     rank 1   . F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 F4 I0 W0 f3 i2 w2 I1 W1 f4 i3 I2 i4 I3 w3 I4 W2 w4 W3 W4  .
#     rank 2   .  . F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 F4 I1 W1 f4 i2 I2 i3 I3 i4 I4 w2 W2 w3 W3 w4 W4
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
    check("zb-v-auto", shape, op_by_op("zb-v-auto", shape, _MOST_CELLS_ON_A_V), chunks=2)
    caps = caps_of(cap, shape.ranks)
    task = task_of(shape, v_placement(shape.ranks), speed, caps, release)
    ranks = _search_on_a_v(task)
    if ranks is None:
        raise InputError(_too_small(cap, task))
    return v_shaped("zb-v-auto", shape, ranks.order())


ZB_V_AUTO = Entry(
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


def _search_on_a_v(task: Task) -> Ranks | None:
    """The best run of all settings, or None where the caps leave no room for any."""

    def run(on: _Gaps, _: float) -> tuple[Ranks | None, set[str]]:
        # A run of this setting approves the idle times of its next one: none is given up for its span.
        mattered = set[str]()
        return _settled(task, on, mattered), mattered

    return best_run((_Gaps(*on) for on in product((True, False), repeat=2)), run)


def _settled(task: Task, on: _Gaps, mattered: set[str]) -> Ranks | None:
    """The best run of one setting: approved idle times are those of the run before, as long as that helps."""
    best = None
    approved = [0] * task.shape.ranks
    while True:
        limit = math.inf if best is None else max(best.idle)
        try:
            ranks = _attempt_on_a_v(task, on, approved, limit, mattered)
        except Stuck:
            return best
        best, approved = ranks, ranks.idle


def _attempt_on_a_v(task: Task, on: _Gaps, approved: Sequence[int], limit: float, mattered: set[str]) -> Ranks:
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

    def __init__(self, ranks: Ranks, on: _Gaps, ahead: Sequence[int], mattered: set[str]) -> None:
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
    while _search_on_a_v(replace(task, caps=[2 * chunks] * task.shape.ranks)) is None:
        chunks += 1
    return Fault(
        f"cap = {cap}",
        f"zb-v-auto fills the pipeline with {chunks / 2:g} micro-batches on a rank before the first gradient",
        f"give {chunks / 2:g} or more, or take v-half or v-min, which hold less",
    )
