"""Megatron-LM: its words, what Megatron-Core takes by itself and makes of a configuration, and the flags of a layout.

Its rules stand in ``megatron_rules``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config.config import Config
from ..config.layout import Layout, ends_apart, ends_counted
from ..core.errors import InputError
from .framework import Framework, batch_of, launch_line
from .layout_string import read_layout, write_layout
from .megatron_core_rules import CORE_RULES
from .megatron_rules import ARGUMENT_RULES, PIPELINE_RULES

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
    config = config.derived("recompute", lambda c: "selective" if c.on("recompute_activations") else "none")
    config = config.filled(sequence_parallel=False, overlap=False, overlap_gather=False, tensor_overlap=False)
    if "pattern" not in config.opened() and config.pattern is not None:
        config = config.changed(layers=len(config.pattern.split("/")[0].replace("|", "")), follows=config.follows)
    config = config.derived("data", lambda c: c.replicas).derived("expert_tensor", lambda c: c.tensor)
    config = config.derived("chunks", _chunks).derived("split", split)
    config = config.derived("schedule", lambda c: "interleaved" if c.number("chunks") > 1 else "1f1b")
    return config.derived("precision", _precision).derived("zero", _zero)


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
    script = "pretrain_gpt.py" if model.pattern is None else "pretrain_mamba.py"
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
        said += [KEYS["tensor_overlap"]] if layout.tensor_overlap else []
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
    return [f"{KEYS['chunks']} {layout.chunks}"] if layout.chunks > 1 else []


def _recompute_flags(layout: Layout) -> list[str]:
    if layout.recompute == "none":
        return []
    if layout.recompute == "selective":
        return [f"{KEYS['recompute']} selective"]
    how, many = recomputed(layout)
    return [f"{KEYS['recompute']} full", f"{KEYS['recompute_method']} {how} {KEYS['recompute_layers']} {many}"]


def recomputed(layout: Layout) -> tuple[str, int]:
    """The method of a full recomputation and its number: every layer by itself, or so many of each stage."""
    return ("uniform", 1) if layout.recompute_layers is None else ("block", layout.recompute_layers)


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
