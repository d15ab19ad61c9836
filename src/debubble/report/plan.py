"""What the planner says of layouts, and of the bubbles of a batch, splits of blocks, a profiled layer, a validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.units import counted, duration, percent
from ..diagnosis.remedies import simulated_sliders
from ..frameworks.catalog import FRAMEWORKS
from .advice import files, launch, numbers, page_sliders, unequal_section
from .sections import (
    Cell,
    Column,
    Figure,
    Figures,
    Part,
    Parts,
    Paste,
    Picture,
    Report,
    Section,
    Sentences,
    Table,
    Unit,
    shown,
)

if TYPE_CHECKING:
    from ..planning.batch import BatchPlan, GrowthPlan, PlacementOrder
    from ..planning.calibrate import LayerProfile
    from ..planning.layout_plan import BatchGrowth, Candidate, LayoutPlan, PlannedWindow
    from ..planning.splits import Splits
    from ..planning.validate import SetScore, Validation

MOST_RANKS = 16  # of the memory of each in a terminal: a line
SMALL_BYTES = 5e7  # of memory: less rounds to 0.0 GB
WORTH = 0.01  # share of a step from which a part is worth a remedy
PARTS = {
    "ideal": "model FLOPs at peak",
    "kernels": "kernels below peak",
    "recompute": "recomputation",
    "tensor": "tensor collectives",
    "context": "context ring",
    "expert": "expert all-to-all",
    "bubble": "bubble of even stages",
    "imbalance": "uneven stages",
    "transfer": "hops",
    "data": "data-parallel traffic",
    "optimizer": "optimizer",
    "fixed": "fixed",
}
REMEDY = {
    "kernels": "a larger micro-batch or less tensor parallelism makes products larger",
    "recompute": "what memory allows to keep is not computed again",
    "bubble": "more micro-batches, more chunks, or a schedule that splits the backward",
    "imbalance": "move layers away from the fullest stage",
    "transfer": "fewer chunks, or neighbours in one host",
}
# Why a legal layout is not ranked, by the names that results have for it; every other cause is a rule that it breaks.
CAUSES = {"memory": "need more memory", "behind": "slower by the closed form", "twin": "the same as another"}
# What cells usually say, by the title of their column: a column with nothing else in it is left out.
USUAL = {"CP": "1", "EP": "1", "ETP": "TP", "chunks": "1", "first most last": "even", "recompute": "none"}


def report(plan: LayoutPlan, *, detail: bool = False) -> Report:
    """The sections of a plan."""
    sections: list[Section] = [
        Sentences("", list(_calibrated(plan)), plain=True, margin=0),
        _scaling(plan),
        _ranking(plan),
    ]
    if not detail:
        # A page has a table of what was ruled out, every text to paste, and sliders instead of hints.
        sections.append(Sentences("", [ruled_out(plan)], plain=True, margin=0))
    sections.append(_parts(plan))
    sections += _memory(plan) if detail else [_memory_in_brief(plan)]
    if plan.unequal_samples is not None:
        sections.append(unequal_section(plan.unequal_samples))
    if plan.growth is not None:
        sections.append(_growth(plan.growth))
    if plan.emit is not None:
        sections.append(Paste(f"{plan.framework}:", plan.emit))
    elif not detail:
        sections.append(Sentences("", _use_it(plan), plain=True, margin=0))
    if not detail:
        return Report(plan.title, plan.verdict, sections)

    window = plan.window
    schedule = window.timeline.program.schedule
    sections = [_figures(plan, window), _picture(plan, window), *sections, _rejected(plan)]
    sections += [Paste(title, text, file) for title, file, text in plan.pastes] or [launch(schedule)]
    sections += [*files(schedule), numbers(plan)]
    fits = "Simulated with the estimated durations of each stage and the mean hop; the rest of the step is as it was."
    return Report(
        title=f"{plan.model} on {plan.gpus} x {plan.gpu}: plan",
        verdict=plan.verdict,
        sections=sections,
        next=plan.next,
        sliders=page_sliders(simulated_sliders(window.timeline, window.costs, fits)),
    )


def pictures(plan: LayoutPlan) -> list[Picture]:
    """The pipeline window of the layout to launch, which is simulated op by op for pages and figures alone."""
    return [_picture(plan, plan.window)]


def _calibrated(plan: LayoutPlan) -> Iterator[str]:
    """Each factor with its uncertainty, and of which ones nothing was learned."""
    calibration = plan.calibration
    if calibration is None:
        return
    factors, silent = [], []
    for name, factor in calibration.factors.items():
        factors.append(f"{name} {factor.value:.2f} ± {factor.error:.2f}")
        if not factor.told:
            silent.append(name)
    rows = f"{calibration.rows} rows of " if calibration.rows else ""  # saved factors have none
    yield f"calibrated on {rows}{calibration.source}: {', '.join(factors)}"
    if silent:
        yield f"that says next to nothing of {', '.join(silent)}: as uncertain as before"


def _figures(plan: LayoutPlan, window: PlannedWindow) -> Figures:
    """The figures at the head of a page."""
    outside = duration(1e6 * plan.best.step_ms - window.account.window)
    share, evidence = plan.promised
    band = "not known" if plan.error_band_share is None else f"±{percent(plan.error_band_share)}"
    return Figures(
        [
            Figure("step", plan.best.step_ms, Unit.TIME, f"estimated; {outside} of it outside the pipeline"),
            Figure("idle share", window.account.idle_share, Unit.SHARE, evidence="estimated"),
            Figure("bubble ratio", window.account.bubble_ratio, Unit.SHARE, evidence="estimated"),
            Figure(
                "what the schedule itself promises",
                f"{percent(share)} idle share",
                what=f"even stages, free transfers; {evidence}",
            ),
            Figure(
                "error of the estimate",
                band,
                what=plan.error_of,
            ),
        ]
    )


def _picture(plan: LayoutPlan, window: PlannedWindow) -> Picture:
    return Picture(
        title="Layout 1, its pipeline (durations estimated)",
        name="Layout 1, its pipeline (durations estimated)",
        timeline=window.timeline,
        account=window.account,
        ranks=window.per_rank,
        caption=f"{plan.model} on {plan.gpus} x {plan.gpu}: the pipeline of layout 1 (estimated)",
    )


def _ranking(plan: LayoutPlan) -> Table:
    """The layouts, the best first: that is the one to launch."""
    # Numbers of text stay text: a width of a column is that of its cells, and no degree has a thousands separator.
    columns = [
        Column("#", left=True),
        *LAYOUT,
        Column("first most last"),
        Column("recompute", long=True),
        Column("idle", Unit.SHARE),
        Column("MFU", Unit.SHARE),
        Column("peak"),
        Column("step", Unit.TIME),
        Column("tok/s/GPU", Unit.COUNT),
    ]
    rows: list[list[Cell]] = []
    for row in plan.ranking:
        mark = ">" if row.number == 1 else " "
        # Which rank is fullest tells what would make room: the first holds most activations, the last the loss.
        fullest = row.peak_bytes_by_rank.index(max(row.peak_bytes_by_rank))
        split = "even"
        if len(set(row.layers)) > 1:
            split = f"{row.layers[0]} {max(row.layers)} {row.layers[-1]}"
        cells: list[Cell] = [f"{mark} {row.number}", *_layout(row), split, _recomputed(row)]
        cells += [row.idle_share, row.mfu_share, f"{row.peak_bytes / 1e9:.1f} GB (r{fullest})"]
        rows.append([*cells, row.step_ms, row.tokens_per_second_per_gpu])
    table = Table(
        title="Layouts, the best first",
        columns=columns,
        rows=rows,
        hint=f"Estimated; those within ±{percent(plan.search.best.band)} of the first cannot be told from it.",
        name=f"{plan.gpus} GPUs",
        margin=0,
    )
    return _unusual(table)


def _scaling(plan: LayoutPlan) -> Table:
    """The best layout at each number of devices."""
    columns = [
        Column("GPUs", left=True),
        *LAYOUT,
        Column("recompute", long=True),
        Column("step", Unit.TIME),
        Column("tokens/s", Unit.COUNT),
        Column("speed-up", Unit.GAIN),
        Column("efficiency"),
        Column("idle", Unit.SHARE),
        Column("batch for 10 %"),
        Column("per billion tokens", Unit.COUNT),
    ]
    rows: list[list[Cell]] = []
    for row in plan.scaling or ():
        best = row.best
        if best is None:
            # In a column of text near the end: the others are numbers, and a dash says that there is none.
            rows.append([str(row.gpus), *[None] * (len(columns) - 3), "does not fit", None])
            continue
        cells: list[Cell] = [str(row.gpus), *_layout(best), _recomputed(best), best.step_ms, row.tokens_per_second]
        cells += [row.speedup, f"{100 * row.efficiency:.0f} %", best.idle_share]
        rows.append([*cells, str(row.global_batch_for_10_percent_idle), row.cost_per_billion_tokens])
    table = Table(
        title="Should I add GPUs?",
        columns=columns,
        rows=rows,
        hint="The best layout at each number of GPUs, at the same global batch.",
        name="Should I add GPUs? The best layout at each number, the same global batch",
        margin=0,
    )
    return _unusual(table)


# Sizes of a layout, as ``_layout`` fills them.
LAYOUT = [Column(title) for title in ("TP", "PP", "DP", "CP", "EP", "ETP", "chunks", "mbs", "m")]
LAYOUT.append(Column("schedule", long=True))


def _layout(row: Candidate) -> list[str]:
    """Sizes of a layout as text; what shares an expert is as large as TP unless it has a number of its own."""
    own = "TP" if row.expert_tensor == row.tensor else str(row.expert_tensor)
    degrees = [row.tensor, row.pipeline, row.data, row.context, row.expert]
    return [*map(str, degrees), own, *map(str, (row.chunks, row.micro_batch, row.microbatches)), row.schedule]


def _recomputed(row: Candidate) -> str:
    if row.recompute_layers is None:
        return row.recompute
    return counted(row.recompute_layers, "layer")


def _unusual(table: Table) -> Table:
    """A table without columns in which every row says what is usual."""
    kept = []
    for number, column in enumerate(table.columns):
        cells = {row[number] for row in table.rows}
        if cells - {USUAL.get(column.title, ""), None}:
            kept.append(number)
    # A terminal has some 80 columns, and most layouts have neither experts nor context parallelism.
    columns = [table.columns[number] for number in kept]
    return replace(table, columns=columns, rows=[[row[number] for number in kept] for row in table.rows])


def ruled_out(plan: LayoutPlan) -> str:
    """What became of every legal layout, in counts that sum to all of them, and what was not legal for which cause."""
    counts: Counter[str] = Counter()
    for group in plan.rejected:
        if group.gpus == plan.gpus:
            counts[group.cause] += group.count
    out, illegal = "", []
    for cause, count in counts.most_common():
        if cause in CAUSES:
            out += f", {count:,} {CAUSES[cause]}"
        else:
            illegal.append(f"{count:,} for {cause}")
    gpus = str(plan.gpus)
    screened = f"{plan.legal[gpus]:,} legal layouts screened, {plan.simulated[gpus]} simulated"
    text = f"{screened}: {plan.ranked[gpus]} ranked{out}."
    if illegal:
        text += f" Not legal: {', '.join(illegal)} (reasons: --json)."
    return text


def _parts(plan: LayoutPlan) -> Parts:
    best = plan.best
    parts = []
    for name, words in PARTS.items():
        cost, share = best.parts[f"{name}_ms"], best.parts_share[name]
        remedy = REMEDY.get(name, "") if share > WORTH else ""
        parts.append(Part(words, cost, share, "estimated", "", remedy))
    hint = "Parts of the step of the first, estimated by the cost model; the lines sum to the step."
    return Parts("Where the step of the first goes", parts, "step", best.step_ms, hint=hint, bars=True)


def _memory_in_brief(plan: LayoutPlan) -> Sentences:
    """What the fullest rank holds, and the peak of each, in two lines."""
    best = plan.best
    held = []
    for name, size in best.memory_bytes.items():
        if size > SMALL_BYTES:
            held.append(f"{name} {size / 1e9:.1f}")
    peaks = [f"{size / 1e9:.1f}" for size in best.peak_bytes_by_rank[:MOST_RANKS]]
    if len(best.peak_bytes_by_rank) > MOST_RANKS:
        peaks.append("..")
    lines = [
        f"fullest rank, GB of {plan.device_bytes / 1e9:.0f}: {', '.join(held)}",
        f"peak of each rank, GB: {' '.join(peaks)}; {_as_shown(best)}",
    ]
    return Sentences("Memory of the first", lines, plain=True)


def _as_shown(best: Candidate) -> str:
    """The peak with what a device's own tool counts beside tensors."""
    return f"nvidia-smi shows {best.device_peak_bytes / 1e9:.1f} GB at most"


