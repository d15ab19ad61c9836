"""What step times tell: phases of the run, then slot, bubble and fixed time if a line holds; peak memory and timers.

Two models, one straight line each:

    batch grows with m      step = fixed + (m + p - 1) x slot       intercept = fixed + (p - 1) x slot, slope = slot
    batch is constant       step = work + m x overhead              intercept = work, slope = overhead per micro-batch

In the first each micro-batch takes one slot of the slowest stage, and the bubble is p - 1 slots (GPipe and 1F1B,
https://arxiv.org/abs/2104.04473, section 2.2). In the second micro-batches only cut the same work finer.
"""

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
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import Even, activations, bubble_slots
from .log_run import LoneStep, Phase, Restart, Setting, history_of, history_sentences, settings_of

GROWS, CONSTANT, ONE_POINT = "batch grows with micro-batches", "constant batch cut finer", "no fixed time"
_SLOW = 1.5  # a step that took more than this times the median of its own setting is no measurement of it
_CHECKED = 0.1  # share of a step that a line may miss a setting by, or a forecast from smaller settings
_FLAT = 0.02  # share of a step that all micro-batches together must change it by for a slope to be one
_BELOW_ZERO = 0.05  # share of a step by which a time that cannot be negative may be so by noise
_FEW = 4  # points from which on one that lies far from the line of the others is called an outlier
_OFF = 0.1  # share of its own time that such a point must lie off the line


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Measured steps, one row a step or a mean.

    Args:
        microbatches: per pipeline and step, float64[rows].
        seconds: float64[rows].
        batch: samples of all replicas in one step, float64[rows]; None where they are not known.
        constant: whether the rows share one batch that micro-batches cut finer.
        why: what tells which of the two it is.
    """

    microbatches: NDArray[np.float64]
    seconds: NDArray[np.float64]
    batch: NDArray[np.float64] | None
    constant: bool
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Outlier:
    """A row that was not used.

    Args:
        row: its index.
        microbatches: its setting.
        seconds: what was measured.
        expected: what the others say, seconds.
        reason: why it was set aside.
    """

    row: int
    microbatches: float
    seconds: float
    expected: float
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class StepFit:
    """A straight line through step times, in seconds.

    Args:
        model: which of the models was fitted.
        why: why that one.
        ranks: positions in the pipeline.
        slot: slope: seconds each further micro-batch takes.
        intercept: seconds of a step that do not depend on micro-batches.
        bubble: (p-1) x slot where the batch grows; None where it is constant.
        fixed: intercept without the bubble: optimizer, data-parallel reduction, start-up.
        times: the rows that were fitted.
        outliers: the rows that were not.
        evidence: ``measured`` for a line through two settings or more, ``estimated`` for one.
    """

    model: str
    why: str
    ranks: int
    slot: float
    intercept: float
    bubble: float | None
    fixed: float
    times: StepTimes
    outliers: tuple[Outlier, ...]
    evidence: str

    def seconds(self, microbatches: float) -> float:
        """What a step of so many micro-batches takes by this line."""
        return self.intercept + microbatches * self.slot

    def bubble_share(self, seconds: float) -> float | None:
        """The bubble's share of a step of that many seconds."""
        return None if self.bubble is None else self.bubble / seconds


def fit_steps(times: StepTimes, ranks: int) -> StepFit:
    """Fit the line of the model that the rows call for.

    Steps that took more than 1.5 times the median of their own setting are set aside first, then rows far from a
    robust line through all (Theil and Sen's: the median of all slopes); least squares fits the rest.

    Raises:
        InputError: no row, or a time that is no positive number.
    """
    _check(times)
    kept, outliers = _without_slow(times)
    # Single steps before whole settings: a hiccup would make a setting look like a stray.
    kept, strays = _without_strays(times, kept)
    used = StepTimes(
        times.microbatches[kept],
        times.seconds[kept],
        None if times.batch is None else times.batch[kept],
        times.constant,
        times.why,
    )
    left_out = tuple(sorted([*outliers, *strays], key=lambda outlier: outlier.row))
    if len(np.unique(used.microbatches)) == 1:
        return _one_point(used, ranks, left_out)
    slot, intercept = _line(used.microbatches, used.seconds)
    # Where m cuts one batch finer, a slot shrinks with m: the intercept is work, and no part of it is the bubble.
    bubble = None if times.constant else _fill_slots(ranks) * slot
    return StepFit(
        model=CONSTANT if times.constant else GROWS,
        why=times.why,
        ranks=ranks,
        slot=slot,
        intercept=intercept,
        bubble=bubble,
        fixed=intercept - (bubble or 0.0),
        times=used,
        outliers=left_out,
        evidence="measured",
    )


