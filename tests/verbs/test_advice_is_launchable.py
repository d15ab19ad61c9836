"""No first recommendation that its own framework's ``check`` refuses, over random launches of two frameworks.

A recommendation is read back from its words, put into the launch script, and the script is given to ``check``, which
knows of no remedies.
"""

import re

import numpy as np
import pytest

import debubble

LAUNCH = "torchrun --nnodes {nodes} --nproc_per_node 8 {program} {flags}\n"
MICRO = re.compile(r"(\d+) micro-batches of (\d+) instead of (\d+)")
STAGES = re.compile(r"PP=(\d+) with DP=(\d+)")
CHUNKS = re.compile(r"([\w-]+) with (\d+) chunks")
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble",
         "looped-bfs": "LoopedBFS", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV"}  # fmt: skip


def drawn(rng) -> dict[str, int]:
    """A launch of Megatron-LM or torchtitan that divides: devices, degrees, layers and batch."""
    pipeline, data = int(rng.choice([2, 4, 8])), int(rng.choice([1, 2, 4]))
    tensor = int(rng.choice([size for size in (1, 2, 4, 8) if pipeline * data * size % 8 == 0 or size == 8]))
    layers = pipeline * int(rng.choice([2, 3, 4, 6, 8]))
    micro_batch, microbatches = int(rng.choice([1, 2, 4, 6])), int(rng.integers(1, 5)) * pipeline
    return {
        "pipeline": pipeline,
        "data": data,
        "tensor": tensor,
        "layers": layers,
        "micro_batch": micro_batch,
        "microbatches": microbatches,
        "gpus": pipeline * data * tensor,
        "batch": data * micro_batch * microbatches,
        "chunks": 1,
    }


def megatron(job: dict, schedule: str = "1f1b") -> str:
    flags = {
        "num-layers": job["layers"],
        "num-attention-heads": 32,
        "hidden-size": 4096,
        "seq-length": 2048,
        "pipeline-model-parallel-size": job["pipeline"],
        "tensor-model-parallel-size": job["tensor"],
        "micro-batch-size": job["micro_batch"],
        "global-batch-size": job["batch"],
    }
    if schedule == "interleaved":
        flags["num-layers-per-virtual-pipeline-stage"] = job["layers"] // (job["pipeline"] * job["chunks"])
    assert schedule in ("1f1b", "interleaved"), schedule
    return _script("pretrain_gpt.py", {f"--{key}": value for key, value in flags.items()}, job)


def torchtitan(job: dict, schedule: str = "1f1b") -> str:
    flags = {
        "--parallelism.pipeline_parallel_degree": job["pipeline"],
        "--parallelism.tensor_parallel_degree": job["tensor"],
        "--parallelism.data_parallel_shard_degree": job["data"],
        "--parallelism.pipeline_parallel_schedule": NAMES[schedule],
        "--parallelism.pipeline_parallel_microbatch_size": job["micro_batch"],
        "--training.local_batch_size": job["micro_batch"] * job["microbatches"],
        "--training.seq_len": 2048,
        "--model.n_layers": job["layers"],
    }
    assert job["chunks"] == 1 + (schedule not in ("1f1b", "gpipe"))  # what it takes by itself
    return _script("torchtitan/train.py", flags, job)


def _script(program: str, flags: dict, job: dict) -> str:
    words = " ".join(f"{key} {value}" for key, value in flags.items())
    return LAUNCH.format(nodes=max(1, job["gpus"] // 8), program=program, flags=words)


def applied(job: dict, change: str) -> tuple[dict, str]:
    """The launch as the words of a change say it."""
    job, schedule = dict(job), "1f1b"
    for part in change.split(" + "):
        if (micro := MICRO.fullmatch(part)) is not None:
            assert job["micro_batch"] == int(micro[3])
            job |= {"microbatches": int(micro[1]), "micro_batch": int(micro[2])}
        elif (stages := STAGES.fullmatch(part)) is not None:
            half = int(stages[1]) / job["pipeline"]
            job |= {"pipeline": int(stages[1]), "data": int(stages[2]), "microbatches": int(job["microbatches"] * half)}
        elif (chunks := CHUNKS.fullmatch(part)) is not None:
            schedule, job["chunks"] = chunks[1], int(chunks[2])
        else:
            schedule = part
    return job, schedule


@pytest.mark.parametrize("emit", [megatron, torchtitan])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_advised_first_is_legal_keeps_the_batch_and_has_whole_micro_batches(tmp_path, emit, seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        job = drawn(rng)
        path = tmp_path / "launch.sh"
        path.write_text(emit(job))
        if debubble.check(path, framework=emit.__name__).legal:
            break
    found = debubble.why(path)
    assert found.run.pipeline == job["pipeline"]
    for way in found.next:
        changed, schedule = applied(job, way.change)
        assert changed["data"] * changed["micro_batch"] * changed["microbatches"] == job["batch"]
        assert way.microbatches == changed["microbatches"]
        path.write_text(emit(changed, schedule))
        checked = debubble.check(path, framework=emit.__name__)
        assert checked.legal, (job, way.change, [fault.rule for fault in checked.faults])
