"""A job of 10,240 ranks in a recording: what `diagnose` and `watch` take for it, in processor time and memory.

64 stages x 160 replicas, 64 micro-batches, 20 steps: 26 million ops, made by a generator from one simulated step with a
jitter of each op.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.readers.recording_file import MAGIC, NOT_SENT, Part, Process, Times, frame, pack, packed
from debubble.schedules.catalog import build

STAGES, REPLICAS, MICROBATCHES, STEPS = 64, 160, 64, 20
MS = 10**6
CPU_S, BYTES = 60, 2 * 10**9  # the most that diagnose may take


def generate(folder: Path, replicas: int = REPLICAS, steps: int = STEPS) -> None:
    """Write the files that the processes of such a job would."""
    order = build("1f1b", Shape(STAGES, MICROBATCHES))
    timeline = simulate(lower(order), costs_of(Rates(2 * MS, 4 * MS), order))
    dice = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    length = timeline.makespan + 50 * MS
    for replica in range(replicas):
        for rank in range(STAGES):
            rows = slice(order.offsets[rank], order.offsets[rank + 1])
            process = Process(
                run="scale",
                rank=replica * STAGES + rank,
                world=replicas * STAGES,
                pid=1,
                host=f"node{replica}",
                clock="one",
                wall_ns=0,
                clock_ns=0,
            )
            part = Part(
                number=0,
                engine="megatron",
                schedule="1F1B",
                microbatches=MICROBATCHES,
                pipeline=list(range(replica * STAGES, (replica + 1) * STAGES)),
                axes={"pipeline": (rank, STAGES), "data": (replica, replicas)},
                placement=pack(order.placement[0], "i4"),
                kind=pack(order.kind[rows], "u1"),
                stage=pack(order.stage[rows], "i4"),
                unit=pack(order.unit[rows], "i4"),
            )
            data = [MAGIC, frame(process), frame(part)]
            for step in range(steps):
                start, end = timeline.start[rows] + step * length, timeline.end[rows] + step * length
                end = end - dice.integers(0, 50_000, len(end))
                waits = np.zeros((3, len(start)), np.int64)
                waits[0, 1:] = start[1:] - end[:-1]
                posted = np.full(len(start), NOT_SENT)
                times = Times(start, end, waits, posted)
                data.append(frame(packed(step, 0, step * length, (step + 1) * length, times)))
            (folder / f"rank-{process.rank:05}.msgpack").write_bytes(b"".join(data))


def measured(*words: object) -> tuple[float, int, str]:
    """Processor seconds, most resident bytes, and output of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "debubble", *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, after.ru_maxrss * 1024, ran.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("scale") / "run"
    generate(folder)
    return folder


def test_diagnose_of_10240_ranks(job):
    seconds, most, out = measured("diagnose", job, "--json")
    found = json.loads(out)
    assert (found["ranks"], found["replicas"], found["steps"]) == (STAGES, REPLICAS, STEPS)
    print(f"diagnose: {seconds:.1f} s of processor time, {most / 1e9:.2f} GB")
    assert seconds < CPU_S
    assert most < BYTES


def test_a_rank_grows_by_less_than_4_kb_a_step(job):
    sizes = [os.path.getsize(file) for file in list(job.iterdir())[:100]]
    print(f"{max(sizes) / STEPS:.0f} bytes a step")
    assert max(sizes) < STEPS * 4096


def test_watch_reads_each_byte_once(job):
    seconds, most, out = measured("watch", job, "--json")
    print(f"watch: {seconds:.1f} s of processor time, {most / 1e9:.2f} GB")
    assert len(out.splitlines()) == STEPS
