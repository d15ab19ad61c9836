"""What ``why`` says of one run: the verdict, what is known of it, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .causes import causes_section
from .changes import beyond_section
from .figures import Cell, Unit, shown
from .fit import fits_section, phases_section
from .sections import Column, Report, Section, Sentences, Table
from .why import missing_lines, picture_of, ways_out_section

if TYPE_CHECKING:
    from ..diagnosis.comparison import Alone, Side


def report(alone: Alone, *, detail: bool = False) -> Report:
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
