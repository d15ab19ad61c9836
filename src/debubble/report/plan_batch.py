"""What ``plan`` says without a model: the bubble of each layout, which axes cross nodes; and splits of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.units import percent
from .figures import Cell, Unit
from .sections import Column, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..planning.batch_plan import BatchPlan, GrowthPlan, PlacementOrder
    from ..planning.split_result import Splits

MOST_ROWS, MOST_REFUSED = 60, 8  # in a terminal; --json has all
MOST_OF_A_GROUP = 4  # ranks of the first group of an axis: its stride shows from two


def report(plan: BatchPlan, *, detail: bool = False) -> Report:
    """The sections of batch arithmetic."""
    candidates = plan.candidates if detail else plan.candidates[:MOST_ROWS]
    rejected = plan.rejected if detail else plan.rejected[:MOST_REFUSED]
    columns = [Column("GPUs", left=True)]
    for title in ("TP", "PP", "DP", "chunks", "mbs", "m", "batch", "schedule", "idle", "ratio"):
        columns.append(Column(title))
    columns += [Column("GPUs' worth", Unit.NUMBER), Column("m for 10 %", Unit.NUMBER)]
    rows: list[list[Cell]] = []
    for row in candidates:
        sizes = [row.gpus, row.tensor, row.pipeline, row.data, row.chunks, row.micro_batch, row.microbatches]
        mark = "" if row.evidence == "exact" else "~"  # a bound, or simulated: no formula holds there
        shares = [f"{mark}{percent(row.idle_share)}", f"{mark}{percent(row.bubble_ratio)}"]
        cells: list[Cell] = [*sizes, row.global_batch, row.schedule, *shares]
        rows.append([*cells, row.effective_gpus, row.microbatches_for_10_percent])
    refused = [f"ruled out: {row.reason}" for row in rejected]
    orders = [_order(order) for order in plan.placement or ()]
    if orders:
        orders.append("the outermost axis crosses nodes: put the pipeline outermost, it sends the least")
    table = Table(
        title="Layouts",
        columns=columns,
        rows=rows,
        notes=_more(len(plan.candidates) - len(candidates)),
        name="Even stages, B = 2 F, free transfers (exact unless marked ~)",
        margin=0,
    )
    refusals = Sentences("", [*refused, *_more(len(plan.rejected) - len(rejected))], plain=True, whole=True)
    return Report("", plan.verdict, [table, refusals, Sentences("", orders, plain=True)])


def of_growth(plan: GrowthPlan, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a batch that grows: the idle share of each size, and of all of them."""
    columns = [
        Column("batch", left=True),
        Column("samples", Unit.COUNT),
        Column("m"),
        Column("idle", Unit.SHARE),
        Column("", left=True),
    ]
    rows: list[list[Cell]] = []
    for size in plan.sizes:
        rows.append([size.global_batch, size.samples, size.microbatches, size.idle_share, size.reason])
    notes = []
    if plan.idle_share_of_growth is not None:
        notes.append(f"Over all steps while the batch grows: {percent(plan.idle_share_of_growth)} idle.")
    return Report("", (), [Table("A batch that grows", columns, rows, notes=notes, untitled=True)])


def _more(count: int) -> list[str]:
    if not count:
        return []
    return [f".. and {count} more: --json"]


def _order(order: PlacementOrder) -> str:
    """Which axes cross nodes if ranks are numbered in this order, and the first ranks that each axis joins."""
    groups = []
    for axis, group in order.first_groups.items():
        groups.append(f"{axis} {','.join(map(str, group[:MOST_OF_A_GROUP]))}")
    crossing = " and ".join(order.cross_node) or "nothing"
    return f"order {' > '.join(order.order)}: {crossing} crosses nodes; first groups: {'; '.join(groups)}"


def of_splits(found: Splits, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of splits."""
    columns = [
        Column("split", left=True),
        Column("heaviest", Unit.NUMBER),
        Column("makespan", Unit.NUMBER),
        Column("idle", Unit.SHARE),
        Column("", left=True),
    ]
    sections: list[Section] = []
    for many in dict.fromkeys(split.microbatches for split in found.splits):  # in the order of the question
        rows: list[list[Cell]] = []
        for split in found.splits:
            if split.microbatches == many:
                note = "empty stage" if split.empty_stage else ""
                blocks = ",".join(map(str, split.split))
                rows.append([blocks, split.heaviest, split.makespan, split.idle_share, note])
        sections.append(Table(f"{many} micro-batches, times of a weight of 1 (simulated)", columns, rows))
    least = f"no split has a heaviest stage below {found.heaviest_at_least:.4g}"
    return Report(f"{found.blocks} blocks on {found.pipeline} ranks: {least}.", found.verdict, sections)
