"""A diagnosis as scripts and reports have it: every figure of a measured run under the key that JSON has for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import ClassVar

import numpy as np

from ..core.account import Account, RankTime, rank_times
from ..core.engine import IDEAL
from ..core.observation import DeviceClock, Finding, Link, Observation
from ..core.program import Timeline
from ..core.results import HIDDEN, SPARSE, Result
from ..core.schedule import peak_activations
from ..core.units import MILLISECOND, percent
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import ratio_of_any_costs, sizes_of
from .causes import CauseCost, Causes, Summary, cause_costs, causes, median_window
from .evidence import Replica
from .order import Recognised
from .remedies import OWN_ORDER, Change, Sliders, change_of, measured_sliders
from .replay import EngineFit, Remedies, Replay, WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What was asked of a run, and whether it passes.

    Args:
        limit_share: the most that it may idle, or be slower by; None if none was given.
        idle_share: what was measured of that; None if a throughput was compared.
        passed: whether nothing that was asked for failed.
        reasons: why it did not pass, a sentence each.
    """

    limit_share: float | None
    idle_share: float | None
    passed: bool
    reasons: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """Exit status: 0, or 1 if it did not pass."""
        return int(not self.passed)


def status_of(passes: Gate | None) -> int:
    """Exit status of a result: 0 if nothing was asked of it."""
    if passes is None:
        return 0
    return passes.exit_status


def gate(reasons: Iterable[str], limit: float | None = None, idle_share: float | None = None) -> Gate:
    """The gate of a run: it passes if there is no reason against it, and it idles no more than the limit.

    Args:
        reasons: what else was asked for and failed, a sentence each.
        limit: the most that it may idle; None for any.
        idle_share: what it idles.
    """
    failed = list(reasons)
    if limit is not None and idle_share is not None and idle_share > limit:
        failed.insert(0, f"It idles for {percent(idle_share)}, more than {percent(limit)}.")
    return Gate(limit_share=limit, idle_share=idle_share, passed=not failed, reasons=tuple(failed))


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PartOfRun(Result):
    """Traces that were distilled, and are not all of a run.

    Args:
        folder: where to.
        ranks: whose traces were distilled.
        bytes: of what was written.
        reason: why they cannot be diagnosed alone, a sentence.
    """

    schema: ClassVar[str] = "distilled/1"

    folder: str
    ranks: int
    bytes: int
    reason: str


MOST_SAMPLES = 256  # of a device's memory over time: about a column of a page each


