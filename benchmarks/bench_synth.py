"""How fast schedules are searched and packed, with the CPU time of `show` from start to end.

The goal is 5 s of CPU at 16 ranks x 128 micro-batches; the authors' V-Half took 26 s at 16 x 64. Run by `make bench`;
`python benchmarks/bench_synth.py` prints the figures.
"""

import os
import subprocess
import sys

import pytest

from debubble import Rates, Shape
from debubble.schedules.catalog import build

NAMES = ("zb-auto", "zb-v-auto", "v-half", "v-min")
SHAPES = ((16, 64), (16, 128), (64, 512))
GOAL = 5.0  # seconds of CPU
UNEVEN = Rates(10e6, input=12e6, weight=6e6, transfer=1e6)


def size(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


@pytest.mark.parametrize("shape", SHAPES, ids=size)
@pytest.mark.parametrize("name", NAMES)
def test_build(benchmark, name, shape):
    benchmark.group = f"search, {size(shape)}"
    assert len(benchmark.pedantic(build, (name, Shape(*shape), UNEVEN), rounds=1)) >= 3 * shape[0] * shape[1]


def cpu_of_show(name: str) -> float:
    """Seconds of user and system time of a whole `debubble show`."""
    before = os.times()
    command = [sys.executable, "-m", "debubble", "show", name, "-p", "16", "-m", "128", "--transfer", "1ms", "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize("name", NAMES)
def test_show_16_ranks_128_microbatches_end_to_end(benchmark, name):
    benchmark.group = "show, 16 x 128, end to end"
    benchmark.extra_info["cpu_seconds"] = cpu = benchmark.pedantic(cpu_of_show, (name,), rounds=1)
    assert cpu < GOAL


if __name__ == "__main__":
    for name in NAMES:
        print(f"{name:10} show -p 16 -m 128: {cpu_of_show(name):.2f} s of CPU")
