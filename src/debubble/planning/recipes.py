"""Tuned recipes: single layouts that vendors and frameworks publish with their speed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from ..config.layout import Layout
from ..estimate.hardware import cluster_of, read_hardware
from ..estimate.model import Model
from ..estimate.read_model import read_model
from .rows import Cells, Row, layout_of, number, whole


@cache
def _named(name: str) -> Model:
    return read_model(name)


_DGXC = {
    "grok": "grok-1",
    "nemotron4 15b": "nemotron4-15b",
    "nemotron 340b": "nemotron4-340b",
    "405b": "llama3-405b",
    "llama 3.1 8b": "llama3-8b",
    "nemo megatron": "gpt3-175b",
    "maverick": "llama4-maverick",
    "deepseek": "deepseek-v3",
}
# NVIDIA's own recipes hide tensor and data-parallel traffic, keep no scores and use the distributed optimizer.
_RECIPE = {"tensor_overlap": True, "overlap": True, "overlap_gather": True}


def dgxc(cells: Cells) -> Row | None:
    """Pre-training recipes of NVIDIA's dgxc-benchmarking; fine-tuning is left out."""
    name = next((model for word, model in _DGXC.items() if word in cells["model_title"].lower()), None)
    shards = whole(cells, "etp", 0)  # where nothing is said, Megatron-Core's own: the tensor group
    layout = layout_of(cells, precision=cells["precision"].lower(), expert_tensor=shards, **_RECIPE)
    if name is None or layout is None or cells["consistent"] != "yes" or cells["task"] != "pretrain":
        return None
    model = replace(_named(name).with_layers(whole(cells, "n_layers", _named(name).layers)), next_heads=0)
    return _recipe_row(cells, model, layout, number(cells, "step_time_s"))


def _recipe_row(cells: Cells, model: Model, layout: Layout, seconds: float) -> Row | None:
    device = read_hardware(re.sub(r"^DGX-|-SXM$", "", cells["hardware"]))
    devices, spread = layout.tensor * layout.data * layout.context, layout.expert * layout.expert_shards
    if spread > devices or layout.stages > model.layers or seconds <= 0:
        return None
    if layout.pipeline == 1:
        layout = replace(layout, chunks=1, schedule="1f1b")
    elif layout.chunks > 1 and layout.microbatches < layout.pipeline:
        return None
    group = (model.name, str(model.layers), cells["hardware"], str(layout.gpus), layout.precision)
    return Row(model, cluster_of(device, layout.gpus), layout, group, cells["source"], seconds=seconds)


_BRIDGE = {
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
    "Kimi_K2": "kimi-k2",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3_8B": "llama3-8b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
}


def bridge(cells: Cells) -> Row | None:
    """Pre-training rows of Megatron-Bridge's performance summary."""
    precision = "bf16" if "BF16" in cells["precision"] else "fp4" if "FP4" in cells["precision"] else "fp8"
    zero = 3 if whole(cells, "fsdp", 0) > 0 else 1
    layout = layout_of(cells, precision=precision, zero=zero, **_RECIPE)
    if cells["model"] not in _BRIDGE or cells["variant"] != "primary" or layout is None:
        return None
    if cells["task"] != "Pre-Training" or cells["hardware"].startswith("DGX-MI"):
        return None
    model = replace(_named(_BRIDGE[cells["model"]]), next_heads=0)
    return _recipe_row(cells, model, layout, number(cells, "step_time_s_derived"))


def foundry(cells: Cells) -> Row | None:
    """Composer with PyTorch FSDP and fused attention; hosts of A100 with 200 GB/s, of H100 with 400 GB/s."""
    gpus, size, steps = (whole(cells, n) for n in ("# GPUs", "MicroBatchSize", "GradAccum"))
    rate = number(cells, "Throughput (T/s)")
    model = replace(_named("mpt-" + cells["Model"]), positions=0)
    zero = 3 if cells["Sharding Strategy"] == "FULL_SHARD" else 2
    layout = Layout(
        data=gpus,
        micro_batch=size,
        microbatches=steps,
        sequence=whole(cells, "SeqLen (T)"),
        recompute="full" if cells["Activation Checkpointing"] == "True" else "none",
        zero=zero,
        fused_kernels=False,
        precision="fp8" if "fp8" in cells["Precision"] else "bf16",
    )
    if not rate:
        return None
    seconds = number(cells, "GlobalBatchSize (T)") / rate
    group = (cells["Model"], cells["GPU"], cells["# GPUs"], cells["SeqLen (T)"])
    return Row(model, cluster_of(read_hardware(cells["GPU"]), gpus), layout, group, cells["source"], seconds=seconds)


_MISC = {
    "LLAMA2-7B": "llama2-7b",
    "LLAMA2-13B": "llama2-13b",
    "LLAMA2-70B": "llama2-70b",
    "LLAMA3-8B": "llama3-8b",
    "LLAMA3-70B": "llama3-70b",
    "GPT3-175B": "gpt3-175b",
    "Nemotron-340B": "nemotron4-340b",
    "llama3_405b-layers4": "llama3-405b",
    "llama3_70b-layers12": "llama3-70b",
    "deepseekv2-layers4": "deepseek-v2",
    "deepseekv3-layers4": "deepseek-v3",
    "gpt3-175B": "gpt3-175b",
    "megatron-22B": "megatron-22b",
}


def misc(cells: Cells) -> Row | None:
    """NeMo 24.07, Korthikanti 2022, and Megatron-LM 0.14 on 8 B200 (SimuMax's validation)."""
    framework = cells["framework"]
    if cells["model"] not in _MISC or not framework.startswith(("NeMo 24", "Megatron-LM 0.14", "Megatron-LM (Kor")):
        return None
    old = "Korthikanti" in framework
    tuned = framework.startswith("NeMo")
    recompute = cells["recompute"].split(" ")[0].lower()
    layout = layout_of(
        cells,
        precision="fp8" if "FP8" in cells["precision"] else "bf16",
        recompute=recompute if recompute in ("full", "selective") else "none",
        fused_attention=not old,
        overlap=tuned,
        overlap_gather=tuned,
        tensor_overlap=tuned,
        sequence_parallel=recompute != "full" or not old,
    )
    if layout is None or cells["task"] not in ("pretrain", "Pre-Training", ""):
        return None
    model = _named(_MISC[cells["model"]])
    model = replace(model.with_layers(whole(cells, "n_layers", model.layers)), next_heads=0)
    hardware = "A100-80GB" if "A100" in cells["hardware"] else cells["hardware"]
    row = _recipe_row({**cells, "hardware": hardware}, model, layout, number(cells, "step_time_s"))
    return row and replace(row, memory=number(cells, "mem_gb") * 2**30)
