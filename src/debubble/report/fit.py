"""What ``fit`` says: phases of the run, the model and its parts, a table of settings, forecasts, memory and timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..core.units import duration
from .figures import Unit, shown
from .sections import Column, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..diagnosis.fit import Fit
    from ..diagnosis.log_run import LoneStep, Phase

MOST_ROWS = 20  # of phases, settings and steps in a terminal
ONE_POINT = "no fixed time"  # the model of a single setting


def report(fit: Fit, *, detail: bool = False) -> Report:
    """The sections of a fit."""
    most = None if detail else MOST_ROWS
    sections: list[Section] = []
    if len(fit.phases) > 1:
        sections.append(phases_section("Phases of the run", fit.phases[:most]))
    if fit.rows:
        sections.append(_settings(fit, most))
    lines = [
        *([_parts(fit)] if fit.slot_ms is not None else []),
        *_forecast(fit),
        *_set_aside(fit, most),
        *_memory(fit),
    ]
    if lines:
        sections.append(Sentences("", lines))
    if fit.timers is not None:
        rows = [(timer.timer, timer.least_ms, timer.most_ms) for timer in fit.timers.timers[:most]]
        columns = [Column("", left=True), Column("least", Unit.TIME), Column("most", Unit.TIME)]
        sections.append(Table(f"Timers over ranks ({fit.timers.evidence})", columns, rows))
    if fit.remarks:
        sections.append(Sentences("Remarks", fit.remarks))
    verdict = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in fit.verdict]
    return Report(PurePath(fit.source).name, verdict, sections)


def phases_section(title: str, phases: tuple[Phase, ...]) -> Table:
    """Phases with their share of the time."""
    rows = [
        (
            f"{phase.first_step} to {phase.last_step}",
            phase.mean_ms,
            "" if phase.from_ms is None else f"{duration(1e6 * phase.from_ms)} to {duration(1e6 * (phase.to_ms or 0))}",
            phase.share,
        )
        for phase in phases
    ]
    columns = [
        Column("steps", left=True),
        Column("a step", Unit.TIME),
        Column("trend", left=True),
        Column("of the time", Unit.SHARE),
    ]
    return Table(f"{title} (measured)", columns, rows)


def left_out_lines(left_out: tuple[LoneStep, ...], most: int | None) -> list[str]:
    """Steps that do not count, a line each."""
    lines = [f"step {each.step} does not count: {duration(1e6 * each.ms)}, {each.reason}" for each in left_out[:most]]
    return lines + ([f".. and {len(left_out) - len(lines)} more"] if len(left_out) > len(lines) else [])


def _settings(fit: Fit, most: int | None) -> Table:
    rows = [
        (row.batch, row.microbatches, row.steps, row.step_ms, row.fitted_ms, row.bubble_share)
        for row in fit.rows[:most]
    ]
    columns = [
        Column("batch", Unit.NUMBER),
        Column("micro-batches", Unit.NUMBER),
        Column("steps", Unit.COUNT),
        Column("measured", Unit.TIME),
        Column("fitted", Unit.TIME),
        Column("bubble", Unit.SHARE),
    ]
    title = f"{fit.model} ({fit.why})" if fit.model else "Steps by setting"
    return Table(title, columns, rows)


def _parts(fit: Fit) -> str:
    """What the line says, each part with its name."""
    slot = "slot" if fit.bubble_ms is not None else "overhead per micro-batch"
    parts = [(slot, fit.slot_ms), ("intercept", fit.intercept_ms)]
    if fit.model == ONE_POINT:
        parts.append(("bubble at most", fit.intercept_ms))  # what is fixed in it cannot be told
    elif fit.bubble_ms is not None:
        parts += [("bubble", fit.bubble_ms), ("fixed", fit.fixed_ms)]
    text = ", ".join(f"{name} {duration(1e6 * value)}" for name, value in parts if value is not None)
    return f"{text} ({fit.evidence})"


def _forecast(fit: Fit) -> Iterator[str]:
    for row in fit.forecast:
        setting = f"{row.microbatches:g} micro-batches" if row.batch is None else f"batch {row.batch:g}"
        line = f"{setting}: forecast {duration(1e6 * row.step_ms)}"
        if row.measured_ms is not None and row.error_share is not None:
            off = f"{100 * row.error_share + 0.0:+.1f} %"
            line += f" from the smaller ones, measured {duration(1e6 * row.measured_ms)} ({off})"
        yield line


def _set_aside(fit: Fit, most: int | None) -> Iterator[str]:
    for outlier in fit.outliers[:most]:
        yield f"row {outlier.row} set aside: {duration(1e6 * outlier.step_ms)} is {outlier.reason}"
    yield from left_out_lines(fit.left_out, most)


def _memory(fit: Fit) -> Iterator[str]:
    memory = fit.memory
    if memory is None:
        return
    if memory.bytes_per_in_flight is not None:
        each = memory.bytes_per_in_flight / 1e9
        yield f"peak memory {memory.base_bytes / 1e9:.1f} GB + {each:.2f} GB a micro-batch in flight"
    for row in memory.forecast:
        peak = "unknown" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.1f} GB"
        fits = {None: "", True: ", fits", False: ", does not fit"}[row.fits]
        yield f"{row.microbatches:g} micro-batches: {row.in_flight} in flight, {peak}{fits}"


def fits_section(fits: Sequence[Fit]) -> Section:
    """What the step times of logs say beside other runs: what scales with micro-batches, and what does not."""
    rows = []
    notes = []
    for fit in fits:
        name = PurePath(fit.source).name
        if fit.slot_ms is None:
            notes += [f"{name}: {sentence}" for sentence in fit.verdict]
            continue
        fixed = None if fit.model == ONE_POINT else fit.fixed_ms
        rows.append((name, fit.slot_ms, _bubble(fit), fixed, fit.evidence))
    columns = [
        Column("", left=True),
        Column("a micro-batch", Unit.TIME),
        Column("bubble"),
        Column("fixed", Unit.TIME),
        Column("", left=True),
    ]
    if not rows:
        return Sentences("Steps of the logs", notes)
    return Table("Steps of the logs: fixed + bubble + micro-batches x slot", columns, rows, notes=notes)


def _bubble(fit: Fit) -> str | None:
    """A single setting does not tell the bubble from what is fixed: it bounds their sum."""
    if fit.bubble_ms is None:
        return None
    bubble = shown(fit.bubble_ms, Unit.TIME)
    return f"<= {bubble}" if fit.model == ONE_POINT else bubble
