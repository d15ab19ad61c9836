"""How fast a plan is: layouts a second in the screen, 70B on 1,024 GPUs with the best 200 simulated, 671B on 2,048.

``pytest benchmarks/bench_plan.py`` measures; ``python bench_plan.py`` prints.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from debubble.config.config import Config, Layout
from debubble.config.plan import Question
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.planning.judge import screen
from debubble.planning.search import search, space

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


def command_line() -> float:
    """Seconds of CPU of the whole command for DeepSeek-V3 (671B) on 2,048 H100, imports included."""
    asked = "plan --model deepseek-v3 --gpu h100 --gpus 2048 --global-batch 4096 --json"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "debubble", *asked.split()], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    for name, run in (("enumerate and screen", screened), ("whole plan", planned)):
        run()  # what is made once is not timed
        spent = []
        for _ in range(5):
            start = time.process_time()
            count = run()
            spent.append(time.process_time() - start)
        least = min(spent)
        print(f"{name}: {count:,} layouts in {least:.3f} s of CPU (best of 5), {count / least:,.0f} a second")
    print(f"671B on 2,048 GPUs by the command line: {min(command_line() for _ in range(3)):.2f} s of CPU (best of 3)")
