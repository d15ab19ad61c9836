"""A replay: one window's order with its costs, which edits change and a simulation answers.

    window measured -> fitted costs -> Replay -> edit -> Replay -> simulate -> WhatIf

Every number that any verb or the page gives for a change comes from ``answers`` below: samples per second with the
change over without, both simulated, so that what the simulation misses of a run cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, account
from ..core.costs import Costs
from ..core.lower import lower
from ..core.memory import peak_activations
from ..core.observation import Observation
from ..core.op import Kind
from ..core.schedule import Schedule
from ..core.simulate import simulate
from .measured_costs import fitted, present
from .windows import Summary

MOST_OPS = 16_384  # of an order that is tried: about 60 orders are, and the verb should answer within a second or two
MORE_MEMORY = 1.005  # times the activations from which an answer says that it needs room for them


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What changes are tried on, and what they have changed so far.

    Args:
        schedule: the order.
        costs: with one column for each unit, or one for all.
        name: of the order in the catalog; None if no published schedule has it.
        outside: what a step holds beside the pipeline window, nanoseconds.
        micro_batch: samples in a micro-batch; None if unknown.
        data: data-parallel replicas; None if unknown.
        batch: samples in a step, relative to the original.
        size: samples in a micro-batch, relative to the original.
        layers: layers on a rank, relative to the original.
        changes: what was changed, a clause each.
        assumes: what its answer takes for granted, a clause each.
        demands: what it asks for beyond that, which not every run can give (a larger batch, room for a second copy
            of the weights, another framework), a clause each.
        bound: whether something was changed that nobody can do, to see what it costs.
    """

    schedule: Schedule
    costs: Costs
    name: str | None
    outside: int = 0
    micro_batch: int | None = None
    data: int | None = None
    batch: float = 1.0
    size: float = 1.0
    layers: float = 1.0
    changes: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    demands: tuple[str, ...] = ()
    bound: bool = False

    @property
    def chunks(self) -> int:
        """Stages per rank."""
        return self.schedule.stages // self.schedule.ranks

    @property
    def tables(self) -> tuple[NDArray[np.int64], ...]:
        """Durations and delays with all their columns, int64[kinds, stages, units]; 0 if there is no such op."""
        there = present(self.schedule)
        return tuple(np.where(there, table, 0) for table in (self.costs.durations, self.costs.transfers))

    @property
    def input_share(self) -> float:
        """Share of a whole backward that is the gradient of the input: as its costs state it, else a half."""
        inputs, weights = (float(self.costs.durations[kind].sum()) for kind in (Kind.I, Kind.W))
        if self.schedule.splits or inputs + weights == 0:
            return 0.5
        return inputs / (inputs + weights)

    def again(self) -> Account:
        """Where time goes when it is simulated."""
        return account(simulate(lower(self.schedule), self.costs))


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change, and what it was simulated to bring.

    Args:
        change: what to change, a clause.
        step_ns: the step with it, nanoseconds.
        makespan_ns: the pipeline window with it, nanoseconds.
        speedup: samples per second with it over without, both simulated.
        microbatches: per pipeline and step.
        idle_share: of its pipeline window.
        peak_activations: on the worst rank, in its own micro-batches.
        activations_ratio: memory of activations on the worst rank, with over without.
        assumes: what the answer takes for granted, a clause each.
        demands: those of them that not every run can give: a larger batch, more memory, another framework.
        bound: whether nobody can do it: it only shows what something costs.
        evidence: always ``simulated``.
    """

    change: str
    step_ns: int
    makespan_ns: int
    speedup: float
    microbatches: int
    idle_share: float
    peak_activations: float
    activations_ratio: float
    assumes: tuple[str, ...]
    demands: tuple[str, ...] = ()
    bound: bool = False
    evidence: str = "simulated"

    @property
    def launchable(self) -> bool:
        """Whether it can be done with the batch, the framework and the weights there are."""
        return not self.bound and not self.demands


def replay_of(run: Observation, summary: Summary, name: str | None) -> Replay:
    """The median window of a run, ready to be simulated again.

    Args:
        run: what was measured.
        summary: of its windows.
        name: of its order in the catalog.
    """
    timeline = summary.window.timeline
    schedule = timeline.program.schedule
    data = 1 + max(window.replica for window in run.windows)
    micro_batch = None
    if run.samples and run.samples % (schedule.microbatches * data) == 0:
        micro_batch = run.samples // (schedule.microbatches * data)
    return Replay(schedule, fitted(timeline), name, round(summary.outside_ns or 0), micro_batch, data)


def answers(base: Replay, changed: Sequence[Replay]) -> list[WhatIf]:
    """Simulate each change beside the replay as it is."""
    before = base.again().window + base.outside
    held = float(peak_activations(base.schedule).max())
    return [_answer(each, before, held) for each in changed]


def _answer(changed: Replay, before: int, held: float) -> WhatIf:
    again = changed.again()
    step = again.window + changed.outside
    peak = float(peak_activations(changed.schedule).max())
    memory = 1.0
    if held:
        memory = peak * changed.size * changed.layers / held
    assumes = (*changed.assumes, *changed.demands)
    if memory > MORE_MEMORY:
        assumes = (*assumes, "a GPU has room for the activations")
    return WhatIf(
        change=" + ".join(changed.changes),
        step_ns=step,
        makespan_ns=again.window,
        speedup=changed.batch * before / step if step else 1.0,
        microbatches=changed.schedule.microbatches,
        idle_share=again.idle_share,
        peak_activations=peak,
        activations_ratio=memory,
        assumes=assumes,
        demands=changed.demands,
        bound=changed.bound,
    )
