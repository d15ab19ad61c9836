"""Sound inputs of every kind that a verb reads, as small as they can be: what mutators start from."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from worlds import World, pour

MS = 1_000_000


def kineto(folder: Path) -> None:
    """A file a rank, calls and kernels, named ops in one, messages in all."""
    pour(World(ranks=2, units=2, steps=2, labels=True, drift={1: 40.0}), folder)


def unnamed(folder: Path) -> None:
    """The same without names, of two replicas."""
    pour(World(ranks=2, units=2, steps=1, data=2, offset={1: 3.0}), folder)


def chrome(folder: Path) -> None:
    """Lanes of one process, begin and end events, arguments that tell ops."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "rank 0"}}
    ]
    for rank, letter, unit, start, end in _rows():
        said = {"microbatch": unit, "pp_rank": rank, "iteration": 3, "model_chunk": 0}
        name = "forward_step" if letter == "F" else "backward_step"
        for phase, moment in (("B", start), ("E", end)):
            events.append({"ph": phase, "name": name, "pid": rank, "tid": 1, "ts": moment / 1e3, "args": said})
    (folder / "trace.json").write_text(json.dumps(events))


def table(folder: Path) -> None:
    """A CSV of ops."""
    (folder / "ops.csv").write_text(_text(["rank", "step", "op", "stage", "microbatch", "start_us", "end_us"]))


def arrow(folder: Path) -> None:
    """A Parquet table of ops."""
    ranks, letters, units, starts, ends = zip(*_rows(), strict=True)
    columns = {"rank": ranks, "op": letters, "microbatch": units, "start_ns": starts, "end_ns": ends}
    parquet.write_table(pa.table({name: list(values) for name, values in columns.items()}), folder / "ops.parquet")


def nsight(folder: Path) -> None:
    """The tables that a pipeline is read from, of an export of Nsight Systems."""
    with sqlite3.connect(folder / "run.sqlite") as base:
        base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        base.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER)"
        )
        shape = "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER"
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({shape}, nameId INTEGER)")
        shape = (
            "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
        )
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({shape}, shortName INTEGER, demangledName INTEGER)")
        base.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel')")
        for i, (rank, letter, unit, start, end) in enumerate(_rows(), start=1):
            thread = (rank + 1) << 24
            base.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, ?)", (start, end, f"{rank}{letter}{unit}", thread)
            )
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 2)", (start, start + 1, thread, i)
            )
            row = (start, end, rank, 7, i, thread, 1, 1)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def primus(folder: Path) -> None:
    """Timings of events by iteration, and the configuration beside them."""
    for rank in range(2):
        mine = [row for row in _rows() if row[0] == rank]
        told: dict[str, object] = {"total": 100.0, "memory": 2.0}
        for name, letter in (("fwd", "F"), ("bwd", "B")):
            told[f"{name}_start"] = [row[3] / 1e6 for row in mine if row[1] == letter]
            told[f"{name}_end"] = [row[4] / 1e6 for row in mine if row[1] == letter]
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps({"3": told, "4": told}))
    (folder / "config.json").write_text(json.dumps({"pp_size": 2, "vp_size": 1, "num_mbs": 2}))


def torch_order(folder: Path) -> None:
    """A schedule as torch writes it."""
    (folder / "order.csv").write_text("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n")


def megatron_log(folder: Path) -> None:
    """Lines of Megatron-LM."""
    lines = ["using world size: 8, data-parallel size: 2, pipeline-model-parallel size: 4", "micro_batch_size .... 2"]
    for step in range(1, 9):
        batch = 16 if step < 5 else 32
        lines.append(
            f"iteration {step:8d}/ 100 | consumed samples: {16 * step} | elapsed time per iteration (ms): "
            f"{1000.0 + batch * 20 + step % 3:.1f} | global batch size: {batch:5d} | lm loss: 9.1E+00"
        )
    (folder / "run.log").write_text("\n".join(lines))


def deepspeed_log(folder: Path) -> None:
    """Lines of DeepSpeed."""
    lines = [f"steps: {10 * i} loss: 2.5 iter time (s): {1.5 + i % 2 / 100:.3f} samples/sec: 20.1" for i in range(1, 9)]
    (folder / "run.log").write_text("\n".join(lines))


