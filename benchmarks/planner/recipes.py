"""Tuned recipes: single layouts that vendors and frameworks publish with their speed, each table with its recipe."""

from __future__ import annotations

from common import Cells, Source, flag, gpu_of, model_of, number, precision_of, recompute_of, text, usual, whole

GIB = 2.0**30

# NVIDIA's own recipes hide tensor and data-parallel traffic, keep no scores and use the distributed optimizer:
# NVIDIA-NeMo/Megatron-Bridge@067f987 recipes, tp_comm_overlap, overlap_grad_reduce, overlap_param_gather,
# use_distributed_optimizer. Their gradients stay in bf16 and their loss is fused (perf_recipes/_common.py,
# grad_reduce_in_fp32, cross_entropy_fusion_impl); NeMo 24 has grad_sync_dtype: bf16.
NVIDIA = {
    "framework": "nemo",
    "zero": "1",
    "sequence_parallel": "1",
    "tensor_overlap": "1",
    "data_overlap": "1",
    "gradient_precision": "bf16",
    "fused_loss": "1",
    "next_layers": "0",  # none of their tables counts extra prediction heads unless its title says so
}


def dgxc(cells: Cells) -> Cells:
    """Recipes of NVIDIA's dgxc-benchmarking, pre-training and fine-tuning."""
    row = usual(cells)
    doubt = "" if cells["consistent"] == "yes" else "tokens a second and step contradict each other"
    return {**row, **NVIDIA, **_recipe(cells["model_title"], cells), "time_doubt": doubt}


def bridge(cells: Cells) -> Cells:
    """Megatron-Bridge's performance summary; a sharding group above 0 is FSDP, which shares out weights too."""
    row = usual(cells)
    title, _, kind = cells["model"].partition(" (")
    doubt = f"not the plain recipe: {kind.rstrip(')')}" if kind else ""
    if cells["variant"] != "primary":
        doubt = "second figure of a cell of its table"
    row |= NVIDIA | _recipe(title, cells)
    row |= {"framework_version": cells["container"], "time_doubt": doubt}
    row["zero"] = "3" if number(cells, "fsdp") > 0 else "1"
    if number(cells, "ep") > 1:
        row |= _of_experts(cells)
    return row


def _of_experts(cells: Cells) -> Cells:
    """What the recipes of a container do for mixtures of experts (Megatron-Bridge@067f987 perf_recipes and history).

    From 25.11 on tokens go through DeepEP or HybridEP, and beside another micro-batch in a pipeline; from 26.06 on
    whole iterations in MXFP8 are CUDA graphs, and that overlap is on without a pipeline too.
    """
    container = float(".".join(cells["container"].split(".")[:2]))
    graphs = container >= 26.06 and "MXFP8" in cells["precision"]
    overlaps = container >= 25.11 and number(cells, "pp") > 1
    return {
        "graphs": flag(graphs),
        "flex_dispatch": flag(container >= 25.11),
        "expert_overlap": flag(graphs or overlaps),
    }


def _recipe(title: str, cells: Cells) -> Cells:
    model, gpu = model_of(title), gpu_of(cells["hardware"])
    return {
        "model": model,
        "gpu": gpu,
        "group": " ".join(
            [model, whole(cells, "n_layers") or "-", gpu, cells["gpus"], precision_of(cells.get("precision", ""))]
        ),
    }


