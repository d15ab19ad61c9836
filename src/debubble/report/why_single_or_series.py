"""What ``why`` says of one run alone, and of a series: a line for each run against the first, then all of the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import percent
from .advice import beyond_section, causes_section
from .diagnose import gate_section
from .figures import Cell, Unit, shown
from .fit import fits_section, phases_section
from .sections import Column, Report, Section, Sentences, Table
from .why import NONE, missing_lines, picture_of, range_of, sections_of, times, ways_out_section

if TYPE_CHECKING:
    from ..diagnosis.comparison import Alone, Series, Side
    from ..diagnosis.why import Bounds


def of_one(alone: Alone, *, detail: bool = False) -> Report:
    """The sections of one run."""
    run = alone.run
    sections: list[Section] = []
    if alone.window is not None and alone.window.measured:
        sections.append(picture_of(alone.window))
    sections += [_sizes(run), _busy(alone)]
    if run.makespan_ms is not None:
        sections.append(causes_section(run.causes, run.makespan_ms))
    if run.phases is not None and len(run.phases) > 1:
        sections.append(phases_section("Phases of the run", run.phases))
    sections += [
        ways_out_section(alone.next, run.name, None, detail=detail),
        beyond_section([(way.change, way.predicted_ratio, way.demands) for way in alone.beyond]),
        Sentences("To know more, state", missing_lines(alone.missing)),
        Sentences("Remarks", run.remarks),
    ]
    if alone.fit is not None:
        sections.append(fits_section([alone.fit]))
    return Report(run.name, alone.verdict, sections)


def _sizes(run: Side) -> Table:
    rows: list[tuple[str, Cell]] = [("GPUs", run.gpus)]
    if run.pipeline is not None:
        rows.append(("pipeline x data", f"{run.pipeline} x {shown(run.data)}"))
    rows += [("schedule", run.schedule), ("micro-batches per pipeline", run.microbatches)]
    known = [row for row in rows if row[1] is not None]
    return Table("Sizes", [Column("", left=True), Column("")], known)


def _busy(alone: Alone) -> Table:
    """How busy it is beside what its bubble allows."""
    run = alone.run
    rows: list[tuple[str, Cell, Cell]] = [
        ("busy share that the bubble allows", alone.bubble_allows_share, run.evidence),
        ("busy share", run.busy, run.busy_evidence),
        ("something else", alone.something_else_share, ""),
    ]
    known = [row for row in rows if row[1] is not None]
    return Table("Busy", [Column("", left=True), Column("", Unit.SHARE), Column("", left=True)], known)


def of_series(series: Series, *, detail: bool = False) -> Report:
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
        ratio = NONE
        if run.throughput_ratio is not None:
            ratio = times(run.throughput_ratio)
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
    if low == high:
        return f"{low:.3f}"
    return f"{low:.2f} to {high:.2f}"  # fewer digits: what is bounded is not known to three


def _frontier(series: Series) -> Iterator[str]:
    best = series.frontier
    if best is None:
        return
    yield f"By memory and throughput, none of these is beaten in both: {', '.join(best.pareto)}."
    yield f"Most throughput for its memory: {best.best_per_byte}."
    if best.implied_idle_share > 0:  # else the fastest is no faster in a busy second, and idling explains nothing
        idle = percent(best.implied_idle_share)
        yield f"If {best.fastest} idles not at all, {best.first} idles {idle} of the time, work in a busy second alike."
