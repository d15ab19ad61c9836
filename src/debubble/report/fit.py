"""What ``fit`` says: phases of the run, the model and its parts, a table of settings, forecasts, memory and timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from .sections import Cell, Column, Report, Section, Sentences, Table, Unit, span

if TYPE_CHECKING:
    from ..diagnosis.fit import Fit, Timers
    from ..diagnosis.log_run import LoneStep, Phase

MOST_ROWS = 20  # of phases, settings and steps in a terminal: a screenful; --json has all
ONE_POINT = "no fixed time"  # the model of a single setting


def report(fit: Fit, *, detail: bool = False) -> Report:
    """The sections of a fit."""
    most = None if detail else MOST_ROWS
    phases = fit.phases[:most]
    if len(phases) == 1:
        phases = ()  # the whole run: the verdict says all of it
    lines = [*_parts(fit), *_forecast(fit), *_set_aside(fit, most), *_memory(fit)]
    sections: list[Section] = [
        phases_section("Phases of the run", phases),
        _settings(fit, most),
        Sentences("", lines),
    ]
    if fit.timers is not None:
        sections.append(_timers(fit.timers, most))
    sections.append(Sentences("Remarks", fit.remarks))
    verdict = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in fit.verdict]
    return Report(PurePath(fit.source).name, verdict, sections)


def phases_section(title: str, phases: Sequence[Phase]) -> Table:
    """Phases with their share of the time."""
    columns = [
        Column("steps", left=True),
        Column("a step", Unit.TIME),
        Column("trend", left=True),
        Column("of the time", Unit.SHARE),
    ]
    rows: list[list[Cell]] = []
    for phase in phases:
        trend = ""
        if phase.from_ms is not None and phase.to_ms is not None:
            trend = f"{span(phase.from_ms)} to {span(phase.to_ms)}"
        rows.append([f"{phase.first_step} to {phase.last_step}", phase.mean_ms, trend, phase.share])
    return Table(f"{title} (measured)", columns, rows)


def left_out_lines(left_out: Sequence[LoneStep], most: int | None) -> list[str]:
    """Steps that do not count, a line each."""
    lines = [f"step {step.step} does not count: {span(step.ms)}, {step.reason}" for step in left_out[:most]]
    if len(left_out) > len(lines):
        lines.append(f".. and {len(left_out) - len(lines)} more")
    return lines


def _settings(fit: Fit, most: int | None) -> Table:
    columns = [
        Column("batch", Unit.NUMBER),
        Column("micro-batches", Unit.NUMBER),
        Column("steps", Unit.COUNT),
        Column("measured", Unit.TIME),
        Column("fitted", Unit.TIME),
        Column("bubble", Unit.SHARE),
    ]
    rows: list[list[Cell]] = []
    for row in fit.rows[:most]:
        rows.append([row.batch, row.microbatches, row.steps, row.step_ms, row.fitted_ms, row.bubble_share])
    title = "Steps by setting"
    if fit.model:  # why this model: which of two was fitted is not seen from its figures
        title = f"{fit.model} ({fit.why})"
    return Table(title, columns, rows)


def _timers(timers: Timers, most: int | None) -> Table:
    columns = [Column("", left=True), Column("least", Unit.TIME), Column("most", Unit.TIME)]
    rows = [(timer.timer, timer.least_ms, timer.most_ms) for timer in timers.timers[:most]]
    return Table(f"Timers over ranks ({timers.evidence})", columns, rows)


def _parts(fit: Fit) -> Iterator[str]:
    """What the line says, each part with its name."""
    if fit.slot_ms is None:
        return
    # If the batch is constant and m cuts it finer, work is in the intercept, and what m adds is overhead.
    slot = "overhead per micro-batch" if fit.bubble_ms is None else "slot"
    parts = [(slot, fit.slot_ms), ("intercept", fit.intercept_ms)]
    if fit.model == ONE_POINT:
        parts.append(("bubble at most", fit.intercept_ms))  # what is fixed in it cannot be told
    elif fit.bubble_ms is not None:
        parts += [("bubble", fit.bubble_ms), ("fixed", fit.fixed_ms)]
    known = [f"{name} {span(value)}" for name, value in parts if value is not None]
    yield f"{', '.join(known)} ({fit.evidence})"


def _forecast(fit: Fit) -> Iterator[str]:
    for row in fit.forecast:
        setting = f"{row.microbatches:g} micro-batches"
        if row.batch is not None:
            setting = f"batch {row.batch:g}"
        line = f"{setting}: forecast {span(row.step_ms)}"
        if row.measured_ms is not None and row.error_share is not None:
            error = f"{100 * row.error_share + 0.0:+.1f} %"  # + 0.0: no figure is "-0.0"
            line += f" from the smaller ones, measured {span(row.measured_ms)} ({error})"
        yield line


def _set_aside(fit: Fit, most: int | None) -> Iterator[str]:
    for outlier in fit.outliers[:most]:
        yield f"row {outlier.row} set aside: {span(outlier.step_ms)} is {outlier.reason}"
    yield from left_out_lines(fit.left_out, most)


def _memory(fit: Fit) -> Iterator[str]:
    memory = fit.memory
    if memory is None:
        return
    if memory.bytes_per_in_flight is not None:
        slope = memory.bytes_per_in_flight / 1e9
        yield f"peak memory {memory.base_bytes / 1e9:.1f} GB + {slope:.2f} GB a micro-batch in flight"
    for row in memory.forecast:
        peak = "unknown"
        if row.peak_bytes is not None:
            peak = f"{row.peak_bytes / 1e9:.1f} GB"
        fits = {None: "", True: ", fits", False: ", does not fit"}[row.fits]
        yield f"{row.microbatches:g} micro-batches: {row.in_flight} in flight, {peak}{fits}"


def fits_section(fits: Sequence[Fit]) -> Section:
    """What the step times of logs say beside other runs: what scales with micro-batches, and what does not."""
    columns = [
        Column("", left=True),
        Column("a micro-batch", Unit.TIME),
        Column("bubble"),
        Column("fixed", Unit.TIME),
        Column("", left=True),
    ]
    rows: list[list[Cell]] = []
    notes = []
    for fit in fits:
        name = PurePath(fit.source).name
        if fit.slot_ms is None:
            notes += [f"{name}: {sentence}" for sentence in fit.verdict]
        elif fit.model == ONE_POINT and fit.bubble_ms is not None:
            # A single setting does not tell the bubble from what is fixed: it bounds their sum.
            rows.append([name, fit.slot_ms, f"<= {span(fit.bubble_ms)}", None, fit.evidence])
        else:
            bubble, fixed = None, fit.fixed_ms
            if fit.bubble_ms is not None:
                bubble = span(fit.bubble_ms)
            if fit.model == ONE_POINT:
                fixed = None  # one setting does not tell it
            rows.append([name, fit.slot_ms, bubble, fixed, fit.evidence])
    if not rows:  # no line held: why is all that is said
        return Sentences("Steps of the logs", notes)
    return Table("Steps of the logs: fixed + bubble + micro-batches x slot", columns, rows, notes=notes)
