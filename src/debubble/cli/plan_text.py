"""What ``plan`` prints of a search: the table, the waterfall, memory by rank, what was ruled out, and the documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..drawing.tables import duration, table
from .blocks import wrapped
from .console import look
from .plan_growth import growth_document, growth_text
from .report import layout_row

if TYPE_CHECKING:
    from ..config.layout import Layout, Plan
    from ..estimate.constants import Calibration
    from ..estimate.hardware import Cluster
    from ..estimate.model import Model
    from ..frameworks.framework import Framework
    from ..planning.search import Found
    from ..planning.verdict import Scaled
    from .plan_growth import Grown

MILLISECOND = 1e6  # nanoseconds
TOP = 10
BAR = 34  # columns of the waterfall
TOLD = 5e-4  # of a step: a smaller part has no line of its own
_WORDS = {"memory": "need more memory", "behind": "slower by the closed form", "twin": "the same as another"}
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


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What was asked, and what was found.

    Args:
        model: what is trained.
        clusters: by number of devices.
        found: by number of devices.
        calibration: of the cost model, or None.
        backend: for which what to paste is printed, or None.
        price: of one device for an hour, or None.
        top: layouts to print.
        growth: sizes of a batch that grows, of the first layout at the largest number of devices.
    """

    model: Model
    clusters: dict[int, Cluster]
    found: dict[int, Found]
    calibration: Calibration | None = None
    backend: Framework | None = None
    price: float | None = None
    top: int = TOP
    growth: list[Grown] = field(default_factory=list)

    @property
    def cluster(self) -> Cluster:
        """The first: all are of the same device."""
        return next(iter(self.clusters.values()))

    @property
    def best(self) -> Found:
        """The search at the largest number of devices at which a layout fits."""
        return next(self.found[gpus] for gpus in sorted(self.found, reverse=True) if self.found[gpus].plans)


def candidate(plan: Plan) -> dict[str, Any]:
    """A row of ``candidates``."""
    layout = plan.layout
    return {
        **layout_row(layout),
        "expert_tensor": layout.expert_shards,
        "zero": layout.zero,
        "recompute": layout.recompute,
        "recompute_layers": layout.recompute_layers,
        "layers": layout.layers,
        "step_ms": plan.step / MILLISECOND,
        "tokens_per_second_per_gpu": plan.tokens_per_second_per_gpu,
        "mfu_share": plan.mfu,
        "idle_share": plan.idle_share,
        "peak_bytes": max(plan.peak_bytes),
        "peak_bytes_by_rank": plan.peak_bytes,
        "memory_bytes": plan.memory,
        "parts": {f"{f.name}_ms": getattr(plan.parts, f.name) / MILLISECOND for f in fields(plan.parts)},
        "reasons": plan.reasons,
    }


def document(asked: Planned) -> dict[str, Any]:
    """What ``--json`` prints."""
    from ..planning.verdict import about, more_devices, roomy, scaled

    rows = scaled(asked.found, asked.price)
    best = asked.best
    whole: dict[str, Any] = {
        "model": asked.model.name,
        "gpu": asked.cluster.device.name,
        "candidates": [candidate(plan) for one in asked.found.values() for plan in one.plans[: asked.top]],
        "rejected": [
            {"gpus": gpus, "cause": r.cause, "reason": r.reason, "count": r.count}
            for gpus, one in asked.found.items()
            for r in one.rejected
        ],
        "legal": {str(gpus): one.legal for gpus, one in asked.found.items()},
        "simulated": {str(gpus): one.simulated for gpus, one in asked.found.items()},
        "error_band_share": best.band,
        "verdict": [*about(asked.model, best), *(more_devices(rows) if len(rows) > 1 else [])],
        "evidence": "estimated",
    }
    if asked.calibration is not None:
        whole["calibration"] = factors_of(asked.calibration)
    if len(rows) > 1:
        whole["scaling"] = [_scaling(row) for row in rows]
    if asked.growth:
        whole["growth"] = growth_document(asked.growth)
    if asked.backend:
        at = roomy(best) or 0
        whole |= {"emit": _emitted(asked.backend, best.plans[at], asked.model), "emitted": at + 1}
    return whole


def _scaling(row: Scaled) -> dict[str, Any]:
    return {
        "gpus": row.gpus,
        "fits": row.plan is not None,
        "tokens_per_second": row.tokens_per_second,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "cost_per_billion_tokens": row.cost,
        "global_batch_for_10_percent_idle": row.efficient_batch,
    }


def _emitted(backend: Framework, plan: Plan, model: Model) -> str:
    from ..planning.launch import sizes_of

    return backend.emit(plan.layout, sizes_of(model, plan.layout.sequence))


