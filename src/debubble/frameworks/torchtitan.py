"""torchtitan: fields of its parallelism configuration, TOML of older versions, and how it deals layers to stages."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ..config.config import Config, Layout, ends_counted
from .framework import (
    Breach,
    Framework,
    Rule,
    batch_divides,
    batch_of,
    devices_multiply,
    expert_devices_divide,
    experts_divide,
    launch_line,
    local_batch_divides,
    rule,
    split_is_whole,
    whole_part,
)
from .torch_pipelining import SCHEDULES, of_the_schedule, our_names

RELEASE = "torchtitan 0.3.0"
VERSION = f"{RELEASE}, and pytorch/torchtitan@b5bcd76 for its newer fields"
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
ALIASES = {
    "training.batch_size": "local_batch",
    "module_fqns_per_model_part": "split",
    "experimental.pipeline_parallel_degree": "pipeline",
    "experimental.context_parallel_degree": "context",
    "pipeline_parallel_microbatches": "microbatches",
    "activation_checkpoint": "recompute",
    "debug.batch_invariant": "batch_invariant",
    "model.name": "model_name",
    "model.flavor": "model_flavor",
    "compile.enable": "compile",
    "compile.components": "compile_components",
}
MARKS = frozenset({"module_fqns_per_model_part", "fsdp_reshard_after_forward", "pipeline_parallel_schedule_csv"})
AGAIN = {"fullac": "full", "selectiveac": "selective", "memorybudgetac": "memory_budget"}
RESHARD = ("default", "always", "never")
BACKENDS = ("partial_dtensor", "full_dtensor", "spmd_types")


def zeros(ranks: int) -> tuple[int, ...]:
    """What FSDP shares out in a pipeline of so many ranks, by default and with ``fsdp_reshard_after_forward`` never.

    Alone it lets go of weights after each forward and reduces each micro-batch's gradients: ZeRO-3; never: ZeRO-2.
    In a pipeline, weights once gathered stay until the step ends, and gradients add up whole until PyTorch reduces them
    after the last micro-batch: ZeRO-1. Read in pytorch/torchtitan@01e1814 ``distributed/fsdp.py``, and in torch 2.13.0
    ``pipelining/stage.py``, backward_maybe_with_nosync and perform_reduce_grad.
    """
    if ranks == 1:
        return 3, 2
    return (1,)


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

    Each expert is on one device: expert groups borrow devices of data, context and tensor groups. Without a pipeline
    the whole local batch runs at once, and the global batch says how often before an update.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, expert=1, expert_tensor=1)
    # trainer.py Trainer.Config.activation_checkpoint, and the mode of TOML before: selective unless it is said.
    config = config.filled(recompute="selective" if config.whole else "none").renamed("recompute", AGAIN)
    config = config.filled(schedule="1F1B", embedding_layers=1, loss_layers=1).renamed("schedule", our_names())
    config = config.derived("data", _replicas).derived("data", lambda c: c.replicas)
    config = config.derived("micro_batch", _at_once).derived("microbatches", _in_a_step)
    config = config.derived("chunks", _chunks).derived("zero", _zero).derived("split", dealt)
    config = config.derived("overlap", lambda c: c.ranks == 1)
    return config.filled(overlap_gather=True, sequence_parallel=True)


def model(config: Config) -> str:
    """The name of a preset of its TOML: ``[model] name = "llama3"`` with ``flavor = "405B"`` is llama3-405b."""
    words = config.own.get("model_name"), config.own.get("model_flavor")
    if None in words:  # absent, or left to a variable
        return ""
    return "-".join(map(str, words)).lower().replace("_", "-")


def _at_once(config: Config) -> int | None:
    """Samples of a micro-batch: one in a pipeline, unless their number is said; else the local batch."""
    if config.ranks == 1:
        return config.local_batch
    if config.said("microbatches"):
        return None
    return 1


def _in_a_step(config: Config) -> int | None:
    """Micro-batches of a step: those of the pipeline, else as often as a local batch fits into the global one."""
    local = config.number("local_batch")
    if config.ranks > 1:
        return whole_part(local, config.number("micro_batch"))
    if config.global_batch is not None:
        return whole_part(config.global_batch, local * config.number("data"))
    # trainer.py Trainer.__init__: without a global batch gradients are not accumulated.
    if config.whole:
        return 1
    return None


def _replicas(config: Config) -> int:
    return config.number("sharded") * (config.copies or 1)


def _chunks(config: Config) -> int:
    """Stages per rank: of a split, of layers per stage, else 2 where the schedule takes several."""
    if config.split and len(config.split) % config.ranks == 0:
        return len(config.split) // config.ranks
    if config.chunk_layers:
        return max(ceil(ceil(_units(config) / config.chunk_layers) / config.ranks), 1)
    # pipeline_parallel.py pipeline_llm: one stage a rank for a class of single stages, two for any other.
    _, stages = SCHEDULES.get(config.schedule or "", ("", 1))
    if config.ranks == 1 or stages == 1:
        return 1
    return 2


def _units(config: Config) -> int:
    """Layers, and the ends in layers."""
    return config.number("layers") + config.number("embedding_layers") + config.number("loss_layers")


def _zero(config: Config) -> int:
    """What replicas share out: nothing where each is a copy by itself (DDP)."""
    copies = config.copies or 1
    if copies > 1 and copies == config.replicas and config.context == 1:
        return 0
    usual, *_, kept = (*zeros(config.ranks), *zeros(config.ranks))
    if config.word("fsdp_reshard_after_forward") == "never":
        return kept
    return usual


@rule("distributed/fsdp.py get_fsdp_reshard_after_forward_policy; config/configs.py ParallelismConfig")
def _words(config: Config) -> Iterator[Breach]:
    """Words of which there are a few."""
    for name, known, usual in (
        ("fsdp_reshard_after_forward", RESHARD, "default"),
        ("spmd_backend", BACKENDS, "spmd_types"),
    ):
        word = config.word(name, usual)
        if word not in known:
            what = f"the policies are {', '.join(known)}"
            law = "reshard" if name.startswith("fsdp") else name
            yield Breach(law, (name,), what, f"give {usual}", str(word))
    if config.word("context_parallel_load_balancer") == "":
        # configs.py:263
        yield Breach("balancer", ("context_parallel_load_balancer",), "it is a name or None", "give None", "empty")


@rule("distributed/parallel_dims.py ParallelDims._validate")
def _copies(config: Config) -> Iterator[Breach]:
    """Copies of a model are a part of the replicas that devices leave."""
    copies, replicas = config.number("copies"), config.replicas
    if config.sharded is None and replicas is not None and replicas % copies:
        # parallel_dims.py:184
        yield Breach("copies", ("copies", "gpus"), f"the devices leave {replicas} replicas, which they do not divide")


@rule("models/common/decoder.py Decoder.Config.update_from_config; torch's scaled_dot_product_attention")
def _heads(config: Config) -> Iterator[Breach]:
    """A tensor group shares heads and key-value heads without rest, and heads share key-value heads."""
    tensor, heads = config.number("tensor"), config.number("heads")
    groups = config.kv_heads or heads
    if tensor > 1 and heads % tensor:
        yield Breach("heads", ("tensor", "heads"), f"it shares {heads} attention heads without rest")
    elif tensor > 1 and groups % tensor:
        # decoder.py:155
        yield Breach("key-value heads", ("tensor", "kv_heads"), f"it shares {groups} key-value heads without rest")
    if heads % groups:
        what = f"{heads} heads do not share them evenly"
        yield Breach("heads for key-value heads", ("kv_heads", "heads"), what)


@rule("models/common/decoder.py Decoder.Config.update_from_config")
def _tied(config: Config) -> Iterator[Breach]:
    """The first and the last stage do not share weights."""
    if config.ranks > 1 and config.on("enable_weight_tying"):
        what = "it does not work with a pipeline"
        # decoder.py:140
        yield Breach("tied weights", ("enable_weight_tying", "pipeline"), what, "untie them", "on")


@rule("trainer.py Trainer.__init__")
def _sequence(config: Config) -> Iterator[Breach]:
    """Sequence parallelism and context groups cut the sequence without rest."""
    context = config.number("context")
    unit = 1
    if config.sequence_parallel:
        unit *= config.number("tensor")
    if context > 1:
        unit *= 2 * context  # each member takes a piece from both ends, so that causal work is even
    if config.number("sequence") % unit:
        fields = config.said("context", "tensor", "sequence")
        # trainer.py:311
        yield Breach("sequence", fields, f"{config.sequence} tokens are cut into {unit} pieces", value=str(context))


def _batch_alone(config: Config) -> Iterator[Breach]:
    """What a global batch must be, whatever the local batch."""
    if config.local_batch is None:
        yield from batch_divides(config)


@rule("trainer.py Trainer.__init__")
def _whole_batch(config: Config) -> Iterator[Breach]:
    """The global batch is whole local batches of all replicas."""
    whole, local, data = config.number("global_batch"), config.number("local_batch"), config.number("data")
    if whole % (local * data):
        what = f"local batch {local} x {data} replicas = {local * data} samples, which does not divide it"
        # trainer.py:422
        yield Breach("global batch", config.said("global_batch", "local_batch", "data"), what)


@rule("trainer.py Trainer.Config.__post_init__")
def _trainer(config: Config) -> Iterator[Breach]:
    """What the whole configuration refuses."""
    if config.on("batch_invariant"):
        # trainer.py:120
        yield Breach("invariant batches", ("batch_invariant",), "it is not for pre-training", "switch it off", "on")
    if config.ranks > 1 and not config.on("disable_cuda_graphs", otherwise=True):
        what = "graphs do not work with a pipeline"
        # trainer.py:184
        yield Breach("graphs in a pipeline", ("disable_cuda_graphs",), what, "give True", "off")
    if (
        config.ranks > 1
        and config.on("spmd_typechecking")
        and config.word("spmd_backend", "spmd_types") == "spmd_types"
    ):
        what = "types are not checked in a pipeline"
        # trainer.py:149
        yield Breach("types in a pipeline", ("spmd_typechecking", "pipeline"), what, "switch it off", "on")
    compiled = config.on("compile") and "model" in str(config.word("compile_components", ("model", "loss")))
    if config.recompute == "memory_budget" and not compiled:
        # trainer.py:173
        yield Breach("budget without a compiler", ("recompute",), "it needs a compiled model", "compile the model")
    if config.on("enable_async_tensor_parallel") and not compiled:
        what = "it needs a compiled model"
        # configs.py:307
        yield Breach("async without a compiler", ("enable_async_tensor_parallel",), what, "compile the model", "on")


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
        # pipeline_parallel.py:234
        yield Breach("stages over ranks", ("chunk_layers", "pipeline"), f"{what}, which do not divide over {p} ranks")
    elif not single and stages // p < 2:
        # pipeline_parallel.py:253
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
        # pipeline_parallel.py:402
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
    if config.ranks == 1:
        return  # without a pipeline nobody looks at it
    for breach in split_is_whole(config):
        if breach.law != "empty stage" or (config.split and 0 in config.split[1:-1]):
            yield breach


@rule("distributed/pipeline_parallel.py pipeline_llm, build_pipeline_schedule; torch's pipelining/schedules.py")
def _in_a_pipeline(config: Config) -> Iterator[Breach]:
    """What a pipeline asks of its batch and its schedule."""
    if config.ranks == 1:
        return
    if config.said("local_batch"):
        yield from local_batch_divides(config)
    yield from of_the_schedule.breaches(config)


RULES = (
    Rule(devices_multiply, "distributed/parallel_dims.py ParallelDims._validate"),
    Rule(_batch_alone, "trainer.py Trainer.__init__, where the local batch is not known"),
    Rule(experts_divide, "models/common/token_dispatcher.py AllToAllTokenDispatcher"),
    Rule(expert_devices_divide, "distributed/parallel_dims.py ParallelDims.build_mesh"),
    Rule(_given_split, "distributed/pipeline_parallel.py _get_pp_rank_to_stage_indices_mapping; ours: all layers"),
    _copies,
    _words,
    _heads,
    _tied,
    _sequence,
    _whole_batch,
    _trainer,
    _stages,
    _dealt,
    _in_a_pipeline,
)


def emit(layout: Layout, model: Config) -> str:
    """A module with one configuration, made of the user's own; nothing is left to a default of the release.

    What torchtitan would take by itself differs from a plan: selective recomputation, 2 stages a rank, its own split,
    recorded graphs. Without a pipeline a local batch runs at once; the global batch says how often before an update.
    """
    local = layout.micro_batch
    if layout.pipeline > 1:
        local *= layout.microbatches
    again = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}[layout.recompute]
    shared = (1, layout.data) if layout.zero else (layout.data, 1)
    fields = {
        "data_parallel_replicate_degree": shared[0],
        "data_parallel_shard_degree": shared[1],
        "fsdp_reshard_after_forward": "'never'" if layout.zero == 2 else "'default'",
        "tensor_parallel_degree": layout.tensor,
        "enable_sequence_parallel": layout.sequence_parallel,
        "context_parallel_degree": layout.context,
        "expert_parallel_degree": layout.expert,
        "pipeline_parallel_degree": layout.pipeline,
    }
    lines = [f"        {key}={value}," for key, value in fields.items()]
    if layout.pipeline > 1:
        lines += [f"        {line}" for line in _pipeline(layout, model)]
    return "\n".join(
        [
            f"# {RELEASE}; {batch_of(layout)}; saved as plan.py",
            f"# {launch_line(layout, '-m torchtitan.train --module plan --config plan')} on each node",
            "from dataclasses import replace",
            "from torchtitan.config import ParallelismConfig",
            "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
            "from torchtitan.models.llama3.config_registry import llama3_8b as own  # the configuration of your model",
            "",
            "def plan():",
            "    config = own()",
            "    config.parallelism = ParallelismConfig(",
            *lines,
            "    )",
            "    config.training = replace(",
            "        config.training,",
            f"        local_batch_size={local},",
            f"        global_batch_size={layout.global_batch},",
            f"        seq_len={model.number('sequence')},",
            f"        disable_cuda_graphs={layout.pipeline > 1 or not layout.graphs},",
            "    )",
            f"    config.activation_checkpoint = {again}",
            "    return config",
        ]
    )


def _pipeline(layout: Layout, model: Config) -> list[str]:
    """Fields of a pipeline: its micro-batches, its schedule by name or by a file, its modules stage by stage."""
    name = SCHEDULES.get(layout.schedule, ("", 0))[0]
    lines = [f"pipeline_parallel_microbatch_size={layout.micro_batch},"]
    if name:
        lines.append(f"pipeline_parallel_schedule={name!r},")
    else:
        lines.append(f"pipeline_parallel_schedule_csv='order.csv',  # debubble show {layout.schedule} .. --torch-csv")
    return [*lines, *_modules(layout.split(model.number("layers")))]


def _modules(split: tuple[int, ...]) -> list[str]:
    lines, start = ["module_fqns_per_model_part=["], 0
    for stage, layers in enumerate(split):
        names = [f"layers.{n}" for n in range(start, start + layers)]
        if stage == 0:
            names.insert(0, "tok_embeddings")
        if stage == len(split) - 1:
            names += ["norm", "lm_head"]
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
    habits={"overlap": True, "overlap_gather": True, "weights_are_master": True},
    in_pipelines={"overlap": False},
    zeros=zeros,
    remark=remark,
    model=model,
    marks=MARKS,
    lacks=frozenset({"some layers", "expert tensor"}),
)
