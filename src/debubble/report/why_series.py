"""What ``why`` says of a series: a line for each run against the first, then all about the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import percent
from .figures import Cell
from .fit import fits_section
from .sections import Column, Report, Section, Sentences, Table
from .why import NONE, sections_of, times

if TYPE_CHECKING:
    from ..diagnosis.comparison import Series, Side
    from ..diagnosis.why import Bounds


def report(found: Series, *, detail: bool = False) -> Report:
    """The sections of a series."""
    last = found.runs[-1]
    unit = last.unit or "schedules only"
    sections: list[Section] = [_against_the_first(found)]
    if found.frontier is not None:
        sections.append(Sentences("Throughput against memory of a device (stated)", list(_frontier(found))))
    sections.append(Sentences(f"{last.a.name} -> {last.b.name}", last.verdict))
    sections += sections_of(last, detail=detail)
    if found.fits:
        sections.append(fits_section(found.fits))
    if found.gate is not None:
        sections.append(Sentences("Gate", found.gate.reasons or ["passed"]))
    return Report(f"Against {found.base} ({unit}): throughput = by the bubble x left over", (), sections)


def _against_the_first(found: Series) -> Table:
    first = found.runs[0].a
    rows: list[list[Cell]] = [[first.name, first.gpus, "1.00", "1.00", "1.00", _idle(first), first.evidence]]
    for each in found.runs:
        ratio = NONE if each.throughput_ratio is None else times(each.throughput_ratio)
        explains, left = _bounds(each.bubble_explains_bounds), _bounds(each.left_over_bounds)
        rows.append([each.b.name, each.b.gpus, ratio, explains, left, _idle(each.b), each.b.evidence])
    titles = ("run", "GPUs", "throughput", "by the bubble", "left over", "idle share", "evidence")
    columns = [Column(title, left=title == "run") for title in titles]
    return Table("Each run against the first", columns, rows, untitled=True)


def _idle(run: Side) -> str:
    if run.idle_share_bounds is None:
        return NONE
    low, high = run.idle_share_bounds
    return percent(high) if low == high else f"{percent(low)} to {percent(high)}"


def _bounds(bounds: Bounds | None) -> str:
    if bounds is None:
        return NONE
    low, high = bounds
    return f"{low:.3f}" if low == high else f"{low:.2f} to {high:.2f}"


def _frontier(found: Series) -> Iterator[str]:
    best = found.frontier
    if best is None:
        return
    yield f"By memory and throughput, none of these is beaten in both: {', '.join(best.pareto)}."
    yield f"Most throughput for its memory: {best.best_per_byte}."
    if best.implied_idle_share > 0:
        idle = percent(best.implied_idle_share)
        yield f"If {best.fastest} idles not at all, {best.first} idles {idle} of the time, work in a busy second alike."
