"""Megatron-LM: its words, what Megatron-Core takes by itself and makes of a configuration, and the flags of a layout.

Its rules stand in ``megatron_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..config.config import Config, Layout, ends_counted
from ..core.errors import InputError
from .framework import Breach, Framework, Rule, batch_of, launch_line, named, rule
from .megatron_core_rules import CORE_RULES
from .megatron_stages import PIPELINE_RULES, ends_apart, read_layout, write_layout

VERSION = "NVIDIA/Megatron-LM@d98e8a6"
KEYS = {
    "gpus": "--world-size",
    "tensor": "--tensor-model-parallel-size",
    "pipeline": "--pipeline-model-parallel-size",
    "data": "--data-parallel-size",
    "context": "--context-parallel-size",
    "expert": "--expert-model-parallel-size",
    "expert_tensor": "--expert-tensor-parallel-size",
    "layers": "--num-layers",
    "heads": "--num-attention-heads",
    "kv_heads": "--num-query-groups",
    "experts": "--num-experts",
    "hidden": "--hidden-size",
    "ffn": "--ffn-hidden-size",
    "vocab": "--vocab-size",
    "sequence": "--seq-length",
    "next_layers": "--mtp-num-layers",
    "chunks": "--num-virtual-stages-per-pipeline-rank",
    "chunk_layers": "--num-layers-per-virtual-pipeline-stage",
    "first": "--decoder-first-pipeline-num-layers",
    "last": "--decoder-last-pipeline-num-layers",
    "embedding_layers": "--account-for-embedding-in-pipeline-split",
    "loss_layers": "--account-for-loss-in-pipeline-split",
    "layout": "--pipeline-model-parallel-layout",
    "pattern": "--hybrid-layer-pattern",
    "micro_batch": "--micro-batch-size",
    "microbatches": "micro-batches",
    "global_batch": "--global-batch-size",
    "rampup": "--rampup-batch-size",
    "group": "--microbatch-group-size-per-virtual-pipeline-stage",
    "recompute": "--recompute-granularity",
    "recompute_method": "--recompute-method",
    "recompute_layers": "--recompute-num-layers",
    "recompute_modules": "--recompute-modules",
    "sequence_parallel": "--sequence-parallel",
    "overlap": "--overlap-grad-reduce",
    "overlap_gather": "--overlap-param-gather",
    "tensor_overlap": "--tp-comm-overlap",
}
# Names of Megatron-Core's fields, and of former releases.
ALIASES = {
    "virtual_pipeline_model_parallel_size": "chunks",
    "microbatch_group_size_per_vp_stage": "group",
    "num_moe_experts": "experts",
    "encoder_num_layers": "layers",
    "encoder_seq_length": "sequence",
    "num_layers_in_first_pipeline_stage": "first",
    "num_layers_in_last_pipeline_stage": "last",
    "hybrid_override_pattern": "pattern",
    # Flags under other names than Megatron-Core's fields.
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "fp8_param_gather": "fp8_param",
    "fp4_param_gather": "fp4_param",
    "overlap_p2p_communication": "overlap_p2p_comm",
    "overlap_p2p_communication_warmup_flush": "overlap_p2p_comm_warmup_flush",
    "disable_bias_linear": "!add_bias_linear",
}
PRECISIONS = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp4": "--bf16 --fp4-format e2m1",
}
# What Megatron-FSDP shares out, by the word of --data-parallel-sharding-strategy.
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def filled(config: Config) -> Config:
    """With Megatron-Core's defaults, and the chunks and layers of each stage that a configuration implies.

    Nothing is said of: degrees are 1, nothing is recomputed, every switch is off; each expert is shared by its tensor
    group; chunks follow from layers per chunk or from a layout; a rank with several chunks interleaves them.
    """
    config = config.filled(tensor=1, pipeline=1, context=1, expert=1)
    config = config.derived("recompute", _recompute)
    config = config.filled(sequence_parallel=False, overlap=False, overlap_gather=False, tensor_overlap=False)
    if "pattern" not in config.opened() and config.pattern is not None:
        config = config.changed(layers=len(config.pattern.split("/")[0].replace("|", "")), follows=config.follows)
    config = config.derived("data", lambda c: c.replicas).derived("expert_tensor", lambda c: c.tensor)
    config = config.derived("chunks", _chunks).derived("split", split)
    config = config.derived("schedule", schedule)
    return config.derived("precision", _precision).derived("zero", _zero)


def _recompute(config: Config) -> str:
    """``--recompute-activations`` is the former word for selective."""
    if config.on("recompute_activations"):
        return "selective"
    return "none"


def schedule(config: Config) -> str:
    """schedules.py get_forward_backward_func: the interleaved one where a rank has several chunks."""
    if config.number("chunks") > 1:
        return "interleaved"
    return "1f1b"


def _chunks(config: Config) -> int | None:
    """Stages per rank: as said, or as a layout, a pattern or the layers of a chunk imply."""
    if config.pattern is not None:
        segments = config.pattern.split("/")[0].count("|") + 1
        return max(segments // config.ranks, 1)
    if config.layout is not None:
        try:
            return read_layout(config.layout, config.ranks).chunks
        except InputError:
            return None
    if config.chunk_layers:
        return config.number("layers") // config.ranks // config.chunk_layers or None
    return 1


def split(config: Config) -> tuple[int, ...] | None:
    """Layers of each stage, by layout, uneven ends or ends that count as layers."""
    if config.layout is not None:
        try:
            return tuple(stage.count("t") for stage in read_layout(config.layout, config.ranks).stages)
        except InputError:
            return None
    segments = (config.pattern or "").split("/")[0].split("|")
    if len(segments) > 1:
        return tuple(map(len, segments))
    layers, ranks, chunks = config.number("layers"), config.ranks, config.number("chunks")
    if config.first is not None or config.last is not None:
        by_rank = ends_apart(layers, ranks, config.first, config.last)
        return by_rank and tuple(layers // chunks for layers in by_rank) * chunks
    return ends_counted(layers, ranks * chunks, config.embedding_layers or 0, config.loss_layers or 0)


def _precision(config: Config) -> str | None:
    """Of the matrix products, where the flags say it; half precision is said, full precision is none that we plan."""
    if config.word("fp4"):
        return "fp4"
    if config.word("fp8"):
        return "fp8"
    return next((name for name in ("bf16", "fp16") if config.on(name)), None)


def _zero(config: Config) -> int:
    """What replicas share out, 0 to 3."""
    if config.on("use_torch_fsdp2"):
        return 3
    if config.on("use_megatron_fsdp") or config.on("use_custom_fsdp"):
        return _STRATEGIES.get(str(config.word("data_parallel_sharding_strategy", "no_shard")), 0)
    return int(config.on("use_distributed_optimizer"))


def emit(layout: Layout, model: Config) -> str:
    """The launch line, and the flags of a layout, one a line; it is run on each node."""
    script = "pretrain_gpt.py"
    if model.pattern is not None:
        script = "pretrain_mamba.py"  # hybrid models have an entry of their own
    said = " \\\n".join([launch_line(layout, script), *(f"  {flag}" for flag in flags(layout, model))])
    return f"# {VERSION}; {batch_of(layout)}; run on each node\n{said}"


def flags(layout: Layout, model: Config) -> list[str]:
    """Flags of a layout, each with its value."""
    layers, following = model.number("layers"), model.next_layers or 0
    said = [
        f"{KEYS['tensor']} {layout.tensor}",
        f"{KEYS['pipeline']} {layout.pipeline}",
        f"{KEYS['context']} {layout.context}",
        f"{KEYS['micro_batch']} {layout.micro_batch}",
        f"{KEYS['global_batch']} {layout.global_batch}",
        f"{KEYS['sequence']} {model.number('sequence')}",
    ]
    if model.pattern is None:
        said.append(f"{KEYS['layers']} {layers}")
    if following:
        said.append(f"{KEYS['next_layers']} {following}")
    if model.pattern is None:
        said += _split_flags(layout, layers, following)
    else:
        said.append(f"{KEYS['pattern']} '{barred(model.pattern, layout.split(layers))}'")
    if layout.expert > 1:
        said.append(f"{KEYS['expert']} {layout.expert}")
    if max(layout.tensor, layout.expert_shards) > 1 and (model.experts or layout.expert > 1):
        said.append(f"{KEYS['expert_tensor']} {layout.expert_shards}")  # what is taken unsaid differs by version
    if layout.tensor > 1 and layout.sequence_parallel:
        said.append(KEYS["sequence_parallel"])
        if layout.tensor_overlap:
            said.append(KEYS["tensor_overlap"])
    if layout.zero >= 1:
        said.append("--use-distributed-optimizer")
    if layout.overlap:
        said.append(KEYS["overlap"])
    if layout.zero >= 1 and layout.overlap_gather and layout.overlap:
        said.append(KEYS["overlap_gather"])
    said += _recompute_flags(layout)
    said.append(PRECISIONS[layout.precision])
    return said


def barred(pattern: str, split: Sequence[int]) -> str:
    """Letters of layers with a bar between stages: ``M*|M-`` for 2 stages of 2."""
    stages, start = [], 0
    for held in split:
        stages.append(pattern[start : start + held])
        start += held
    return "|".join(stages)


def _split_flags(layout: Layout, layers: int, following: int) -> list[str]:
    split = layout.split(layers)
    if len(set(split)) > 1:
        return [f"{KEYS['layout']} '{write_layout(split, following)}'"]
    if layout.chunks == 1:
        return []
    return [f"{KEYS['chunks']} {layout.chunks}"]


def _recompute_flags(layout: Layout) -> list[str]:
    if layout.recompute == "none":
        return []
    if layout.recompute == "selective":
        return [f"{KEYS['recompute']} selective"]
    how, many = recomputed(layout)
    return [f"{KEYS['recompute']} full", f"{KEYS['recompute_method']} {how} {KEYS['recompute_layers']} {many}"]


def recomputed(layout: Layout) -> tuple[str, int]:
    """The method of a full recomputation and its number: every layer by itself, or so many of each stage."""
    if layout.recompute_layers is None:
        return "uniform", 1
    return "block", layout.recompute_layers


@rule("arguments.py validate_args")
def _ways_to_chunk(config: Config) -> Iterator[Breach]:
    """One flag says the chunks of a rank."""
    ways = config.said("chunk_layers", "chunks", "layout")
    if len(ways) > 1:
        # arguments.py:929
        yield Breach("one way to chunk", ways, f"only one of {named(ways)} may be set", f"leave out {named(ways[1:])}")


@rule("arguments.py validate_args")
def a_micro_batch(config: Config) -> Iterator[Breach]:
    """What every launch must say."""
    if config.whole and config.micro_batch is None:
        # arguments.py:693
        yield Breach("a micro-batch", ("micro_batch",), "every launch says it", "give <micro_batch>", "nothing")


@rule("arguments.py validate_args")
def _gathers(config: Config) -> Iterator[Breach]:
    """Gathers of weights beside the forward need weights that are shared out, and reductions beside the backward."""
    if not config.overlap_gather:
        return
    if not config.number("zero") and config.word("optimizer") != "dist_muon":
        what = "it needs the distributed optimizer or Megatron-FSDP"
        # arguments.py:1025; dist_muon shares out its own state
        yield Breach("gathers of what is whole", ("overlap_gather",), what, "add --use-distributed-optimizer", "on")
    if not config.overlap:
        # arguments.py:1028
        yield Breach("gathers alone", ("overlap_gather", "overlap"), "it needs <overlap>", "add <overlap>", "on")


@rule("arguments.py validate_args")
def _fully_sharded(config: Config) -> Iterator[Breach]:
    """PyTorch's FSDP2 goes with data parallelism and little else."""
    if not config.on("use_torch_fsdp2"):
        if config.whole and config.word("ckpt_format") == "torch_dcp":
            what = "it works with --use-torch-fsdp2 alone"
            # arguments.py:1668
            yield Breach("torch_dcp alone", ("ckpt_format",), what, "leave out <ckpt_format>", "torch_dcp")
        return
    others = (
        (config.number("expert") > 1, "expert", "expert parallelism"),
        (config.on("use_distributed_optimizer"), "use_distributed_optimizer", "the distributed optimizer"),
        (config.on("fp16"), "fp16", "fp16"),
    )
    for broken, name, what in others:
        if broken:
            law = f"fsdp2 with {what}"
            # arguments.py:1036, 1038, 1046
            yield Breach(law, ("use_torch_fsdp2", name), f"it does not work with {what}", f"leave out <{name}>", "on")


