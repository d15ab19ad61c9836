"""PyTorch's own ``torch.distributed.pipelining``: its schedules and what each asks of micro-batches and stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config.layout import Layout
from ..core.errors import nearest
from .rules import COMMON, local_batch, long_enough
from .setup import Backend, Breach, Setup, Sizes
from .splits import even

VERSION = "torch 2.13.0"
# Our name -> torch's, and stages per rank: exactly 1, exactly 2, or any (0).
SCHEDULES = {
    "gpipe": ("GPipe", 1),
    "1f1b": ("1F1B", 1),
    "interleaved": ("Interleaved1F1B", 0),
    "looped-bfs": ("LoopedBFS", 0),
    "interleaved-zb": ("InterleavedZeroBubble", 0),
    "zb-v": ("ZBVZeroBubble", 2),
    "dualpipe-v": ("DualPipeV", 2),
}
KEYS = {
    "gpus": "world_size",
    "pipeline": "pp_group_size",
    "chunks": "stages per rank",
    "layers": "layers",
    "microbatches": "n_microbatches",
    "micro_batch": "micro-batch size",
    "local_batch": "batch size",
    "schedule": "schedule",
    "split": "layers per stage",
}
ALIASES = {
    "batch": "local_batch",
    "batch_size": "local_batch",
    "num_stages": "stages",
    "num_microbatches": "microbatches",
    "micro_batch_size": "micro_batch",
    "layers_per_stage": "split",
    "schedule_name": "schedule",
}


def our_name(name: str) -> str | None:
    """Our name of a schedule that goes by torch's name or by ours; None where torch has no such schedule."""
    low = name.lower().removeprefix("schedule")
    return next((ours for ours, (theirs, _) in SCHEDULES.items() if low in (ours, theirs.lower())), None)


def schedule(setup: Setup) -> str | None:
    """Our name of what a setup runs; without a name, 1F1B, interleaved where a rank has several stages."""
    if setup.schedule is None:
        return "interleaved" if (setup.chunks or 1) > 1 else "1f1b"
    return our_name(setup.schedule)


def settled(setup: Setup) -> Setup:
    """With the stages per rank that the schedule or a split implies."""
    chunks = setup.chunks
    if chunks is None and setup.split and len(setup.split) % setup.ranks == 0:
        chunks = len(setup.split) // setup.ranks
    if chunks is None:
        chunks = {"zb-v": 2, "dualpipe-v": 2}.get(schedule(setup) or "", 1)
    return replace(setup, chunks=chunks)


def rules(setup: Setup) -> Iterator[Breach]:
    """Everything in a setup that PyTorch refuses, or would hang on."""
    full = settled(setup)
    for rule in (*COMMON, local_batch, long_enough, schedule_rules):
        yield from rule(full)


def schedule_rules(setup: Setup) -> Iterator[Breach]:
    """What the class of a schedule asks."""
    ours = schedule(setup)
    if ours is None:
        fault = nearest(setup.schedule or "", {theirs: 0 for theirs, _ in SCHEDULES.values()}, "schedule").faults[0]
        yield Breach("schedule", ("schedule",), "PyTorch has no schedule of this name", fault.remedy)
        return
    theirs, stages = SCHEDULES[ours]
    chunks, m, p = setup.chunks or 1, setup.flush, setup.ranks
    if stages and chunks != stages:
        rule = f"{theirs} has exactly {stages} stage{'s' if stages > 1 else ''} on each rank"
        yield Breach("stages a rank", ("chunks", "schedule"), rule)
    if m is None:
        return
    blamed = ("microbatches",) if setup.microbatches else ("local_batch", "micro_batch")
    fields = (*(f for f in blamed if getattr(setup, f) is not None), "pipeline")
    if ours in ("1f1b", "dualpipe-v") and m < p * chunks:
        rule = f"{theirs} needs at least as many micro-batches as stages: {m} < {p * chunks}"
        yield Breach("micro-batches for stages", fields, rule)
    rounds = max(1, m // p)
    if ours in ("interleaved", "interleaved-zb") and m % rounds:
        rule = f"{theirs} runs {m} micro-batches in {rounds} rounds (m div p), which do not divide them"
        yield Breach("rounds", fields, rule)


def emit(layout: Layout, sizes: Sizes) -> str:
    """Python that builds the schedule; a schedule that PyTorch lacks goes through a CSV file of its order."""
    split = layout.split(sizes.layers)
    lines = [
        f"pp = {layout.pipeline}  # {layout.gpus} devices in all",
        f"dp = {layout.data}",
        f"cp = {layout.context}",
        f"tp = {layout.tensor}",
        "mesh = init_device_mesh('cuda', (pp, dp, cp, tp), mesh_dim_names=('pp', 'dp', 'cp', 'tp'))",
        f"layers_per_stage = {list(split)}",
        f"n_microbatches = {layout.microbatches}",
        f"micro_batch_size = {layout.micro_batch}",
    ]
    if layout.expert > 1:
        lines.insert(4, f"ep = {layout.expert}  # of the devices of a stage")
    if sizes.experts and layout.expert_shards != layout.tensor:
        lines.insert(4, f"etp = {layout.expert_shards}  # devices that share each expert")
    known = SCHEDULES.get(layout.schedule)
    if known:
        stages = "stage" if known[1] == 1 else "stages"
        lines.append(f"schedule_name = {known[0]!r}")
        lines.append(f"schedule = get_schedule_class(schedule_name)({stages}, n_microbatches, loss_fn=loss_fn)")
    else:
        sizes_text = f"-p {layout.pipeline} -m {layout.microbatches}"
        sizes_text += f" -v {layout.chunks}" if layout.chunks > 1 else ""
        lines += [
            f"# debubble show {layout.schedule} {sizes_text} --torch-csv order.csv",
            "schedule = _PipelineScheduleRuntime(stages, n_microbatches, loss_fn=loss_fn)",
            "schedule._load_csv('order.csv')",
        ]
    if layout.recompute != "none":
        some = "every layer" if layout.recompute_layers is None else f"the first {layout.recompute_layers} layers"
        lines.append(f"# {layout.recompute} recomputation of {some} of each stage: torch.utils.checkpoint")
    return "\n".join(lines)


TORCH = Backend(
    name="torch",
    title="torch.distributed.pipelining",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=rules,
    settled=settled,
    split=even,
    schedule=schedule,
    emit=emit,
    schedules=tuple(SCHEDULES),
    names={ours: theirs for ours, (theirs, _) in SCHEDULES.items()},
    lacks=frozenset({"bare ends"}),
)