def _memory(plan: LayoutPlan) -> list[Section]:
    """The peak of each rank, and what the fullest holds."""
    best = plan.best
    peaks = best.peak_bytes_by_rank
    rows: list[tuple[Cell, ...]] = []
    for rank, size in enumerate(peaks):
        rows.append((str(rank), size, size / plan.device_bytes))
    by_rank = Table(
        title="Memory, rank by rank",
        columns=[Column("rank", left=True), Column("peak, GB", Unit.GIGABYTES), Column("of the device", Unit.SHARE)],
        rows=rows,
        hint=f"Estimated, of {plan.device_bytes / 1e9:.0f} GB that a {plan.gpu} has; {_as_shown(best)}.",
        bars=[size / plan.device_bytes for size in peaks],
    )
    whole = best.peak_bytes or 1  # bytes; a share of nothing is nothing
    by_kind = Table(
        title="Memory, rank by rank",
        columns=[Column("", left=True), Column("GB", Unit.GIGABYTES), Column("of its peak", Unit.SHARE)],
        rows=[(name, size, size / whole) for name, size in best.memory_bytes.items()],
        bars=[size / whole for size in best.memory_bytes.values()],
        name=f"What rank {peaks.index(max(peaks))}, the fullest, holds",
    )
    return [by_rank, by_kind]