@rule("arguments.py validate_args")
def _activations_spread(config: Config) -> Iterator[Breach]:
    """Recomputation in a tensor group: saved inputs are spread in a full one, a selective one has no method."""
    if config.on("distribute_saved_activations"):
        if config.number("tensor") == 1:
            what = "activations are spread over a tensor group of 2 or more"
            # arguments.py:1411
            yield Breach("activations on one device", ("distribute_saved_activations", "tensor"), what, value="on")
        if config.recompute != "full":
            what = "it is for full recomputation"
            # arguments.py:1414
            yield Breach("activations that stay", ("distribute_saved_activations", "recompute"), what, value="on")
    if config.recompute == "selective" and config.recompute_method is not None:
        what = "a selective recomputation has no method"
        # arguments.py:1426
        yield Breach("method of a selective one", ("recompute_method",), what, "leave out <recompute_method>")


@rule("arguments.py validate_args")
def _sequence_lengths(config: Config) -> Iterator[Breach]:
    """Positions reach as far as the sequence, and heads have whole widths."""
    reach = config.word("max_position_embeddings")
    if reach is not None and str(reach).isdecimal() and int(str(reach)) < config.number("sequence"):
        what = f"it reaches over the sequence of {config.sequence}"
        # arguments.py:1354
        yield Breach("positions", ("max_position_embeddings", "sequence"), what, "give <sequence> or more", str(reach))
    if config.word("kv_channels") is None and config.hidden and config.heads and config.hidden % config.heads:
        what = f"{config.heads} heads share a width of {config.hidden} without rest, unless <kv_channels> says theirs"
        # arguments.py:1332, where --kv-channels is not said
        yield Breach("width of heads", ("hidden", "heads"), what)


@rule("arguments.py validate_args")
def _overlapped_products(config: Config) -> Iterator[Breach]:
    """Tensor collectives run beside products only with sequence parallelism."""
    if config.tensor_overlap and not (config.sequence_parallel and config.number("tensor") > 1):
        what = "it needs <sequence_parallel> over a tensor group"
        # arguments.py:1442; sequence parallelism of one device was switched off at 1438
        yield Breach("overlap without sequence parallelism", ("tensor_overlap", "sequence_parallel"), what, value="on")


# Of Megatron-LM's own flags; Megatron-Core behind another front end does not ask them.
ARGUMENT_RULES: tuple[Rule, ...] = (
    _ways_to_chunk,
    a_micro_batch,
    _gathers,
    _fully_sharded,
    _activations_spread,
    _sequence_lengths,
    _overlapped_products,
)

MEGATRON = Framework(
    name="megatron",
    title="Megatron-LM",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=(*PIPELINE_RULES, *CORE_RULES, *ARGUMENT_RULES),
    filled=filled,
    emit=emit,
    schedules=("1f1b", "interleaved"),
    dashed=True,
    lacks=frozenset({"zero", "gathers alone"}),
)
