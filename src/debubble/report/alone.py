"""What ``why`` says of one run: the verdict, what is known of it, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .causes import causes_section
from .changes import beyond_section
from .figures import Cell, Unit
from .fit import fits_section, phases_section
from .sections import Column, Report, Section, Sentences, Table
from .why import beyond_ways, missing_lines, picture_of, ways_out_section

if TYPE_CHECKING:
    from ..diagnosis.comparison import Alone


def report(found: Alone, *, detail: bool = False) -> Report:
    """The sections of one run."""
    run = found.run
    sections: list[Section] = []
    window = found.window
    if window is not None and window.measured:
        sections.append(picture_of(window))
    rows: list[tuple[str, Cell]] = [
        ("GPUs", run.gpus),
        ("pipeline x data", None if run.pipeline is None else f"{run.pipeline} x {run.data or '-'}"),
        ("schedule", run.schedule),
        ("micro-batches per pipeline", run.microbatches),
    ]
    sections.append(Table("Sizes", [Column("", left=True), Column("")], [row for row in rows if row[1] is not None]))
    shares: list[tuple[str, Cell, Cell]] = [
        ("busy share that the bubble allows", found.bubble_allows_share, run.evidence),
        ("busy share", run.busy, run.busy_evidence),
        ("something else", found.something_else_share, ""),
    ]
    known = [row for row in shares if row[1] is not None]
    if known:
        columns = [Column("", left=True), Column("", Unit.SHARE), Column("", left=True)]
        sections.append(Table("Busy", columns, known))
    if run.causes and run.makespan_ms is not None:
        sections.append(causes_section(run.causes, run.makespan_ms))
    if run.phases and len(run.phases) > 1:
        sections.append(phases_section("Phases of the run", run.phases))
    if found.next:
        sections.append(ways_out_section(found.next, run.name, None, detail=detail))
    if found.beyond:
        sections.append(beyond_section(beyond_ways(found.beyond)))
    if found.missing:
        sections.append(Sentences("To know more, state", missing_lines(found.missing)))
    if run.remarks:
        sections.append(Sentences("Remarks", run.remarks))
    if found.fit is not None:
        sections.append(fits_section([found.fit]))
    return Report(run.name, found.verdict, sections)
