"""What step times tell: phases of the run, then slot, bubble and fixed time if a line holds; peak memory and timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.observation import BACKWARD, FORWARD, StepLog
from ..core.results import SPARSE, Result
from ..core.units import duration
from .fit_lines import (
    FittedMemory,
    StepFit,
    StepTimes,
    doubts,
    fit_memory,
    fit_steps,
    gains,
    growth,
    holdouts,
    sentences,
)
from .log_run import LoneStep, Phase, Restart, Setting, history_of, history_sentences, settings_of


@dataclass(frozen=True, slots=True)
class Sizes:
    """What turns a log's batches into micro-batches of a pipeline.

    Args:
        ranks: of the pipeline; None if nobody says.
        data: data-parallel replicas, likewise.
        micro_batch: samples in a micro-batch, likewise.
        constant_batch: whether all rows share one batch, which micro-batches cut finer.
    """

    ranks: int | None = None
    data: int | None = None
    micro_batch: int | None = None
    constant_batch: bool = False


@dataclass(frozen=True, slots=True)
class FittedSetting:
    """Steps of one number of micro-batches: the median of those that count, and the value of the line if one holds.

    Args:
        microbatches: per pipeline and step; None if they cannot be told.
        batch: samples in a step; None if the file counts micro-batches.
        steps: that count.
        step_ms: their median.
        fitted_ms: on the line; None if none holds.
        residual_ms: measured less fitted; None likewise.
        bubble_share: of the measured step, 0 to 1; None if the line does not tell.
    """

    microbatches: float | None
    batch: float | None
    steps: int
    step_ms: float
    fitted_ms: float | None
    residual_ms: float | None
    bubble_share: float | None


@dataclass(frozen=True, slots=True)
class OutlierRow:
    """A row that was set aside, and what the others say it should be.

    Args:
        row: of the table, from 1.
        microbatches: per pipeline and step.
        step_ms: as measured.
        expected_ms: on the line through the others.
        reason: why it was set aside, a clause.
    """

    row: int
    microbatches: float
    step_ms: float
    expected_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """A step foretold: from smaller settings beside what was measured, or for a setting that was asked for.

    Args:
        batch: samples in a step; None if the file counts micro-batches.
        microbatches: per pipeline and step.
        step_ms: as foretold.
        measured_ms: None for a setting that nobody ran.
        error_share: foretold over measured, less 1; None likewise.
    """

    batch: float | None
    microbatches: float
    step_ms: float
    measured_ms: float | None
    error_share: float | None


@dataclass(frozen=True, slots=True)
class Gain:
    """Throughput over that of the fewest micro-batches.

    Args:
        microbatches: per pipeline and step.
        bubble_only_ratio: had only the bubble changed.
        measured_ratio: as it was.
    """

    microbatches: float
    bubble_only_ratio: float
    measured_ratio: float


@dataclass(frozen=True, slots=True)
class TimerRow:
    """A timer over ranks.

    Args:
        timer: its name in the log.
        least_ms: of the rank that took least.
        most_ms: of the rank that took most.
    """

    timer: str
    least_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers of a log, and what they bound: they are sums without an order.

    Args:
        timers: each over ranks.
        evidence: ``measured``, and how coarse.
        idle_share_at_least: a step without the busiest rank's forward and backward; None if they are not there.
        imbalance_ratio: the busiest rank's over the least busy one's.
    """

    timers: tuple[TimerRow, ...]
    evidence: str
    idle_share_at_least: float | None = field(metadata=SPARSE)
    imbalance_ratio: float | None = field(metadata=SPARSE)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Fit(Result):
    """What step times say; numbers of a line are None if no line holds, and the verdict says why.

    Args:
        source: what was read.
        ranks: of the pipeline; None if nobody says.
        remarks: what was left out of the file, and how times were told.
        verdict: in plain words, the most important first.
        step_ms: of the setting that most steps have: time over steps of all that count; a table's median.
        steps: how many those are.
        phases: of all steps, in their order; empty for a table, whose rows have none.
        left_out: steps that do not count, and why.
        restarts: at which the run began again.
        model: which line was fitted; None if none was.
        why: why that one.
        slot_ms: seconds each further micro-batch takes.
        intercept_ms: of a step that does not depend on micro-batches.
        bubble_ms: (p-1) x slot; None if the batch is constant.
        fixed_ms: intercept without the bubble.
        evidence: of these numbers; None if there are none.
        rows: a line for each setting.
        outliers: rows that the line did not use.
        forecast: larger settings from smaller ones, then those that were asked for.
        gains: of a constant batch.
        memory: fit of the peak; None if the file has none.
        timers: None if the file has none.
    """

    schema: ClassVar[str] = "fit/1"

    source: str
    ranks: int | None
    remarks: tuple[str, ...]
    verdict: tuple[str, ...] = ()
    step_ms: float | None = None
    steps: int = 0
    phases: tuple[Phase, ...] = ()
    left_out: tuple[LoneStep, ...] = ()
    restarts: tuple[Restart, ...] = ()
    model: str | None = None
    why: str | None = None
    slot_ms: float | None = None
    intercept_ms: float | None = None
    bubble_ms: float | None = None
    fixed_ms: float | None = None
    evidence: str | None = None
    rows: tuple[FittedSetting, ...] = ()
    outliers: tuple[OutlierRow, ...] = ()
    forecast: tuple[Forecast, ...] = ()
    gains: tuple[Gain, ...] = ()
    memory: FittedMemory | None = field(default=None, metadata=SPARSE)
    timers: Timers | None = field(default=None, metadata=SPARSE)


