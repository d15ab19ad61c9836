"""What ``why`` says of a series: a line for each run against the first, then all about the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import percent
from .diagnose import gate_section
from .figures import Cell
from .fit import fits_section
from .sections import Column, Report, Sentences, Table
from .why import NONE, range_of, sections_of, times

if TYPE_CHECKING:
    from ..diagnosis.comparison import Series
    from ..diagnosis.why import Bounds


def report(series: Series, *, detail: bool = False) -> Report:
    """The sections of a series."""
    last = series.runs[-1]
    sections = [
        _against_the_first(series),
        Sentences("Throughput against memory of a device (stated)", list(_frontier(series))),
        Sentences(f"{last.a.name} -> {last.b.name}", last.verdict),
        *sections_of(last, detail=detail),
        fits_section(series.fits or ()),
        gate_section(series.gate),
    ]
    unit = last.unit or "schedules only"
    return Report(f"Against {series.base} ({unit}): throughput = by the bubble x left over", (), sections)


def _against_the_first(series: Series) -> Table:
    first = series.runs[0].a
    idle = range_of(first.idle_share_bounds)
    rows: list[list[Cell]] = [[first.name, first.gpus, "1.00", "1.00", "1.00", idle, first.evidence]]
    for run in series.runs:
        ratio = NONE if run.throughput_ratio is None else times(run.throughput_ratio)
        parts = [_between(run.bubble_explains_bounds), _between(run.left_over_bounds)]
        rows.append([run.b.name, run.b.gpus, ratio, *parts, range_of(run.b.idle_share_bounds), run.b.evidence])
    columns = [Column("run", left=True)]
    for title in ("GPUs", "throughput", "by the bubble", "left over", "idle share", "evidence"):
        columns.append(Column(title))
    return Table("Each run against the first", columns, rows, untitled=True)


def _between(bounds: Bounds | None) -> str:
    """One ratio if its bounds are the same."""
    if bounds is None:
        return NONE
    low, high = bounds
    return f"{low:.3f}" if low == high else f"{low:.2f} to {high:.2f}"


def _frontier(series: Series) -> Iterator[str]:
    best = series.frontier
    if best is None:
        return
    yield f"By memory and throughput, none of these is beaten in both: {', '.join(best.pareto)}."
    yield f"Most throughput for its memory: {best.best_per_byte}."
    if best.implied_idle_share > 0:
        idle = percent(best.implied_idle_share)
        yield f"If {best.fastest} idles not at all, {best.first} idles {idle} of the time, work in a busy second alike."
