"""How fast a plan is: layouts a second in the screen, and a 70B model on 1,024 GPUs with the best 200 simulated.

``pytest benchmarks/bench_plan.py`` measures; ``python bench_plan.py`` prints.
"""

from __future__ import annotations

import time

from debubble.config.config import Config
from debubble.config.layout import Layout
from debubble.config.plan import Question
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.planning.screen import screen
from debubble.planning.search import search
from debubble.planning.space import space

MODEL = read_model("llama3-70b")
CLUSTER = cluster_of(read_hardware("h100"), 1024)
CHOICE = Question(Config(gpus=1024, global_batch=1024), base=Layout(sequence=8192))


def screened() -> int:
    """Enumerate and screen every layout of the 70B model; how many there are."""
    legal = space(MODEL, CLUSTER, CHOICE)
    return len(screen(MODEL, CLUSTER, legal.layouts).step)


def planned() -> int:
    """The whole search; how many layouts were simulated."""
    return search(MODEL, CLUSTER, CHOICE).simulated


def test_screen_of_10_000_layouts_a_second(benchmark):
    many = benchmark.pedantic(screened, rounds=3)
    benchmark.extra_info["layouts_per_second"] = many / benchmark.stats["mean"]
    assert many / benchmark.stats["mean"] > 10_000


def test_70b_on_1024_gpus_in_under_10_s_with_200_simulated(benchmark):
    assert benchmark.pedantic(planned, rounds=1) == 200
    assert benchmark.stats["mean"] < 10


if __name__ == "__main__":
    for name, run in (("enumerate and screen", screened), ("whole plan", planned)):
        wall, cpu = time.perf_counter(), time.process_time()
        count = run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{name}: {count:,} layouts in {wall:.2f} s ({cpu:.2f} s of CPU), {count / wall:,.0f} a second")
