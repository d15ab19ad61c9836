"""Ranks that run ops as they are placed: the clocks, idle times and memory that a heuristic decides by."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import add
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs, Rates, costs_of
from ..core.schedule import Kind, Op, Release, Shape, from_rows
from ..core.schedule import changes_of_activations as changes
from .rows import LANE

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
        frees=changes(one, release).tolist(),
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
