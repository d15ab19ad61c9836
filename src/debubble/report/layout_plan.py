"""What ``plan`` says with a model: the ranking, whether to add devices, where step and memory go, what to launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..core.units import duration, percent
from ..diagnosis.remedies import simulated_sliders
from .figures import Cell, Unit
from .launch import files, launch, numbers
from .sections import Column, Figure, Figures, Part, Parts, Paste, Picture, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..planning.layout_plan import BatchGrowth, Candidate, LayoutPlan, PlannedWindow, ScalingRow

MOST_RANKS = 16  # of the memory of each in a terminal
SMALL_BYTES = 5e7  # of memory: less is not worth a word in a terminal
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
CAUSES = {"memory": "need more memory", "behind": "slower by the closed form", "twin": "the same as another"}
USUAL = {"CP": "1", "EP": "1", "ETP": "TP", "chunks": "1", "first most last": "even", "recompute": "none"}


def report(found: LayoutPlan, *, detail: bool = False) -> Report:
    """The sections of a plan."""
    sections: list[Section] = []
    if found.calibration is not None:
        sections.append(Sentences("", list(_calibrated(found)), plain=True, margin=0))
    if found.scaling:
        sections.append(_scaling(found))
    sections += [_ranking(found), Sentences("", [ruled_out(found)], plain=True, margin=0)]
    sections += [_parts(found), *_memory(found, detail)]
    if found.growth is not None:
        sections += _growth(found.growth)
    if found.emit is not None:
        sections.append(Paste(f"{found.framework}:", found.emit))
    else:
        sections.append(Sentences("", list(_use_it(found)), plain=True, margin=0))
    if not detail:
        return Report(found.title, found.verdict, sections)
    window = found.window
    schedule = window.timeline.program.schedule
    sections = [_figures(found, window), _picture(found, window), *sections, _rejected(found)]
    pastes = [Paste(title, text, file) for title, file, text in found.pastes]
    sections += [*(pastes or [launch(schedule)]), *files(schedule), numbers(found)]
    fits = "Simulated with the estimated durations of each stage and the mean hop; the rest of the step is as it was."
    return Report(
        title=f"{found.model} on {found.gpus} x {found.gpu}: plan",
        verdict=found.verdict,
        sections=sections,
        next=found.next,
        sliders=simulated_sliders(window.timeline, window.costs, fits),
    )


def pictures(found: LayoutPlan) -> list[Picture]:
    """The pipeline window of the layout to launch, which is simulated op by op for pages and figures alone."""
    return [_picture(found, found.window)]


def _calibrated(found: LayoutPlan) -> Iterator[str]:
    """Each factor with its uncertainty, and of which ones nothing was learned."""
    calibration = found.calibration
    if calibration is None:
        return
    shown = ", ".join(f"{name} {each.value:.2f} ± {each.error:.2f}" for name, each in calibration.factors.items())
    rows = f"{calibration.rows} rows of " if calibration.rows else ""
    yield f"calibrated on {rows}{calibration.source}: {shown}"
    silent = [name for name, each in calibration.factors.items() if not each.told]
    if silent:
        yield f"that says next to nothing of {', '.join(silent)}: as uncertain as before"


def _figures(found: LayoutPlan, window: PlannedWindow) -> Figures:
    """The figures at the head of a page."""
    outside = duration(1e6 * found.best.step_ms - window.account.window)
    calibrated = "calibrated" if found.calibration else "not calibrated: --calibrate with measured steps"
    share, evidence = found.promised
    own = f"{percent(share)} idle share"
    return Figures(
        [
            Figure("step", found.best.step_ms, Unit.TIME, f"estimated; {outside} of it outside the pipeline"),
            Figure("idle share", window.account.idle_share, Unit.SHARE, evidence="estimated"),
            Figure("bubble ratio", window.account.bubble_ratio, Unit.SHARE, evidence="estimated"),
            Figure("what the schedule itself promises", own, what=f"even stages, free transfers; {evidence}"),
            Figure(
                "error of the estimate",
                f"±{percent(found.error_band_share)}",
                what=f"one standard deviation; {calibrated}",
            ),
        ]
    )


def _picture(found: LayoutPlan, window: PlannedWindow) -> Picture:
    return Picture(
        title="Layout 1, its pipeline (durations estimated)",
        name="Layout 1, its pipeline (durations estimated)",
        timeline=window.timeline,
        account=window.account,
        ranks=window.per_rank,
        caption=f"{found.model} on {found.gpus} x {found.gpu}: the pipeline of layout 1 (estimated)",
    )


def _told(titles: Sequence[str], units: Sequence[Unit], rows: Sequence[Sequence[Cell]]) -> Table:
    """A table without columns in which all rows are alike and usual."""
    kept = [n for n, title in enumerate(titles) if any(row[n] not in (USUAL.get(title, ""), None) for row in rows)]
    columns = [Column(titles[n], units[n], left=n == 0, long=titles[n] in ("schedule", "recompute")) for n in kept]
    return Table("", columns, [[row[n] for n in kept] for row in rows], margin=0)


def _degrees(row: Candidate) -> list[str]:
    """Tensor, pipeline, data, context, expert, and what shares an expert: TP, or a number of its own."""
    own = "TP" if row.expert_tensor == row.tensor else str(row.expert_tensor)
    return [*map(str, (row.tensor, row.pipeline, row.data, row.context, row.expert)), own]


def _again(row: Candidate) -> str:
    some = row.recompute_layers
    return row.recompute if some is None else f"{some} layer{'s' if some > 1 else ''}"


def _ranking(found: LayoutPlan) -> Table:
    """The layouts, the best first: that is the one to launch."""
    titles = (
        *("#", "TP", "PP", "DP", "CP", "EP", "ETP", "chunks", "mbs", "m", "schedule", "first most last", "recompute"),
        *("idle", "MFU", "peak", "step", "tok/s/GPU"),
    )
    units = (*[Unit.TEXT] * 13, Unit.SHARE, Unit.SHARE, Unit.TEXT, Unit.TIME, Unit.COUNT)
    rows: list[list[Cell]] = []
    for row in found.ranking:
        fullest = max(range(len(row.peak_bytes_by_rank)), key=row.peak_bytes_by_rank.__getitem__)
        layers = row.layers
        split = f"{layers[0]} {max(layers)} {layers[-1]}" if len(set(layers)) > 1 else "even"
        rows.append(
            [
                f"> {row.number}" if row.number == 1 else f"  {row.number}",
                *_degrees(row),
                *map(str, (row.chunks, row.micro_batch, row.microbatches)),
                row.schedule,
                split,
                _again(row),
                row.idle_share,
                row.mfu_share,
                f"{row.peak_bytes / 1e9:.1f} GB (r{fullest})",
                row.step_ms,
                row.tokens_per_second_per_gpu,
            ]
        )
    told = _told(titles, units, rows)
    band = percent(found.error_band_share)
    return Table(
        title="Layouts, the best first",
        columns=told.columns,
        rows=told.rows,
        hint=f"Estimated; those within ±{band} of the first cannot be told from it.",
        name=f"{found.gpus} GPUs",
        margin=0,
    )


def _scaling(found: LayoutPlan) -> Table:
    """The best layout at each number of devices."""
    rows = found.scaling or ()
    titles = (
        *("GPUs", "TP", "PP", "DP", "CP", "EP", "ETP", "chunks", "mbs", "m", "schedule", "recompute", "step"),
        *("tokens/s", "speed-up", "efficiency", "idle", "batch for 10 %", "per billion tokens"),
    )
    units = (*[Unit.TEXT] * 12, Unit.TIME, Unit.COUNT, Unit.GAIN, Unit.TEXT, Unit.SHARE, Unit.TEXT, Unit.COUNT)
    told = _told(titles, units, [_scaled(row, len(titles)) for row in rows])
    return Table(
        title="Should I add GPUs?",
        columns=told.columns,
        rows=told.rows,
        hint="The best layout at each number of GPUs, at the same global batch.",
        name="Should I add GPUs? The best layout at each number, the same global batch",
        margin=0,
    )


def _scaled(row: ScalingRow, width: int) -> list[Cell]:
    best = row.best
    if best is None:
        return [str(row.gpus), *[None] * (width - 3), "does not fit", None]
    return [
        str(row.gpus),
        *_degrees(best),
        *map(str, (best.chunks, best.micro_batch, best.microbatches)),
        best.schedule,
        _again(best),
        best.step_ms,
        row.tokens_per_second,
        row.speedup,
        f"{100 * row.efficiency:.0f} %",
        best.idle_share,
        str(row.global_batch_for_10_percent_idle),
        row.cost_per_billion_tokens,
    ]


def ruled_out(found: LayoutPlan) -> str:
    """What became of every legal layout, in counts that sum to all of them, and what was not legal for which cause."""
    gpus = str(found.gpus)
    causes: dict[str, int] = {}
    for each in found.rejected:
        if each.gpus == found.gpus:
            causes[each.cause] = causes.get(each.cause, 0) + each.count
    ranked = sorted(causes.items(), key=lambda item: -item[1])
    out = "".join(f", {count:,} {CAUSES[cause]}" for cause, count in ranked if cause in CAUSES)
    screened = f"{found.legal[gpus]:,} legal layouts screened, {found.simulated[gpus]} simulated"
    text = f"{screened}: {found.ranked[gpus]} ranked{out}."
    illegal = ", ".join(f"{count:,} for {cause}" for cause, count in ranked if cause not in CAUSES)
    return f"{text} Not legal: {illegal} (reasons: --json)." if illegal else text


def _parts(found: LayoutPlan) -> Parts:
    step = found.best.step_ms
    parts = []
    for name, words in PARTS.items():
        cost = found.best.parts[f"{name}_ms"]
        remedy = REMEDY.get(name, "") if cost > WORTH * step else ""
        parts.append(Part(words, cost, found.best.parts_share[name], "estimated", "", remedy))
    hint = "Parts of the step of the first, estimated by the cost model; the lines sum to the step."
    return Parts("Where the step of the first goes", parts, "step", step, hint=hint, bars=True)


def _memory(found: LayoutPlan, detail: bool) -> Iterator[Section]:
    """What the fullest rank holds, and the peak of each."""
    best, device = found.best, found.device_bytes
    if not detail:
        held = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in best.memory_bytes.items() if size > SMALL_BYTES)
        ranks = " ".join(f"{size / 1e9:.1f}" for size in best.peak_bytes_by_rank[:MOST_RANKS])
        more = " .." if len(best.peak_bytes_by_rank) > MOST_RANKS else ""
        lines = [f"fullest rank, GB of {device / 1e9:.0f}: {held}", f"peak of each rank, GB: {ranks}{more}"]
        yield Sentences("Memory of the first", lines, plain=True)
        return
    shares = [size / device for size in best.peak_bytes_by_rank]
    fullest = max(range(len(shares)), key=shares.__getitem__)
    title = "Memory, rank by rank"
    yield Table(
        title=title,
        columns=[Column("rank", left=True), Column("peak, GB", Unit.GIGABYTES), Column("of the device", Unit.SHARE)],
        rows=[(str(n), size, shares[n]) for n, size in enumerate(best.peak_bytes_by_rank)],
        hint=f"Estimated, of {device / 1e9:.0f} GB that a {found.gpu} has.",
        bars=shares,
    )
    whole = best.peak_bytes or 1
    yield Table(
        title=title,
        columns=[Column("", left=True), Column("GB", Unit.GIGABYTES), Column("of its peak", Unit.SHARE)],
        rows=[(name, size, size / whole) for name, size in best.memory_bytes.items()],
        bars=[size / whole for size in best.memory_bytes.values()],
        name=f"What rank {fullest}, the fullest, holds",
    )


def _growth(growth: BatchGrowth) -> Iterator[Section]:
    columns = [
        Column("batch", left=True),
        Column("samples", Unit.COUNT),
        Column("m"),
        Column("idle", Unit.SHARE),
        Column("step", Unit.TIME),
        Column("tok/s/GPU", Unit.COUNT),
    ]
    rows = []
    for row in growth.sizes:
        speed = (row.step_ms, row.tokens_per_second_per_gpu)
        if row.step_ms is not None:
            rows.append((str(row.global_batch), row.samples, row.microbatches, row.idle_share, *speed))
    notes = []
    if growth.lost_share is not None:
        spent = duration(1e6 * growth.duration_ms)
        notes.append(f"growing takes {spent}, {percent(growth.lost_share)} more than at the whole batch")
    notes += [growth.note] if growth.note else []
    title = "The first while its batch grows"
    if rows:
        yield Table(title, columns, rows, notes=notes)
    else:
        yield Sentences(title, notes)


def _use_it(found: LayoutPlan) -> Iterator[str]:
    best = found.best
    sizes = f"-p {best.pipeline} -m {best.microbatches}" + (f" -v {best.chunks}" if best.chunks > 1 else "")
    yield "Use it: --emit megatron|torchtitan|torch|deepspeed|nemo|nanotron"
    yield f"Next:   debubble show {best.schedule} {sizes}"


def _rejected(found: LayoutPlan) -> Table:
    rows = sorted((each for each in found.rejected if each.gpus == found.gpus), key=lambda each: -each.count)
    columns = [Column("cause", left=True), Column("layouts", Unit.COUNT), Column("reason", left=True, long=True)]
    cells = [(each.cause, each.count, each.reason) for each in rows]
    return Table("What was ruled out", columns, cells, hint=ruled_out(found))