def _growth(growth: BatchGrowth) -> Section:
    """The step at each size of a batch that grows, and what growing costs; sizes that cannot be run are a note."""
    columns = [
        Column("batch", left=True),
        Column("samples", Unit.COUNT),
        Column("m"),
        Column("idle", Unit.SHARE),
        Column("step", Unit.TIME),
        Column("tok/s/GPU", Unit.COUNT),
    ]
    rows: list[list[Cell]] = []
    for row in growth.sizes:
        if row.step_ms is not None:
            cells: list[Cell] = [str(row.global_batch), row.samples, row.microbatches, row.idle_share]
            rows.append([*cells, row.step_ms, row.tokens_per_second_per_gpu])
    notes = []
    if growth.lost_share is not None:
        whole = duration(1e6 * growth.duration_ms)
        notes.append(f"growing takes {whole}, {percent(growth.lost_share)} more than at the whole batch")
    if growth.note:
        notes.append(growth.note)
    title = "The first while its batch grows"
    if not rows:
        return Sentences(title, notes)
    return Table(title, columns, rows, notes=notes)


def _use_it(plan: LayoutPlan) -> list[str]:
    best = plan.best
    sizes = f"-p {best.pipeline} -m {best.microbatches}"
    if best.chunks > 1:
        sizes += f" -v {best.chunks}"
    return [f"Use it: --emit with one of {', '.join(FRAMEWORKS)}", f"Next:   debubble show {best.schedule} {sizes}"]


def _rejected(plan: LayoutPlan) -> Table:
    columns = [Column("cause", left=True), Column("layouts", Unit.COUNT), Column("reason", left=True, long=True)]
    rows: list[tuple[Cell, ...]] = []
    for group in sorted(plan.rejected, key=lambda group: -group.count):
        if group.gpus == plan.gpus:  # of several numbers of devices the page is about one
            rows.append((group.cause, group.count, group.reason))
    return Table("What was ruled out", columns, rows, hint=ruled_out(plan))


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
