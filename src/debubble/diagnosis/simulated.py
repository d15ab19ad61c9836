"""Runs of our own: a schedule that was simulated (``show``), and one that was executed (``run``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, RankTime, account, rank_times
from ..core.bounds import lower_bound
from ..core.costs import Costs, Rates, costs_of
from ..core.engine import IDEAL, SENDS, Engine, way_of
from ..core.errors import InputError, Refusal
from ..core.lower import lower
from ..core.packing import Rows, Samples, UnequalSamples, unequal_samples
from ..core.posts import Exchange
from ..core.program import Program, Timeline
from ..core.results import HIDDEN, SPARSE, Result
from ..core.schedule import Kind, Release, Schedule, Shape, loop_placement, peak_activations
from ..core.simulate import makespan, simulate
from ..core.units import MILLISECOND, Hops, counted, duration, hops
from ..frameworks.engines import ENGINES, engine_of
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import ClosedForm, Even, closed_form, even, idle_share
from .causes import CauseCost, cause_costs, causes, fitted, stage_means
from .diagnosis import Diagnosis
from .remedies import Sliders, simulated_sliders
from .windows import Summary

SAME = 1e-6  # relative: durations are whole nanoseconds, formulas are not
SHOWN_FACTORS = 8
TELLING_HOP = 0.02  # of a forward: with shorter hops engines differ by less than a run does
MOST_OPS_ASKED = 50_000  # ops up to which every engine is simulated unasked


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Show(Result):
    """A schedule simulated, with everything that is said about it.

    Args:
        title: what was simulated, in a line.
        schedule: its name.
        ranks: positions in the pipeline.
        stages: of the model.
        microbatches: per step.
        makespan_ms: from the first op to the end of the last.
        lower_bound_ms: no schedule of the same placement and costs can be shorter.
        gap_share: how far its makespan is above that, over the bound.
        idle_share: idle / (ranks x makespan).
        bubble_ratio: idle / busy; infinite without any work (None in JSON).
        span_idle_share: idle share of the longest rank between its own first and last op.
        evidence: ``exact`` if a closed form gives the same, else ``simulated``.
        idle_formula: closed form of the idle share; None if none holds.
        bubble_formula: that of the bubble ratio.
        half_at_microbatches: the fewest that halve the idle share and that the schedule takes; None if no formula says.
        as_interleaved_idle_share: what it would be as ``interleaved`` with two chunks; None if that is no answer.
        engine: who executes it, and how that communicates.
        per_engine_ms: what the step would be under each engine, if hops are long enough to ask and none was said; None
            for one that cannot run this order, and no key if there is nothing to ask.
        sends: whom a send keeps; that of the engine itself for any other than ``ideal``.
        release: when a split backward frees activations: ``w``, ``half`` or ``i``.
        per_rank: where the time of each rank goes.
        unequal_samples: what it would be with samples of unequal length; None if none were given.
        warnings: sentences.
        order: the schedule itself.
        rates: how fast it was said to be.
        timeline: simulated.
        account: where its time went.
    """

    schema: ClassVar[str] = "show/1"

    title: str
    schedule: str
    ranks: int
    stages: int
    microbatches: int
    makespan_ms: float
    lower_bound_ms: float
    gap_share: float
    idle_share: float
    bubble_ratio: float
    span_idle_share: float
    evidence: str
    idle_formula: str | None
    bubble_formula: str | None
    half_at_microbatches: int | None
    as_interleaved_idle_share: float | None
    engine: str
    per_engine_ms: dict[str, float | None] | None = field(metadata=SPARSE)
    sends: str
    release: str
    per_rank: tuple[RankTime, ...]
    unequal_samples: UnequalSamples | None = field(metadata=SPARSE)
    warnings: tuple[str, ...]
    order: Schedule = field(metadata=HIDDEN)
    rates: Rates = field(metadata=HIDDEN)
    timeline: Timeline = field(metadata=HIDDEN)
    account: Account = field(metadata=HIDDEN)

    @property
    def causes(self) -> tuple[CauseCost, ...]:
        """Why it takes as long as it does, by simulating it again with one thing changed at a time."""
        return cause_costs(causes(self.timeline), self.timeline.evidence)

    @property
    def promised_share(self) -> float:
        """What the order would idle with even stages and free transfers."""
        if self.idle_formula:  # then stages are even and transfers free already
            return self.idle_share
        return 1 - causes(self.timeline).most_busy

    @property
    def sliders(self) -> Sliders | None:
        """Where the sliders of its page start."""
        return simulated_sliders(self.timeline, costs_of(self.rates, self.order), "Simulated with the durations above.")


def simulated(
    order: Schedule,
    rates: Rates,
    release: str = "w",
    *,
    engine: Engine | None = None,
    placed: Exchange | None = None,
    samples: Samples | None = None,
) -> Show:
    """Simulate an order at these rates and account for its time.

    Args:
        order: what to simulate.
        rates: how fast it is.
        release: when a split backward frees activations.
        engine: who executes it; None for ``ideal``, and for what the others would make of long hops.
        placed: where sends and receives are, if somebody wrote that down.
        samples: of unequal length, that micro-batches are packed from; None if all are alike.

    Raises:
        InputError: factors that do not suit the schedule.
        Refusal: the schedule is illegal or deadlocks.
    """
    costs = costs_of(rates, order)
    executes = engine or IDEAL
    program = lower(order, executes, placed, occupied=bool(rates.occupy))
    timeline = simulate(program, costs)
    spent = account(timeline)
    closed = agreed(order, rates, spent)
    bound = lower_bound(order, costs, executes)
    shown = Show(
        title=title_of(order, rates, timeline),
        schedule=order.name,
        ranks=order.ranks,
        stages=order.stages,
        microbatches=order.microbatches,
        makespan_ms=spent.window / MILLISECOND,
        lower_bound_ms=bound / MILLISECOND,
        gap_share=(spent.window - bound) / bound if bound else 0.0,
        idle_share=spent.idle_share,
        bubble_ratio=spent.bubble_ratio,
        span_idle_share=spent.span_idle_share,
        evidence=spent.evidence,
        idle_formula=None,
        bubble_formula=None,
        half_at_microbatches=None,
        as_interleaved_idle_share=None,
        engine=executes.name,
        per_engine_ms=None if engine else _per_engine(order, costs),
        sends=way_of(executes),
        release=release,
        per_rank=rank_times(spent, peak_activations(order, Release(release))),
        unequal_samples=None if samples is None else _unequal(program, costs, samples),
        warnings=_warnings(order),
        order=order,
        rates=rates,
        timeline=timeline,
        account=spent,
    )
    if closed is None:
        return shown
    return replace(
        shown,
        evidence="exact",
        idle_formula=closed.share_text,
        bubble_formula=closed.ratio_text,
        half_at_microbatches=closed.half_at,
        as_interleaved_idle_share=_interleaved(order),
    )


def _unequal(program: Program, costs: Costs, samples: Samples) -> UnequalSamples:
    return unequal_samples(program, costs, samples.times(costs.durations), Rows(program.schedule.microbatches), samples)


def _per_engine(order: Schedule, costs: Costs) -> dict[str, float | None] | None:
    """The step under each engine; None if hops are too short to matter, or the schedule too long to ask unasked."""
    # Hops are long or short beside the work of a step, for which its forwards stand.
    forward = np.flatnonzero(order.kind == Kind.F)
    unit = order.unit[forward] if costs.durations.shape[2] > 1 else 0
    work = int(costs.durations[Kind.F, order.stage[forward], unit].sum())
    longest = int((costs.hops() + costs.sender_side()).max(initial=0))
    if longest * order.ranks * order.microbatches <= TELLING_HOP * work or len(order) > MOST_OPS_ASKED:
        return None
    return {name: _under(name, order, costs) for name in ENGINES}


def _under(name: str, order: Schedule, costs: Costs) -> float | None:
    """The step under one engine, milliseconds; None if it cannot run this order."""
    try:
        program = lower(order, engine_of(name, order), occupied=costs.sender is not None)
    except (InputError, Refusal):
        return None
    return makespan(program, costs) / MILLISECOND


def _interleaved(order: Schedule) -> float | None:
    """The idle share of 1F1B with two chunks a rank, which needs m divisible by p."""
    p, m = order.ranks, order.microbatches
    # Interleaving is the next step from these two alone; from others it would be a step back.
    if order.name not in ("gpipe", "1f1b") or m % p or p == 1:
        return None
    return idle_share(CATALOG["interleaved"], Even(p, m, chunks=2))


def title_of(order: Schedule, rates: Rates, timeline: Timeline) -> str:
    """What was simulated, in one line."""
    # Not whole where ranks hold unlike numbers of stages, as orders from files may.
    chunks = order.stages / order.ranks
    sizes = [counted(order.ranks, "rank")]
    if chunks != 1:
        sizes.append(counted(chunks, "chunk"))
    sizes.append(counted(order.microbatches, "micro-batch"))
    if order.slices > 1:
        sizes.append(counted(order.slices, "slice"))
    spent = rates.by_kind()
    present = [kind for kind in (Kind.F, Kind.B, Kind.I, Kind.W) if (order.kind == kind).any()]
    parts = [order.name, " x ".join(sizes), *(f"{kind.name} {duration(spent[kind])}" for kind in present)]
    parts += _hops(rates)
    engine = timeline.program.engine
    if engine != IDEAL:
        parts.append(f"{engine} sends" if engine in SENDS.values() else f"engine {engine}")
    for name in ("stage_scale", "microbatch_scale", "rank_scale"):
        scale: tuple[float, ...] = getattr(rates, name)
        if scale:
            parts.append(f"{name.replace('_', ' ')} {_listed(scale)}")
    return f"{', '.join(parts)} ({timeline.evidence})"


def _hops(rates: Rates) -> Iterator[str]:
    """What transfers take, on the wire and of their senders."""
    if isinstance(rates.transfer, Hops):
        yield f"transfer {rates.transfer}"
    else:
        hop = rates.transfer + rates.payload / rates.link
        yield f"transfer {duration(hop)}" if hop else "free transfers"
    if rates.occupy:
        yield f"senders taken up {hops(rates.occupy)}"


def _listed(scale: tuple[float, ...]) -> str:
    shown = [f"{factor:g}" for factor in scale[:SHOWN_FACTORS]]
    if len(scale) > len(shown):
        shown.append("..")
    return ",".join(shown)


def agreed(order: Schedule, rates: Rates, spent: Account) -> ClosedForm | None:
    """The closed form of the schedule's catalog entry, if one holds and the simulation found the same bubble.

    It need not: an engine that takes ranks up for transfers makes them wait where the formula knows of no transfer.
    """
    name, chunks = order.name, int(order.chunks_of().max())
    if order.forward_only and np.array_equal(order.placement, loop_placement(order.ranks, chunks)):
        name = "forward-only"  # whose order it was no longer matters
    if name not in CATALOG or not spent.window:
        return None
    pipeline = even(Shape(order.ranks, order.microbatches, chunks, order.slices), rates)
    if pipeline is None:
        return None
    closed = closed_form(CATALOG[name], pipeline)
    idle = spent.window - spent.compute
    # Rank by rank: means may agree where ranks do not.
    if closed is None or np.abs(idle - closed.idle).max() > SAME * spent.window:
        return None
    return closed


def _warnings(order: Schedule) -> tuple[str, ...]:
    m, p = order.microbatches, order.ranks
    if m >= p:
        return ()
    return (
        f"m < p: {counted(m, 'micro-batch')} cannot keep {p} ranks busy at the same time; -m {p} is the least that can",
    )


GOOD_GRADIENT = 1e-5  # in 32 bits a right pipeline stays below 1e-6, and a wrong one is far above


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Executed(Diagnosis):
    """A run that was trained and recorded.

    Args:
        predicted_ms: simulated for its pipeline window: at the pace that was asked for, else at its own mean durations.
        measured_ms: its pipeline window.
        loss: of the last step.
        loss_error: largest relative difference from one process without a pipeline; None if that was not asked for.
        gradient_error: the same of any gradient, over the largest of its parameter.
        recording: the folder to diagnose again.
        device: ``cpu`` or ``cuda``.
        executed_engine: whose sends, receives and waits were executed; ``ideal``: our own order, hops as latencies.
        refusal: why its gradients are not to be trusted; None if they are, or were not checked.
    """

    schema: ClassVar[str] = "run/1"

    measured_ms: float
    loss: float
    loss_error: float | None
    gradient_error: float | None
    recording: str
    device: str
    executed_engine: str
    refusal: str | None

    @property
    def exit_status(self) -> int:
        """Exit status: 1 if gradients were checked and are wrong."""
        return int(self.refusal is not None)

    @property
    def refused(self) -> str:
        """Why its gradients are not to be trusted."""
        return self.refusal or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the process that speaks for all knows at the end.

    Args:
        loss: of the last step.
        loss_error: see ``Executed``.
        gradient_error: see ``Executed``.
        recording: the folder.
        device: that it ran on.
        executed_engine: see ``Executed``.
        hops: delay that was put on the arrival of each op's input, int64[kinds, stages, 1 or units]; None for none.
    """

    loss: float
    loss_error: float | None
    gradient_error: float | None
    recording: str
    device: str
    executed_engine: str
    hops: NDArray[np.int64] | None


