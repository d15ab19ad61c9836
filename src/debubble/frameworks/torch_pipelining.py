"""PyTorch's own ``torch.distributed.pipelining``: its schedules and what each asks of micro-batches and stages."""

from __future__ import annotations

from collections.abc import Iterator

from ..config.config import Config, Layout, even_split
from ..core.errors import nearest
from ..schedules.catalog import CATALOG
from .framework import (
    Breach,
    Framework,
    Rule,
    a_layer_a_stage,
    batch_divides,
    batch_of,
    devices_multiply,
    experts_divide,
    heads_divide,
    launch_line,
    local_batch_divides,
    rule,
    split_is_whole,
)

VERSION = "torch 2.13.0"
# Our name -> torch's, and stages per rank: exactly 1, exactly 2, or any (0).
SCHEDULES = {
    name: (entry.torch, entry.chunks * (not entry.any_chunks)) for name, entry in CATALOG.items() if entry.torch
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


def our_names() -> dict[str, str]:
    """Ours for each name of torch's, with and without ``Schedule`` in front, in lower case."""
    plain = {theirs.lower(): ours for ours, (theirs, _) in SCHEDULES.items()}
    return plain | {f"schedule{theirs}": ours for theirs, ours in plain.items()}


def filled(config: Config) -> Config:
    """With the stages per rank that the schedule or a split implies.

    Nothing is said of: degrees are 1, since they are the user's own; a schedule is 1F1B, interleaved where a rank has
    several stages.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, recompute="none").renamed("schedule", our_names())
    config = config.derived("data", lambda c: c.replicas).derived("chunks", _chunks)
    config = config.derived("schedule", _schedule)
    return config.derived("split", lambda c: even_split(c.number("layers"), c.ranks * c.number("chunks")))


def _schedule(config: Config) -> str:
    """Classes for one stage a rank take no list of stages, so several imply an interleaved one."""
    if config.number("chunks") > 1:
        return "interleaved"
    return "1f1b"


def _chunks(config: Config) -> int:
    """As many as a split has stages for each rank, else what the schedule has."""
    if config.split and len(config.split) % config.ranks == 0:
        return len(config.split) // config.ranks
    known = CATALOG.get(config.schedule or "")
    if known is None:
        return 1
    return known.chunks


@rule("distributed/pipelining/schedules.py, the constructor of each class")
def of_the_schedule(config: Config) -> Iterator[Breach]:
    """What the class of a schedule asks."""
    ours = config.schedule or ""
    if ours not in SCHEDULES:
        fault = nearest(ours, {theirs: 0 for theirs, _ in SCHEDULES.values()}, "schedule").faults[0]
        # torch: schedules.py:3641
        yield Breach("schedule", ("schedule",), "PyTorch has no schedule of this name", fault.remedy)
        return
    theirs, stages = SCHEDULES[ours]
    chunks, p, m = config.number("chunks"), config.ranks, config.flush
    if stages and chunks != stages:
        what = f"{theirs} has exactly {stages} stage{'s' if stages > 1 else ''} on each rank"
        # pipeline_parallel.py:245
        yield Breach("stages a rank", ("chunks", "schedule"), what)
    if m is None:
        return
    blamed = config.said("microbatches") or config.said("local_batch", "micro_batch")
    fields = (*blamed, "pipeline")
    if ours in ("1f1b", "dualpipe-v") and m < p * chunks:
        what = f"{theirs} needs at least as many micro-batches as stages: {m} < {p * chunks}"
        # torch: schedules.py:3440
        yield Breach("micro-batches for stages", fields, what)
    rounds = max(1, m // p)
    if ours in ("interleaved", "interleaved-zb") and m % rounds:
        what = f"{theirs} runs {m} micro-batches in {rounds} rounds (m div p), which do not divide them"
        # torch: schedules.py:2938
        yield Breach("rounds", fields, what)


RULES = (
    Rule(devices_multiply, "distributed/device_mesh.py init_device_mesh"),
    Rule(batch_divides, "ours: what is left over would be lost"),
    Rule(heads_divide, "of the user's own tensor parallelism"),
    Rule(experts_divide, "of the user's own expert parallelism"),
    Rule(split_is_whole, "ours: as many numbers as stages, and all layers"),
    Rule(local_batch_divides, "distributed/pipelining/microbatch.py split_args_kwargs_into_chunks"),
    Rule(a_layer_a_stage, "ours: a stage without a layer has no parameters"),
    of_the_schedule,
)


def emit(layout: Layout, model: Config) -> str:
    """Python that builds the schedule; a schedule that PyTorch lacks goes through a CSV file of its order."""
    split = layout.split(model.number("layers"))
    lines = [
        f"# {VERSION}; {batch_of(layout)}",
        f"# {launch_line(layout, 'train.py')} on each node",
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
        lines.insert(6, f"ep = {layout.expert}  # of the devices of a stage")
    if model.experts and layout.expert_shards != layout.tensor:
        lines.insert(6, f"etp = {layout.expert_shards}  # devices that share each expert")
    known = SCHEDULES.get(layout.schedule)
    if known:
        stages = "stage" if known[1] == 1 else "stages"
        lines.append(f"schedule_name = {known[0]!r}")
        lines.append(f"schedule = get_schedule_class(schedule_name)({stages}, n_microbatches, loss_fn=loss_fn)")
    else:
        sizes_text = f"-p {layout.pipeline} -m {layout.microbatches}"
        if layout.chunks > 1:
            sizes_text += f" -v {layout.chunks}"
        lines += [
            f"# debubble show {layout.schedule} {sizes_text} --torch-csv order.csv",
            "schedule = _PipelineScheduleRuntime(stages, n_microbatches, loss_fn=loss_fn)",
            "schedule._load_csv('order.csv')",
        ]
    if layout.recompute != "none":
        some = "every layer"
        if layout.recompute_layers is not None:
            some = f"the first {layout.recompute_layers} layers"
        lines.append(f"# {layout.recompute} recomputation of {some} of each stage: torch.utils.checkpoint")
    return "\n".join(lines)


TORCH = Framework(
    name="torch",
    title="torch.distributed.pipelining",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=RULES,
    filled=filled,
    emit=emit,
    schedules=tuple(SCHEDULES),
    names={ours: theirs for ours, (theirs, _) in SCHEDULES.items()},
    lacks=frozenset({"bare ends"}),
)
