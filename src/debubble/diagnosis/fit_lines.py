"""Lines through measured settings: step times against micro-batches, and peak memory against those in flight.

Two models, one straight line each:

    batch grows with m      step = fixed + (m + p - 1) x slot       intercept = fixed + (p - 1) x slot, slope = slot
    batch is constant       step = work + m x overhead              intercept = work, slope = overhead per micro-batch

In the first each micro-batch takes one slot of the slowest stage, and the bubble is p - 1 slots (GPipe and 1F1B,
https://arxiv.org/abs/2104.04473, section 2.2). In the second micro-batches only cut the same work finer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import Even, activations, bubble_slots

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
