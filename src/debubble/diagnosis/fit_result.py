"""A fit of step times and of peak memory as scripts and reports have it: parts of a step, settings, forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from ..core.results import SPARSE, Result
from .fit_memory import MemoryFit, in_flight
from .fit_steps import ONE_POINT, StepFit, gains, holdouts, sentences

MS = 1e3  # milliseconds in a second


class Timer(Protocol):
    """A timer of a log: seconds of the rank that took least and of the one that took most."""

    @property
    def name(self) -> str:
        """As the log has it."""

    @property
    def low(self) -> float:
        """Least, seconds."""

    @property
    def high(self) -> float:
        """Most, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSetting:
    """All steps of one setting.

    Args:
        microbatches: per pipeline and step.
        batch: samples of all replicas; None if it is not known.
        steps: how many.
        step_ms: their median.
        fitted_ms: by the line.
        residual_ms: measured less fitted.
        bubble_share: of the measured step; None if the model has no bubble.
    """

    microbatches: float
    batch: float | None
    steps: int
    step_ms: float
    fitted_ms: float
    residual_ms: float
    bubble_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRow:
    """A row that was set aside: its number from 1, what was measured, what the others say, and why."""

    row: int
    microbatches: float
    step_ms: float
    expected_ms: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A setting that the line foretells; beside it what was measured, if it was."""

    batch: float | None
    microbatches: float
    step_ms: float
    measured_ms: float | None
    error_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """For a constant batch: the gain over the fewest micro-batches by the bubble alone, and as measured."""

    microbatches: float
    bubble_only_ratio: float
    measured_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Peak memory of a setting, and whether it fits the capacity that was given."""

    microbatches: float
    in_flight: int
    peak_bytes: float | None
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMemory:
    """Peak memory of the first rank: base + micro-batches in flight x each."""

    in_flight: tuple[int, ...]
    base_bytes: float
    bytes_per_in_flight: float | None
    grows_beyond_in_flight: bool
    forecast: tuple[MemoryForecast, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerRow:
    """A timer of a log, as it stands there."""

    timer: str
    least_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers of a log: sums without an order, and what they bound."""

    timers: tuple[TimerRow, ...]
    evidence: str
    idle_share_at_least: float | None = field(metadata=SPARSE)
    imbalance_ratio: float | None = field(metadata=SPARSE)


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Fit(Result):
    """Step times against micro-batches; fields of a fit that was not made are no keys.

    Args:
        source: what was read.
        ranks: of the pipeline.
        model: which line was fitted.
        why: why that one.
        slot_ms: what each further micro-batch takes.
        intercept_ms: of a step that does not depend on micro-batches.
        bubble_ms: (p-1) x slot; None if the batch is constant.
        fixed_ms: intercept without the bubble.
        fixed_known: whether it can be told from the bubble: not with a single setting.
        evidence: ``measured`` for a line through two settings or more, ``estimated`` for one.
        rows: settings.
        outliers: rows that were set aside.
        forecast: settings foretold from smaller ones, then those that were asked for.
        gains: of a constant batch.
        memory: the fit of peak memory.
        timers: of the log.
        verdict: sentences.
        remarks: what was left out.
    """

    schema: ClassVar[str] = "fit/1"

    source: str
    ranks: int
    model: str | None = field(metadata=SPARSE)
    why: str | None = field(metadata=SPARSE)
    slot_ms: float | None = field(metadata=SPARSE)
    intercept_ms: float | None = field(metadata=SPARSE)
    bubble_ms: float | None
    fixed_ms: float | None = field(metadata=SPARSE)
    fixed_known: bool
    constant_batch: bool
    evidence: str | None = field(metadata=SPARSE)
    rows: tuple[FittedSetting, ...]
    outliers: tuple[OutlierRow, ...]
    forecast: tuple[Forecast, ...]
    gains: tuple[Gain, ...]
    memory: FittedMemory | None = field(metadata=SPARSE)
    timers: Timers | None = field(metadata=SPARSE)
    verdict: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Remarks, for stderr."""
        return self.remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class FitParts:
    """What a fit was made from, and what was asked of it.

    Args:
        source: the path.
        ranks: of the pipeline.
        samples: that one micro-batch of every replica holds; None if that is not known.
        steps: the fit of step times.
        memory: the fit of peak memory.
        timers: of the log.
        step_seconds: the median step; None without one.
        forward: the timer of forwards, and ``backward`` that of backwards.
        backward: see ``forward``.
        forecast: settings to foretell, in the unit of the file.
        capacity: bytes of a device.
        remarks: what was left out.
    """

    source: str
    ranks: int
    samples: int | None
    steps: StepFit | None
    memory: MemoryFit | None
    timers: Sequence[Timer]
    step_seconds: float | None
    forward: Timer | None
    backward: Timer | None
    forecast: tuple[float, ...]
    capacity: int | None
    remarks: tuple[str, ...]


def fit_of(parts: FitParts) -> Fit:
    """The fits under the keys of their JSON."""
    steps, memory = parts.steps, parts.memory
    timers = _timers(parts) if parts.timers else None
    verdict = [*(sentences(steps) if steps else []), *([memory.verdict] if memory else []), *_coarse(parts, timers)]
    return Fit(
        source=parts.source,
        ranks=parts.ranks,
        model=None if steps is None else steps.model,
        why=None if steps is None else steps.why,
        slot_ms=None if steps is None else MS * steps.slot,
        intercept_ms=None if steps is None else MS * steps.intercept,
        bubble_ms=None if steps is None or steps.bubble is None else MS * steps.bubble,
        fixed_ms=None if steps is None else MS * steps.fixed,
        fixed_known=steps is not None and steps.model != ONE_POINT,
        constant_batch=steps is not None and steps.times.constant,
        evidence=None if steps is None else steps.evidence,
        rows=tuple(_rows(steps)) if steps else (),
        outliers=_outliers(steps) if steps else (),
        forecast=tuple(_forecast(parts, steps)) if steps else (),
        gains=_gains(steps) if steps and steps.times.constant else (),
        memory=_memory(parts, memory) if memory else None,
        timers=timers,
        verdict=tuple(verdict),
        remarks=parts.remarks,
    )


def _rows(steps: StepFit) -> Iterator[FittedSetting]:
    """One line a setting: the median of its steps, the line's value, the bubble's share."""
    times = steps.times
    for m in np.unique(times.microbatches).tolist():
        mine = times.microbatches == m
        seconds = float(np.median(times.seconds[mine]))
        yield FittedSetting(
            microbatches=m,
            batch=None if times.batch is None else float(times.batch[mine][0]),
            steps=int(mine.sum()),
            step_ms=MS * seconds,
            fitted_ms=MS * steps.seconds(m),
            residual_ms=MS * (seconds - steps.seconds(m)),
            bubble_share=steps.bubble_share(seconds),
        )


def _outliers(steps: StepFit) -> tuple[OutlierRow, ...]:
    return tuple(
        OutlierRow(
            row=each.row + 1,
            microbatches=each.microbatches,
            step_ms=MS * each.seconds,
            expected_ms=MS * each.expected,
            reason=each.reason,
        )
        for each in steps.outliers
    )


def _gains(steps: StepFit) -> tuple[Gain, ...]:
    return tuple(
        Gain(microbatches=m, bubble_only_ratio=alone, measured_ratio=measured) for m, alone, measured in gains(steps)
    )


def _forecast(parts: FitParts, steps: StepFit) -> Iterator[Forecast]:
    """Larger settings foretold from smaller ones beside what was measured, then what was asked for."""
    batched = parts.samples if steps.times.batch is not None and not steps.times.constant else None
    for m, said, was in holdouts(steps):
        yield Forecast(
            batch=m * batched if batched else None,
            microbatches=m,
            step_ms=MS * said,
            measured_ms=MS * was,
            error_share=said / was - 1,
        )
    for setting in parts.forecast:
        m = setting / batched if batched else setting
        batch = m * batched if batched else None
        step = MS * steps.seconds(m)
        yield Forecast(batch=batch, microbatches=m, step_ms=step, measured_ms=None, error_share=None)


def _memory(parts: FitParts, memory: MemoryFit) -> FittedMemory:
    asked = np.array(parts.forecast, np.float64)
    forecast = []
    for m, held in zip(asked.tolist(), in_flight(asked, parts.ranks).tolist(), strict=True):
        peak = memory.bytes(held)
        fits = None if parts.capacity is None or peak is None else peak <= parts.capacity
        forecast.append(MemoryForecast(microbatches=m, in_flight=held, peak_bytes=peak, fits=fits))
    return FittedMemory(
        in_flight=tuple(memory.in_flight.tolist()),
        base_bytes=memory.base,
        bytes_per_in_flight=memory.each,
        grows_beyond_in_flight=memory.grows,
        forecast=tuple(forecast),
    )


def _timers(parts: FitParts) -> Timers:
    """Timers as they stand, and what they bound: they are sums without an order."""
    rows = tuple(TimerRow(timer=each.name, least_ms=MS * each.low, most_ms=MS * each.high) for each in parts.timers)
    idle = imbalance = None
    if parts.forward is not None and parts.backward is not None and parts.step_seconds is not None:
        most = parts.forward.high + parts.backward.high
        idle = max(0.0, 1 - most / parts.step_seconds)
        imbalance = most / max(parts.forward.low + parts.backward.low, 1e-12)
    evidence = "measured, coarse: sums without an order"
    return Timers(timers=rows, evidence=evidence, idle_share_at_least=idle, imbalance_ratio=imbalance)


def _coarse(parts: FitParts, timers: Timers | None) -> Iterator[str]:
    if timers is None or timers.idle_share_at_least is None or parts.forward is None or parts.backward is None:
        return
    most = parts.forward.high + parts.backward.high
    yield (
        f"timers are coarse: even the busiest rank computes {most:.3g} s of a {parts.step_seconds:.3g} s step, so at "
        f"least {100 * timers.idle_share_at_least:.0f} % is idle or outside the pipeline"
    )