def step_table(folder: Path) -> None:
    """Step times by batch."""
    rows = [f"{batch},{0.2 + batch / 100:.3f}" for batch in (8, 16, 32, 64) for _ in range(2)]
    (folder / "steps.csv").write_text("\n".join(["batch,seconds", *rows]))


def job(folder: Path) -> None:
    """A job file."""
    (folder / "job.toml").write_text(
        'name = "eight"\ngpus = 8\npipeline = 4\ntensor = 1\ndata = 2\nmicrobatches = 4\nmicro_batch = 1\n'
        'sequence = 4096\nschedule = "1f1b"\nforward = "10ms"\nbackward = 20\ntransfer = "35us"\n'
        "stage_scale = [1, 1, 1, 1.6]\n[measured]\nutilisation = 0.61\n"
    )


def script(folder: Path) -> None:
    """A launch script of Megatron-LM."""
    (folder / "run.sh").write_text(
        "#!/bin/bash\nPP=4\nARGS=(--num-layers 32 --hidden-size 4096)\nexport N=${N:-8}\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py --pipeline-model-parallel-size $PP ${ARGS[@]} \\\n"
        "  --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size $((N * 4)) --seq-length 4096\n"
    )


def settings(folder: Path) -> None:
    """A configuration as YAML."""
    (folder / "run.yaml").write_text(
        "trainer: {devices: 8, num_nodes: 2}\nmodel:\n  tensor_model_parallel_size: 2\n"
        "  pipeline_model_parallel_size: 4\n  micro_batch_size: 1\n  global_batch_size: 64\n  num_layers: 32\n"
    )


def deepspeed(folder: Path) -> None:
    """A configuration of DeepSpeed."""
    found = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
    (folder / "ds.json").write_text(json.dumps({**found, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 1}}))


def measured(folder: Path) -> None:
    """Measured runs for the planner."""
    head = "model,gpu,gpus,tensor,pipeline,data,micro_batch,global_batch,sequence,step_seconds"
    rows = [f"llama2-7b,a100-80gb,8,1,{p},{8 // p},1,64,4096,{4.0 + p / 10}" for p in (1, 2, 4)]
    (folder / "runs.csv").write_text("\n".join([head, *rows]))


def architecture(folder: Path) -> None:
    """A model's configuration of Hugging Face."""
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 32000,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
            }
        )
    )


def _rows() -> list[tuple[int, str, int, int, int]]:
    """Rank, letter, micro-batch, start and end of 1F1B on two ranks."""
    first = [("F", 0, 0, 10), ("F", 1, 10, 20), ("B", 0, 40, 60), ("B", 1, 70, 90)]
    last = [("F", 0, 10, 20), ("B", 0, 20, 40), ("F", 1, 40, 50), ("B", 1, 50, 70)]
    found = [(rank, *row) for rank, rows in enumerate((first, last)) for row in rows]
    return [(rank, letter, unit, start * MS, end * MS) for rank, letter, unit, start, end in found]


def _text(header: list[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for step in (1, 2):
        for rank, letter, unit, start, end in _rows():
            writer.writerow(
                [rank, step, letter, rank, unit, start // 1000 + step * 100_000, end // 1000 + step * 100_000]
            )
    return out.getvalue()


# How many inputs of each kind are drawn in proportion, and the verbs that read it.
SEEDS: dict[Callable[[Path], None], tuple[int, tuple[str, ...]]] = {
    kineto: (4, ("diagnose", "why")),
    unnamed: (2, ("diagnose",)),
    chrome: (3, ("diagnose",)),
    table: (4, ("diagnose", "why")),
    arrow: (2, ("diagnose",)),
    nsight: (3, ("diagnose",)),
    primus: (3, ("diagnose",)),
    torch_order: (3, ("check", "show")),
    megatron_log: (3, ("fit", "why")),
    deepspeed_log: (2, ("fit", "why")),
    step_table: (2, ("fit", "why")),
    job: (2, ("check", "show")),
    script: (3, ("check",)),
    settings: (2, ("check",)),
    deepspeed: (1, ("check",)),
    measured: (1, ("validate",)),
}