def executed_of(found: Diagnosis, trained: Trained) -> Executed:
    """A diagnosis with what only the run knows."""
    summary = found.examined.summary
    predicted = found.predicted_ms
    if predicted is None:
        predicted = _afterwards(summary, trained.hops) / MILLISECOND
    error, refusal = trained.gradient_error, None
    if error is not None and error > GOOD_GRADIENT:
        refusal = f"gradient_error = {error:.1e} is above {GOOD_GRADIENT:g}: do not trust it"
    # A run is a diagnosis with more fields: all that the one has is handed to the other.
    held = {each.name: getattr(found, each.name) for each in fields(found)} | {"predicted_ms": predicted}
    return Executed(
        **held,
        measured_ms=found.makespan_ms,
        loss=trained.loss,
        loss_error=trained.loss_error,
        gradient_error=error,
        recording=trained.recording,
        device=trained.device,
        executed_engine=trained.executed_engine,
        refusal=refusal,
    )


def _afterwards(summary: Summary, hops: NDArray[np.int64] | None) -> int:
    """The makespan that the order would have with the mean durations that were measured, and hops alone in between."""
    program = summary.window.timeline.program
    means = stage_means(fitted(summary.window.timeline), program.schedule)
    transfers = np.zeros_like(means.transfers) if hops is None else hops
    return simulate(program, Costs(means.durations, transfers)).makespan
