"""``plan`` without a model: micro-batches, bubbles and how many GPUs' worth of work is done, by arithmetic alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError
from ..verbs.needs import needed, unused
from .console import say
from .plan_growth import mean_idle, sizes_of_growth
from .report import emit, layout_row

if TYPE_CHECKING:
    from ..config.question import Question
    from ..planning.arithmetic import Bubbled, Growth
    from ..planning.placement import Placed
    from ..planning.rejected import Rejected

ENOUGH = 0.1  # idle share that counts as small
_OF_MODELS = (
    *("calibrate", "save_calibration", "launched", "emit", "price", "precision", "nic", "zero"),
    *("expert", "expert_tensor"),
)


def plan_batch(said: dict[str, Any], *, as_json: bool) -> int:
    """Print the table; exit status 1 where no combination comes out whole."""
    from ..planning.arithmetic import batch_table

    unused(said, *_OF_MODELS, "split", why="it needs --model and --gpu")
    questions = [_question(said, gpus) for gpus in said["gpus"] or (None,)]
    if said["rampup"] is not None:
        return _plan_growth(said, questions[0], as_json=as_json)
    found: list[Bubbled] = []
    refused: list[Rejected] = []
    for question in questions:
        some, others = batch_table(question)
        found += some
        refused += others
    if not said["pipeline"]:
        found.sort(key=lambda one: (one.layout.gpus, one.layout.global_batch, one.idle_share))
    orders = _orders(said, found)
    if as_json:
        emit(document(found, refused, orders))
    else:
        say(text(found, refused, orders))
    return 0 if found else 1


def _question(said: dict[str, Any], gpus: int | None) -> Question:
    """What the options fix, and the values that they list; a micro-batch is one sample where nothing is said."""
    from ..config.config import Config
    from ..config.question import Question

    for name in ("tensor", "context"):
        if said[name] is not None and len(said[name]) > 1:
            raise InputError(Fault(f"{name} = {said[name]}", "without a model one value will do", "give one"))
    fixed = Config(
        gpus=gpus,
        tensor=(said["tensor"] or (1,))[0],
        context=(said["context"] or (1,))[0],
        data=said["data"],
        schedule=said["schedule"],
    )
    lists = ("pipeline", "global_batch", "microbatches")
    tries = {"chunks": said["chunks"] or (1,), "micro_batch": said["micro_batch"] or (1,)}
    return Question(fixed, tries | {name: said[name] for name in lists if said[name]})


def candidate(one: Bubbled) -> dict[str, Any]:
    """A row of ``candidates``; what needs a model is null."""
    return {
        **layout_row(one.layout),
        "recompute": None,
        "step_ms": None,
        "tokens_per_second_per_gpu": None,
        "idle_share": one.idle_share,
        "busy_share": one.busy_share,
        "bubble_ratio": one.bubble_ratio,
        "effective_gpus": one.effective_gpus,
        "slots": one.slots,
        "full_from_global_batch": one.full_batch,
        "microbatches_for_10_percent": one.enough(ENOUGH),
        "peak_bytes": None,
        "parts": {},
        "evidence": one.evidence,
    }


def _refusal(one: Rejected) -> dict[str, Any]:
    return {**one.sizes, "cause": one.cause, "reason": one.reason, "count": one.count}


def document(found: list[Bubbled], refused: list[Rejected], orders: list[Placed]) -> dict[str, Any]:
    """What ``--json`` prints."""
    document: dict[str, Any] = {
        "candidates": [candidate(one) for one in found],
        "rejected": [_refusal(one) for one in refused],
        "evidence": "exact" if all(one.evidence == "exact" for one in found) else "simulated",
        "verdict": verdict(found),
    }
    if orders:
        document["placement"] = [
            {"order": one.order, "cross_node": one.crossing, "first_groups": one.first_groups} for one in orders
        ]
    return document


def verdict(found: list[Bubbled]) -> list[str]:
    """What the table says, in sentences."""
    sentences = []
    sizes = sorted({(one.layout.pipeline, one.layout.micro_batch, one.layout.data, one.full_batch) for one in found})
    if len(sizes) == 1 and sizes[0][0] > 1:
        p, b, d, full = sizes[0]
        twice = f" ({full * b} would count the micro-batch twice)" if b > 1 else ""
        sentences.append(
            f"the pipe is first full at a global batch of {full} = p {p} x micro-batch {b} x data {d}{twice}"
        )
    batches = {(one.layout.gpus, one.layout.global_batch, one.layout.pipeline, one.layout.chunks) for one in found}
    if len(batches) == 1 and len({one.layout.micro_batch for one in found}) > 1:
        sentences.append("a larger micro-batch at the same global batch enlarges the bubble")
    for one in found:
        if one.layout.pipeline > 1 and one.layout.microbatches == 1:
            sentences.append(
                f"at m = 1 a step takes as long as on one rank that holds all stages, and trains {one.layout.data} "
                "micro-batches instead of one"
            )
        if one.layout.pipeline > 1 and one.layout.microbatches < one.layout.pipeline:
            sentences.append(
                f"{one.layout.gpus} GPUs do the work of {one.effective_gpus:.4g} at m = {one.layout.microbatches}: "
                f"raise accumulation{_cure(one)}"
            )
    return sentences[:5]


def _cure(one: Bubbled) -> str:
    many = one.enough(ENOUGH)
    return f", {many} micro-batches idle for 10 % or less" if many else ""


def text(found: list[Bubbled], refused: list[Rejected], orders: list[Placed]) -> str:
    """What people read."""
    from ..drawing.tables import table

    headers = (
        "GPUs",
        "TP",
        "PP",
        "DP",
        "chunks",
        "mbs",
        "m",
        "batch",
        "schedule",
        "idle",
        "ratio",
        "GPUs' worth",
        "m for 10 %",
    )
    lines = []
    if found:
        lines += [
            "Even stages, B = 2 F, free transfers (exact unless marked ~)",
            table(headers, [_cells(o) for o in found[:60]]),
        ]
    if len(found) > 60:
        lines.append(f".. and {len(found) - 60} more: --json")
    lines += [f"  {sentence}" for sentence in verdict(found)]
    lines += [f"  ruled out: {one.reason}" for one in refused[:8]]
    if len(refused) > 8:
        lines.append(f"  .. and {len(refused) - 8} more: --json")
    for place in orders:
        groups = "; ".join(f"{axis} {','.join(map(str, group[:4]))}" for axis, group in place.first_groups.items())
        crossing = " and ".join(place.crossing) or "nothing"
        lines.append(f"  order {' > '.join(place.order)}: {crossing} crosses nodes; first groups: {groups}")
    if orders:
        lines.append("  the outermost axis crosses nodes: put the pipeline outermost, it sends the least")
    return "\n".join(lines)


def _cells(one: Bubbled) -> list[str]:
    layout = one.layout
    numbers = (layout.gpus, layout.tensor, layout.pipeline, layout.data, layout.chunks, layout.micro_batch)
    mark = "" if one.evidence == "exact" else "~"
    return [
        *map(str, (*numbers, layout.microbatches, layout.global_batch)),
        layout.schedule,
        f"{mark}{100 * one.idle_share:.1f} %",
        f"{mark}{100 * one.bubble_ratio:.1f} %",
        f"{one.effective_gpus:.4g}",
        str(one.enough(ENOUGH) or "-"),
    ]


def _orders(said: dict[str, Any], found: list[Bubbled]) -> list[Placed]:
    """Which axes cross nodes, where nodes are given and one layout is asked for."""
    if said["nodes"] is None or not found:
        return []
    from ..planning.placement import orders

    layout = found[0].layout
    if layout.gpus % said["nodes"]:
        rule = f"it does not divide {layout.gpus} GPUs"
        raise InputError(Fault(f"nodes = {said['nodes']}", rule, "give hosts with equally many devices"))
    sizes = {"pipeline": layout.pipeline, "data": layout.data, "context": layout.context, "tensor": layout.tensor}
    return orders(sizes, layout.gpus // said["nodes"])


def _plan_growth(said: dict[str, Any], question: Question, *, as_json: bool) -> int:
    needed(said, "global_batch", "pipeline")
    rows = sizes_of_growth(said, question)
    if as_json:
        emit(_growth_document(rows))
    else:
        say(_growth_text(rows))
    return 1 if any(row.bubbled is None for row in rows) else 0


def _growth_document(rows: list[Growth]) -> dict[str, Any]:
    return {
        "candidates": [{**candidate(row.bubbled), "samples": row.samples} for row in rows if row.bubbled],
        "rejected": [{"global_batch": r.global_batch, "reason": r.reason} for r in rows if not r.bubbled],
        "idle_share_of_growth": mean_idle(rows),
        "evidence": "exact",
    }


def _growth_text(rows: list[Growth]) -> str:
    from ..drawing.tables import table

    cells = []
    for row in rows:
        one = row.bubbled
        known = (
            ["-", "-", row.reason]
            if one is None
            else [str(one.layout.microbatches), f"{100 * one.idle_share:.1f} %", ""]
        )
        cells.append([str(row.global_batch), f"{row.samples:,.0f}", *known])
    lines = [table(("batch", "samples", "m", "idle", ""), cells)]
    mean = mean_idle(rows)
    if mean is not None:
        lines.append(f"Over all steps while the batch grows: {100 * mean:.1f} % idle.")
    return "\n".join(lines)
