"""No recommendation that its own framework's ``check`` refuses, over random launches, logs, runs and plans.

A recommendation is read back from its words, put into the launch script, and the script is given to ``check``, which
knows of no remedies. What ``plan`` proposes is emitted and given to ``check`` as it is: 275 launches, logs and runs
of two frameworks and 30 plans of six, with every layout that a plan lists.
"""

import re
from dataclasses import fields

import numpy as np
import pytest

import debubble
from debubble.config.config import Layout
from debubble.estimate.read_model import read_model
from debubble.frameworks.catalog import FRAMEWORKS
from debubble.planning.batch import sizes_of

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
@pytest.mark.parametrize("seed", range(55))
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
    launch_each(found.next, job, path, emit)


def launch_each(ways, job, path, emit) -> None:
    """Each way out as a launch script, which ``check`` takes at the batch there is."""
    for way in ways:
        changed, schedule = applied(job, way.change)
        assert changed["data"] * changed["micro_batch"] * changed["microbatches"] == job["batch"]
        assert way.microbatches == changed["microbatches"]
        path.write_text(emit(changed, schedule))
        checked = debubble.check(path, framework=emit.__name__)
        assert checked.legal, (job, way.change, [fault.rule for fault in checked.faults])


ARGUMENTS = "------------------------ arguments ------------------------\n"
STEP = " iteration {n:8d}/ 100 | elapsed time per iteration (ms): {ms:.1f} | global batch size: {batch:5d} |\n"


@pytest.mark.parametrize("seed", range(55))
def test_what_a_log_is_advised_is_legal_for_the_framework_that_wrote_it(tmp_path, seed):
    """A log of Megatron-LM begins with its arguments; nothing else says what it is."""
    rng = np.random.default_rng(1000 + seed)
    job = legal_job(rng, tmp_path, megatron)
    said = {
        "world_size": job["gpus"], "pipeline_model_parallel_size": job["pipeline"],
        "tensor_model_parallel_size": job["tensor"], "micro_batch_size": job["micro_batch"],
        "global_batch_size": job["batch"], "seq_length": 2048, "num_layers": job["layers"],
        "hidden_size": 4096, "num_attention_heads": 32,
    }  # fmt: skip
    head = "".join(f"  {key} {'.' * (48 - len(key))} {value}\n" for key, value in said.items())
    ms = rng.normal(2000, 20, 30)
    steps = "".join(STEP.format(n=n, ms=each, batch=job["batch"]) for n, each in enumerate(ms, 1))
    path = tmp_path / "run.log"
    path.write_text(ARGUMENTS + head + steps)
    found = debubble.why(path)
    assert found.run.pipeline == job["pipeline"]
    launch_each(found.next, job, tmp_path / "launch.sh", megatron)


@pytest.mark.parametrize("emit", [megatron, torchtitan])
@pytest.mark.parametrize("seed", range(55))
def test_what_a_measured_run_is_advised_is_legal_for_the_framework_that_will_run_it(tmp_path, emit, seed):
    """Its ops tell ranks, replicas and batch; layers are not known, so there are enough of them for any split."""
    rng = np.random.default_rng(2000 + seed)
    job = legal_job(rng, tmp_path, emit)
    job["layers"] = 8 * job["pipeline"]
    schedule = debubble.build("1f1b", debubble.Shape(job["pipeline"], job["microbatches"]))
    scale = tuple(rng.uniform(0.9, 1.4, job["pipeline"]).tolist())
    rates = debubble.Rates(forward=10_000_000, backward=20_000_000, transfer=500_000, stage_scale=scale)
    program = debubble.lower(schedule)
    exact = debubble.simulate(program, debubble.costs_of(rates, schedule))
    timeline = debubble.Timeline(program, exact.start, exact.end, "measured")
    windows = tuple(
        debubble.Window(step, replica, timeline, exact.makespan + 5_000_000)
        for step in range(2)
        for replica in range(job["data"])
    )
    run = debubble.Observation("run", windows, gpus=job["gpus"], samples=job["batch"])
    found = debubble.diagnose(run, framework=emit.__name__)
    ways = [each for each in found.what_if if not each.demands and not each.bound and of_a_launch(each.change)]
    assert ways
    launch_each(ways, job, tmp_path / "launch.sh", emit)


SUFFIX = {
    "megatron": ".sh",
    "torchtitan": ".py",
    "torch": ".py",
    "deepspeed": ".json",
    "nemo": ".py",
    "nanotron": ".yaml",
}


@pytest.mark.parametrize("name", SUFFIX)
@pytest.mark.parametrize("seed", range(5))
def test_what_plan_proposes_is_legal_for_the_framework_that_is_to_launch_it(tmp_path, name, seed):
    """The first of all, and each that stands below it."""
    rng = np.random.default_rng(3000 + seed)
    gpus, batch = 8 * int(rng.choice([2, 4])), 32 * int(rng.choice([1, 2, 3]))
    model = str(rng.choice(["llama3-8b", "llama2-13b"]))
    sizes = {"tensor": int(rng.choice([2, 4])), "pipeline": [1, 2, 4], "micro_batch": [1, 2]}
    found = debubble.plan(model=model, gpu="h100", gpus=gpus, global_batch=batch, framework=name, emit=name, **sizes)
    assert found.candidates
    framework = FRAMEWORKS[name]
    for row in found.candidates:
        layout = Layout(**{each.name: getattr(row, each.name) for each in fields(Layout) if hasattr(row, each.name)})
        text = framework.emit(layout, sizes_of(read_model(model), 4096))
        assert row is not found.candidates[0] or plain(text) == plain(found.emit)
        path = tmp_path / f"plan{SUFFIX[name]}"
        path.write_text(text)
        code = ["--gpus", str(gpus)]  # what the launcher or the user's own code says
        if name == "deepspeed":
            code += ["--tensor", str(row.tensor)]
            assert row.tensor == 1 or f"tensor {row.tensor} is the model's own" in text
        checked = debubble.check(path, *code, framework=name, model=model)
        assert checked.legal, (layout, [fault.rule for fault in checked.faults])
        assert row.global_batch == batch


def plain(text: str) -> str:
    """What is emitted without what a row of the table does not say: overlap, precision, how weights are gathered."""
    said = re.findall(r"(\d+)", text.split("\n", 1)[1])
    return " ".join(said)


def of_a_launch(change: str) -> bool:
    """Whether a change is one of arguments; the rest is done to the model, the data or a device."""
    parts = change.split(" + ")
    return all(MICRO.fullmatch(part) or STAGES.fullmatch(part) or part.split(" ")[0] in NAMES for part in parts)


def legal_job(rng, tmp_path, emit) -> dict[str, int]:
    """A drawn launch that its framework takes."""
    path = tmp_path / "drawn.sh"
    while True:
        job = drawn(rng)
        path.write_text(emit(job))
        if debubble.check(path, framework=emit.__name__).legal:
            return job