def holdouts(fit: StepFit) -> list[tuple[float, float, float]]:
    """How well settings foretell the next larger one: its micro-batches, forecast and measured seconds.

    Each setting from the third on is forecast from all smaller ones, of each the median.
    """
    settings = np.unique(fit.times.microbatches)
    medians = np.array([np.median(fit.times.seconds[fit.times.microbatches == m]) for m in settings])
    found = []
    for n in range(2, len(settings)):
        slot, intercept = _line(settings[:n], medians[:n])
        found.append((float(settings[n]), intercept + slot * float(settings[n]), float(medians[n])))
    return found


def doubts(fit: StepFit) -> list[str]:
    """Why no number of a fit can be believed, a clause each; empty for a plausible one."""
    times, found = fit.times, []
    usual = float(np.median(times.seconds))
    settings = np.unique(times.microbatches)
    if len(settings) == 1:
        return []
    # Two settings of several steps each have at least their scatter to be held against.
    if len(settings) == len(times.seconds) == 2:
        found.append("two rows have a line through both whatever they are, and nothing checks it")
    change = fit.slot * float(settings[-1] - settings[0])
    if change < -_BELOW_ZERO * usual:
        found.append(f"steps take less the more micro-batches they have: {fit.slot:.3g} s for each further one")
    elif abs(change) < _FLAT * usual:
        found.append("steps take as long whatever the number of micro-batches")
    if fit.intercept < -_BELOW_ZERO * usual:
        found.append(f"a step without any micro-batch would take {fit.intercept:.3g} s")
    # A little below zero is scatter. Clearly below it, the slots of fill and drain that were taken off are too many.
    elif fit.fixed < -_BELOW_ZERO * usual:
        found.append(
            f"{fit.intercept:.3g} s do not scale, less than a whole bubble of {fit.bubble:.3g} s: the batch may be "
            "constant, the schedule interleaved, or p smaller"
        )
    found += _misses(fit, settings)
    return found


def _misses(fit: StepFit, settings: NDArray[np.float64]) -> list[str]:
    """Settings that the line misses, and those that smaller ones foretell badly."""
    found = []
    off = {}
    for m in settings.tolist():
        median = float(np.median(fit.times.seconds[fit.times.microbatches == m]))
        off[m] = fit.seconds(m) / median - 1
    worst = max(off, key=lambda m: abs(off[m]))
    if abs(off[worst]) > _CHECKED:
        found.append(f"the line misses {worst:g} micro-batches by {100 * off[worst]:+.0f} %")
    foretold = [(m, said / was - 1) for m, said, was in holdouts(fit)[1:]]  # two settings alone foretell little
    far = max(foretold, key=lambda each: abs(each[1]), default=(0.0, 0.0))
    if abs(far[1]) > _CHECKED:
        found.append(f"smaller settings foretell {far[0]:g} micro-batches {100 * far[1]:+.0f} % off")
    return found


def gains(fit: StepFit) -> list[tuple[float, float, float]]:
    """For a constant batch: micro-batches, and the gain over the fewest by the bubble alone, and as measured."""
    settings = np.unique(fit.times.microbatches)
    medians = [float(np.median(fit.times.seconds[fit.times.microbatches == m])) for m in settings]
    # Step over work, in slots: (m + p - 1)/m.
    slots = [1 + _fill_slots(fit.ranks) / m for m in settings.tolist()]
    return [(m, slots[0] / slots[i], medians[0] / medians[i]) for i, m in enumerate(settings.tolist()) if i]


def _fill_slots(ranks: int) -> float:
    """Slots of fill and drain, in GPipe and 1F1B alike."""
    return bubble_slots(CATALOG["1f1b"], Even(ranks, 1)) or 0.0


