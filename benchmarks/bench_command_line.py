"""What the command line costs from start to end, in seconds of CPU: help, a small picture, every generated schedule.

Run by `make bench`; `python benchmarks/bench_command_line.py` prints the figures.
"""

import os
import subprocess
import sys

import pytest

from debubble.schedules.catalog import CATALOG

HELP, SMALL, USUAL = ("--help",), ("show", "1f1b", "-p", "4", "-m", "8"), ("-p", "16", "-m", "128")
GOALS = {HELP: 0.15, SMALL: 0.5, **{("show", name, *USUAL): 1.0 for name in CATALOG}}


def cpu_of(args: tuple[str, ...]) -> float:
    """Seconds of user and system time of the quickest of three runs: what others take up is not ours."""
    return min(_once([sys.executable, "-m", "debubble", *args]) for _ in range(3))


def _once(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize("args", GOALS, ids=" ".join)
def test_cpu_from_start_to_end(benchmark, args):
    benchmark.group = "debubble, end to end"
    benchmark.extra_info["cpu_seconds"] = cpu = benchmark.pedantic(cpu_of, (args,), rounds=1)
    assert cpu < GOALS[args]


if __name__ == "__main__":
    for args, goal in GOALS.items():
        print(f"debubble {' '.join(args):34} {cpu_of(args):.2f} s of CPU, goal {goal} s")
