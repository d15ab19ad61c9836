"""Sweeps of layouts: BigScience, vTrain and Ultra-Scale, with what their tables do not say of their frameworks.

Each such fact stands here once for a set: whether scores of attention were kept (Megatron-DeepSpeed of 2022), how
stages were split, what was overlapped, how fast the network is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..config.layout import even_split
from ..estimate.hardware import GIGA, cluster_of, read_hardware
from ..estimate.model import Model, transformer
from .rows import Cells, Row, layout_of, number, whole


def _gpt(cells: Cells, heads: int, vocab: int) -> Model:
    sizes: dict[str, Any] = {name: whole(cells, name) for name in ("hidden", "ffn")}
    layers = whole(cells, "n_layers")
    model = transformer("gpt", layers=layers, heads=heads, kv_heads=heads, vocab=vocab, gated=False, **sizes)
    return replace(model, tied=True, biases=True, dropout=True)


# Megatron-DeepSpeed of 2021 and 2022: attention by batched products, no sequence parallelism, no overlap of
# data-parallel traffic with the pipeline (it reduces after the last backward). A tensor group shares out its hops:
# microsoft/DeepSpeed@0050fda runtime/pipe/engine.py, is_pipe_partitioned and is_grad_partitioned.
_DEEPSPEED = {
    "fused_attention": False,
    "sequence_parallel": False,
    "overlap": False,
    "recompute": "full",
    "precision": "fp16",
    "scattered_sends": True,
}


def vtrain(which: str) -> Callable[[Cells], Row | None]:
    """Hosts of 8 A100 with 800 Gb/s; ``which`` of its two sets, single or multi."""

    def read(cells: Cells) -> Row | None:
        layout = layout_of(cells, zero=0, **_DEEPSPEED)
        if cells["set"] != which or layout is None:
            return None
        model = _gpt(cells, whole(cells, "n_heads"), whole(cells, "vocab", 51200))
        cluster = cluster_of(read_hardware("A100-80GB"), layout.gpus, gpus_per_node=8, nic=12.5 * GIGA)
        group = tuple(cells[n] for n in ("n_layers", "hidden", "seq_len", "gpus", "gbs"))
        return Row(model, cluster, layout, group, cells["source"], seconds=number(cells, "step_time_s"))

    return read


def bigscience(cells: Cells) -> Row | None:
    """Jean Zay: 4 cards of 100 Gb/s for 8 devices; CUDA_LAUNCH_BLOCKING=1, without which runs of this size hung.

    Told in bigscience-workshop/bigscience@053adaf train/tr11-176B-ml/chronicles-prequel.md, 'dealing with JZ hanging'.
    """
    fp16 = cells["dtype"] == "fp16"
    facts = {**_DEEPSPEED, "precision": "fp16" if fp16 else "bf16"}
    layout = layout_of(cells, zero=1, blocking_sends="DeepSpeed" in cells["schedule"], blocking_launches=True, **facts)
    if cells["status"] == "missing" or layout is None:
        return None
    model = _gpt(cells, whole(cells, "n_heads", _usual_heads(whole(cells, "hidden"))), 250880)
    ends = "transformer|embedding" in cells["note"]
    layout = replace(layout, layers=(_ends_counted if ends else _filled)(model.layers, layout.stages))
    cluster = cluster_of(read_hardware("A100-80GB"), layout.gpus, gpus_per_node=8, nic=6.25 * GIGA)
    group = tuple(cells[n] for n in ("n_layers", "hidden", "gpus", "gbs", "dtype"))
    seen = (number(cells, "step_time_s"), number(cells, "mem_gb") * GIGA)
    return Row(model, cluster, layout, group, cells["source"], cells["status"], *seen)


def _usual_heads(hidden: int) -> int:
    """Heads where the chronicle does not print them: those of its other runs of that width."""
    return {14400: 32, 13824: 96}.get(hidden, 96)


def _filled(layers: int, stages: int) -> tuple[int, ...]:
    """DeepSpeed's split: every stage up to the most that any needs, the rest on the last (78 over 12: 7 .. 7, 1)."""
    most = -(-layers // stages)
    return tuple(min(max(layers - stage * most, 0), most) for stage in range(stages))


def _ends_counted(layers: int, stages: int) -> tuple[int, ...]:
    """Even stages where embedding and head count as a layer each."""
    split = list(even_split(layers + 2, stages))
    split[0] -= 1
    split[-1] -= 1
    return tuple(split)


# huggingface/nanotron, examples/config_tiny_llama_bench.yaml@67c5ebb, from which scripts/scaling_benchmarks.py makes
# its runs: ddp_bucket_cap_mb 25, fp32 accumulation, REDUCE_SCATTER with tp_linear_async_communication, and what is
# gathered is gathered again (tp_recompute_allgather, on where nothing is said). Its linear layers cut their products
# in three around the collective: parallel/tensor_parallel/functional.py@00708b8.
_NANOTRON = {"bucket": 25e6, "fused_kernels": False, "pieces": 3}


def ultrascale(cells: Cells) -> Row | None:
    """Hosts of 8 H100, 400 GB/s a host."""
    if cells["status"] == "flagged_failed_with_numbers" or whole(cells, "pp") > whole(cells, "n_layers"):
        return None
    layout = layout_of(cells, zero=whole(cells, "zero_stage", 0), **_NANOTRON)
    heads = whole(cells, "n_heads")
    sizes: dict[str, Any] = {name: whole(cells, name) for name in ("hidden", "ffn", "vocab")}
    kv_heads = whole(cells, "kv_heads_inferred", heads)
    tied = cells["tied_emb"] == "True"
    model = transformer(cells["model"], layers=whole(cells, "n_layers"), heads=heads, kv_heads=kv_heads, **sizes)
    model = replace(model, tied=tied)
    if layout is None:
        return None
    layout = replace(layout, layers=_by_weights(model, layout.stages))
    cluster = cluster_of(read_hardware("H100"), layout.gpus)
    group = tuple(cells[n] for n in ("model", "gpus", "gbs"))
    clean = cells["legacy_pp_suspect"] == "0" and number(cells, "mfu_pct_reported") >= 10
    status = "ok" if cells["status"] == "ok" and clean else "suspect" if cells["status"] == "ok" else cells["status"]
    seen = (number(cells, "step_time_s"), number(cells, "peak_mem_gib_reported") * 2**30)
    return Row(model, cluster, layout, group, cells["source"], status, *seen)


def _by_weights(model: Model, stages: int) -> tuple[int, ...]:
    """The split of nanotron: blocks dealt out in order, a stage closed by the block that passes its share.

    Read in huggingface/nanotron@01de8d9 ``models/base.py``: the head counts V h, the embedding nothing.
    """
    layer = 4 * model.hidden**2 + 3 * model.ffn * model.hidden
    whole = model.layers * layer + model.vocab * model.hidden
    counts, stage, passed = [0] * stages, 0, 0
    for _ in range(model.layers):
        counts[stage] += 1
        passed += layer
        if passed > whole * (stage + 1) / stages:
            stage += 1
    return tuple(counts)