def foundry(cells: Cells) -> Cells:
    """Composer with PyTorch FSDP and fused attention, one replica on each device."""
    rate = number(cells, "Throughput (T/s)")
    return {
        "model": f"mpt-{cells['Model']}",
        "positions": "0",  # longer sequences than learned positions are there for
        "gpu": gpu_of(cells["GPU"]),
        "gpus": cells["# GPUs"],
        "framework": "torch",
        "precision": "fp8" if "fp8" in cells["Precision"] else "bf16",
        "sequence": whole(cells, "SeqLen (T)"),
        "global_batch": whole(cells, "GlobalBatchSize"),
        "micro_batch": whole(cells, "MicroBatchSize"),
        **dict.fromkeys(("tensor", "pipeline", "context", "expert", "chunks"), "1"),
        "data": cells["# GPUs"],
        "zero": "3" if cells["Sharding Strategy"] == "FULL_SHARD" else "2",
        "recompute": "full" if cells["Activation Checkpointing"] == "True" else "none",
        "data_overlap": "1",
        "gather_overlap": "0",
        "fused_kernels": "0",
        "weights_are_master": "1",  # FSDP casts its fp32 weights
        "fused_loss": "1",  # loss_fn: fused_crossentropy, llm-foundry's own choice
        "status": "ok",
        "step_seconds": text(number(cells, "GlobalBatchSize (T)") / rate) if rate else "",
        "group": " ".join(cells[name] for name in ("Model", "GPU", "# GPUs", "SeqLen (T)")),
        "source": cells["source"],
        "note": cells["section"],
    }


def misc(cells: Cells) -> Cells:
    """Tables of many frameworks; what each says of its switches is told by its name.

    NeMo 24.07 hides traffic as NVIDIA's recipes do; Megatron-LM 0.14 of SimuMax's validation ran without overlap;
    Korthikanti 2022 came before fused attention, and has sequence parallelism where it recomputes selectively.
    """
    row = usual(cells)
    framework = cells["framework"]
    tuned = flag(framework.startswith("NeMo 2"))
    old = "Korthikanti" in framework
    row |= _recipe(cells["model"], cells)
    if "SimuMax" in framework:
        row["dense_layers"] = "1"  # of models with experts: docs/b200/b200_release_v1.2_summary.md
    if framework.startswith("NeMo 2"):
        row |= {"gradient_precision": "bf16", "fused_loss": "1"}
    if "AutoModel" in framework:
        row["time_doubt"] = "what it gathers and flushes in each step of accumulation is not said"
    row |= {
        "framework": framework.split()[0].lower().removesuffix("-lm"),
        "framework_version": framework.partition(" ")[2],
        "zero": "3" if number(cells, "fsdp") > 1 else "1",
        "sequence_parallel": flag(not (old and recompute_of(cells["recompute"]) == "full")),
        "tensor_overlap": tuned,
        "data_overlap": tuned,
        "fused_attention": flag(not old),
        "next_layers": "0",
        "peak_gib": text(number(cells, "mem_gb")),
    }
    return row


def mlperf(cells: Cells) -> Cells:
    """Results of MLPerf Training: NVIDIA's submissions run its own recipes."""
    row = usual(cells)
    peak = number(cells, "mem_gib") or number(cells, "mem_gb") * 1e9 / GIB
    return {**row, **NVIDIA, **_recipe(cells.get("model") or cells.get("benchmark", ""), cells), "peak_gib": text(peak)}


RECIPES = (
    Source(
        frozenset({"model_title", "tokens_s_published", "consistent"}),
        dgxc,
        lambda _cells, _stem: "dgxc",
    ),
    Source(
        frozenset({"container", "fsdp", "variant", "step_time_s_derived"}),
        bridge,
        lambda _cells, _stem: "megatron bridge",
    ),
    Source(
        frozenset({"# GPUs", "Sharding Strategy", "Throughput (T/s)"}),
        foundry,
        lambda _cells, _stem: "llm foundry",
    ),
    Source(
        frozenset({"framework", "model", "fsdp", "model_tflops_gpu", "mem_gb", "task"}),
        misc,
        lambda _cells, _stem: "misc",
    ),
    Source(  # the common columns alone: a set of its own, named after its file
        frozenset({"gpus", "tp", "pp", "mbs", "gbs", "seq_len"}),
        mlperf,
        lambda _cells, stem: "mlperf" if "mlperf" in stem else stem.replace("_", " "),
        some_of=frozenset({"step_time_s", "step_time_s_derived", "tokens_s_gpu"}),
    ),
)
