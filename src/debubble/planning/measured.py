"""Measured tables: each published set as rows of model, cluster, layout and what was seen.

What a table does not say of its framework stands here once per set, as a fact about that framework: whether scores of
attention were kept (Megatron-DeepSpeed of 2022), how stages were split, what was overlapped, how fast the network is.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..estimate.hardware import GIGA, Cluster, cluster_of
from ..estimate.model import Model
from ..estimate.read_hardware import read_hardware
from ..estimate.read_model import read_model
from ..plan import Layout, even_split

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run.

    Args:
        model: what was trained.
        cluster: on what.
        layout: how.
        group: what rows must share to be ranked against each other.
        source: repository, file, line and commit.
        status: ``ok``, or what the source calls a failure.
        seconds: of a step; 0 where there is none.
        memory: peak bytes of a device; 0 where there is none.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    group: tuple[str, ...]
    source: str
    status: str = "ok"
    seconds: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class Table:
    """One set: its file, which rows of it count, and how a row is read."""

    name: str
    file: str
    read: Callable[[Cells], Row | None]


def read_table(folder: Path, table: Table) -> list[Row]:
    """Rows of a set that can be predicted, exact repeats once; those that lack a shape or a size are left out."""
    with (folder / table.file).open(newline="", encoding="utf-8") as lines:
        rows = [row for cells in csv.DictReader(lines) if (row := table.read(cells)) is not None]
    seen: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.model, row.layout, row.cluster.gpus, row.cluster.device.name, row.seconds, row.status, row.group)
        if key not in seen or row.memory > seen[key].memory:
            seen[key] = row
    return list(seen.values())


def _number(cells: Cells, name: str, otherwise: float = 0.0) -> float:
    try:
        return float(cells.get(name) or otherwise)
    except ValueError:
        return otherwise


def _whole(cells: Cells, name: str, otherwise: int = 1) -> int:
    return int(_number(cells, name, otherwise))


def _layout(cells: Cells, **facts: object) -> Layout | None:
    """The layout in the common columns; None where batch, replicas and micro-batch do not fit together."""
    data, size, batch = _whole(cells, "dp"), _whole(cells, "mbs"), _whole(cells, "gbs")
    microbatches, rest = divmod(batch, data * size)
    if rest or microbatches < 1:
        return None
    chunks = _whole(cells, "vp")
    given = dict(
        tensor=_whole(cells, "tp"),
        pipeline=_whole(cells, "pp"),
        data=data,
        context=_whole(cells, "cp"),
        expert=_whole(cells, "ep"),
        chunks=chunks,
        micro_batch=size,
        microbatches=microbatches,
        sequence=_whole(cells, "seq_len"),
        schedule="interleaved" if chunks > 1 else "1f1b",
    )
    return Layout(**{**given, **facts})  # type: ignore[arg-type]


def _gpt(cells: Cells, heads: int, vocab: int) -> Model:
    sizes = {name: _whole(cells, name) for name in ("hidden", "ffn")}
    layers = _whole(cells, "n_layers")
    return Model(
        "gpt",
        layers,
        heads=heads,
        kv_heads=heads,
        vocab=vocab,
        gated=False,
        tied=True,
        biases=True,
        dropout=True,
        **sizes,
    )


# Megatron-DeepSpeed of 2021 and 2022: attention by batched products, no sequence parallelism, no overlap of
# data-parallel traffic with the pipeline (it reduces after the last backward).
_DEEPSPEED = dict(
    fused_attention=False,
    sequence_parallel=False,
    overlap=False,
    recompute="full",
    precision="fp16",
)


def _vtrain(which: str) -> Callable[[Cells], Row | None]:
    def read(cells: Cells) -> Row | None:
        layout = _layout(cells, zero=0, **_DEEPSPEED)
        if cells["set"] != which or layout is None:
            return None
        model = _gpt(cells, _whole(cells, "n_heads"), _whole(cells, "vocab", 51200))
        cluster = cluster_of(read_hardware("A100-80GB"), layout.gpus, gpus_per_node=8, nic=12.5 * GIGA)
        group = tuple(cells[n] for n in ("n_layers", "hidden", "seq_len", "gpus", "gbs"))
        return Row(model, cluster, layout, group, cells["source"], seconds=_number(cells, "step_time_s"))

    return read


def _bigscience(cells: Cells) -> Row | None:
    """Jean Zay: 4 cards of 100 Gb/s for 8 devices."""
    fp16 = cells["dtype"] == "fp16"
    facts = {**_DEEPSPEED, "precision": "fp16" if fp16 else "bf16"}
    layout = _layout(cells, zero=1, blocking_sends="DeepSpeed" in cells["schedule"], **facts)
    if cells["status"] == "missing" or layout is None:
        return None
    model = _gpt(cells, _whole(cells, "n_heads", _usual_heads(_whole(cells, "hidden"))), 250880)
    if "transformer|embedding" in cells["note"]:
        layout = replace(layout, layers=_ends_counted(model.layers, layout.stages))
    cluster = cluster_of(read_hardware("A100-80GB"), layout.gpus, gpus_per_node=8, nic=6.25 * GIGA)
    group = tuple(cells[n] for n in ("n_layers", "hidden", "gpus", "gbs", "dtype"))
    seen = (_number(cells, "step_time_s"), _number(cells, "mem_gb") * GIGA)
    return Row(model, cluster, layout, group, cells["source"], cells["status"], *seen)


def _usual_heads(hidden: int) -> int:
    """Heads where the chronicle does not print them: those of its other runs of that width."""
    return {14400: 32, 13824: 96}.get(hidden, 96)


def _ends_counted(layers: int, stages: int) -> tuple[int, ...]:
    """Even stages where embedding and head count as a layer each."""
    split = list(even_split(layers + 2, stages))
    split[0] -= 1
    split[-1] -= 1
    return tuple(split)


# huggingface/nanotron, examples/config_tiny_llama_bench.yaml@67c5ebb, from which scripts/scaling_benchmarks.py makes its
# runs: ddp_bucket_cap_mb 25, fp32 accumulation, REDUCE_SCATTER, and no tp_recompute_allgather yet.
_NANOTRON = dict(bucket=25e6, fused_kernels=False, keep_gathered=True)


def _ultrascale(cells: Cells) -> Row | None:
    """Hosts of 8 H100, 400 GB/s a host."""
    if cells["status"] == "flagged_failed_with_numbers" or _whole(cells, "pp") > _whole(cells, "n_layers"):
        return None
    layout = _layout(cells, zero=_whole(cells, "zero_stage", 0), **_NANOTRON)
    heads = _whole(cells, "n_heads")
    model = Model(
        cells["model"],
        *(_whole(cells, n) for n in ("n_layers", "hidden", "ffn")),
        heads,
        _whole(cells, "kv_heads_inferred", heads),
        _whole(cells, "vocab"),
        tied=cells["tied_emb"] == "True",
    )
    if layout is None:
        return None
    layout = replace(layout, layers=_by_weights(model, layout.stages))
    cluster = cluster_of(read_hardware("H100"), layout.gpus)
    group = tuple(cells[n] for n in ("model", "gpus", "gbs"))
    clean = cells["legacy_pp_suspect"] == "0" and _number(cells, "mfu_pct_reported") >= 10
    status = "ok" if cells["status"] == "ok" and clean else "suspect" if cells["status"] == "ok" else cells["status"]
    seen = (_number(cells, "step_time_s"), _number(cells, "peak_mem_gib_reported") * 2**30)
    return Row(model, cluster, layout, group, cells["source"], status, *seen)


def _by_weights(model: Model, stages: int) -> tuple[int, ...]:
    """The split of nanotron: blocks dealt out in order, a stage closed by the block that passes its share of the weights.

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
_RECIPE = dict(tensor_overlap=True, overlap=True, overlap_gather=True)


