"""What a search takes from a measurement: its order, costs by kind, stage and micro-batch, its engine, its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.engine import Engine
from ..core.errors import Fault, InputError
from ..core.instance import searchable
from ..core.lower import lower
from ..core.observation import Observation, Window
from ..core.schedule import KINDS, Kind, Release, Schedule, peak_activations
from ..core.simulate import makespan
from ..core.units import MILLISECOND, duration
from ..diagnosis.causes import fitted, spent
from ..diagnosis.windows import summarise
from ..frameworks.engines import engine_of
from ..synthesis.synthesis import Synthesis
from .sources import read


def _with_whole_backwards(costs: Costs, order: Schedule) -> Costs:
    """A full backward as its two halves, where only these were measured: named schedules may not split theirs."""
    if not order.splits or bool((order.kind == Kind.B).any()):
        return costs
    durations, transfers = costs.durations.copy(), costs.transfers.copy()
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    transfers[Kind.B] = transfers[Kind.I]
    return replace(costs, durations=durations, transfers=transfers)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The median window of a run.

    Args:
        order: what ran.
        costs: of each op and hop, as measured.
        split: whether its backwards were split into I and W; else a search cannot split them either.
        engine: that ran it.
        window: how long it took, nanoseconds.
        again: what simulating it with these costs under this engine gives, nanoseconds.
        variation: standard deviation of the logarithm of durations, of each kind and stage, over micro-batches and
            steps, float64[kinds, stages]; 0 where there is one op or none.
    """

    order: Schedule
    costs: Costs
    split: bool
    engine: Engine
    window: int
    again: int
    variation: NDArray[np.float64]

    def room(self, release: Release) -> NDArray[np.int64]:
        """Half activations of a chunk that each rank held at most: what fitted is known, what else would is not."""
        chunks = self.order.chunks_of().max(axis=0)
        held: NDArray[np.int64] = np.rint(2 * chunks * peak_activations(self.order, release)).astype(np.int64)
        return held

    def beside(self, found: Synthesis, *, limits_memory: bool) -> Synthesis:
        """The answer with what was measured next to it.

        Args:
            found: the answer.
            limits_memory: whether its cap was what the run held.
        """
        if found.makespan_ms is None:
            return found
        then = duration(1e6 * found.makespan_ms)
        compared = (
            f"measured: {duration(self.window)}; the same order simulated: {duration(self.again)}; this order: {then},"
            f" {self.again / (1e6 * found.makespan_ms):.2f} x"
        )
        notes = [compared, *found.notes]
        if limits_memory:
            notes.append("no rank holds more activations than the run did, which fitted; --cap allows more")
        return replace(
            found,
            measured_ms=self.window / MILLISECOND,
            measured_again_ms=self.again / MILLISECOND,
            notes=tuple(notes),
        )


def measured_costs(run: str | PathLike[str] | Observation, engine: str | None = None) -> Measured:
    """Read a recording or a trace for a search.

    Args:
        run: where it is, or what was read.
        engine: who ran it, if that is not in there.

    Raises:
        InputError: nobody says who ran it, or it is no pipeline whose orders can be searched.
    """
    observation = run if isinstance(run, Observation) else read(run)
    summary = summarise(observation)
    timeline = summary.window.timeline
    order = timeline.program.schedule
    faults = []
    if not searchable(order):
        rule = "a search orders whole micro-batches of one copy of the weights, with backwards, one op at a time"
        faults.append(Fault(f"from = {order.name}", rule, "give a run of such a schedule"))
    name = engine or observation.engine
    if not name:
        rule = "an order is good for one engine, and the measurement does not say which ran"
        faults.append(Fault("--engine", rule, "give it; ideal if sends wait for nobody and nothing takes turns"))
    if faults or not name:
        raise InputError(*faults)
    executes = engine_of(name, order)
    costs = _with_whole_backwards(fitted(timeline), order)
    again = makespan(lower(order, executes), costs)
    mixed = order.splits and not bool((order.kind == Kind.B).any())
    return Measured(order, costs, mixed, executes, timeline.makespan, again, _variation(summary.windows, order))


def _variation(windows: Sequence[Window], order: Schedule) -> NDArray[np.float64]:
    """How much durations vary, by kind and stage, over the windows that ran this order."""
    sigma = np.zeros((KINDS, order.stages))
    same = [each.timeline for each in windows if each.timeline.program.schedule.same_order(order)]
    # In logarithms, so that the spread is a share, whatever the op takes; an op of no time says nothing of it.
    taken = np.log(np.maximum([spent(timeline) for timeline in same], 1))
    for kind, stage in np.unique(np.stack([order.kind, order.stage]), axis=1).T:
        sigma[kind, stage] = taken[:, (order.kind == kind) & (order.stage == stage)].std()
    return sigma