def fit_of(log: StepLog, sizes: Sizes, *, forecast: Sequence[float] = (), capacity: int | None = None) -> Fit:
    """Fit a log's or table's step times, and its peak memory.

    Args:
        log: what was read.
        sizes: what turns its batches into micro-batches.
        forecast: settings to foretell, in the unit of the file.
        capacity: bytes of a device.

    Raises:
        InputError: no step has a finite time, or rows of several settings do not say how many micro-batches they hold.
    """
    fit = Fit(source=log.source, ranks=sizes.ranks, remarks=log.remarks)
    sized = ~np.isnan(log.memory) & (not log.ordered)  # a log has one setting, and prints what its allocator holds
    settings: list[Setting] = []
    if not (sized.any() and np.isnan(log.seconds).all()):  # a table of memory alone has no steps to look at
        settings = settings_of(log)
    microbatches = _microbatches(log, sizes, settings)
    if settings:
        fit = _with_steps(fit, log, settings)
        fit, line = _with_line(fit, log, sizes, settings, microbatches)
        if line is not None:
            fit = _with_numbers(fit, line, sizes, forecast)
    if sized.any() and microbatches is not None and sizes.ranks is not None:
        peak = fit_memory(microbatches[sized], log.memory[sized], sizes.ranks)
        fit = replace(fit, memory=growth(peak, sizes.ranks, forecast, capacity), verdict=(*fit.verdict, peak.verdict))
    if log.timers:
        fit = _with_timers(fit, log)
    return fit


def _microbatches(log: StepLog, sizes: Sizes, settings: Sequence[Setting]) -> NDArray[np.float64] | None:
    """Micro-batches per pipeline of each row: as the file says, or batch / (data x micro-batch).

    None if one setting is all there is and nobody says how many micro-batches it has: then there is no line to fit.

    Raises:
        InputError: rows of several settings do not say it, or sizes do not divide a batch.
    """
    if not np.isnan(log.microbatches).any():
        return log.microbatches
    # A log of one setting is told about without a line; a table without micro-batches is no table of step times.
    alone = log.ordered and len(settings) == 1
    if np.isnan(log.batch).any():
        if alone:
            return None
        rule = "neither a batch nor a number of micro-batches stands in every row"
        raise InputError(Fault(log.source, rule, "add a column microbatches"))
    if sizes.data is None or sizes.micro_batch is None:
        if alone:
            return None
        rule = "its batches count samples; micro-batches of a pipeline are batch / (data x micro-batch)"
        raise InputError(Fault(log.source, rule, "give --data and --micro-batch"))
    microbatches = log.batch / (sizes.data * sizes.micro_batch)
    # A batch that they do not divide was not run with these sizes.
    broken = np.flatnonzero(microbatches != np.rint(microbatches))
    if len(broken):
        value = f"batch = {log.batch[broken[0]]:g}"
        rule = f"{sizes.data} replicas x micro-batches of {sizes.micro_batch} do not divide it"
        raise InputError(Fault(value, rule, "check --data and --micro-batch"))
    return microbatches


