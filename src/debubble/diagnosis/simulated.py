"""Runs of our own: a schedule simulated, alone or against another (``show``), and one that was executed (``run``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, RankTime, account, rank_times
from ..core.bounds import lower_bound
from ..core.costs import Costs, Rates, costs_of
from ..core.engine import IDEAL, SENDS, Engine, way_of
from ..core.errors import Fault, InputError, Refusal
from ..core.lower import lower
from ..core.packing import Rows, Samples, UnequalSamples, unequal_samples
from ..core.posts import Exchange
from ..core.program import Program, Timeline
from ..core.results import HIDDEN, SPARSE, Result
from ..core.schedule import Kind, Release, Schedule, Shape, loop_placement, peak_activations
from ..core.simulate import makespan, simulate, simulate_many
from ..core.units import MILLISECOND, Hops, counted, duration, hops, percent
from ..frameworks.engines import ENGINES, engine_of
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import ClosedForm, Even, closed_form, even, idle_share
from .causes import CauseCost, Summary, cause_costs, causes, fitted, stage_means
from .diagnosis import Diagnosis
from .remedies import Sliders, simulated_sliders

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


_CLOSE_NS = 1_000  # to which the hop is told at which two schedules are as fast as each other
_EVEN = 5e-4  # shares that differ by less are written alike


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Both schedules with one hop on the link.

    Args:
        transfer_ms: of the link that is swept.
        makespan_ms: of the first schedule.
        against_ms: of the other.
    """

    transfer_ms: float
    makespan_ms: float
    against_ms: float


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Against(Result):
    """Two schedules side by side.

    Args:
        schedule: name of the first.
        against: name of the other.
        engine: who executes both, or one and the other, as in ``megatron,zero-bubble``.
        makespan_ms: of the first, with the hops that were given.
        against_ms: of the other.
        speedup: the other over the first: above 1 the first is faster.
        link: that is swept, as in ``6-7``; None if none is.
        sweep: both for each hop on that link.
        crossover_ms: the least hop of the sweep from which on the other one is the faster; None if it never changes.
        differences: what differs, a sentence each.
        first: all that is said of the first.
        other: all that is said of the other.
    """

    schema: ClassVar[str] = "show-against/1"

    schedule: str
    against: str
    engine: str
    makespan_ms: float
    against_ms: float
    speedup: float | None
    link: str | None
    sweep: tuple[SweepPoint, ...]
    crossover_ms: float | None
    differences: tuple[str, ...]
    first: Show = field(metadata=HIDDEN)
    other: Show = field(metadata=HIDDEN)


def against(first: Show, other: Show, link: tuple[int, int] | None = None, swept: Sequence[float] = ()) -> Against:
    """Hold one schedule against another.

    Args:
        first: simulated.
        other: simulated, at the same rates.
        link: two ranks, the hop between which is swept.
        swept: hops to try, nanoseconds, ascending.

    Raises:
        InputError: the link is none of either schedule, or hops were given by boundary.
    """
    if link is not None and hops(first.rates.transfer).boundaries:
        rule = "a sweep changes the hop of one link, named by its ranks"
        raise InputError(Fault(f"transfer = {first.rates.transfer} beside --sweep", rule, "give transfers by link"))
    points: tuple[SweepPoint, ...] = ()
    crossover = None
    if link is not None:
        sides = (_windows(first, link), _windows(other, link))
        mine, theirs = (window(swept) for window in sides)
        points = tuple(
            SweepPoint(hop / MILLISECOND, one / MILLISECOND, two / MILLISECOND)
            for hop, one, two in zip(swept, mine, theirs, strict=True)
        )
        crossover = _crossover(swept, mine, theirs, sides)
    return Against(
        schedule=first.schedule,
        against=other.schedule,
        engine=",".join(dict.fromkeys([first.engine, other.engine])),
        makespan_ms=first.makespan_ms,
        against_ms=other.makespan_ms,
        speedup=other.makespan_ms / first.makespan_ms if first.makespan_ms else None,
        link=None if link is None else f"{link[0]}-{link[1]}",
        sweep=points,
        crossover_ms=None if crossover is None else crossover / MILLISECOND,
        differences=tuple(_differences(first, other)),
        first=first,
        other=other,
    )


Windows = Callable[[Sequence[float]], list[int]]


def _windows(shown: Show, link: tuple[int, int]) -> Windows:
    """The window of a schedule for each of some hops on a link, nanoseconds; all in one sweep."""

    def windows(swept: Sequence[float]) -> list[int]:
        return _simulated(shown.timeline.program, shown.order, shown.rates, link, swept)

    return windows


def _simulated(
    program: Program, order: Schedule, rates: Rates, link: tuple[int, int], swept: Sequence[float]
) -> list[int]:
    costs = [costs_of(replace(rates, transfer=hops(rates.transfer).with_pair(*link, hop)), order) for hop in swept]
    found: list[int] = simulate_many(program, costs).tolist()
    return found


def _crossover(
    swept: Sequence[float], mine: Sequence[int], theirs: Sequence[int], sides: tuple[Windows, Windows]
) -> float | None:
    """The first hop at which the order of the two turns, to a microsecond; windows are continuous in the hop."""
    ahead = np.sign(np.array(theirs) - np.array(mine))
    known = np.flatnonzero(ahead)
    turns = np.flatnonzero(ahead[known[1:]] != ahead[known[:-1]])
    if not len(turns):
        return None
    low, high = swept[int(known[turns[0]])], swept[int(known[turns[0] + 1])]
    side = ahead[known[turns[0]]]
    while high - low > _CLOSE_NS:
        middle = (low + high) / 2
        one, two = (window([middle])[0] for window in sides)
        low, high = (middle, high) if np.sign(two - one) == side else (low, middle)
    return high


def _differences(first: Show, other: Show) -> Iterator[str]:
    """What differs between two schedules, the most telling first."""
    ratio = other.makespan_ms / first.makespan_ms if first.makespan_ms else 1.0
    if abs(ratio - 1) < _EVEN:
        yield f"{first.schedule} and {other.schedule} take the same time."
    else:
        faster, slower = (first, other) if ratio > 1 else (other, first)
        share = slower.makespan_ms / faster.makespan_ms - 1
        if first.engine == other.engine:
            yield f"{faster.schedule} is {percent(share)} faster than {slower.schedule} under {first.engine}."
        else:
            than = f"{slower.schedule} under {slower.engine}"
            yield f"{faster.schedule} under {faster.engine} is {percent(share)} faster than {than}."
    if abs(first.idle_share - other.idle_share) >= _EVEN:
        yield f"Idle share: {first.schedule} {percent(first.idle_share)}, {other.schedule} {percent(other.idle_share)}."
    moved = [sum(rank.transfer_ms for rank in shown.per_rank) / shown.ranks for shown in (first, other)]
    if max(moved) > _EVEN * first.makespan_ms:
        one, two = (duration(each * MILLISECOND) for each in moved)
        yield f"Transfers that a rank waits for, on average: {first.schedule} {one}, {other.schedule} {two}."
    peaks = [max(rank.peak_activations for rank in shown.per_rank) for shown in (first, other)]
    if peaks[0] != peaks[1]:
        yield f"Most activations on a rank: {first.schedule} {peaks[0]:g}, {other.schedule} {peaks[1]:g} micro-batches."
