"""Causes: why a window is as long as it is, by simulating it again with one thing changed at a time.

Each cause is a difference of two windows, so that all of them sum to the measured window, to the nanosecond:

    mean work of a rank                                            -> ideal
    observed order, one mean per kind                   - ideal    -> schedule
    observed order, a mean per stage and kind           - before   -> imbalance
    observed order, each op's own time                  - before   -> variation
    .. and each hop's own delay                         - before   -> transfer
    the window as it was measured                       - before   -> unexplained

The order of the steps is part of the definition: what two causes share is charged to the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ..core.lower import lower
from ..core.program import Program
from ..core.simulate import simulate
from ..core.timeline import Timeline
from .measured_costs import fitted, free_transfers, kind_means, spent, stage_means

TRUSTED = 0.1  # no change is tried where simulating a window again misses it by more than this share

MILLISECOND = 1e6  # nanoseconds
REMEDIES = {
    "schedule": "more micro-batches, or a schedule with less idle time",
    "imbalance": "move layers off the heavy rank",
    "variation": "batch samples of like length",
    "transfer": "overlap the transfers, or put neighbours on a faster link",
    "unexplained": "look at the host: launches, data loading, garbage collection",
}
ALWAYS_MEASURED = ("ideal", "unexplained")  # of a measured window; the others are differences of simulations


@dataclass(frozen=True, slots=True)
class Causes:
    """The parts of one window, nanoseconds; a part may be negative. They sum to ``window``."""

    ideal: int
    schedule: int
    imbalance: int
    variation: int
    transfer: int
    unexplained: int

    @property
    def window(self) -> int:
        """The window as it was measured, nanoseconds."""
        return sum(cost for _, cost in self)

    @property
    def resimulated(self) -> int:
        """The window as simulated with all that was fitted, nanoseconds."""
        return self.window - self.unexplained

    @property
    def resim_ratio(self) -> float:
        """Re-simulated over measured: how far the answers of changes can be trusted."""
        return self.resimulated / self.window if self.window else 1.0

    @property
    def trusted(self) -> bool:
        """Whether changes may be tried on this window: simulated again it is as long as it was, but for a tenth."""
        return abs(self.resim_ratio - 1) <= TRUSTED

    @property
    def resim_without_transfer_ratio(self) -> float:
        """The same with free transfers."""
        return (self.resimulated - self.transfer) / self.window if self.window else 1.0

    @property
    def most_busy(self) -> float:
        """Busy share of the order itself: equal stages, equal micro-batches, free transfers."""
        own = self.ideal + self.schedule
        return self.ideal / own if own else 1.0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for name in ("ideal", "schedule", "imbalance", "variation", "transfer", "unexplained"):
            yield name, getattr(self, name)


@dataclass(frozen=True, slots=True)
class CauseCost:
    """A cause with what it costs a window, as results hold it.

    Args:
        cause: ``ideal``, ``schedule``, ``imbalance``, ``variation``, ``transfer`` or ``unexplained``.
        cost_ms: of the window; may be negative.
        cost_share: of the window.
        evidence: of the figure.
        claimed: whether it is larger than clocks are uncertain.
        remedy: what would help, or empty.
    """

    cause: str
    cost_ms: float
    cost_share: float
    evidence: str
    claimed: bool
    remedy: str


def cause_costs(found: Causes, evidence: str, uncertainty_ns: float = 0) -> tuple[CauseCost, ...]:
    """The causes of a window, a line each.

    Args:
        found: the causes.
        evidence: of the window.
        uncertainty_ns: by which clocks of two ranks may disagree: no smaller cause is claimed.
    """
    window = found.window
    return tuple(
        CauseCost(
            cause=name,
            cost_ms=cost / MILLISECOND,
            cost_share=cost / window if window else 0.0,
            evidence=evidence if name in ALWAYS_MEASURED else "simulated",
            claimed=abs(cost) > uncertainty_ns,
            remedy=REMEDIES.get(name, ""),
        )
        for name, cost in found
    )


def causes(timeline: Timeline) -> Causes:
    """Split the window of a timeline, measured or simulated, into its causes."""
    program = asynchronous(timeline.program)
    schedule = program.schedule
    costs = fitted(timeline)
    steps = (
        int(spent(timeline).sum()) // schedule.ranks,
        simulate(program, kind_means(costs, schedule)).makespan,
        simulate(program, free_transfers(stage_means(costs, schedule))).makespan,
        simulate(program, free_transfers(costs)).makespan,
        simulate(program, costs).makespan,
        timeline.makespan,
    )
    return Causes(steps[0], *(after - before for before, after in pairwise(steps)))


def asynchronous(program: Program) -> Program:
    """The program without explicit transfers: a hop is a delay, which is how it was fitted."""
    return lower(program.schedule) if len(program.producer) else program
