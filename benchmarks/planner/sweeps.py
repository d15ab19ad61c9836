"""Sweeps of layouts: vTrain, BigScience and Ultra-Scale, with what their tables do not say of their frameworks.

Each such fact is said here once for a source: whether scores of attention were kept (Megatron-DeepSpeed of 2022), how
stages were split, what was overlapped, how fast the network is.
"""

from __future__ import annotations

from common import Cells, Source, flag, gpu_of, most_common, number, split_of, text, usual, whole

from debubble.config.config import even_split

GIB = 2.0**30

# The bucket of gradients that DeepSpeed flattens into a copy, which the allocator keeps (elements_per_buffer in
# runtime/engine.py, numel_per_bucket in runtime/zero/stage_1_and_2.py).
FLATTENED = 5e8
GPT = {"kv_heads": "", "tied": "1", "gated": "0", "biases": "1", "dropout": "1"}  # kv_heads: as many as heads

# Megatron-DeepSpeed of 2021 and 2022: attention by batched products, no sequence parallelism, no overlap of
# data-parallel traffic with the pipeline (it reduces after the last backward). A tensor group shares out its hops:
# microsoft/DeepSpeed@0050fda runtime/pipe/engine.py, is_pipe_partitioned and is_grad_partitioned.
MEGATRON_DEEPSPEED = {
    "framework": "deepspeed",
    "precision": "fp16",
    "sequence_parallel": "0",
    "data_overlap": "0",
    "recompute": "full",
    "fused_attention": "0",
    "scattered_sends": "1",
}


def vtrain(cells: Cells) -> Cells:
    """Hosts of 8 A100 with 800 Gb/s; replicas share nothing out; nothing says that its hops block."""
    return {
        **usual(cells),
        **GPT,
        **MEGATRON_DEEPSPEED,
        "gpu": gpu_of(cells["hardware"]),
        "gpus_per_node": "8",
        "nic_gb_s": "12.5",
        "zero": "0",
        "blocking_sends": "0",
        "group": _group(cells, "n_layers", "hidden", "seq_len", "gpus", "gbs"),
    }


def bigscience(cells: Cells) -> Cells:
    """Jean Zay: 4 cards of 100 Gb/s for 8 devices; CUDA_LAUNCH_BLOCKING=1, without which runs of this size hung.

    Told in bigscience-workshop/bigscience@053adaf train/tr11-176B-ml/chronicles-prequel.md, 'dealing with JZ hanging'.
    """
    row = usual(cells)
    split = _ends_counted if "transformer|embedding" in cells["note"] else _filled
    stages = int(row["pipeline"]) * int(row["chunks"])
    return {
        **row,
        **GPT,
        **MEGATRON_DEEPSPEED,
        "precision": row["precision"],
        "gpu": gpu_of(cells["hardware"]),
        "gpus_per_node": "8",
        "nic_gb_s": "6.25",
        "split": split_of(split(int(row["layers"]), stages)),
        "blocking_sends": flag("DeepSpeed" in cells["schedule"]),
        "blocking_launches": "1",
        "gradient_copies": "2" if row["precision"] == "bf16" else "0",  # DeepSpeed's BF16_Optimizer keeps both
        "device_gib": text(_without_copy(row, number(cells, "mem_gb") * 1e9) / GIB),
        "group": _group(cells, "n_layers", "hidden", "gpus", "gbs", "dtype"),
    }


def _without_copy(row: Cells, shown: float) -> float:
    """Bytes that nvidia-smi shows, as the chronicle read them, less the copy of a bucket; 0 if it shows none."""
    if not shown:
        return 0.0
    width = 4 if row["precision"] == "bf16" else 2  # its BF16_Optimizer reduces fp32 gradients
    return shown - width * FLATTENED


def with_usual_heads(rows: list[Cells]) -> list[Cells]:
    """Heads that the chronicle does not print: those of most of its other runs of that width."""
    heads = most_common(rows, "hidden", "n_heads")
    return [{**cells, "n_heads": cells["n_heads"] or heads.get(cells["hidden"], "")} for cells in rows]


