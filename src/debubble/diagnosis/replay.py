"""A replay: an order with its costs, ready to be simulated again with something changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, account
from ..core.costs import Costs
from ..core.lower import lower
from ..core.memory import peak_activations
from ..core.schedule import Schedule
from ..core.simulate import simulate
from .fit import present

MOST_OPS = 16_384  # of a schedule that is tried: beyond it a verb would no longer answer at once


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What changes are tried on, and what they have changed so far.

    Args:
        schedule: the order.
        costs: with one column for each unit.
        name: of the order in the catalog; None where no published schedule has it.
        outside: what a step holds beside the pipeline window, nanoseconds.
        micro_batch: samples in a micro-batch; None where unknown.
        data: data-parallel replicas; None where unknown.
        batch: samples in a step, relative to the original.
        size: samples in a micro-batch, relative to the original.
        layers: layers on a rank, relative to the original.
        changes: what was changed, a clause each.
        assumes: what its answer takes for granted, a clause each.
        demands: what it asks for beyond that, which not every run can give (a larger batch, room for a second copy
            of the weights, another engine), a clause each.
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
    def tables(self) -> tuple[NDArray[np.int64], ...]:
        """Durations and delays with all their columns, int64[kinds, stages, units]; 0 where there is no such op."""
        there = present(self.schedule)
        return tuple(np.where(there, table, 0) for table in (self.costs.durations, self.costs.transfers))

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
        demands: those of them that not every run can give: a larger batch, more memory, another engine.
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


def tried(base: Replay, changed: Sequence[Replay]) -> list[WhatIf]:
    """Simulate each change beside the replay as it is, the best first."""
    before = base.again().window + base.outside
    held = float(peak_activations(base.schedule).max())
    return sorted((_answer(each, before, held) for each in changed), key=lambda answer: -answer.speedup)


def _answer(changed: Replay, before: int, held: float) -> WhatIf:
    again = changed.again()
    step = again.window + changed.outside
    peak = float(peak_activations(changed.schedule).max())
    return WhatIf(
        change=" + ".join(changed.changes),
        step_ns=step,
        makespan_ns=again.window,
        speedup=changed.batch * before / step if step else 1.0,
        microbatches=changed.schedule.microbatches,
        idle_share=again.idle_share,
        peak_activations=peak,
        activations_ratio=peak * changed.size * changed.layers / held if held else 1.0,
        assumes=(*changed.assumes, *changed.demands),
        demands=changed.demands,
        bound=changed.bound,
    )
