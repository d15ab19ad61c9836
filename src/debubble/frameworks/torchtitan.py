"""torchtitan: fields of its parallelism configuration, TOML of older versions, and how it deals layers to stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from ..config.layout import Layout
from .rules import COMMON, local_batch
from .setup import Backend, Breach, Setup, Sizes
from .splits import ends_counted
from .torch_pipelining import SCHEDULES, our_name, schedule_rules

VERSION = "pytorch/torchtitan@b5bcd76"
KEYS = {
    "gpus": "world_size",
    "tensor": "tensor_parallel_degree",
    "pipeline": "pipeline_parallel_degree",
    "data": "data_parallel_degree",
    "sharded": "data_parallel_shard_degree",
    "copies": "data_parallel_replicate_degree",
    "context": "context_parallel_degree",
    "expert": "expert_parallel_degree",
    "expert_tensor": "expert_tensor_parallel_degree",
    "layers": "n_layers",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "experts": "num_experts",
    "sequence": "seq_len",
    "chunk_layers": "pipeline_parallel_layers_per_stage",
    "chunks": "stages per rank",
    "embedding_layers": "pipeline_parallel_first_stage_less_layers",
    "loss_layers": "pipeline_parallel_last_stage_less_layers",
    "micro_batch": "pipeline_parallel_microbatch_size",
    "microbatches": "num_pp_microbatches",
    "local_batch": "local_batch_size",
    "global_batch": "global_batch_size",
    "schedule": "pipeline_parallel_schedule",
    "recompute": "activation_checkpoint.mode",
    "reshard": "fsdp_reshard_after_forward",
}
ALIASES = {"training.batch_size": "local_batch", "module_fqns_per_model_part": "split"}
RESHARD = ("default", "always", "never")


def schedule(setup: Setup) -> str | None:
    """Our name of the schedule; torchtitan's own choice is 1F1B."""
    return our_name(setup.schedule or "1F1B")


def zeros(ranks: int) -> tuple[int, ...]:
    """What FSDP shares out in a pipeline of so many ranks, by default and with ``fsdp_reshard_after_forward`` never.

    Alone it lets go of weights after each forward and reduces each micro-batch's gradients: ZeRO-3; never: ZeRO-2.
    In a pipeline, weights once gathered stay until the step ends, and gradients add up whole until PyTorch reduces them
    after the last micro-batch: ZeRO-1. Read in pytorch/torchtitan@01e1814 ``distributed/fsdp.py``, and in torch 2.13.0
    ``pipelining/stage.py``, backward_maybe_with_nosync and perform_reduce_grad.
    """
    return (3, 2) if ranks == 1 else (1,)


def remark(layout: Layout) -> str:
    """How FSDP runs a layout."""
    if layout.zero >= 2:
        kept = "lets go of them after each forward" if layout.zero == 3 else "keeps them until the backward"
        return f"torchtitan's FSDP shares out weights and {kept}: planned as ZeRO-{layout.zero}"
    return (
        "torchtitan's FSDP in a pipeline keeps weights and gradients whole until the step ends, then reduces them with "
        "nothing beside: planned as ZeRO-1"
    )


def settled(setup: Setup) -> Setup:
    """With torchtitan's defaults: ends that count as a layer each, 1 or 2 stages a rank, micro-batches of 1, FSDP."""
    ends = (1 if value is None else value for value in (setup.embedding_layers, setup.loss_layers))
    embedding, loss = ends
    many = SCHEDULES.get(schedule(setup) or "", ("", 1))[1] != 1
    chunks = setup.chunks or (2 if many else 1)
    if setup.split and len(setup.split) % setup.ranks == 0:
        chunks = len(setup.split) // setup.ranks
    if setup.chunk_layers and setup.layers:
        chunks = ceil(ceil((setup.layers + embedding + loss) / setup.chunk_layers) / setup.ranks)
    size = setup.micro_batch if setup.micro_batch or setup.microbatches else 1
    one = setup.expert_tensor or 1  # expert groups borrow devices of data, context and tensor groups
    full = replace(_replicated(setup), chunks=chunks, micro_batch=size, expert_tensor=one)
    return replace(full, embedding_layers=embedding, loss_layers=loss)


def _replicated(setup: Setup) -> Setup:
    """With its replicas, and what they share out: nothing where each is a copy by itself (DDP)."""
    if setup.data is None and setup.sharded:
        setup = replace(setup, data=setup.sharded * (setup.copies or 1))
    able = zeros(setup.ranks)
    zero = able[-1] if setup.reshard == "never" else able[0]
    if setup.copies and setup.copies > 1 and setup.copies == setup.replicas and (setup.context or 1) == 1:
        zero = 0
    return setup if setup.zero is not None else replace(setup, zero=zero)


def rules(setup: Setup) -> Iterator[Breach]:
    """Everything in a setup that torchtitan, or PyTorch below it, refuses."""
    full = settled(setup)
    if setup.ranks == 1:
        for rule in (*COMMON, _reshard):
            yield from rule(replace(setup, expert_tensor=full.expert_tensor, data=full.data))
        return
    for rule in (*COMMON, _reshard, local_batch, _stages, _dealt, schedule_rules):
        yield from (breach for breach in rule(full) if not _of_an_end(full, breach))