def _dgxc(cells: Cells) -> Row | None:
    name = next((model for word, model in _DGXC.items() if word in cells["model_title"].lower()), None)
    layout = _layout(cells, precision=cells["precision"].lower(), **_RECIPE)
    if name is None or layout is None or cells["consistent"] != "yes" or cells["task"] != "pretrain":
        return None
    model = replace(_named(name), layers=_whole(cells, "n_layers", _named(name).layers), next_heads=0)
    return _recipe_row(cells, model, layout, _number(cells, "step_time_s"))


def _recipe_row(cells: Cells, model: Model, layout: Layout, seconds: float) -> Row | None:
    device = read_hardware(re.sub(r"^DGX-|-SXM$", "", cells["hardware"]))
    if layout.expert > layout.data * layout.context or layout.stages > model.layers or seconds <= 0:
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


def _bridge(cells: Cells) -> Row | None:
    precision = "bf16" if "BF16" in cells["precision"] else "fp4" if "FP4" in cells["precision"] else "fp8"
    zero = 3 if _whole(cells, "fsdp", 0) > 0 else 1
    layout = _layout(cells, precision=precision, zero=zero, **_RECIPE)
    if cells["model"] not in _BRIDGE or cells["variant"] != "primary" or layout is None:
        return None
    if cells["task"] != "Pre-Training" or cells["hardware"].startswith("DGX-MI"):
        return None
    model = replace(_named(_BRIDGE[cells["model"]]), next_heads=0)
    return _recipe_row(cells, model, layout, _number(cells, "step_time_s_derived"))


