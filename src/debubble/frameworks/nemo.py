"""NeMo and Megatron-Bridge: Megatron-Core's rules under the names of the model provider's fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config.config import Config
from ..config.layout import Layout
from .framework import Breach, batch_of, launch_line, rule
from .layout_string import write_layout
from .megatron import MEGATRON, barred, recomputed
from .megatron_core_rules import CORE_RULES
from .megatron_rules import PIPELINE_RULES

VERSION = "NVIDIA-NeMo/Megatron-Bridge@067f987"
KEYS = {
    "gpus": "world_size",
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "data": "data_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
    "layers": "num_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "experts": "num_moe_experts",
    "sequence": "seq_length",
    "next_layers": "mtp_num_layers",
    "chunks": "virtual_pipeline_model_parallel_size",
    "first": "num_layers_in_first_pipeline_stage",
    "last": "num_layers_in_last_pipeline_stage",
    "embedding_layers": "account_for_embedding_in_pipeline_split",
    "loss_layers": "account_for_loss_in_pipeline_split",
    "layout": "pipeline_model_parallel_layout",
    "pattern": "hybrid_layer_pattern",
    "micro_batch": "micro_batch_size",
    "microbatches": "micro-batches",
    "global_batch": "global_batch_size",
    "rampup": "rampup_batch_size",
    "group": "microbatch_group_size_per_vp_stage",
    "recompute": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_layers": "recompute_num_layers",
    "recompute_modules": "recompute_modules",
    "hidden": "hidden_size",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
    "sequence_parallel": "sequence_parallel",
    "overlap": "overlap_grad_reduce",
    "overlap_gather": "overlap_param_gather",
    "tensor_overlap": "tp_comm_overlap",
}
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp4": "bf16_with_nvfp4_mixed",
}


def emit(layout: Layout, model: Config) -> str:
    """Python assignments on the model provider and the training configuration, behind the recipe of a model."""
    split, following = layout.split(model.number("layers")), model.next_layers or 0
    said: dict[str, int | str | None] = {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "expert": layout.expert,
        "expert_tensor": layout.expert_shards if model.experts or layout.expert > 1 else None,
        "chunks": layout.chunks if layout.chunks > 1 else None,
        "next_layers": following or None,
        "layout": None,
        "recompute": None,
    }
    if model.pattern is not None:
        said |= {"pattern": repr(barred(model.pattern, split)), "chunks": None}  # its bars cut the stages
    elif len(set(split)) > 1:
        said["layout"] = repr(write_layout(split, following))
        said["chunks"] = None  # the layout says it
    if layout.recompute != "none":
        said["recompute"] = repr(layout.recompute)
    lines = [f"# {VERSION}; {batch_of(layout)}", f"# {launch_line(layout, 'train.py')} on each node"]
    lines += [f"cfg.model.{KEYS[field]} = {value}" for field, value in said.items()]
    if layout.recompute == "full":
        how, many = recomputed(layout)
        lines += [f"cfg.model.recompute_method = {how!r}", f"cfg.model.recompute_num_layers = {many}"]
    together = layout.sequence_parallel and layout.tensor > 1
    lines += [
        f"cfg.model.sequence_parallel = {together}",
        f"cfg.ddp.use_distributed_optimizer = {layout.zero >= 1}",
        f"cfg.ddp.overlap_grad_reduce = {layout.overlap}",
        f"cfg.ddp.overlap_param_gather = {layout.zero >= 1 and layout.overlap_gather and layout.overlap}",
        f"cfg.comm_overlap.tp_comm_overlap = {layout.tensor_overlap and together}",
        f"cfg.mixed_precision = {PRECISIONS[layout.precision]!r}",
        f"cfg.model.pipeline_dtype = torch.{'float16' if layout.precision == 'fp16' else 'bfloat16'}",
        f"cfg.model.seq_length = {model.number('sequence')}",
        f"cfg.train.micro_batch_size = {layout.micro_batch}",
        f"cfg.train.global_batch_size = {layout.global_batch}",
    ]
    return "\n".join(lines)


@rule("model_parallel_config.py ModelParallelConfig.__post_init__")
def _sequence_parallel(config: Config) -> Iterator[Breach]:
    """Sequence parallelism is of a tensor group; Megatron-LM switches it off itself on one device."""
    if config.sequence_parallel and config.number("tensor") == 1:
        what = "it needs a tensor group of 2 or more"
        yield Breach("sequence parallelism alone", ("sequence_parallel", "tensor"), what, "turn it off", "on")


NEMO = replace(
    MEGATRON,
    name="nemo",
    title="NeMo and Megatron-Bridge",
    version=VERSION,
    keys=KEYS,
    aliases={"num_experts": "experts", "hybrid_override_pattern": "pattern"},
    rules=(*PIPELINE_RULES, *CORE_RULES, _sequence_parallel),
    emit=emit,
    dashed=False,
    provided=True,
)
