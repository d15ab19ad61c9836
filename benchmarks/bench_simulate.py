"""One simulation at the size of the largest jobs, 1,024 ranks with 8,192 micro-batches: 16.8 million ops of 1F1B.

ZB-H1, which splits each backward, has 25.2 million. Ceilings are generous, and of CPU time: what the tool promises.

Run by `make bench`, or by hand, where every step's CPU time and the peak of memory are printed:

    python benchmarks/bench_simulate.py [--numpy]
    python benchmarks/bench_simulate.py --engines       what each engine costs beside `ideal`, at two sizes
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from debubble import Costs, Program, Rates, Shape, account, build, costs_of, lower, simulate
from debubble.core import kernels
from debubble.core.engine import SENDS, Engine
from debubble.frameworks.engines import ENGINES

LARGEST = Shape(1024, 8192)
USUAL = Shape(16, 128)
MOST_SECONDS, MOST_GIBIBYTES, MOST_AGAIN = 15.0, 4.0, 3.0  # build, lower and simulate; its memory; simulate again
RATES = Rates(forward=1_000_000, backward=2_000_000, transfer=20_000)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Lowered:
    program: Program
    costs: Costs


@pytest.fixture(scope="module")
def largest() -> Lowered:
    schedule = build("1f1b", LARGEST)
    return Lowered(lower(schedule), costs_of(RATES, schedule))


def once(benchmark: Any, step: Callable[..., Made], *args: Any, **options: Any) -> Made:
    benchmark.group = "1f1b, 1,024 x 8,192"
    made: Made = benchmark.pedantic(step, args, options, rounds=1)
    return made


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_end_to_end_within_15_s_of_cpu_and_4_gib(benchmark: Any, name: str) -> None:
    """A process of its own: a peak of memory is that of all that a process ever did."""
    benchmark.group = "build, lower and simulate, 1,024 x 8,192"
    command = [sys.executable, __file__, "--whole", name]
    ran = benchmark.pedantic(subprocess.check_output, [command], rounds=1)
    spent = json.loads(ran)
    assert spent["seconds"] < MOST_SECONDS
    assert spent["gibibytes"] < MOST_GIBIBYTES


def test_build_and_lower_16_8_million_ops(benchmark: Any) -> None:
    assert len(once(benchmark, lambda: lower(build("1f1b", LARGEST)))) == 2 * 1024 * 8192


def test_simulate_16_8_million_ops_again_with_other_costs(benchmark: Any, largest: Lowered) -> None:
    before = time.process_time()
    assert once(benchmark, simulate, largest.program, largest.costs).makespan > 9215 * 3_000_000
    assert time.process_time() - before < MOST_AGAIN


def test_simulate_16_8_million_ops_by_numba(benchmark: Any, largest: Lowered) -> None:
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    assert len(largest.program.order) > kernels.LARGE
    simulate(largest.program, largest.costs)  # compiles
    assert once(benchmark, simulate, largest.program, largest.costs).makespan > 9215 * 3_000_000


def test_account_for_16_8_million_ops(benchmark: Any, largest: Lowered) -> None:
    timeline = simulate(largest.program, largest.costs)
    assert once(benchmark, account, timeline).window == timeline.makespan


@pytest.mark.parametrize("sends", list(SENDS.values()), ids=list(SENDS))
def test_lower_and_simulate_each_way_of_sending_at_128_by_1024(benchmark: Any, sends: Engine) -> None:
    benchmark.group = "1f1b, 128 x 1,024, by way of sending"
    schedule = build("1f1b", Shape(128, 1024))
    costs = costs_of(RATES, schedule)
    assert benchmark.pedantic(lambda: simulate(lower(schedule, sends), costs), rounds=3).makespan > 0


@pytest.mark.parametrize("engine", ["megatron", "torch", "deepspeed", "zero-bubble"])
def test_lower_and_simulate_an_engine_at_1024_by_512_within_3_s_of_cpu(benchmark: Any, engine: str) -> None:
    benchmark.group = "1f1b, 1,024 x 512, by engine"
    schedule = build("1f1b", Shape(1024, 512))
    costs = costs_of(RATES, schedule)
    before = time.process_time()
    assert benchmark.pedantic(lambda: simulate(lower(schedule, ENGINES[engine]), costs), rounds=1).makespan > 0
    if engine == "megatron":
        assert time.process_time() - before < MOST_AGAIN


def engines() -> None:
    """Print CPU seconds of lowering and of simulating under each engine, and how many times those of `ideal`."""
    for shape in (Shape(64, 512), Shape(1024, 512)):
        schedule = build("1f1b", shape)
        costs = costs_of(RATES, schedule)
        plain: list[float] = []
        for name, engine in ENGINES.items():
            if engine.least_chunks > 1:
                continue
            spent = []
            for _ in range(3):
                moments = [time.process_time()]
                program = lower(schedule, engine)
                moments.append(time.process_time())
                simulate(program, costs)
                moments.append(time.process_time())
                spent.append([moments[1] - moments[0], moments[2] - moments[1], moments[2] - moments[0]])
            least = [min(column) for column in zip(*spent, strict=True)]
            plain = plain or least
            ratios = ", ".join(f"{one:.3f} s ({one / other:.1f} x)" for one, other in zip(least, plain, strict=True))
            print(f"{shape.ranks:5} x {shape.microbatches}  {name:20} lower, simulate, both: {ratios}")


def timed(label: str, step: Callable[[], Made]) -> Made:
    """Run a step once and print its CPU time."""
    before = time.process_time()
    made = step()
    print(f"{label:44s} {time.process_time() - before:7.2f} s")
    return made


def whole(name: str) -> None:
    """Print what one schedule took, from its name to its timeline, in this process: one JSON object."""
    schedule = build(name, LARGEST)
    timeline = simulate(lower(schedule), costs_of(RATES, schedule))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    spent = {"ops": len(schedule), "seconds": time.process_time(), "gibibytes": peak}
    print(json.dumps(spent | {"makespan_ms": timeline.makespan / 1e6}))


def main() -> None:
    """Print CPU seconds of each step and the peak memory of the whole process; with ``--numpy`` without numba."""
    if "--numpy" in sys.argv:
        kernels.LARGE = sys.maxsize
    if kernels.has_numba() and "--numpy" not in sys.argv:
        timed("numba: import", lambda: __import__("numba"))
    schedule = timed("build 1f1b, 1,024 x 8,192", lambda: build("1f1b", LARGEST))
    program = timed("lower: prove it, find its rounds", lambda: lower(schedule))
    timeline = timed("simulate", lambda: simulate(program, costs_of(RATES, schedule)))
    timed("simulate again, other costs", lambda: simulate(program, costs_of(Rates(), schedule)))
    timed("account", lambda: account(timeline))
    print(f"{'peak memory':44s} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:7.2f} GB")


if __name__ == "__main__":
    if "--whole" in sys.argv:
        whole(sys.argv[-1])
    elif "--engines" in sys.argv:
        engines()
    else:
        main()
