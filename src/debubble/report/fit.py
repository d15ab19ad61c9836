"""What ``fit`` says: which line was fitted and why, the parts of a step, settings, forecasts, and peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .figures import Unit, shown
from .sections import Column, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..diagnosis.fit_result import Fit, FittedMemory, Forecast

MOST_OUTLIERS = 10


def report(fit: Fit, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a fit."""
    sections: list[Section] = []
    if fit.model is not None:
        sections.append(Sentences("", [_parts(fit)], plain=True))
        sections.append(_settings(fit))
        said = [*map(_forecast, fit.forecast), *_outliers(fit)]
        if said:
            sections.append(Sentences("", said, plain=True))
    if fit.memory is not None:
        sections.append(Sentences("", list(_memory(fit.memory)), plain=True))
    title = fit.source if fit.model is None else f"{fit.source}: {fit.model} ({fit.why})"
    return Report(title, fit.verdict, sections)


def _parts(fit: Fit) -> str:
    """What the line says, each part with its name."""
    named = {"overhead per micro-batch" if fit.constant_batch else "slot": fit.slot_ms, "intercept": fit.intercept_ms}
    if not fit.fixed_known:
        named |= {"bubble at most": fit.intercept_ms}  # what is fixed in it cannot be told
    elif fit.bubble_ms is not None:
        named |= {"bubble": fit.bubble_ms, "fixed": fit.fixed_ms}
    parts = "   ".join(f"{name} {shown(time, Unit.TIME)}" for name, time in named.items())
    return f"{parts}   ({fit.evidence})"


def _settings(fit: Fit) -> Table:
    columns = [
        Column("batch", Unit.NUMBER),
        Column("micro-batches", Unit.NUMBER),
        Column("steps", Unit.COUNT),
        Column("measured", Unit.TIME),
        Column("fitted", Unit.TIME),
        Column("bubble", Unit.SHARE),
    ]
    rows = [
        (
            None if row.batch is None else f"{row.batch:g}",
            f"{row.microbatches:g}",
            row.steps,
            row.step_ms,
            row.fitted_ms,
            row.bubble_share,
        )
        for row in fit.rows
    ]
    return Table("Settings", columns, rows, untitled=True)


def _forecast(row: Forecast) -> str:
    setting = f"{row.microbatches:g} micro-batches" if row.batch is None else f"batch {row.batch:g}"
    line = f"{setting}: forecast {shown(row.step_ms, Unit.TIME)}"
    if row.measured_ms is None or row.error_share is None:
        return line
    measured = shown(row.measured_ms, Unit.TIME)
    return f"{line} from the smaller ones, measured {measured} ({100 * row.error_share:+.1f} %)"


def _outliers(fit: Fit) -> Iterator[str]:
    for each in fit.outliers[:MOST_OUTLIERS]:
        yield f"row {each.row} set aside: {shown(each.step_ms, Unit.TIME)} is {each.reason}"
    if len(fit.outliers) > MOST_OUTLIERS:
        yield f".. and {len(fit.outliers) - MOST_OUTLIERS} more"


def _memory(memory: FittedMemory) -> Iterator[str]:
    if memory.bytes_per_in_flight is not None:
        each = memory.bytes_per_in_flight / 1e9
        yield f"peak memory {memory.base_bytes / 1e9:.1f} GB + {each:.2f} GB a micro-batch in flight"
    for row in memory.forecast:
        peak = "unknown" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.1f} GB"
        fits = {None: "", True: ", fits", False: ", does not fit"}[row.fits]
        yield f"{row.microbatches:g} micro-batches: {row.in_flight} in flight, {peak}{fits}"


def fits_section(fits: Sequence[Fit]) -> Table:
    """What the step times of logs say beside other runs: what scales with micro-batches, and what does not."""
    rows = [
        (
            fit.source,
            fit.slot_ms,
            _bubble(fit),
            fit.fixed_ms if fit.fixed_known else None,
            fit.evidence,
        )
        for fit in fits
        if fit.model is not None
    ]
    columns = [
        Column("", left=True),
        Column("a micro-batch", Unit.TIME),
        Column("bubble"),
        Column("fixed", Unit.TIME),
        Column("", left=True),
    ]
    return Table("Steps of the logs: fixed + bubble + micro-batches x slot", columns, rows)


def _bubble(fit: Fit) -> str | None:
    """A single setting does not tell the bubble from what is fixed: it bounds their sum."""
    if fit.bubble_ms is None:
        return None
    return shown(fit.bubble_ms, Unit.TIME) if fit.fixed_known else f"<= {shown(fit.bubble_ms, Unit.TIME)}"
