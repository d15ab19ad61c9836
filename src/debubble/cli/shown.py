"""What ``show`` finds: a schedule simulated at given rates, and everything that is said about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..core.account import Account
    from ..core.costs import Costs, Rates
    from ..core.exchange import Exchange
    from ..core.program import Sends
    from ..core.schedule import Schedule
    from ..core.timeline import Timeline
    from .closed_form import ClosedForm

_SAME = 1e-6  # relative: durations are whole nanoseconds, formulas are not


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A schedule simulated, with everything that is said about it.

    Args:
        schedule: what was asked for.
        rates: how fast it was said to be.
        timeline: simulated.
        account: where its time went.
        peak: activations that each rank holds at most, float64[ranks].
        release: when a split backward frees them, by which ``peak`` is counted: ``w``, ``half`` or ``i``.
        lower_bound: nanoseconds that no schedule can beat.
        closed: the closed form that the simulation agrees with, or None.
        warnings: sentences.
    """

    schedule: Schedule
    rates: Rates
    timeline: Timeline
    account: Account
    peak: NDArray[np.float64]
    release: str
    lower_bound: int
    closed: ClosedForm | None
    warnings: tuple[str, ...]


def simulated(
    schedule: Schedule,
    rates: Rates,
    release: str = "w",
    *,
    sends: Sends | None = None,
    given: Exchange | None = None,
) -> Shown:
    """Simulate a schedule at these rates and account for its time.

    Args:
        schedule: what to simulate.
        rates: how fast it is.
        release: when a split backward frees activations.
        sends: what a transfer takes up; None for nothing.
        given: where sends and receives stand, where somebody wrote that down.

    Raises:
        InputError: factors that do not suit the schedule.
        Refusal: the schedule is illegal or deadlocks.
    """
    from ..core.account import account
    from ..core.bounds import lower_bound
    from ..core.costs import costs_of
    from ..core.lower import lower
    from ..core.memory import Release, peak_activations
    from ..core.program import Sends
    from ..core.simulate import simulate

    costs: Costs = costs_of(rates, schedule)
    timeline = simulate(lower(schedule, sends or Sends.ASYNC, given), costs)
    spent = account(timeline)
    return Shown(
        schedule=schedule,
        rates=rates,
        timeline=timeline,
        account=spent,
        peak=peak_activations(schedule, Release(release)),
        release=release,
        lower_bound=lower_bound(schedule, costs),
        closed=_agreed(schedule, rates, spent),
        warnings=_warnings(schedule),
    )


def document(shown: Shown) -> dict[str, Any]:
    """What ``--json`` prints."""
    from .report import MILLISECOND, bubbles, per_rank

    schedule = shown.schedule
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "makespan_ms": shown.account.window / MILLISECOND,
        "lower_bound_ms": shown.lower_bound / MILLISECOND,
        **bubbles(shown.account),
        "evidence": "exact" if shown.closed else shown.account.evidence,
        "sends": shown.timeline.program.sends.value,
        "release": shown.release,
        "per_rank": per_rank(shown.account, shown.peak),
        "warnings": shown.warnings,
    }


def _agreed(schedule: Schedule, rates: Rates, spent: Account) -> ClosedForm | None:
    """The closed form of the schedule's catalog entry, if the simulation found the same bubble."""
    from ..schedules.auto.searched import ENTRIES
    from .closed_form import closed_form

    base = schedule.name.removesuffix(" forward only")
    if base not in ENTRIES or not spent.window:
        return None
    forward, gradient, weight, backward = rates.by_kind()
    if schedule.forward_only:
        gradient = weight = backward = 0.0
    pair = forward + backward if rates.pair is None else rates.pair
    times = {"F": forward, "I": gradient, "W": weight, "B": backward, "F&B": pair}
    sizes = {
        "p": schedule.ranks,
        "m": schedule.microbatches,
        "v": schedule.chunks_of().sum(0).max(),
        "s": schedule.slices,
    }
    closed = closed_form(ENTRIES[base].bubble, sizes | times)
    idle = spent.window - spent.compute
    return closed if closed and abs(idle - closed.idle).max() <= _SAME * spent.window else None


def _warnings(schedule: Schedule) -> tuple[str, ...]:
    m, p = schedule.microbatches, schedule.ranks
    if m >= p:
        return ()
    some = "1 micro-batch" if m == 1 else f"{m} micro-batches"
    return (f"m < p: {some} cannot keep {p} ranks busy at the same time; -m {p} is the least that can",)
