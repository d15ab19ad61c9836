"""The page of a plan: the layout to launch, its pipeline op by op, where step and memory go, and what lost to it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core.account import Account, account
from ..core.errors import DebubbleError
from ..core.memory import peak_activations
from ..core.units import percent
from ..diagnosis.causes import causes
from ..diagnosis.sliders import simulated_sliders
from ..drawing.html import Page
from ..drawing.tables import duration
from ..frameworks.catalog import FRAMEWORKS
from ..planning.judge import simulated
from ..planning.verdict import scaled
from ..report.html import page_sliders
from .page_parts import Tile, bubble_tile, promise_tile, run_of, tile
from .page_take import Item, launch_item, take
from .plan_text import MILLISECOND, PARTS, Planned, ranked, ruled_out, scaling

if TYPE_CHECKING:
    from ..config.layout import Plan
    from ..core.costs import Costs
    from ..core.timeline import Timeline
    from ..frameworks.framework import Framework

MOST_RANKED = 20
_HINT = "Parts of the step of the first layout, estimated by the cost model; the lines sum to the step."
_REMEDY = {
    "kernels": "a larger micro-batch or less tensor parallelism makes products larger",
    "recompute": "what memory allows to keep is not computed again",
    "bubble": "more micro-batches, more chunks, or a schedule that splits the backward",
    "imbalance": "move layers away from the fullest stage",
    "transfer": "fewer chunks, or neighbours in one host",
}


def drawn_plan(asked: Planned) -> tuple[Timeline, Costs]:
    """The pipeline window of the first layout, op by op, and the costs of its stages."""
    plan = asked.best.plans[0]
    return simulated(asked.model, asked.clusters[plan.layout.gpus], plan.layout, asked.calibration)


def figure_of_plan(asked: Planned, timeline: Timeline) -> tuple[str, Timeline]:
    """The first layout under the name of its model."""
    return f"{_title(asked)}: the pipeline of layout 1 (estimated)", timeline


def page_of_plan(asked: Planned, document: dict[str, Any], drawn: tuple[Timeline, Costs], said: dict[str, Any]) -> Page:
    """The best layout, and the others.

    Args:
        asked: what was asked and found.
        document: what ``--json`` prints of it.
        drawn: window and costs of the first layout.
        said: options of the command line.
    """
    timeline, costs = drawn
    plan, schedule, spent = asked.best.plans[0], timeline.program.schedule, account(timeline)
    fits = "Simulated with the estimated durations of each stage and the mean hop; the rest of the step is as it was."
    return Page(
        title=f"{_title(asked)}: plan",
        verdict=[_verdict(asked, plan), *_unable(asked), *map(_sentence, document["verdict"])],
        next=_next(asked, said),
        tiles=_tiles(asked, plan, timeline, spent),
        runs=[run_of("Layout 1, its pipeline (durations estimated)", timeline, spent, peak_activations(schedule))],
        causes=[_parts(plan)],
        sections=[_memory(asked, plan), *_scaling(asked), _layouts(asked), _ruled_out(asked)],
        sliders=page_sliders(simulated_sliders(timeline, costs, fits)),
        take=[*(list(_emitted(asked, plan)) or [launch_item(schedule)]), *take(schedule, document)[1:]],
    )


def _title(asked: Planned) -> str:
    return f"{asked.model.name} on {asked.best.plans[0].layout.gpus} x {asked.cluster.device.name}"


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."


def _verdict(asked: Planned, plan: Plan) -> str:
    layout = plan.layout
    degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data, "context": layout.context}
    said = ", ".join(f"{name} {many}" for name, many in degrees.items() if many > 1) or "one device"
    chunks = f" with {layout.chunks} chunks" if layout.chunks > 1 else ""
    again = "no recomputation" if layout.recompute == "none" else f"{layout.recompute} recomputation"
    return (
        f"Launch {said}: {layout.microbatches} micro-batches of {layout.micro_batch} on {layout.schedule}{chunks}, "
        f"{again}. A step takes {duration(plan.step)} (estimated ±{percent(asked.best.band)}), "
        f"{plan.tokens_per_second_per_gpu:,.0f} tokens per second and GPU."
    )


def _launched(asked: Planned) -> tuple[int, Framework] | None:
    """The fastest layout that a framework launches by name, and the framework: the one that was asked for, if any."""
    able = [asked.backend] if asked.backend else list(FRAMEWORKS.values())
    pairs = ((n, each) for n, plan in enumerate(asked.best.plans) for each in able if _runs(each, plan))
    return next(pairs, None)


def _runs(backend: Framework, plan: Plan) -> bool:
    return plan.layout.schedule in backend.schedules


def _unable(asked: Planned) -> Iterator[str]:
    """Where no framework has the first schedule by its name: how to run it all the same, and what comes next."""
    found, name = _launched(asked), asked.best.plans[0].layout.schedule
    if found is not None and found[0] > 0:
        number, backend = found
        behind = asked.best.plans[number].step / asked.best.plans[0].step - 1
        yield (
            f"No framework has {name} by name (PyTorch takes its order as a CSV file, below); the fastest layout that "
            f"{backend.title} launches as it is, is number {number + 1}, {percent(behind)} slower."
        )


def _next(asked: Planned, said: dict[str, Any]) -> str:
    """The same search for the framework that launches the fastest, printing what to paste."""
    found = _launched(asked)
    if found and said["schedule"]:
        said = said | {"schedule": tuple(n for n in said["schedule"].split(",") if n in found[1].schedules)}
    words = [word for name, value in said.items() if name != "emit" for word in _option(name, value)]
    return shlex.join(["debubble", "plan", *words, *(["--emit", found[1].name] if found else [])])


def _option(name: str, value: Any) -> Iterator[str]:
    if value is None or value == () or name in ("split", "weights", "save_calibration"):
        return
    option = f"--{name.replace('_', '-')}"
    if name == "calibrate":
        yield from (word for path in value for word in (option, path))
    else:
        yield from (option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _tiles(asked: Planned, plan: Plan, timeline: Timeline, spent: Account) -> list[Tile]:
    schedule = timeline.program.schedule
    band = asked.best.band
    calibrated = "calibrated" if asked.calibration is not None else "not calibrated: --calibrate with measured steps"
    outside = duration(plan.step - spent.window)
    return [
        tile("Step", duration(plan.step), f"estimated; {outside} of it outside the pipeline"),
        bubble_tile(f"{percent(spent.idle_share)}", f"{percent(spent.bubble_ratio)}", "estimated"),
        promise_tile(causes(timeline), schedule, plan.layout.schedule),
        tile("Error of the estimate", f"±{percent(band)}", f"one standard deviation; {calibrated}"),
    ]


def _parts(plan: Plan) -> dict[str, Any]:
    rows = [
        {
            "cause": words,
            "cost_ms": (part := getattr(plan.parts, name)) / MILLISECOND,
            "cost_share": part / plan.step,
            "evidence": "estimated",
            "remedy": _REMEDY.get(name, "") if part > 0.01 * plan.step else "",
        }
        for name, words in PARTS.items()
    ]
    return {"name": "", "rows": rows, "whole": "step", "hint": _HINT}


def _memory(asked: Planned, plan: Plan) -> dict[str, Any]:
    """Peak of each rank, and what the fullest holds."""
    device = asked.clusters[plan.layout.gpus].device
    fullest = max(range(len(plan.peak_bytes)), key=plan.peak_bytes.__getitem__)
    shares = [size / device.memory for size in plan.peak_bytes]
    ranks = [[str(rank), f"{size / 1e9:.1f}", percent(shares[rank])] for rank, size in enumerate(plan.peak_bytes)]
    whole = plan.peak_bytes[fullest] or 1
    parts = [[name, f"{size / 1e9:.1f}", percent(size / whole)] for name, size in plan.memory.items()]
    return {
        "title": "Memory, rank by rank",
        "hint": f"Estimated, of {device.memory / 1e9:.0f} GB that a {device.name} has.",
        "tables": [
            {"head": ["rank", "peak, GB", "of the device", ""], "lines": ranks, "bar": shares},
            {
                "name": f"What rank {fullest}, the fullest, holds",
                "head": ["", "GB", "of its peak", ""],
                "lines": parts,
                "bar": [size / whole for size in plan.memory.values()],
            },
        ],
    }


def _scaling(asked: Planned) -> Iterator[dict[str, Any]]:
    rows = scaled(asked.found, asked.price)
    if len(rows) > 1:
        head, lines = scaling(rows)
        hint = "The best layout at each number of GPUs, at the same global batch."
        yield {"title": "Should I add GPUs?", "hint": hint, "tables": [{"head": head, "lines": lines}]}


def _layouts(asked: Planned) -> dict[str, Any]:
    head, lines = ranked(asked.best, MOST_RANKED)
    words = [n for n, name in enumerate(head) if name in ("schedule", "recompute")]
    return {
        "title": "Layouts, the fastest first",
        "hint": f"Estimated; those within ±{percent(asked.best.band)} of the first cannot be told from it.",
        "tables": [{"head": head, "lines": [[line[0].lstrip("> "), *line[1:]] for line in lines], "wordy": words}],
    }


def _ruled_out(asked: Planned) -> dict[str, Any]:
    rejected = sorted(asked.best.rejected, key=lambda each: -each.count)
    lines = [[each.cause, f"{each.count:,}", each.reason] for each in rejected]
    table = {"head": ["cause", "layouts", "reason"], "lines": lines, "wordy": [2]}
    return {"title": "What was ruled out", "hint": ruled_out(asked.best), "tables": [table] if lines else []}


def _emitted(asked: Planned, plan: Plan) -> Iterator[Item]:
    """What to paste, for each framework that runs the schedule."""
    from ..planning.launch import sizes_of

    sizes = sizes_of(asked.model, plan.layout.sequence)
    for backend in FRAMEWORKS.values():
        if backend.lacking(plan.layout, sizes):
            continue
        try:
            text = backend.emit(plan.layout, sizes)
        except DebubbleError:  # the framework cannot say this layout
            continue
        yield {"name": f"Launch it on {backend.title}", "file": f"{backend.name}.txt", "text": text}