def text(asked: Planned) -> str:
    """What people read."""
    from ..planning.verdict import about, more_devices, roomy, scaled

    rows, columns = scaled(asked.found, asked.price), look().width
    lines = [_title(asked)]
    if len(rows) > 1:
        title = "Should I add GPUs? The best layout at each number, the same global batch"
        lines += ["", title, _closer(*scaling(rows)), *_sentences(more_devices(rows))]
    best = asked.best
    lines += ["", f"{best.plans[0].layout.gpus} GPUs", _closer(*ranked(best, asked.top))]
    lines += [*wrapped(ruled_out(best), columns), *_sentences(about(asked.model, best))]
    lines += ["", "Where the step of the first goes", _waterfall(best.plans[0])]
    lines += ["", "Memory of the first", _memory(best.plans[0], asked.cluster)]
    if asked.growth:
        lines += ["", "The first while its batch grows", growth_text(asked.growth)]
    if asked.backend:
        at = roomy(best) or 0
        which = f", layout {at + 1}, which has memory to spare" if at else ""
        lines += ["", f"{asked.backend.title}{which}:", _emitted(asked.backend, best.plans[at], asked.model)]
    else:
        lines += ["", _next(best.plans[0])]
    return "\n".join(lines)


def _closer(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(headers, rows, columns=look().width)


def _sentences(sentences: Iterable[str]) -> list[str]:
    """Each as wide as the terminal."""
    return [line for sentence in sentences for line in wrapped(sentence, look().width, "  ", "    ")]


def _title(asked: Planned) -> str:
    from ..estimate.count import parameters

    model, cluster, calibration = asked.model, asked.cluster, asked.calibration
    device, band = cluster.device, _band(calibration).replace(" ", "\u00a0")  # it stays on one line
    counts = ", ".join(map(str, asked.clusters))
    name = f"{model.name}  {model.layers} layers, {parameters(model) / 1e9:.1f} B parameters"
    size = f"{counts} x {device.name} {device.memory / 1e9:.0f} GB, {cluster.gpus_per_node} a node ({band})"
    lines = [f"{name}, {size}", *(_calibrated(calibration) if calibration is not None else [])]
    return "\n".join(part for line in lines for part in wrapped(line, look().width))


def _calibrated(calibration: Calibration) -> list[str]:
    """Each factor with its uncertainty, and of which ones nothing was learned."""
    from ..planning.calibrate import silent_factors

    shown = (f"{n} {float(f.value):.2f} ± {float(f.error):.2f}" for n, f in calibration.factors().items())
    rows = f"{calibration.rows} rows of " if calibration.rows else ""
    lines = [f"calibrated on {rows}{calibration.source}: {', '.join(shown)}"]
    silent = silent_factors(calibration)
    return lines + ([f"that says next to nothing of {', '.join(silent)}: as uncertain as before"] if silent else [])


def factors_of(calibration: Calibration) -> dict[str, Any]:
    """Source and factors of a calibration, as every verb prints them with ``--json``."""
    from ..planning.calibrate import silent_factors

    silent = silent_factors(calibration)
    factors = {
        name: {"value": float(factor.value), "error": float(factor.error), "told": name not in silent}
        for name, factor in calibration.factors().items()
    }
    return {"source": calibration.source, "rows": calibration.rows, "factors": factors}


def _band(calibration: Calibration | None) -> str:
    from ..estimate.constants import GENERIC

    return f"estimated ±{100 * (calibration or GENERIC).band:.0f} %"


def ranked(found: Found, top: int) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the layouts, the fastest first, without columns in which all are alike and usual."""
    headers = (
        *("#", "TP", "PP", "DP", "CP", "EP", "ETP", "chunks"),
        "mbs",
        "m",
        "schedule",
        "first most last",
        "recompute",
        "idle",
        "MFU",
        "peak",
        "step",
        "tok/s/GPU",
    )
    rows = []
    for number, plan in enumerate(found.plans[:top], start=1):
        layout = plan.layout
        fullest = max(range(len(plan.peak_bytes)), key=plan.peak_bytes.__getitem__)
        split = layout.layers
        rows.append(
            [
                f"> {number}" if number == 1 else f"  {number}",
                *_degrees(layout),
                str(layout.chunks),
                str(layout.micro_batch),
                str(layout.microbatches),
                layout.schedule,
                f"{split[0]} {max(split)} {split[-1]}" if len(set(split)) > 1 else "even",
                _again(layout),
                f"{100 * plan.idle_share:.1f} %",
                f"{100 * plan.mfu:.1f} %",
                f"{plan.peak_bytes[fullest] / 1e9:.1f} GB (r{fullest})",
                duration(plan.step),
                f"{plan.tokens_per_second_per_gpu:,.0f}",
            ]
        )
    return _told(headers, rows)


def _told(headers: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without columns in which all rows are alike and usual."""
    plain = {"CP": "1", "EP": "1", "ETP": "TP", "chunks": "1", "first most last": "even", "recompute": "none"}
    kept = [n for n, head in enumerate(headers) if any(row[n] not in (plain.get(head, ""), "-") for row in rows)]
    return [headers[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _degrees(layout: Layout) -> list[str]:
    """Tensor, pipeline, data, context, expert, and what shares an expert: TP, or a number of its own."""
    numbers = (layout.tensor, layout.pipeline, layout.data, layout.context, layout.expert)
    return [*map(str, numbers), str(layout.expert_tensor or "TP")]


def _again(layout: Layout) -> str:
    some = layout.recompute_layers
    return layout.recompute if some is None else f"{some} layer{'s' if some > 1 else ''}"


def ruled_out(found: Found) -> str:
    """What became of every legal layout, in counts that sum to all of them, and what was not legal for which cause."""
    from ..planning.rejected import LEGAL

    causes: dict[str, int] = {}
    for one in found.rejected:
        causes[one.cause] = causes.get(one.cause, 0) + one.count
    ranked = sorted(causes.items(), key=lambda item: -item[1])
    out = "".join(f", {count:,} {_WORDS[cause]}" for cause, count in ranked if cause in LEGAL)
    text = f"{found.legal:,} legal layouts screened, {found.simulated} simulated: {len(found.plans)} ranked{out}."
    illegal = ", ".join(f"{count:,} for {cause}" for cause, count in ranked if cause not in LEGAL)
    return f"{text} Not legal: {illegal} (reasons: --json)." if illegal else text


def scaling(rows: list[Scaled]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the best layout at each number of devices."""
    priced = any(row.cost for row in rows)
    headers = [
        "GPUs",
        "TP",
        "PP",
        "DP",
        "CP",
        "EP",
        "ETP",
        "chunks",
        "mbs",
        "m",
        "schedule",
        "recompute",
        "step",
        "tokens/s",
        "speed-up",
        "efficiency",
        "idle",
        "batch for 10 %",
    ]
    headers += ["per billion tokens"] if priced else []
    body = []
    for row in rows:
        if row.plan is None:
            body.append([str(row.gpus), *["-"] * (len(headers) - 2), "does not fit"])
            continue
        layout = row.plan.layout
        body.append(
            [
                str(row.gpus),
                *_degrees(layout),
                *map(str, (layout.chunks, layout.micro_batch, layout.microbatches)),
                layout.schedule,
                _again(layout),
                duration(row.plan.step),
                f"{row.tokens_per_second:,.0f}",
                f"{row.speedup:.2f}x",
                f"{100 * row.efficiency:.0f} %",
                f"{100 * row.plan.idle_share:.1f} %",
                str(row.efficient_batch),
                *([f"{row.cost:,.0f}"] if row.cost else []),
            ]
        )
    return _told(headers, body)


def _waterfall(plan: Plan) -> str:
    """Parts of the step in order, each a bar where the one before ended."""
    rows, start, small, full = [], 0.0, 0.0, "█" if look().utf8 else "#"
    for name, words in PARTS.items():
        part = getattr(plan.parts, name)
        if abs(part) < TOLD * plan.step:
            start, small = start + part, small + part
            continue
        left, right = round(BAR * start / plan.step), round(BAR * (start + part) / plan.step)
        bar = " " * min(left, right) + full * max(abs(right - left), 1)
        rows.append([words, duration(part), f"{100 * part / plan.step:.1f} %", bar])
        start += part
    if abs(small) >= TOLD * plan.step:
        rows.append(["smaller parts", duration(small), f"{100 * small / plan.step:.1f} %", ""])
    rows.append(["step", duration(plan.step), "100 %", ""])
    return table((), [[f"  {row[0]}", row[1].rjust(10), row[2].rjust(7), row[3]] for row in rows], left=4)


def _memory(plan: Plan, cluster: Cluster) -> str:
    held = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in plan.memory.items() if size > 5e7)
    ranks = " ".join(f"{size / 1e9:.1f}" for size in plan.peak_bytes[:16])
    more = " .." if len(plan.peak_bytes) > 16 else ""
    told = (f"fullest rank, GB of {cluster.device.memory / 1e9:.0f}: {held}", f"peak of each rank, GB: {ranks}{more}")
    return "\n".join(_sentences(told))


def _next(plan: Plan) -> str:
    layout = plan.layout
    sizes = f"-p {layout.pipeline} -m {layout.microbatches}" + (f" -v {layout.chunks}" if layout.chunks > 1 else "")
    names = "megatron|torchtitan|torch|deepspeed|nemo|nanotron"
    return f"Use it: --emit {names}\nNext:   debubble show {layout.schedule} {sizes}"