def _filled(layers: int, stages: int) -> tuple[int, ...]:
    """DeepSpeed's split: every stage up to the most that any needs, the rest on the last (78 over 12: 7 .. 7, 1)."""
    most = -(-layers // stages)
    return tuple(min(max(layers - stage * most, 0), most) for stage in range(stages))


def _ends_counted(layers: int, stages: int) -> tuple[int, ...]:
    """Even stages if embedding and head count as a layer each."""
    split = list(even_split(layers + 2, stages))
    split[0] -= 1
    split[-1] -= 1
    return tuple(split)


def ultrascale(cells: Cells) -> Cells:
    """Hosts of 8 H100, 400 GB/s a host, nanotron.

    huggingface/nanotron, examples/config_tiny_llama_bench.yaml@67c5ebb, from which scripts/scaling_benchmarks.py makes
    its runs: ddp_bucket_cap_mb 25, fp32 accumulation, REDUCE_SCATTER with tp_linear_async_communication, and what is
    gathered is gathered again (tp_recompute_allgather, on if nothing is said). Its linear layers cut their products in
    three around the collective: parallel/tensor_parallel/functional.py@00708b8. Nothing gathers weights beside the
    forward: with ZeRO-1 they are gathered after the update, tensor by tensor (optim/zero.py), and gradients
    reduced for all (trainer.py, reduce_scatter=False).
    """
    row = usual(cells)
    return {
        **row,
        "tied": flag(cells["tied_emb"] == "True"),
        "gpu": gpu_of(cells["hardware"].split("-80GB")[0]),
        "split": split_of(_by_weights(cells)) if int(row["pipeline"]) <= int(row["layers"]) else "",
        "sequence_parallel": "1",
        "data_overlap": "1",
        "gather_overlap": "0",
        "gather_by_tensor": "1",
        "fused_kernels": "0",
        "pieces": "3",
        "bucket_bytes": "25000000",
        "gradient_copies": "4",  # in 16 bits: those of a whole backward, and DDP's buckets
        "peak_gib": cells["peak_mem_gib_reported"],
        "time_doubt": _doubt(cells),
        "group": _group(cells, "model", "gpus", "gbs"),
    }


def _doubt(cells: Cells) -> str:
    """Why a step is not to be trusted, as the table's own README says; empty if it is."""
    if cells["status"] != "ok":
        return ""
    if cells["legacy_pp_suspect"] != "0":
        return "a slot near one second whatever its size: before the pipeline code was rewritten"
    if number(cells, "mfu_pct_reported") < 10:
        return "less than 10 % MFU: clean rows only"
    return ""


def _by_weights(cells: Cells) -> tuple[int, ...]:
    """The split of nanotron: blocks dealt out in order, a stage closed by the block that passes its share.

    Read in huggingface/nanotron@01de8d9 ``models/base.py``: the head counts V h, the embedding nothing.
    """
    layers, hidden, ffn, vocab, stages = (int(whole(cells, n)) for n in ("n_layers", "hidden", "ffn", "vocab", "pp"))
    layer = 4 * hidden**2 + 3 * ffn * hidden
    everything = layers * layer + vocab * hidden
    counts, stage, passed = [0] * stages, 0, 0
    for _ in range(layers):
        counts[stage] += 1
        passed += layer
        if passed > everything * (stage + 1) / stages:
            stage += 1
    return tuple(counts)


def _group(cells: Cells, *names: str) -> str:
    """What rows must share that a user would choose between."""
    return " ".join(cells[name] or "-" for name in names)


SWEEPS = (
    Source(
        frozenset({"set", "params_b_label", "step_time_s"}),
        vtrain,
        lambda cells, _: f"vtrain {cells['set']}",
    ),
    Source(
        frozenset({"model_size_label", "mem_gb", "tflops_gpu_reported", "dtype"}),
        bigscience,
        lambda _cells, _stem: "bigscience",
        with_usual_heads,
    ),
    Source(
        frozenset({"legacy_pp_suspect", "peak_mem_gib_reported", "mfu_pct_reported", "tied_emb"}),
        ultrascale,
        lambda _cells, _stem: "ultrascale clean",
    ),
)