def _with_steps(fit: Fit, log: StepLog, settings: Sequence[Setting]) -> Fit:
    """What the order of the steps tells, and how long most of them take."""
    main, past = settings[0], history_of(log)
    rows = tuple(
        FittedSetting(each.microbatches, each.batch, each.steps, 1e3 * each.seconds, None, None, None)
        for each in sorted(settings, key=lambda each: (each.microbatches or 0, each.batch or 0))
    )
    fit = replace(fit, step_ms=1e3 * main.seconds, steps=main.steps, rows=rows)
    if main.history is None or past is None:
        return fit
    phases = past.phases
    if len(settings) > 1:  # the level changes because the setting does: then only the main one's phases are phases
        phases = main.history.phases
    left_out = tuple(each for setting in settings if setting.history for each in setting.history.left_out)
    return replace(
        fit,
        phases=phases,
        left_out=left_out,
        restarts=past.restarts,
        verdict=tuple(history_sentences(replace(main.history, restarts=past.restarts))),
    )


def _with_line(
    fit: Fit, log: StepLog, sizes: Sizes, settings: Sequence[Setting], microbatches: NDArray[np.float64] | None
) -> tuple[Fit, StepFit | None]:
    """The line through the settings, if they can have one, and whether it holds."""
    # A line through means that no step took would be exact about nothing.
    if any(each.unsteady for each in settings):
        told, *rest = fit.verdict or ("steps of one setting differ with time",)
        return replace(fit, verdict=(f"{told}: no fit holds, since it would take them for one step", *rest)), None
    if microbatches is None or sizes.ranks is None:
        steps = f"a step takes {duration(1e6 * (fit.step_ms or 0))}"
        return replace(fit, verdict=(f"{steps}; its bubble needs {_missing(log, sizes)}", *fit.verdict)), None
    rows = np.sort(np.concatenate([each.rows for each in settings]))
    constant, why = _constant(log, sizes)
    batch = None
    if not np.isnan(log.batch[rows]).any():
        batch = log.batch[rows]
    line = fit_steps(StepTimes(microbatches[rows], log.seconds[rows], batch, constant, why), sizes.ranks)
    holds = not doubts(line)
    outliers = []
    for one in line.outliers:
        row = int(rows[one.row]) + 1
        outliers.append(OutlierRow(row, one.microbatches, 1e3 * one.seconds, 1e3 * one.expected, one.reason))
    gained: tuple[Gain, ...] = ()
    if constant:
        gained = tuple(Gain(*each) for each in gains(line))
    fit = replace(
        fit,
        model=line.model,
        why=line.why,
        rows=tuple(_rows(line, holds)),
        outliers=tuple(outliers),
        gains=gained,
        verdict=(*sentences(line), *fit.verdict),
    )
    if not holds:  # its rows and its doubts are shown, but no number is drawn from it
        return fit, None
    return fit, line


def _with_numbers(fit: Fit, line: StepFit, sizes: Sizes, forecast: Sequence[float]) -> Fit:
    """What a line that holds says."""
    bubble = None
    if line.bubble is not None:
        bubble = 1e3 * line.bubble
    return replace(
        fit,
        slot_ms=1e3 * line.slot,
        intercept_ms=1e3 * line.intercept,
        bubble_ms=bubble,
        fixed_ms=1e3 * line.fixed,
        evidence=line.evidence,
        forecast=tuple(_forecasts(line, sizes, forecast)),
    )