@dataclass(frozen=True, slots=True, eq=False)
class Examined:
    """What was found.

    Args:
        run: what was measured.
        summary: of its windows.
        order: the schedule that the run shows.
        causes: of the median window; they sum to it.
        findings: in plain words, the dearest first.
        remedies: changes and what they would bring; none if the replay cannot be trusted.
        replicas: side by side.
        replay: of the median window, on which changes are tried.
        engines: the window simulated again under each, the best first.
        remarks: what was left out, repaired or not offered, a sentence each.
        verdict: the run in sentences, the answer first.
    """

    run: Observation
    summary: Summary
    order: Recognised
    causes: Causes
    findings: tuple[Finding, ...]
    remedies: Remedies
    replicas: tuple[Replica, ...]
    replay: Replay
    engines: tuple[EngineFit, ...] = ()
    remarks: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()

    @property
    def what_ifs(self) -> tuple[WhatIf, ...]:
        """Every change that was tried and is worth a line, the best first."""
        return self.remedies.every

    @property
    def worst(self) -> int:
        """Index of the median window of the replica whose windows take longest."""
        slowest = max(self.replicas, key=lambda each: each.makespan_ns).number
        mine = [i for i, window in enumerate(self.summary.windows) if window.replica == slowest]
        return median_window(self.summary, mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCost:
    """A finding.

    Args:
        finding: in plain words.
        cause: its short name.
        cost_ms: of a window, or of a step if it lies outside.
        evidence: of the figure.
        remedy: what would help, or empty.
        gain_ratio: samples per second with the remedy over without, simulated; None if it was not.
        spans: where it can be seen.
        rank: of the pipeline, if one is to blame; so too ``stage``, ``replica`` and ``step``.
        size_ratio: how many times as long as usual what is to blame took.
    """

    finding: str
    cause: str
    cost_ms: float
    evidence: str
    remedy: str
    gain_ratio: float | None
    spans: tuple[SpanTime, ...]
    rank: int | None = field(metadata=SPARSE)
    stage: int | None = field(metadata=SPARSE)
    replica: int | None = field(metadata=SPARSE)
    step: int | None = field(metadata=SPARSE)
    size_ratio: float | None = field(metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class SpanTime:
    """A stretch of time on one rank.

    Args:
        rank: of the pipeline.
        op: in it, or before it if it is a gap, as in ``2F0``.
        start_ms: from the start of the window.
        end_ms: likewise.
    """

    rank: int
    op: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWork:
    """A data-parallel replica over all its steps.

    Args:
        replica: from 0.
        windows: how many were measured.
        makespan_ms: median length of its pipeline window.
        idle_share: mean over its windows.
        stage_ms: mean work of each stage in a step.
    """

    replica: int
    windows: int
    makespan_ms: float
    idle_share: float
    stage_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receives:
    """Receives of one rank from another, over all windows.

    Args:
        sender: rank in the pipeline.
        receiver: rank in the pipeline.
        receives: how many.
        waiting_ms: time before their sends had begun.
        transfer_ms: the rest, the most that transfer can have been.
        usual_transfer_ms: that of one transfer, the median.
        waiting_share: of both.
    """

    sender: int
    receiver: int
    receives: int
    waiting_ms: float
    transfer_ms: float
    usual_transfer_ms: float
    waiting_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """The clock of one device against that of the lowest one.

    Args:
        device: global rank.
        offset_ms: by how much it is ahead; None if no message joins the two.
        rate_ppm: by how much it is faster, millionths.
        uncertainty_ms: of the offset; None if that is not known.
    """

    device: int
    offset_ms: float | None
    rate_ppm: float
    uncertainty_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """What a device held over time: its peak, and at most 256 samples from the start of the first window.

    Args:
        device: global rank.
        rank: its rank in the pipeline.
        replica: its data-parallel replica.
        peak_bytes: the most of all samples.
        time_ms: of each sample that is kept: the largest of its stretch.
        held_bytes: of each sample that is kept.
    """

    device: int
    rank: int
    replica: int
    peak_bytes: int
    time_ms: tuple[float, ...]
    held_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWindow:
    """The median window of the replica whose windows take longest.

    Args:
        replica: from 0.
        step: number of the step.
        makespan_ms: length of the window.
        idle_share: of it, 0 to 1.
        per_rank: where the time of each rank goes.
    """

    replica: int
    step: int
    makespan_ms: float
    idle_share: float
    per_rank: tuple[RankTime, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Diagnosis(Result):
    """A measured run: how big its bubble is, when its ranks idle, why, and what would help.

    Shares and ratios are means over the windows, lengths medians; least and most are beside them.

    Args:
        source: what was read.
        steps: that count.
        replicas: data-parallel.
        ranks: positions in the pipeline.
        chunks: stages on a rank.
        microbatches: per pipeline and step.
        schedule: the order that ran, by name.
        nearest: published order that is most like it; None if there is none for this shape.
        departure: where it departs from that; None if it does not.
        paced: whether ops were stretched to given durations.
        makespan_ms: length of the median window (the shorter of two in the middle), to which ``causes`` and
            ``per_rank`` sum.
        makespan_median_ms: median length of the windows (the mean of two in the middle); the ends are
            ``makespan_min_ms`` and ``makespan_max_ms``.
        predicted_ms: what was simulated for it before the run; None if nothing was.
        step_ms: a whole step; None if it was not measured.
        outside_ms: what a step holds beside its pipeline window.
        idle_share: idle / (ranks x window), 0 to 1; ``idle_share_min`` and ``idle_share_max`` are beside it.
        pooled_idle_share: the same of all windows taken together.
        bubble_ratio: idle / busy; ``bubble_ratio_min`` and ``bubble_ratio_max`` are beside it.
        evidence: ``measured``.
        windows: how many.
        left_out_steps: numbers of steps that do not count.
        per_rank: where the time of each rank of the median window goes.
        worst: the median window of the slowest replica.
        heat: replicas and the work of their stages.
        causes: why the median window is as long as it is; they sum to it.
        schedule_idle_share: idle share if only the schedule idled, simulated.
        resim_ratio: the window simulated again over what was measured.
        resim_without_transfer_ratio: the same with free transfers.
        engine: under which changes are simulated; ``ideal`` where hops cost too little to tell engines apart.
        engine_fits: the window simulated again under each engine that can run its order, with the least hops that were
            seen; the one that starts ops where they did start is first.
        resim_ratio_by_engine: the length of these windows over what was measured.
        trusted: whether that is near enough for what-ifs.
        matched_share: of transfers whose two ends were found; None if none was measured.
        torn_ranks: that talk to ranks which were not measured.
        transfers: receives, by sender and receiver.
        receive_waiting_share: of all receives together; None if none was measured.
        clock_uncertainty_ms: by which the clocks of two ranks may disagree.
        clocks: of each device whose messages tell it.
        missing_ranks: global ranks that messages name and that were not measured.
        memory: over time, of each device whose trace has it; None if none has.
        findings: the dearest first.
        what_if: changes that were tried, the best first.
        first: the first recommendation, the best of them that can be launched; None if there is none.
        search: the command that searches a schedule for these costs; None if no order can be 1 % faster than this one.
        verdict: the run in sentences, the answer first.
        remarks: what was left out, repaired or not offered, a sentence each.
        gate: what a script asked for, and whether it passes; None if nothing was asked.
        examined: what pages draw from; no key.
    """

    schema: ClassVar[str] = "diagnose/1"

    source: str
    steps: int
    replicas: int
    ranks: int
    chunks: int
    microbatches: int
    schedule: str
    nearest: str | None
    departure: str | None
    paced: bool
    makespan_ms: float
    makespan_median_ms: float
    makespan_min_ms: float
    makespan_max_ms: float
    predicted_ms: float | None
    step_ms: float | None
    outside_ms: float | None
    idle_share: float
    idle_share_min: float
    idle_share_max: float
    pooled_idle_share: float
    bubble_ratio: float
    bubble_ratio_min: float
    bubble_ratio_max: float
    evidence: str
    windows: int
    left_out_steps: tuple[int, ...]
    per_rank: tuple[RankTime, ...]
    worst: ReplicaWindow
    heat: tuple[ReplicaWork, ...]
    causes: tuple[CauseCost, ...]
    schedule_idle_share: float
    resim_ratio: float
    resim_without_transfer_ratio: float
    engine: str
    engine_fits: tuple[EngineFit, ...]
    resim_ratio_by_engine: dict[str, float]
    trusted: bool
    matched_share: float | None
    torn_ranks: tuple[int, ...]
    transfers: tuple[Receives, ...]
    receive_waiting_share: float | None
    clock_uncertainty_ms: float
    clocks: tuple[ClockRow, ...]
    missing_ranks: tuple[int, ...]
    memory: tuple[MemoryRow, ...] | None = field(default=None, metadata=SPARSE)
    findings: tuple[FindingCost, ...]
    what_if: tuple[Change, ...]
    first: Change | None
    search: str | None
    verdict: tuple[str, ...]
    remarks: tuple[str, ...]
    gate: Gate | None
    examined: Examined = field(metadata=HIDDEN)

    @property
    def exit_status(self) -> int:
        """Exit status: that of the gate."""
        return status_of(self.gate)

    @property
    def worst_is_median(self) -> bool:
        """Whether the median window is that of the slowest replica."""
        window = self.examined.summary.window
        return (self.worst.step, self.worst.replica) == (window.step, window.replica)

    @property
    def timeline(self) -> Timeline:
        """The median window."""
        return self.examined.summary.window.timeline

    @property
    def account(self) -> Account:
        """Where its time went."""
        return self.examined.summary.account

    @property
    def worst_timeline(self) -> Timeline:
        """The median window of the slowest replica."""
        return self.examined.summary.windows[self.examined.worst].timeline

    @property
    def worst_account(self) -> Account:
        """Where its time went."""
        return self.examined.summary.accounts[self.examined.worst]

    @property
    def worst_causes(self) -> tuple[CauseCost, ...]:
        """Why it is as long as it is."""
        return cause_costs(causes(self.worst_timeline), "measured")

    @property
    def promised(self) -> tuple[float, str]:
        """What the order would idle with even stages and free transfers, and where that figure comes from."""
        schedule = self.timeline.program.schedule
        name = self.examined.order.name
        # Of any costs: measured ones are never quite those for which the other formulas hold.
        ratio = ratio_of_any_costs(CATALOG[name], sizes_of(schedule)) if name else None
        if ratio is None:
            return self.schedule_idle_share, "simulated"
        return ratio / (1 + ratio), "exact"

    @property
    def sliders(self) -> Sliders | None:
        """Where the sliders of its page start; None if simulating the run again misses its window."""
        # The page's simulation knows hops as latencies alone; under another engine its figures would be wrong.
        if not self.trusted or self.examined.replay.engine != IDEAL:
            return None
        return measured_sliders(self.examined.replay, self.resim_ratio)


def diagnosis_of(found: Examined, passes: Gate | None = None) -> Diagnosis:
    """What was found of a run, under the keys of its JSON."""
    run, summary, schedule = found.run, found.summary, found.summary.window.timeline.program.schedule
    lengths = [each.window for each in summary.accounts]
    first = found.remedies.first
    return Diagnosis(
        source=_named(run.source),
        steps=summary.steps,
        replicas=summary.replicas,
        ranks=schedule.ranks,
        chunks=schedule.stages // schedule.ranks,
        microbatches=schedule.microbatches,
        schedule=str(found.order),
        nearest=found.order.nearest,
        departure=found.order.departure or None,
        paced=run.paced,
        makespan_ms=summary.makespan_ns / MILLISECOND,
        makespan_median_ms=summary.median_ns / MILLISECOND,
        makespan_min_ms=min(lengths) / MILLISECOND,
        makespan_max_ms=max(lengths) / MILLISECOND,
        predicted_ms=_ms(run.predicted_ns),
        step_ms=_ms(summary.step_ns),
        outside_ms=_ms(summary.outside_ns),
        idle_share=summary.idle_share,
        idle_share_min=min(summary.idle_shares),
        idle_share_max=max(summary.idle_shares),
        pooled_idle_share=summary.pooled_idle_share,
        bubble_ratio=summary.bubble_ratio,
        bubble_ratio_min=min(summary.bubble_ratios),
        bubble_ratio_max=max(summary.bubble_ratios),
        evidence=summary.account.evidence,
        windows=len(lengths),
        left_out_steps=summary.left_out,
        per_rank=rank_times(summary.account, peak_activations(schedule)),
        worst=_worst(found),
        heat=tuple(_replica(each) for each in found.replicas),
        causes=cause_costs(found.causes, "measured", run.clock_uncertainty_ns),
        schedule_idle_share=1 - found.causes.most_busy,
        resim_ratio=found.causes.resim_ratio,
        resim_without_transfer_ratio=found.causes.resim_without_transfer_ratio,
        engine=found.replay.engine.name,
        engine_fits=found.engines,
        resim_ratio_by_engine={fit.engine: fit.resim_ratio for fit in found.engines},
        trusted=found.causes.trusted,
        matched_share=run.matched_share if run.links or run.matched_share < 1 else None,
        torn_ranks=run.torn,
        transfers=tuple(_receives(each) for each in run.links),
        receive_waiting_share=_waiting_share(run.links),
        clock_uncertainty_ms=run.clock_uncertainty_ns / MILLISECOND,
        clocks=tuple(map(_clock, run.clocks)),
        missing_ranks=run.missing,
        memory=_memory(run) or None,
        findings=tuple(_finding(each) for each in found.findings),
        what_if=tuple(map(change_of, found.what_ifs)),
        first=None if first is None else change_of(first),
        search=_search(found),
        verdict=found.verdict,
        remarks=found.remarks,
        gate=passes,
        examined=found,
    )


def _named(source: str) -> str:
    """What was read, without the folders of this machine; an address is nobody's folder and stays whole."""
    if "://" in source:
        return source
    return PurePath(source).name or source


def place_of(source: str) -> str:
    """What was read, as a command names it: a page is handed on, so it holds no absolute path of this machine."""
    if PurePath(source).is_absolute():
        return _named(source)
    return source


def _search(found: Examined) -> str | None:
    """The command line that searches a schedule of one's own, if that can pay."""
    if found.remedies.gain(OWN_ORDER) is None:
        return None
    words = ["debubble", "synth", "--from", place_of(found.run.source)]
    if not found.run.engine:  # a search is for one engine, and the recording does not say which ran
        words += ["--engine", found.replay.engine.name]
    return shlex.join(words)


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / MILLISECOND


def _worst(found: Examined) -> ReplicaWindow:
    window, spent = found.summary.windows[found.worst], found.summary.accounts[found.worst]
    return ReplicaWindow(
        replica=window.replica,
        step=window.step,
        makespan_ms=spent.window / MILLISECOND,
        idle_share=spent.idle_share,
        per_rank=rank_times(spent, peak_activations(window.timeline.program.schedule)),
    )


def _replica(each: Replica) -> ReplicaWork:
    return ReplicaWork(
        replica=each.number,
        windows=each.windows,
        makespan_ms=each.makespan_ns / MILLISECOND,
        idle_share=each.idle_share,
        stage_ms=tuple((each.stage_ns / MILLISECOND).tolist()),
    )


def _receives(each: Link) -> Receives:
    whole = each.waiting_ns + each.transfer_ns
    return Receives(
        sender=each.sender,
        receiver=each.receiver,
        receives=each.receives,
        waiting_ms=each.waiting_ns / MILLISECOND,
        transfer_ms=each.transfer_ns / MILLISECOND,
        usual_transfer_ms=each.usual_ns / MILLISECOND,
        waiting_share=each.waiting_ns / whole if whole else 0.0,
    )


def _waiting_share(links: Sequence[Link]) -> float | None:
    waiting = sum(each.waiting_ns for each in links)
    whole = waiting + sum(each.transfer_ns for each in links)
    return waiting / whole if whole else None


def _finding(each: Finding) -> FindingCost:
    spans = tuple(SpanTime(s.rank, s.op, s.start / MILLISECOND, s.end / MILLISECOND) for s in each.spans)
    return FindingCost(
        finding=each.sentence,
        cause=each.cause,
        cost_ms=each.cost_ns / MILLISECOND,
        evidence=each.evidence,
        remedy=each.remedy,
        gain_ratio=each.gain_ratio,
        spans=spans,
        rank=each.rank,
        stage=each.stage,
        replica=each.replica,
        step=each.step,
        size_ratio=each.size_ratio,
    )


def _clock(each: DeviceClock) -> ClockRow:
    return ClockRow(
        device=each.device,
        offset_ms=_ms(each.offset_ns),
        rate_ppm=each.rate_ppm,
        uncertainty_ms=_ms(each.uncertainty_ns),
    )


def _memory(run: Observation) -> tuple[MemoryRow, ...]:
    """What each device held, thinned to what can be drawn: of each stretch of samples the largest."""
    # One begin for all devices: their curves are read against each other.
    begin = min(window.timeline.window[0] for window in run.windows)
    rows = []
    for each in run.memory:
        # The largest of each stretch: a mean would hide the peak that ran out of memory.
        stretches = np.array_split(np.arange(len(each.held_bytes)), min(MOST_SAMPLES, len(each.held_bytes)))
        kept = np.array([stretch[each.held_bytes[stretch].argmax()] for stretch in stretches if len(stretch)], np.int64)
        rows.append(
            MemoryRow(
                device=each.device,
                rank=each.rank,
                replica=each.replica,
                peak_bytes=int(each.held_bytes.max(initial=0)),
                time_ms=tuple(((each.time_ns[kept] - begin) / MILLISECOND).tolist()),
                held_bytes=tuple(each.held_bytes[kept].tolist()),
            )
        )
    return tuple(rows)
