"""Megatron-LM: its names, and the flags of a layout."""

from __future__ import annotations

from ..config.layout import Layout
from .layout_string import write_layout
from .megatron_rules import rules
from .megatron_setup import SWITCHES, recomputed, schedule, settled, split
from .setup import Backend, Sizes

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
}
ALIASES = {
    "virtual_pipeline_model_parallel_size": "chunks",
    "microbatch_group_size_per_vp_stage": "group",
    "num_moe_experts": "experts",
    "encoder_num_layers": "layers",
}
PRECISIONS = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp8": "--bf16 --fp8-format hybrid",
    "fp4": "--bf16 --fp4-format e2m1",
}


def emit(layout: Layout, sizes: Sizes) -> str:
    """Flags of a layout, one a line."""
    flags = [
        f"{KEYS['tensor']} {layout.tensor}",
        f"{KEYS['pipeline']} {layout.pipeline}",
        f"{KEYS['context']} {layout.context}",
        f"{KEYS['micro_batch']} {layout.micro_batch}",
        f"{KEYS['global_batch']} {layout.global_batch}",
        f"{KEYS['sequence']} {sizes.sequence}",
        f"{KEYS['layers']} {sizes.layers}",
        *([f"{KEYS['next_layers']} {sizes.next_layers}"] if sizes.next_layers else []),
        *_split_flags(layout, sizes),
    ]
    flags += [f"{KEYS['expert']} {layout.expert}"] if layout.expert > 1 else []
    if max(layout.tensor, layout.expert_shards) > 1 and (sizes.experts or layout.expert > 1):
        flags.append(f"{KEYS['expert_tensor']} {layout.expert_shards}")  # what is taken unsaid differs by version
    if layout.tensor > 1 and layout.sequence_parallel:
        flags.append("--sequence-parallel")
    if layout.tensor_overlap:
        flags.append("--tp-comm-overlap")
    flags += ["--use-distributed-optimizer"] if layout.zero >= 1 else []
    flags += ["--overlap-grad-reduce"] if layout.overlap else []
    flags += ["--overlap-param-gather"] if layout.zero >= 1 and layout.overlap_gather else []
    flags += _recompute_flags(layout)
    flags.append(PRECISIONS[layout.precision])
    return " \\\n".join(flags)


def _split_flags(layout: Layout, sizes: Sizes) -> list[str]:
    split = layout.split(sizes.layers)
    if len(set(split)) > 1:
        return [f"{KEYS['layout']} '{write_layout(split, sizes.next_layers)}'"]
    return [f"{KEYS['chunks']} {layout.chunks}"] if layout.chunks > 1 else []


def _recompute_flags(layout: Layout) -> list[str]:
    if layout.recompute == "none":
        return []
    if layout.recompute == "selective":
        return [f"{KEYS['recompute']} selective"]
    how, many = recomputed(layout)
    return [f"{KEYS['recompute']} full", f"{KEYS['recompute_method']} {how} {KEYS['recompute_layers']} {many}"]


MEGATRON = Backend(
    name="megatron",
    title="Megatron-LM",
    version=VERSION,
    keys=KEYS,
    aliases=ALIASES,
    rules=rules,
    settled=settled,
    split=split,
    schedule=schedule,
    emit=emit,
    schedules=("1f1b", "interleaved"),
    switches=SWITCHES,
    lacks=frozenset({"zero"}),
)