def _of_an_end(setup: Setup, breach: Breach) -> bool:
    """Whether a stage without a layer is an end, which holds the embedding or the head."""
    return breach.law == "empty stage" and setup.split is not None and 0 not in setup.split[1:-1]


def _reshard(setup: Setup) -> Iterator[Breach]:
    if setup.reshard is not None and setup.reshard not in RESHARD:
        yield Breach("reshard", ("reshard",), f"the policies are {', '.join(RESHARD)}", "give default")


def _stages(setup: Setup) -> Iterator[Breach]:
    if not setup.chunk_layers or not setup.layers:
        return
    units = setup.layers + (setup.embedding_layers or 0) + (setup.loss_layers or 0)
    stages, p = ceil(units / setup.chunk_layers), setup.ranks
    what = f"{setup.layers} layers and the ends, {units} in all, make {stages} stages of {setup.chunk_layers}"
    if stages % p:
        yield Breach("stages over ranks", ("chunk_layers", "pipeline"), f"{what}, which do not divide over {p} ranks")
        return
    single = SCHEDULES.get(schedule(setup) or "", ("", 0))[1] == 1
    if not single and stages // p < 2:
        yield Breach("two stages a rank", ("chunk_layers", "schedule"), f"{what}, one a rank; this schedule needs two")


def _dealt(setup: Setup) -> Iterator[Breach]:
    """Layers and the weights of the ends are dealt evenly; an end's weight fits into its stage."""
    if not setup.layers or setup.split:
        return
    embedding, loss = setup.embedding_layers or 0, setup.loss_layers or 0
    stages, units = setup.ranks * (setup.chunks or 1), setup.layers + embedding + loss
    if stages > units:
        rule = f"{stages} stages are more than {setup.layers} layers and the ends' {embedding} + {loss}"
        yield Breach("stages for layers", ("pipeline", "chunks", "layers"), rule)
        return
    for field, weight in (("embedding_layers", embedding), ("loss_layers", loss)):
        if weight > units // stages:
            rule = f"an end counts for no more than the {units // stages} layers of a stage"
            yield Breach(f"weight of {field}", (field, "pipeline"), rule)


def dealt(setup: Setup) -> tuple[int, ...] | None:
    """Layers of each stage as torchtitan deals them; None where it refuses."""
    full = settled(setup)
    stages = full.ranks * (full.chunks or 1)
    if full.layers is None:
        return full.split
    return full.split or ends_counted(full.layers, stages, full.embedding_layers or 0, full.loss_layers or 0)


def emit(layout: Layout, sizes: Sizes) -> str:
    """A ``ParallelismConfig``, with module names per stage where its own split would be another."""
    name = SCHEDULES.get(layout.schedule, ("", 0))[0]
    fields = {
        "data_parallel_shard_degree": layout.data,
        "tensor_parallel_degree": layout.tensor,
        "context_parallel_degree": layout.context,
        "expert_parallel_degree": layout.expert,
        "pipeline_parallel_degree": layout.pipeline,
        "num_pp_microbatches": layout.microbatches,
    }
    lines = [f"    {key}={value}," for key, value in fields.items()]
    lines.append(f"    {KEYS['reshard']}={'never' if layout.zero == 2 else 'default'!r},")
    if layout.pipeline > 1 and name:
        lines.append(f"    pipeline_parallel_schedule={name!r},")
    elif layout.pipeline > 1:
        lines.append(
            f"    pipeline_parallel_schedule_csv='order.csv',  # debubble show {layout.schedule} .. --torch-csv"
        )
    if layout.pipeline > 1:
        lines += [f"    {line}" for line in _modules(layout.split(sizes.layers))]
    lines = ["ParallelismConfig(", *lines, ")"]
    lines.append(f"# training: local_batch_size={layout.micro_batch * layout.microbatches}, seq_len={sizes.sequence}")
    lines.append(f"# torchtitan 0.3.0 and older: pipeline_parallel_microbatch_size={layout.micro_batch} says the same")
    if layout.recompute != "none":
        lines.append(f"# activation_checkpoint: mode={layout.recompute!r}")
    return "\n".join(lines)


def _modules(split: tuple[int, ...]) -> list[str]:
    lines, start = ["module_fqns_per_model_part=["], 0
    for stage, layers in enumerate(split):
        names = [f"layers.{n}" for n in range(start, start + layers)]
        names = ["tok_embeddings", *names] if stage == 0 else names
        names = [*names, "norm", "lm_head"] if stage == len(split) - 1 else names
        lines.append(f"    {names},")
        start += layers
    return [*lines, "],"]


TORCHTITAN = Backend(
    name="torchtitan",
    title="torchtitan",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=rules,
    settled=settled,
    split=dealt,
    schedule=schedule,
    emit=emit,
    schedules=tuple(SCHEDULES),
    names={ours: theirs for ours, (theirs, _) in SCHEDULES.items()},
    habits={"overlap": True, "overlap_gather": True},
    in_pipelines={"overlap": False},
    zeros=zeros,
    remark=remark,
    lacks=frozenset({"some layers", "expert tensor"}),
)
