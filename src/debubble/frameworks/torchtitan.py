"""torchtitan: fields of its parallelism configuration, TOML of older versions, and how it deals layers to stages."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ..config.config import Config
from ..config.layout import Layout
from ..config.splits import ends_counted
from . import common_rules as common
from .framework import Breach, Framework, Rule, rule
from .torch_pipelining import SCHEDULES, of_the_schedule, our_names

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
    "sequence_parallel": "enable_sequence_parallel",
}
ALIASES = {"training.batch_size": "local_batch", "module_fqns_per_model_part": "split"}
RESHARD = ("default", "always", "never")


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


def filled(config: Config) -> Config:
    """With torchtitan's defaults: 1F1B, ends that count as a layer each, 1 or 2 stages a rank, micro-batches of 1.

    Each expert is on one device: expert groups borrow devices of data, context and tensor groups.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, expert=1, expert_tensor=1, recompute="none")
    config = config.filled(schedule="1F1B", embedding_layers=1, loss_layers=1).renamed("schedule", our_names())
    if not config.said("microbatches"):
        config = config.filled(micro_batch=1)
    config = config.derived("data", _replicas).derived("data", lambda c: c.replicas)
    config = config.derived("chunks", _chunks).derived("zero", _zero).derived("split", dealt)
    config = config.derived("overlap", lambda c: c.ranks == 1)
    return config.filled(overlap_gather=True, sequence_parallel=True)


def _replicas(config: Config) -> int:
    return config.number("sharded") * (config.copies or 1)


def _chunks(config: Config) -> int:
    """Stages per rank: of a split, of layers per stage, else 2 where the schedule takes several."""
    if config.split and len(config.split) % config.ranks == 0:
        return len(config.split) // config.ranks
    if config.chunk_layers:
        return max(ceil(ceil(_units(config) / config.chunk_layers) / config.ranks), 1)
    return 1 if config.ranks == 1 or SCHEDULES.get(config.schedule or "", ("", 1))[1] == 1 else 2


def _units(config: Config) -> int:
    """Layers, and the ends in layers."""
    return config.number("layers") + config.number("embedding_layers") + config.number("loss_layers")


def _zero(config: Config) -> int:
    """What replicas share out: nothing where each is a copy by itself (DDP)."""
    copies = config.copies or 1
    if copies > 1 and copies == config.replicas and config.context == 1:
        return 0
    able = zeros(config.ranks)
    return able[-1] if config.word("fsdp_reshard_after_forward") == "never" else able[0]


@rule("distributed/fsdp.py get_fsdp_reshard_after_forward_policy")
def _reshard(config: Config) -> Iterator[Breach]:
    """The policies by which FSDP lets go of weights."""
    policy = config.word("fsdp_reshard_after_forward", "default")
    if policy not in RESHARD:
        what = f"the policies are {', '.join(RESHARD)}"
        yield Breach("reshard", ("fsdp_reshard_after_forward",), what, "give default", str(policy))


@rule("distributed/pipeline_parallel.py pipeline_llm")
def _stages(config: Config) -> Iterator[Breach]:
    """Stages of so many layers divide over the ranks, and a schedule of several stages gets them."""
    if config.ranks == 1 or not config.chunk_layers:
        return
    units, p = _units(config), config.ranks
    stages = ceil(units / config.chunk_layers)
    what = f"{config.layers} layers and the ends, {units} in all, make {stages} stages of {config.chunk_layers}"
    single = SCHEDULES.get(config.schedule or "", ("", 0))[1] == 1
    if stages % p:
        yield Breach("stages over ranks", ("chunk_layers", "pipeline"), f"{what}, which do not divide over {p} ranks")
    elif not single and stages // p < 2:
        yield Breach("two stages a rank", ("chunk_layers", "schedule"), f"{what}, one a rank; this schedule needs two")


@rule("distributed/pipeline_parallel.py generate_llm_fqn_per_model_part")
def _dealt(config: Config) -> Iterator[Breach]:
    """Layers and the weights of the ends are dealt evenly; an end's weight fits into its stage."""
    if config.ranks == 1 or config.said("split"):
        return
    units, stages = _units(config), config.ranks * config.number("chunks")
    embedding, loss = config.number("embedding_layers"), config.number("loss_layers")
    if stages > units:
        what = f"{stages} stages are more than {config.layers} layers and the ends' {embedding} + {loss}"
        yield Breach("stages for layers", ("pipeline", "chunks", "layers"), what)
        return
    for field, weight in (("embedding_layers", embedding), ("loss_layers", loss)):
        if weight > units // stages:
            what = f"an end counts for no more than the {units // stages} layers of a stage"
            yield Breach(f"weight of {field}", (field, "pipeline"), what)


def dealt(config: Config) -> tuple[int, ...] | None:
    """Layers of each stage as torchtitan deals them; None where it refuses."""
    stages = config.ranks * config.number("chunks")
    if config.ranks == 1:
        return (config.number("layers"),)
    return ends_counted(
        config.number("layers"), stages, config.number("embedding_layers"), config.number("loss_layers")
    )


def _given_split(config: Config) -> Iterator[Breach]:
    """As everywhere, but an end may hold the embedding or the head alone."""
    for breach in common.given_split(config):
        if breach.law != "empty stage" or (config.split and 0 in config.split[1:-1]):
            yield breach


@rule("distributed/pipeline_parallel.py pipeline_llm, build_pipeline_schedule; torch's pipelining/schedules.py")
def _in_a_pipeline(config: Config) -> Iterator[Breach]:
    """What a pipeline asks of its batch and its schedule."""
    if config.ranks > 1:
        yield from common.local_batch(config) if config.said("local_batch") else ()
        yield from of_the_schedule.breaches(config)


RULES = (
    Rule(common.devices, "distributed/parallel_dims.py ParallelDims._validate"),
    Rule(common.batch, "trainer.py Trainer.__init__"),
    Rule(common.heads, "models/llama3/parallelize.py, torch's ColwiseParallel"),
    Rule(common.experts, "distributed/expert_parallel.py"),
    Rule(common.expert_devices, "distributed/parallel_dims.py ParallelDims._validate"),
    Rule(_given_split, "ours: as many lists as stages, and all layers"),
    _reshard,
    _stages,
    _dealt,
    _in_a_pipeline,
)


def emit(layout: Layout, model: Config) -> str:
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
    lines.append(f"    fsdp_reshard_after_forward={'never' if layout.zero == 2 else 'default'!r},")
    if layout.pipeline > 1 and name:
        lines.append(f"    pipeline_parallel_schedule={name!r},")
    elif layout.pipeline > 1:
        lines.append(
            f"    pipeline_parallel_schedule_csv='order.csv',  # debubble show {layout.schedule} .. --torch-csv"
        )
    if layout.pipeline > 1:
        lines += [f"    {line}" for line in _modules(layout.split(model.number("layers")))]
    lines = ["ParallelismConfig(", *lines, ")"]
    lines.append(
        f"# training: local_batch_size={layout.micro_batch * layout.microbatches}, seq_len={model.number('sequence')}"
    )
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


TORCHTITAN = Framework(
    name="torchtitan",
    title="torchtitan",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=RULES,
    filled=filled,
    emit=emit,
    schedules=tuple(SCHEDULES),
    names={ours: theirs for ours, (theirs, _) in SCHEDULES.items()},
    habits={"overlap": True, "overlap_gather": True},
    in_pipelines={"overlap": False},
    zeros=zeros,
    remark=remark,
    lacks=frozenset({"some layers", "expert tensor"}),
)