def _check(times: StepTimes) -> None:
    faults = []
    if not len(times.seconds):
        faults.append(Fault("rows = 0", "a fit needs at least one step time", "give rows of micro-batches and seconds"))
    for name, column in (("seconds", times.seconds), ("micro-batches", times.microbatches)):
        bad = np.flatnonzero(~(np.isfinite(column) & (column > 0)))
        if len(bad):
            value = f"row {bad[0] + 1}: {name} = {column[bad[0]]:g}"
            faults.append(Fault(value, "it must be a number above 0", "leave the row out"))
    if faults:
        raise InputError(*faults)


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope and intercept by least squares."""
    away = x - x.mean()
    slope = float((away * y).sum() / (away**2).sum())
    return slope, float(y.mean()) - slope * float(x.mean())


def _without_slow(times: StepTimes) -> tuple[NDArray[np.intp], list[Outlier]]:
    keep = np.ones(len(times.seconds), bool)
    found = []
    for m in np.unique(times.microbatches):
        mine = np.flatnonzero(times.microbatches == m)
        usual = float(np.median(times.seconds[mine]))
        for row in mine[times.seconds[mine] > _SLOW * usual].tolist():
            keep[row] = False
            reason = f"more than {_SLOW} times the median of its setting"
            found.append(Outlier(row, float(m), float(times.seconds[row]), usual, reason))
    return np.flatnonzero(keep), found


def _without_strays(times: StepTimes, kept: NDArray[np.intp]) -> tuple[NDArray[np.intp], list[Outlier]]:
    """Set aside whole settings that lie far off the line of the others."""
    settings = np.unique(times.microbatches[kept])
    # With fewer, the line through all but one is no better known than the one that is left out.
    if len(settings) < _FEW:
        return kept, []
    medians = np.array([np.median(times.seconds[kept][times.microbatches[kept] == m]) for m in settings])
    first, second = np.triu_indices(len(settings), 1)
    slope = float(np.median((medians[second] - medians[first]) / (settings[second] - settings[first])))
    offset = float(np.median(medians - slope * settings))
    off = np.abs(medians - offset - slope * settings)
    usual = float(np.median(off))
    # Both: far for its size, and farther than the others are from the line.
    far = settings[(off > _OFF * medians) & (off > 5 * usual)]
    stray = np.isin(times.microbatches[kept], far)
    reason = "far off the line of the other settings"
    found = [
        Outlier(row, m, float(times.seconds[row]), offset + slope * m, reason)
        for row, m in zip(kept[stray].tolist(), times.microbatches[kept][stray].tolist(), strict=True)
    ]
    return kept[~stray], found


def _one_point(times: StepTimes, ranks: int, outliers: tuple[Outlier, ...]) -> StepFit:
    """One setting cannot tell a fixed time from a bubble: all of the step is taken for slots, the most they can be."""
    m, seconds = float(times.microbatches[0]), float(np.median(times.seconds))
    # step = (m + p - 1) slots, nothing fixed.
    slot = seconds / (m + _fill_slots(ranks))
    return StepFit(
        model=ONE_POINT,
        why="all rows have the same number of micro-batches, so a fixed time cannot be told from a bubble",
        ranks=ranks,
        slot=slot,
        intercept=_fill_slots(ranks) * slot,
        bubble=_fill_slots(ranks) * slot,
        fixed=0.0,
        times=times,
        outliers=outliers,
        evidence="estimated",
    )


def sentences(fit: StepFit) -> list[str]:
    """The verdict in plain words."""
    said = [f"{outlier_count(fit.outliers)} set aside"] if fit.outliers else []
    if unlikely := doubts(fit):
        said += [f"no fit holds: {unlikely[0]}", *unlikely[1:]]
    elif fit.model == CONSTANT:
        said.append(_constant_verdict(fit))
    elif fit.model == ONE_POINT:
        said.append(f"if nothing in a step is fixed, {fit.intercept:.3g} s of it are bubble: the most it can be")
    else:
        parts = f"{fit.bubble:.1f} bubble, {max(0.0, fit.fixed):.1f} fixed"
        said.append(f"{fit.intercept:.1f} s per step do not scale with batch: {parts}")
    return said


def outlier_count(outliers: Sequence[Outlier]) -> str:
    """How many rows, in words."""
    return "1 row" if len(outliers) == 1 else f"{len(outliers)} rows"


def _constant_verdict(fit: StepFit) -> str:
    worst = max(gains(fit), key=lambda gain: gain[1] - gain[2])
    if worst[2] < 1:
        return (
            f"cost per micro-batch dominates ({fit.slot:.2f} s each); use fewer chunks: at {worst[0]:g} the bubble "
            f"alone would gain {worst[1]:.2f}, measured {worst[2]:.2f}"
        )
    return f"each micro-batch costs {fit.slot:.3g} s beside its work; the work itself takes {fit.intercept:.3g} s"


_GROWS = 1.05  # beyond m = p 1F1B holds no more: a peak this much higher is something else


@dataclass(frozen=True, slots=True, eq=False)
class MemoryFit:
    """Peak memory as base + in flight x each, on the first rank under 1F1B.

    Args:
        in_flight: micro-batches in flight of each row, min(m, p - rank), int64[rows].
        base: bytes that do not depend on them.
        each: bytes of one micro-batch in flight; None where all rows have equally many.
        grows: whether memory still grows where the number in flight does not.
        verdict: in plain words.
    """

    in_flight: NDArray[np.int64]
    base: float
    each: float | None
    grows: bool
    verdict: str

    def bytes(self, in_flight: int) -> float | None:
        """The peak with so many in flight; None where the rows do not tell."""
        return None if self.each is None else self.base + in_flight * self.each


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """The peak memory of a number of micro-batches.

    Args:
        microbatches: per pipeline and step.
        in_flight: of them, on the first rank at once.
        peak_bytes: None if the rows do not tell what a micro-batch takes.
        fits: None if nobody said how much there is.
    """

    microbatches: float
    in_flight: int
    peak_bytes: float | None
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMemory:
    """Peak memory as base + in flight x each.

    Args:
        in_flight: micro-batches that the first rank holds at once, of each row.
        base_bytes: what lies there without any.
        bytes_per_in_flight: what one adds; None if all rows have equally many.
        grows_beyond_in_flight: whether peaks go on growing where no more are in flight.
        forecast: of settings that were asked for.
    """

    in_flight: tuple[int, ...]
    base_bytes: float
    bytes_per_in_flight: float | None
    grows_beyond_in_flight: bool
    forecast: tuple[MemoryForecast, ...]


def in_flight(microbatches: NDArray[np.float64], ranks: int, rank: int = 0) -> NDArray[np.int64]:
    """Micro-batches that a rank holds at most under 1F1B: min(m, p - rank) (https://arxiv.org/abs/2006.09503)."""
    return activations(CATALOG["1f1b"], Even(ranks, microbatches), rank).astype(np.int64)


def fit_memory(microbatches: NDArray[np.float64], peak: NDArray[np.float64], ranks: int) -> MemoryFit:
    """Fit the peak of the first rank.

    Args:
        microbatches: per pipeline and step, float64[rows].
        peak: bytes, float64[rows]; infinite where a run died of it.
        ranks: positions in the pipeline.

    Raises:
        InputError: no row with a finite peak.
    """
    lived = np.isfinite(peak)
    if not lived.any():
        raise InputError(Fault("memory", "no row has a finite peak", "give at least one run that lived"))
    held = in_flight(microbatches, ranks)
    # From m = p on, 1F1B holds p micro-batches on the first rank, however many there are.
    beyond = microbatches >= ranks
    ends = np.argsort(microbatches[beyond], kind="stable")
    tail = peak[beyond][ends]
    grows = bool(len(tail) > 1 and tail[-1] > _GROWS * tail[0])
    x, y = held[lived].astype(np.float64), peak[lived]
    each, base = None, float(np.median(y))
    if len(np.unique(x)) > 1:
        away = x - x.mean()
        each = float((away * y).sum() / (away**2).sum())
        base = float(y.mean()) - each * float(x.mean())
    return MemoryFit(held, base, each, grows, _verdict(each, grows=grows, ranks=ranks))


def _verdict(each: float | None, *, grows: bool, ranks: int) -> str:
    if grows:
        return (
            f"grows with m beyond p = {ranks}, where 1F1B holds no more micro-batches: "
            "per-micro-batch buffers are retained (a bug), or the batch grew"
        )
    if each is None:
        return "all rows have equally many micro-batches in flight: what each takes cannot be told"
    return (
        f"1F1B in-flight growth until m = p = {ranks}, not a leak: {each / 1e9:.2f} GB for each micro-batch in flight"
    )


def growth(memory: MemoryFit, ranks: int, asked: Sequence[float], capacity: int | None) -> FittedMemory:
    """A fit with forecasts, as results hold it.

    Args:
        memory: the fit.
        ranks: positions in the pipeline.
        asked: numbers of micro-batches to foretell.
        capacity: bytes of a device; None if nobody said.
    """
    held = in_flight(np.array(asked, np.float64), ranks)
    forecast = []
    for m, flying in zip(asked, held.tolist(), strict=True):
        peak = memory.bytes(flying)
        fits = None if capacity is None or peak is None else peak <= capacity
        forecast.append(MemoryForecast(m, flying, peak, fits))
    return FittedMemory(
        in_flight=tuple(memory.in_flight.tolist()),
        base_bytes=memory.base,
        bytes_per_in_flight=memory.each,
        grows_beyond_in_flight=memory.grows,
        forecast=tuple(forecast),
    )


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
