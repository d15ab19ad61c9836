"""What the planner says beside layouts: the bubbles of a batch, splits of blocks, a profiled layer, a validation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.units import percent
from .figures import Cell, Unit, shown
from .sections import Column, Paste, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..planning.batch import BatchPlan, GrowthPlan, PlacementOrder
    from ..planning.calibrate_layer import LayerProfile
    from ..planning.splits import Splits
    from ..planning.validate import SetScore, Validation


MOST_ROWS, MOST_REFUSED = 60, 8  # in a terminal; --json has all
MOST_OF_A_GROUP = 4  # ranks of the first group of an axis: its stride shows from two
_STEP = ("set", "rows", "", "MAPE %", "after one scale %", "rank correlation", "top-1 regret %")
_MEMORY = (
    *("set", "ran", "called too large %", "ran out", "called so %", "rightly %"),
    *("peaks", "median error %", "MAPE %", "after one factor %"),
)
_FIGURES = ("mape_percent", "mape_after_scale_percent", "spearman", "top1_regret_percent")
# A model that knows nothing but peak FLOPs (constant MFU) stands beside ours: what it reaches needs no planner.
# Lines of the first table, and how their figures are called.
_KINDS = (("generic", ""), ("calibrated on 5", "calibrated_"), ("constant MFU", "constant_mfu_"))


def of_batch(plan: BatchPlan, *, detail: bool = False) -> Report:
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


def of_profile(profile: LayerProfile, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a layer's profile."""
    sizes = f"tensor {profile.tensor}, micro-batch {profile.micro_batch}, sequence {profile.sequence}"
    title = f"one layer of {profile.model} on {profile.device}, held against {profile.gpu}: {sizes}"
    command = f"debubble plan --model .. --gpu .. --calibrate {profile.calibration}"
    return Report(title, (), [_times(profile), _factors(profile), Paste("Next:", command)])


def _times(profile: LayerProfile) -> Table:
    columns = [
        Column("", left=True),
        Column("measured"),
        Column("estimated", Unit.TIME),
        Column("calibrated", Unit.TIME),
    ]
    timed = {
        "layer": profile.layer,
        "narrow layer": profile.narrow_layer,
        "embedding": profile.embedding,
        "head": profile.head,
    }
    rows: list[list[Cell]] = []
    for name, times in timed.items():
        if times is None:
            continue
        error = f"± {100 * times.error_share:.1f} %"
        forward = f"{shown(times.forward_ms, Unit.TIME)} {error}"
        backward = f"{shown(times.backward_ms, Unit.TIME)} {error}"
        rows += [
            [f"{name} forward", forward, times.estimated_forward_ms, times.calibrated_forward_ms],
            [f"{name} backward", backward, times.estimated_backward_ms, times.calibrated_backward_ms],
        ]
    return Table("", columns, rows)


def _factors(profile: LayerProfile) -> Sentences:
    """Factors with their errors, and those that one layer alone does not tell."""
    told, silent = [], []
    for name, factor in profile.factors.items():
        if factor.told:
            told.append(f"{name} {factor.value:.3g} ± {factor.error:.2g}")
        else:
            silent.append(name)
    text = f"factors: {', '.join(told) or 'none'}; one layer says next to nothing of {', '.join(silent)}"
    return Sentences("", [text], plain=True)


def of_validation(found: Validation, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a validation."""
    steps, memory = list(_step_rows(found)), [_memory_row(each) for each in found.sets if each.ran_rows]
    sections: list[Section] = []
    if steps:
        sections.append(Table("step time", _columns(_STEP, 3), steps))
    if memory:
        sections.append(Table("memory", _columns(_MEMORY, 1), memory))
    remarks = list(_remarks(found))
    if remarks:
        sections.append(Sentences("rows", remarks))
    return Report("the planner beside measured runs", [], sections)


def _columns(titles: tuple[str, ...], left: int) -> list[Column]:
    return [Column(title, left=number < left and number != 1) for number, title in enumerate(titles)]


def _step_rows(found: Validation) -> Iterator[tuple[Cell, ...]]:
    for each in found.sets:
        for kind, prefix in _KINDS:
            mape, scaled, spearman, regret = (getattr(each, prefix + name) for name in _FIGURES)
            if mape is not None:
                yield each.name, each.rows, kind, _number(mape), _number(scaled), _number(spearman, 2), _number(regret)


def _memory_row(each: SetScore) -> tuple[Cell, ...]:
    return (
        each.name,
        each.ran_rows,
        _percent(each.ran_called_too_large_share),
        each.out_of_memory_rows,
        _percent(each.out_of_memory_recall_share),
        _percent(each.out_of_memory_precision_share),
        each.memory_rows,
        _number(each.memory_median_error_percent),
        _number(each.memory_mape_percent),
        _number(each.memory_mape_after_scale_percent),
    )


def _remarks(found: Validation) -> Iterator[str]:
    """What was left out, taken as usual or not understood, set by set."""
    for each in found.sets:
        if not each.rows and not each.ran_rows:
            yield f"{each.name}: none of its rows can be scored"
        if each.left_out:
            reasons = "; ".join(f"{left.rows} {left.reason}" for left in each.left_out)
            yield f"{each.name}: left out: {reasons}"
        if each.taken_as_usual:
            columns = ", ".join(f"{usual.column} in {usual.rows} rows" for usual in each.taken_as_usual)
            yield f"{each.name}: unknown, and taken as usual: {columns}"
        if each.unknown_columns:
            yield f"{each.name}: columns that mean nothing here: {', '.join(each.unknown_columns)}"


def _number(value: float | None, digits: int = 1) -> str:
    """A figure with these digits; empty if nothing was there to score."""
    if value is None:
        return ""
    return f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return _number(100 * share)
