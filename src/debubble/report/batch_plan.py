"""What ``plan`` says without a model: the table of layouts, what was ruled out, and which axes cross nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import Unit
from .sections import Column, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..planning.batch_plan import BatchPlan, PlacementOrder

MOST_ROWS, MOST_REFUSED = 60, 8  # in a terminal; --json has all
TITLES = ("GPUs", "TP", "PP", "DP", "chunks", "mbs", "m", "batch", "schedule")


def report(found: BatchPlan, *, detail: bool = False) -> Report:
    """The sections of batch arithmetic."""
    shown = found.candidates if detail else found.candidates[:MOST_ROWS]
    rows = []
    for one in shown:
        mark = "" if one.evidence == "exact" else "~"
        sizes = (one.gpus, one.tensor, one.pipeline, one.data, one.chunks, one.micro_batch, one.microbatches)
        shares = (f"{mark}{100 * one.idle_share:.1f} %", f"{mark}{100 * one.bubble_ratio:.1f} %")
        enough = one.microbatches_for_10_percent
        rows.append((*map(str, (*sizes, one.global_batch)), one.schedule, *shares, one.effective_gpus, enough))
    columns = [Column(title, left=title == "GPUs") for title in TITLES]
    columns += [Column("idle"), Column("ratio"), Column("GPUs' worth", Unit.NUMBER), Column("m for 10 %", Unit.NUMBER)]
    more = len(found.candidates) - len(shown)
    notes = [f".. and {more} more: --json"] if more else []
    name = "Even stages, B = 2 F, free transfers (exact unless marked ~)"
    sections: list[Section] = [Table("Layouts", columns, rows, notes=notes, name=name, margin=0)]
    refused = [f"ruled out: {one.reason}" for one in (found.rejected if detail else found.rejected[:MOST_REFUSED])]
    if len(found.rejected) > len(refused):
        refused.append(f".. and {len(found.rejected) - len(refused)} more: --json")
    if refused:
        sections.append(Sentences("", refused, plain=True, whole=True))
    if found.placement:
        orders = [_order(one) for one in found.placement]
        orders.append("the outermost axis crosses nodes: put the pipeline outermost, it sends the least")
        sections.append(Sentences("", orders, plain=True))
    return Report("", found.verdict, sections)


def _order(one: PlacementOrder) -> str:
    groups = "; ".join(f"{axis} {','.join(map(str, group[:4]))}" for axis, group in one.first_groups.items())
    crossing = " and ".join(one.cross_node) or "nothing"
    return f"order {' > '.join(one.order)}: {crossing} crosses nodes; first groups: {groups}"