def _foundry(cells: Cells) -> Row | None:
    """Composer with PyTorch FSDP and fused attention; hosts of A100 with 200 GB/s, of H100 with 400 GB/s."""
    gpus, size, steps = (_whole(cells, n) for n in ("# GPUs", "MicroBatchSize", "GradAccum"))
    rate = _number(cells, "Throughput (T/s)")
    model = replace(_named("mpt-" + cells["Model"]), positions=0)
    zero = 3 if cells["Sharding Strategy"] == "FULL_SHARD" else 2
    layout = Layout(
        data=gpus,
        micro_batch=size,
        microbatches=steps,
        sequence=_whole(cells, "SeqLen (T)"),
        recompute="full" if cells["Activation Checkpointing"] == "True" else "none",
        zero=zero,
        fused_kernels=False,
        precision="fp8" if "fp8" in cells["Precision"] else "bf16",
    )
    if not rate:
        return None
    seconds = _number(cells, "GlobalBatchSize (T)") / rate
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


def _misc(cells: Cells) -> Row | None:
    framework = cells["framework"]
    if cells["model"] not in _MISC or not framework.startswith(("NeMo 24", "Megatron-LM 0.14", "Megatron-LM (Kor")):
        return None
    old = "Korthikanti" in framework
    tuned = framework.startswith("NeMo")
    recompute = cells["recompute"].split(" ")[0].lower()
    layout = _layout(
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
    model = replace(model, layers=_whole(cells, "n_layers", model.layers), next_heads=0)
    hardware = "A100-80GB" if "A100" in cells["hardware"] else cells["hardware"]
    row = _recipe_row({**cells, "hardware": hardware}, model, layout, _number(cells, "step_time_s"))
    return row and replace(row, memory=_number(cells, "mem_gb") * 2**30)


TABLES = (
    Table("vtrain multi", "vtrain_a100.csv", _vtrain("multi")),
    Table("bigscience", "bigscience_a100.csv", _bigscience),
    Table("ultrascale clean", "ultrascale_h100.csv", _ultrascale),
    Table("vtrain single", "vtrain_a100.csv", _vtrain("single")),
    Table("dgxc", "dgxc_benchmarking.csv", _dgxc),
    Table("megatron bridge", "megatron_bridge.csv", _bridge),
    Table("llm foundry", "llm_foundry_fsdp.csv", _foundry),
    Table("misc", "misc_published.csv", _misc),
)


def tables_in(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Name and rows of each known set whose file lies in a folder."""
    for table in TABLES:
        if (folder / table.file).is_file():
            yield table.name, read_table(folder, table)
