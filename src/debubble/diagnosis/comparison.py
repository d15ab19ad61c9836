"""Comparisons as scripts and reports have them: two runs, a series of them with its frontier, and one alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..core.account import Account, RankTime, account, rank_times
from ..core.lower import lower
from ..core.program import Timeline
from ..core.results import HIDDEN, SPARSE, Result
from ..core.schedule import peak_activations
from ..core.simulate import simulate
from ..core.units import MILLISECOND, counted, duration, percent
from .causes import ORDER, CauseCost, cause_costs
from .compared import MFU, STEPS, Bounds, Comparable, Compared, ComparedRun, Figure
from .diagnosis import Gate, status_of
from .fit import Fit
from .log_run import LoneStep, Phase, Restart, history_sentences
from .order import Own
from .remedies import Change, Sliders, WayOut, change_of, measured_sliders, next_sentences, way_out_of
from .replay import Launcher, Remedies
from .verdict import Changed, changed_arguments, checks, verdict
from .why import remedies_of, why

FEWEST = 2  # runs with a stated memory


@dataclass(frozen=True, slots=True)
class Frontier:
    """Runs of a series by throughput and memory.

    Args:
        pareto: the runs that none beats in one without being beaten in the other, least memory first.
        best_per_byte: the run with most throughput for the memory of a device.
        fastest: the run with most throughput.
        first: the run that the others were compared with.
        implied_idle_share: what the first idles if the fastest idles not at all and both do as much work in a busy
            second: 1 - its throughput over that of the fastest. It idles more where the fastest idles too.
    """

    pareto: tuple[str, ...]
    best_per_byte: str
    fastest: str
    first: str
    implied_idle_share: float


def series(runs: Sequence[Comparable], launcher: Launcher | None = None, engine: str | None = None) -> list[Compared]:
    """Each run after the first against the first; remedies of the last."""
    return [why(runs[0], run, changes=run is runs[-1], launcher=launcher, engine=engine) for run in runs[1:]]


def frontier(comparisons: Sequence[Compared]) -> Frontier | None:
    """The frontier of runs on as many devices; None where fewer than two state throughput and memory.

    Args:
        comparisons: of each run with the first.
    """
    first = comparisons[0].a
    speeds = {first.name: (1.0, first)}
    speeds |= {c.b.name: (c.ratio.value, c.b) for c in comparisons if c.ratio is not None and c.b.gpus == first.gpus}
    held = {name: (speed, run.job.peak_memory) for name, (speed, run) in speeds.items() if run.job.peak_memory}
    if len(held) < FEWEST:
        return None
    fastest = max(held, key=lambda name: held[name][0])
    return Frontier(
        pareto=_pareto(held),
        best_per_byte=max(held, key=lambda name: held[name][0] / held[name][1]),
        fastest=fastest,
        first=first.name,
        implied_idle_share=max(0.0, 1 - 1 / held[fastest][0]),
    )


def _pareto(held: dict[str, tuple[float, int]]) -> tuple[str, ...]:
    """Least memory first, each faster than all before it."""
    found: list[str] = []
    for name in sorted(held, key=lambda name: (held[name][1], -held[name][0])):
        if not found or held[name][0] > held[found[-1]][0]:
            found.append(name)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Stated:
    """A figure and where it comes from.

    Args:
        value: in the unit that is its key.
        evidence: ``stated``, ``measured`` or ``simulated``.
    """

    value: float
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the runs that are compared.

    Args:
        name: what reports call it.
        gpus: of the whole run.
        pipeline: ranks.
        data: data-parallel replicas.
        microbatches: per pipeline and step.
        schedule: by name.
        idle_share: of the schedule itself, or of its window where hops are stated; None if only bounds are known.
        bubble_ratio: the same as idle over busy.
        most_busy: the most that a rank can be busy.
        idle_share_bounds: least and most; so too ``bubble_ratio_bounds`` and ``most_busy_bounds``.
        evidence: of these.
        busy: share of GPU time with F, I, W, B work, stated or measured.
        busy_evidence: which of both.
        overstated: whether that is more than its schedule can reach.
        window_share: share of a step that is pipeline window; None if it was not measured.
        makespan_ms: its pipeline window.
        outside_ms: what a step holds beside it.
        peak_activations: most micro-batches in flight on a rank.
        throughput: by unit.
        ceiling_ratio: throughput without any idle time over throughput as it is.
        ceiling_barrier_ratio: that of the best order that ends in a barrier.
        causes: why its window is as long as it is.
        remarks: what was left out or repaired.
        phases: of the steps of a log.
        left_out: its steps that do not count.
        restarts: at which it began again.
    """

    name: str
    gpus: int | None = None
    pipeline: int | None = None
    data: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    idle_share: float | None = None
    bubble_ratio: float | None = None
    most_busy: float | None = None
    idle_share_bounds: Bounds | None = None
    bubble_ratio_bounds: Bounds | None = None
    most_busy_bounds: Bounds | None = None
    evidence: str | None = None
    busy: float | None = None
    busy_evidence: str | None = None
    overstated: bool = False
    window_share: float | None = None
    makespan_ms: float | None = None
    outside_ms: float | None = None
    peak_activations: float | None = None
    throughput: Mapping[str, Stated] = field(default_factory=dict)
    ceiling_ratio: float | None = None
    ceiling_barrier_ratio: float | None = None
    causes: tuple[CauseCost, ...] = ()
    remarks: tuple[str, ...] = ()
    phases: tuple[Phase, ...] | None = field(default=None, metadata=SPARSE)
    left_out: tuple[LoneStep, ...] | None = field(default=None, metadata=SPARSE)
    restarts: tuple[Restart, ...] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseDifference:
    """A cause in both windows.

    Args:
        cause: its name.
        a_ms: of the window of a.
        b_ms: of the window of b.
        a_share: of the window of a, 0 to 1; negative for time won back.
        b_share: of the window of b, likewise.
        difference_ms: b less a.
    """

    cause: str
    a_ms: float
    b_ms: float
    a_share: float
    b_share: float
    difference_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A key of a job file that would tell more, and what.

    Args:
        side: name of the run that lacks it.
        key: as a job file has it.
        reason: what it would tell, a clause.
    """

    side: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Comparison(Result):
    """Two runs, b against a.

    Args:
        throughput_ratio: of b over a; None if it was stated of neither.
        unit: in which.
        evidence: of the ratio.
        factors: whose product is the ratio: some of gpus, window, busy, work_rate.
        schedule_factors: the same with the busy shares of the schedules themselves; empty if none are stated.
        busy_evidence: of the factor ``busy``.
        a: what is compared with.
        b: the run in question.
        bubble_explains_ratio: what would have happened had only the schedules' own idle time changed; None if only
            bounds are known.
        bubble_explains_bounds: least and most of it.
        left_over_ratio: the rest.
        left_over_bounds: least and most of it.
        left_over_parts: as a product, if both were measured or simulated.
        recompute_ratio: what a recomputation explains.
        realised_share: gain of b over a as a share of what removing the bubble of a can bring.
        ceiling_ratio: of b.
        ceiling_barrier_ratio: of b.
        tie_hop_ms: the hop at which both are equally fast.
        verdict: the comparison in sentences, the answer first.
        check: what may have cost work in a busy second, the likeliest first.
        first: the first recommendation: the best change of b that can be launched; None if there is none.
        next: changes of b that can be launched, the best first.
        beyond: changes of b that ask for more, each with what.
        causes: why each window takes as long as it does, side by side; empty if one has no timeline.
        missing: what would tell more.
        changed: arguments of two launches that differ and may bear on speed; empty unless both say them.
        fits: of the logs among the runs.
        gate: what a script asked for, and whether it passes.
        compared: what pages draw from; no key.
    """

    schema: ClassVar[str] = "why/1"

    throughput_ratio: float | None
    unit: str | None
    evidence: str | None
    factors: Mapping[str, float]
    schedule_factors: Mapping[str, float]
    busy_evidence: str | None
    a: Side
    b: Side
    bubble_explains_ratio: float | None
    bubble_explains_bounds: Bounds | None
    left_over_ratio: float | None
    left_over_bounds: Bounds | None
    left_over_parts: Mapping[str, float]
    recompute_ratio: float
    realised_share: float | None
    ceiling_ratio: float | None
    ceiling_barrier_ratio: float | None
    tie_hop_ms: float | None
    verdict: tuple[str, ...]
    check: tuple[str, ...]
    first: WayOut | None
    next: tuple[WayOut, ...]
    beyond: tuple[WayOut, ...]
    causes: tuple[CauseDifference, ...]
    missing: tuple[Missing, ...]
    changed: tuple[Changed, ...]
    fits: tuple[Fit, ...] | None = field(default=None, metadata=SPARSE)
    gate: Gate | None = field(default=None, metadata=SPARSE)
    compared: Compared = field(metadata=HIDDEN)

    @property
    def exit_status(self) -> int:
        """Exit status: that of the gate."""
        return status_of(self.gate)

    @property
    def undrawn(self) -> str:
        """Why there is no picture of it."""
        return "neither run has a timeline to draw"

    @property
    def changes(self) -> tuple[Change, ...]:
        """The ways out as changes with their step times."""
        return tuple(map(change_of, self.compared.next))

    @property
    def windows(self) -> tuple[ComparedWindow, ...]:
        """What can be drawn of both runs; a log of steps has no ops to be drawn."""
        found = (window_of(self.compared.a, of_b=False), window_of(self.compared.b, of_b=True))
        return tuple(window for window in found if window is not None)

    @property
    def sliders(self) -> Sliders | None:
        """Where the sliders of its page start, if b has a timeline that simulation meets."""
        run, windows = self.compared.b, self.windows
        if not windows or not windows[-1].of_b or run.causes is None or run.replay is None or not run.replay_fits:
            return None
        return measured_sliders(run.replay, run.causes.resim_ratio, len(windows) - 1)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Series(Result):
    """Runs of a series, each against the first.

    Args:
        base: the name of the first.
        runs: the others.
        frontier: those that no other beats in both throughput and memory; None if fewer than two state their memory.
        fits: of the logs among the runs.
        gate: what a script asked for, and whether all of them pass.
    """

    schema: ClassVar[str] = "why-series/1"

    base: str
    runs: tuple[Comparison, ...]
    frontier: Frontier | None
    fits: tuple[Fit, ...] | None = field(default=None, metadata=SPARSE)
    gate: Gate | None = field(default=None, metadata=SPARSE)

    @property
    def exit_status(self) -> int:
        """Exit status: that of the gate."""
        return status_of(self.gate)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedWindow:
    """A window that can be drawn.

    Args:
        name: of the run.
        of_b: whether it is the run in question.
        measured: whether it was measured op by op.
        timeline: measured, or simulated.
        account: of it.
        per_rank: of it.
        causes: of it; empty if ranks are missing.
        stated: whether its durations are the run's own; if not, they are those that ``show`` takes.
    """

    name: str
    of_b: bool
    measured: bool
    timeline: Timeline
    account: Account
    per_rank: tuple[RankTime, ...]
    causes: tuple[CauseCost, ...]
    stated: bool


def window_of(run: ComparedRun, *, of_b: bool) -> ComparedWindow | None:
    """What can be drawn of a run; None if its order is not known, or if it is a log, whose slots nobody has seen."""
    timeline = run.timeline
    if timeline is None:
        if run.replay is None or run.job.evidence == "measured":
            return None
        # A stated job is drawn by its order at the usual durations, and the picture says that.
        timeline = simulate(lower(run.replay.schedule), run.replay.costs)
    spent = account(timeline)
    return ComparedWindow(
        name=run.name,
        of_b=of_b,
        measured=run.measured,
        timeline=timeline,
        account=spent,
        per_rank=rank_times(spent, peak_activations(timeline.program.schedule)),
        causes=_costs(run),
        stated=run.measured or run.job.forward is not None,
    )


def comparison_of(c: Compared, fits: Sequence[Fit] = (), passes: Gate | None = None) -> Comparison:
    """Two runs under the keys of their JSON."""
    ratio = evidence = tie = first = None
    if c.ratio is not None:
        ratio, evidence = c.ratio.value, c.ratio.evidence
    if c.tie_hop_ns is not None:
        tie = c.tie_hop_ns / MILLISECOND
    if c.remedies.first is not None:
        first = way_out_of(c.remedies.first, ratio)
    explains, left = c.explains, c.left_over
    return Comparison(
        throughput_ratio=ratio,
        unit=c.unit,
        evidence=evidence,
        factors=c.factors,
        schedule_factors=_of_schedules(c),
        busy_evidence=c.busy_evidence or None,
        a=side_of(c.a),
        b=side_of(c.b),
        bubble_explains_ratio=_known(explains),
        bubble_explains_bounds=explains,
        left_over_ratio=_known(left),
        left_over_bounds=left,
        left_over_parts=c.left_over_parts,
        recompute_ratio=c.recompute_ratio,
        realised_share=c.realised_share,
        ceiling_ratio=c.b.ceiling_ratio,
        ceiling_barrier_ratio=c.b.ceiling_barrier_ratio,
        tie_hop_ms=tie,
        verdict=tuple(verdict(c)),
        check=tuple(checks(c)),
        first=first,
        next=tuple(way_out_of(answer, ratio) for answer in c.next),
        beyond=tuple(way_out_of(answer, ratio) for answer in c.remedies.beyond),
        causes=_causes(c),
        missing=tuple(Missing(side=ask.side, key=ask.key, reason=ask.reason) for ask in c.asks),
        changed=changed_arguments(c.a.job, c.b.job),
        fits=tuple(fits) or None,
        gate=passes,
        compared=c,
    )


def series_of(several: Sequence[Compared], fits: Sequence[Fit] = (), passes: Gate | None = None) -> Series:
    """A series under the keys of its JSON."""
    return Series(
        base=several[0].a.name,
        runs=tuple(map(comparison_of, several)),
        frontier=frontier(several),
        fits=tuple(fits) or None,
        gate=passes,
    )


def _known(bounds: Bounds | None) -> float | None:
    """A figure if its bounds are one number."""
    if bounds is None or bounds[0] != bounds[1]:
        return None
    return bounds[0]


def _of_schedules(c: Compared) -> dict[str, float]:
    """The factors with the busy shares of the schedules themselves, beside stated utilisations."""
    own = _known(c.explains)
    # Only beside stated utilisations, which may be of anything: measured ones need no second opinion.
    if c.busy_evidence != "stated" or own is None or c.ratio is None:
        return {}
    gpus = c.factors.get("gpus", 1.0)
    all_factors = {"gpus": gpus, "busy": own / gpus, "work_rate": c.ratio.value / own}
    return {name: all_factors[name] for name in c.factors}


def side_of(run: ComparedRun) -> Side:
    """A run under the keys of its JSON; what is not known of it stays None."""
    job = run.job
    schedule = job.schedule
    if job.pipeline is None:  # without a pipeline the schedule that its framework would take says nothing
        schedule = None
    # What was seen goes before what was simulated, unit by unit.
    speeds: dict[str, Figure] = {**run.predicted, **run.speeds}
    side = Side(
        name=run.name,
        gpus=run.gpus,
        pipeline=job.pipeline,
        data=job.data,
        microbatches=job.microbatches,
        schedule=schedule,
        overstated=run.overstated,
        window_share=run.window_share,
        peak_activations=run.peak_activations,
        throughput={unit: Stated(each.value, each.evidence) for unit, each in speeds.items()},
        ceiling_ratio=run.ceiling_ratio,
        ceiling_barrier_ratio=run.ceiling_barrier_ratio,
        causes=_costs(run),
        remarks=tuple(run.remarks),
    )
    if run.own is not None:
        side = _with_own(side, run.own)
    # A measured window has its hops already; a stated job's closed form knows of none.
    if run.timeline is not None and not run.measured and job.transfer:
        side = _with_hops(side, account(run.timeline))
    if run.busy is not None:
        side = replace(side, busy=run.busy.value, busy_evidence=run.busy.evidence)
    if run.causes is not None:
        side = replace(side, makespan_ms=run.causes.window / MILLISECOND)
    if run.measured:
        side = replace(side, outside_ms=run.outside_ns / MILLISECOND)
    if run.history is not None:
        past = run.history
        side = replace(side, phases=past.phases, left_out=past.left_out, restarts=past.restarts)
    return side


def _with_hops(side: Side, spent: Account) -> Side:
    """With hops a closed form is not the idle share: what was simulated is."""
    share, ratio = spent.idle_share, spent.bubble_ratio
    return replace(
        side,
        idle_share=share,
        bubble_ratio=ratio,
        idle_share_bounds=(share, share),
        bubble_ratio_bounds=(ratio, ratio),
        evidence=spent.evidence,
    )


def _with_own(side: Side, own: Own) -> Side:
    """What the schedule itself idles: one number if it is known, and the bounds always."""
    if not own.known:
        bounds = (0.0, own.bubble_ratio)  # with ever more micro-batches it goes to nothing
        return replace(
            side,
            idle_share_bounds=(own.least, own.most),
            bubble_ratio_bounds=bounds,
            most_busy_bounds=own.busy,
            evidence=own.evidence,
        )
    return replace(
        side,
        idle_share=own.most,
        bubble_ratio=own.bubble_ratio,
        most_busy=own.busy[1],
        idle_share_bounds=(own.least, own.most),
        bubble_ratio_bounds=(own.bubble_ratio, own.bubble_ratio),
        most_busy_bounds=own.busy,
        evidence=own.evidence,
    )


def _costs(run: ComparedRun) -> tuple[CauseCost, ...]:
    """The causes of its window; empty if it has none, or ranks are missing."""
    if run.causes is None:
        return ()
    if run.measured:
        return cause_costs(run.causes, "measured")
    return cause_costs(run.causes, "simulated")


def _causes(c: Compared) -> tuple[CauseDifference, ...]:
    """Why each window takes as long as it does, side by side; empty if one of them has no timeline."""
    if c.a.causes is None or c.b.causes is None:
        return ()
    # A window without work has no causes either: their shares are 0 of anything.
    windows = c.a.causes.window or 1, c.b.causes.window or 1
    parts = dict(c.a.causes), dict(c.b.causes)
    # Of either: a cause that one window lacks is a row with a zero.
    names = [name for name in ORDER if any(name in part for part in parts)]
    return tuple(
        CauseDifference(
            cause=name,
            a_ms=here / MILLISECOND,
            b_ms=there / MILLISECOND,
            a_share=here / windows[0],
            b_share=there / windows[1],
            difference_ms=(there - here) / MILLISECOND,
        )
        for name in names
        for here, there in [[part.get(name, 0) for part in parts]]
    )


NOTICEABLE = 0.01  # share of the time that is worth a word


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Alone(Result):
    """A run without another to compare it with.

    Args:
        run: what is known of it.
        bubble_allows_share: busy share that its schedule allows, at most; None if the pipeline is not known.
        something_else_share: by how much it is less busy than that; None if nobody saw how busy it is.
        busy_mfu: model FLOP utilisation in a busy second, if only the bubble idled; None if no utilisation was stated.
        verdict: sentences, the answer first.
        next: changes at the global batch that it has.
        beyond: changes that ask for more, each with what.
        missing: what would tell more.
        fit: of its step times, if it is a log of several.
        compared: what pages draw from; no key.
    """

    schema: ClassVar[str] = "why-alone/1"

    run: Side
    bubble_allows_share: float | None
    something_else_share: float | None
    busy_mfu: float | None
    verdict: tuple[str, ...]
    next: tuple[WayOut, ...]
    beyond: tuple[WayOut, ...]
    missing: tuple[Missing, ...]
    fit: Fit | None = field(default=None, metadata=SPARSE)
    compared: ComparedRun = field(metadata=HIDDEN)

    @property
    def window(self) -> ComparedWindow | None:
        """What can be drawn of it."""
        return window_of(self.compared, of_b=True)


def alone(run: ComparedRun, fit: Fit | None = None, launcher: Launcher | None = None) -> Alone:
    """What can be said of one run."""
    allows = something_else = busy_mfu = None
    if run.own is not None:
        allows = run.own.busy[1]
        if run.busy is not None:
            # Busier than its schedule allows is a fault of the figure, not a gain; the verdict says so.
            something_else = max(0.0, allows - run.busy.value)
        if run.job.mfu is not None:
            busy_mfu = run.job.mfu / allows
    remedies = remedies_of(run, launcher)
    return Alone(
        run=side_of(run),
        bubble_allows_share=allows,
        something_else_share=something_else,
        busy_mfu=busy_mfu,
        verdict=tuple(_verdict(run, remedies)),
        next=tuple(way_out_of(answer, None) for answer in remedies.launchable),
        beyond=tuple(way_out_of(answer, None) for answer in remedies.beyond),
        missing=tuple(_missing(run)),
        fit=fit,
        compared=run,
    )


def _verdict(run: ComparedRun, remedies: Remedies) -> Iterator[str]:
    own = run.own
    yield from _pace(run)
    if own is not None:
        yield from _against_its_bubble(run, own)
    else:
        yield "What its bubble costs cannot be said: how many ranks its pipeline has is not known."
    if run.causes is not None and run.measured:
        # What the order costs has been said as the bubble; here is what comes on top of it.
        named = [(name, cost) for name, cost in run.causes if name not in ("ideal", "schedule")]
        parts = [f"{name} {percent(cost / run.causes.window)}" for name, cost in named if cost > 0]
        if parts:
            yield f"Of the window, beside the schedule's own idle time: {', '.join(parts)} (by re-simulation)."
    if run.history is not None:
        yield from (f"{sentence[:1].upper()}{sentence[1:]}." for sentence in history_sentences(run.history))
    if own is not None and run.job.mfu is not None:
        reached = percent(run.job.mfu / own.busy[1])
        yield f"If only the bubble idled, a GPU would reach {reached} of its peak in a busy second."
    yield from next_sentences(remedies)


def _pace(run: ComparedRun) -> Iterator[str]:
    """How long a step of a log takes: all that is sure while nothing is known of its pipeline."""
    if run.history is None:
        return
    step = f"A step takes {duration(1e9 * run.history.seconds)}, over {counted(run.history.steps, 'step')} (measured)"
    for unit, rate in run.speeds.items():
        # Steps a second say the same as the step, and a share of the peak is no pace.
        if unit not in (STEPS, MFU):
            digits = max(0, 3 - math.floor(math.log10(rate.value)))
            yield f"{step}: {rate.value:,.{digits}f} {unit}."
            return
    yield f"{step}."


def _against_its_bubble(run: ComparedRun, own: Own) -> Iterator[str]:
    """How busy it is, and how busy its schedule lets it be."""
    low, high = own.busy
    allows = f"its bubble allows {percent(high)} ({own.evidence})"
    if not own.known:
        allows = f"its bubble allows {percent(low)} to {percent(high)}, by the number of micro-batches"
    if run.busy is None:
        yield f"Of what was seen, nothing says how busy its GPUs are; {allows}."
        return
    busy = run.busy.value
    seen = f"Its GPUs are busy for {percent(busy)} ({run.busy.evidence}), and {allows}"
    if run.overstated:
        yield f"{seen}: that cannot be, so it was measured over something else than the step."
        yield "A rank that waits in a receive kernel counts as busy."
    elif high - busy > NOTICEABLE:
        points = counted(round(100 * (high - busy)), "point")
        bubble = percent(1 - high)
        yield f"{seen}: the bubble costs {bubble}, and {points} more are something else."
    else:
        yield f"{seen}: nothing but the bubble needs a cause."


def _missing(run: ComparedRun) -> Iterator[Missing]:
    if run.job.pipeline is None:
        yield Missing(side=run.name, key="pipeline", reason="how long a pipeline is, which bounds its bubble")
    elif run.own is not None and not run.own.known:
        yield Missing(side=run.name, key="microbatches", reason="how many travel through a pipeline in a step")
    if run.busy is None:
        yield Missing(side=run.name, key="measured.utilisation", reason="how busy its GPUs are (or a trace of it)")