def _missing(log: StepLog, sizes: Sizes) -> str:
    """What a bubble needs that nobody said."""
    wanted = []
    if not sizes.ranks:
        wanted.append("--ranks")
    if np.isnan(log.microbatches).any():
        if not sizes.data:
            wanted.append("--data")
        if not sizes.micro_batch:
            wanted.append("--micro-batch")
        if np.isnan(log.batch).any():
            wanted.append("a log that prints its global batch")
    return " and ".join(wanted)


def _constant(log: StepLog, sizes: Sizes) -> tuple[bool, str]:
    """Whether micro-batches cut one batch finer, and what says so."""
    if sizes.constant_batch:
        return True, "--constant-batch says so"
    if np.isnan(log.batch).any():
        return False, "no batch is given, so each micro-batch is taken for the same work (--constant-batch if not)"
    if len(np.unique(log.batch)) == 1 and len(np.unique(log.microbatches)) > 1:
        return True, f"all rows have the batch {log.batch[0]:g}"
    return False, "the batch differs from row to row"


def _rows(line: StepFit, holds: bool) -> Iterator[FittedSetting]:
    """One line a setting: the median of its steps, the line's value, the bubble's share."""
    for m in np.unique(line.times.microbatches).tolist():
        mine = line.times.microbatches == m
        seconds = float(np.median(line.times.seconds[mine]))
        batch = None
        if line.times.batch is not None:
            batch = float(line.times.batch[mine][0])
        count = int(mine.sum())
        if not holds:
            yield FittedSetting(m, batch, count, 1e3 * seconds, None, None, None)
            continue
        fitted = line.seconds(m)
        yield FittedSetting(
            m, batch, count, 1e3 * seconds, 1e3 * fitted, 1e3 * (seconds - fitted), line.bubble_share(seconds)
        )


def _forecasts(line: StepFit, sizes: Sizes, asked: Sequence[float]) -> Iterator[Forecast]:
    """Larger settings foretold from smaller ones beside what was measured, then what was asked for."""
    # A file that counts samples is asked and answered in samples; one that counts micro-batches, in those.
    counts_samples = line.times.batch is not None and not line.times.constant
    if counts_samples and sizes.data and sizes.micro_batch:
        samples = sizes.data * sizes.micro_batch
        for m, said, was in holdouts(line):
            yield Forecast(m * samples, m, 1e3 * said, 1e3 * was, said / was - 1)
        for batch in asked:
            yield Forecast(batch, batch / samples, 1e3 * line.seconds(batch / samples), None, None)
        return
    for m, said, was in holdouts(line):
        yield Forecast(None, m, 1e3 * said, 1e3 * was, said / was - 1)
    for m in asked:
        yield Forecast(None, m, 1e3 * line.seconds(m), None, None)


def _with_timers(fit: Fit, log: StepLog) -> Fit:
    """Timers as they stand, and what they bound: they are sums without an order."""
    rows = tuple(TimerRow(timer.name, 1e3 * timer.low, 1e3 * timer.high) for timer in log.timers)
    timers = Timers(
        timers=rows,
        evidence="measured, coarse: sums without an order",
        idle_share_at_least=None,
        imbalance_ratio=None,
    )
    forward, backward = log.timer(FORWARD), log.timer(BACKWARD)
    if forward is None or backward is None or fit.step_ms is None:
        return replace(fit, timers=timers)
    step, most = fit.step_ms / 1e3, forward.high + backward.high
    idle = max(0.0, 1 - most / step)
    timers = replace(timers, idle_share_at_least=idle, imbalance_ratio=most / max(forward.low + backward.low, 1e-12))
    bound = (
        f"timers are coarse: even the busiest rank computes {most:.3g} s of a {step:.3g} s step, so at least "
        f"{100 * idle:.0f} % is idle or outside the pipeline"
    )
    return replace(fit, timers=timers, verdict=(*fit.verdict, bound))
