"""A problem: an instance and an objective, what rows cost by the engine's own simulation, and rows as schedules."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..core.engine import IDEAL
from ..core.errors import Refusal
from ..core.instance import Instance
from ..core.lower import lower
from ..core.propagation import Windows, span_bound, windows
from ..core.schedule import Kind, Schedule, peak_activations
from ..core.simulate import simulate
from .resimulate import LATENCY, MAKESPAN, SPAN, WRONG, Rows, Tables, evaluate, mode_of, tables_of

__all__ = ["WRONG", "Problem", "Rows"]


class Problem:
    """What a search is given.

    Args:
        instance: ops, costs, memory and engine.
        span: whether the longest rank's own time counts, from its first op to its last; else the makespan.
    """

    def __init__(self, instance: Instance, *, span: bool = False) -> None:
        self.instance, self.span = instance, span

    @cached_property
    def mode(self) -> int | None:
        """The compiled rule of the engine; None if every evaluation has to ask ``lower``."""
        return mode_of(self.instance.engine, self.instance)

    @cached_property
    def tables(self) -> Tables:
        """The instance as loops take it."""
        mode = LATENCY if self.mode is None else self.mode
        return tables_of(self.instance, mode, SPAN if self.span else MAKESPAN)

    @cached_property
    def ideal(self) -> Problem:
        """The same under the ideal engine, which a list schedule and heads and tails are made for."""
        return self if self.mode == LATENCY else Problem(self.instance.but(engine=IDEAL), span=self.span)

    @cached_property
    def windows(self) -> Windows:
        """Heads, tails and the propagation bound."""
        return windows(self.instance)

    @cached_property
    def bound(self) -> int:
        """What no order is below, nanoseconds."""
        return span_bound(self.instance) if self.span else self.windows.bound

    @cached_property
    def scratch(self) -> tuple[NDArray[np.int64], ...]:
        """Room for one evaluation."""
        return self.tables.scratch()

    def value(self, rows: Rows) -> int:
        """The objective of rows, nanoseconds, or ``WRONG`` where they cannot run or hold too much."""
        if self.mode is not None:
            return int(evaluate(rows, self.tables.columns(), self.scratch))
        # What deadlocks or holds too much on the ideal engine does so on every other: ask that quickly first.
        if evaluate(rows, self.tables.columns(), self.scratch) == WRONG:
            return int(WRONG)
        return self.measured(self.schedule(rows))

    def begins(self, rows: Rows) -> NDArray[np.int64]:
        """When each op of legal rows starts under a compiled rule, int64 of the shape of ``rows``, nanoseconds."""
        evaluate(rows, self.tables.columns(), self.scratch)
        op = rows * self.instance.microbatches + turns(rows)
        begun: NDArray[np.int64] = self.scratch[0][op] - self.tables.spent[op]
        return begun

    def measured(self, schedule: Schedule) -> int:
        """The objective by the engine's own simulation; ``WRONG`` where a schedule deadlocks or holds too much."""
        if schedule.splits and not self.instance.split:
            return int(WRONG)  # what the halves of a backward take was not said
        # Peaks come in micro-batches of a rank, room in half activations of a chunk.
        share = 2 * schedule.slices * schedule.chunks_of().max(axis=0)
        held = np.rint(peak_activations(schedule, self.instance.release) * share)
        if (held > self.instance.room).any():
            return int(WRONG)
        try:
            timeline = simulate(lower(schedule, self.instance.engine), self.instance.costs)
        except Refusal:
            return int(WRONG)
        start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
        if not self.span:
            return int(end.max() - start.min())
        first, last = schedule.offsets[:-1], schedule.offsets[1:] - 1
        return int((end[last] - start[first]).max())

    def schedule(self, rows: Rows, name: str = "synth", source: str = "synthesised") -> Schedule:
        """Rows as a schedule."""
        instance = self.instance
        length = rows.shape[1]
        kind, stage = np.divmod(rows.ravel(), instance.stages)
        return Schedule(
            name=name,
            source=source,
            microbatches=instance.microbatches,
            placement=instance.placement[None, :].copy(),
            offsets=np.arange(0, rows.size + 1, length, dtype=np.int64),
            kind=np.array(instance.kinds, np.uint8)[kind],
            stage=stage.astype(np.int32),
            unit=turns(rows).ravel(),
        )

    def rows(self, schedule: Schedule) -> Rows | None:
        """The rows of a schedule; None if it is none of this problem.

        That is: another placement, pairs, slices, or micro-batches not first in, first out. A full backward becomes an
        I with its W behind it where this problem splits them.
        """
        instance = self.instance
        fits = np.array_equal(schedule.placement, instance.placement[None, :]) and schedule.joined is None
        same = schedule.microbatches == instance.microbatches and schedule.slices == 1 and not schedule.forward_only
        if not (fits and same) or (schedule.splits and not instance.split):
            return None
        number = np.zeros(max(Kind) + 1, np.int32)
        number[list(instance.kinds)] = np.arange(len(instance.kinds))
        kind, stage, unit = schedule.kind, schedule.stage, schedule.unit
        if instance.split and not schedule.splits:
            # Each B becomes two rows: `second` marks the latter, which is its W.
            back = kind == Kind.B
            again = np.where(back, 2, 1)
            second = np.zeros(int(again.sum()), np.bool_)
            second[np.cumsum(again)[back] - 1] = True
            kind = np.where(second, Kind.W, np.where(np.repeat(back, again), Kind.I, Kind.F)).astype(np.uint8)
            stage, unit = np.repeat(stage, again), np.repeat(unit, again)
        code = (number[kind] * instance.stages + stage).astype(np.int32)
        if len(code) != instance.ops or len(np.unique(np.bincount(instance.placement))) > 1:
            return None
        rows = code.reshape(instance.ranks, -1)
        return rows if np.array_equal(turns(rows).ravel(), unit) else None


def turns(rows: Rows) -> NDArray[np.int32]:
    """The micro-batch of each op of rows, first in, first out, int32 of the shape of ``rows``."""
    found = np.empty(rows.shape, np.int32)
    for row, out in zip(rows, found, strict=True):
        # A stable sort by class keeps places in order: the k-th of a class is k behind where its class begins.
        order = np.argsort(row, kind="stable")
        sorted_row = row[order]
        fresh = np.flatnonzero(np.diff(sorted_row, prepend=-1))
        out[order] = np.arange(len(row)) - np.repeat(fresh, np.diff(np.append(fresh, len(row))))
    return found
