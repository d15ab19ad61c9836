"""Recordings of real engines beside the simulation of their order under their engine: window, idle share, the excess.

    python benchmarks/recorded_windows.py CLIENTS [--python PYTHON] [--steps N] [--only NAME] [--pace 100/200] [--json]

CLIENTS is the folder of ``real_engines.py``: loops whose stages sleep. Each is recorded by ``debubble record``, which is
given no more than the script. The simulation takes the order of the recording, the mean duration of each kind of op on
each stage, the least hop of each link (both as recorded, over the steps that are compared), and the engine by its rule.
The window is then named part by part, each the difference of two simulations but the last:

    slept      the order by its closed form, with ops as long as they sleep
    own        what ops take beside their sleep: the engine's own time
    hop        what the hops of messages cost it without an engine
    engine     what the engine's posts and waits make of them
    rest       the window less all of these
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from real_engines import LOOPS, MICROBATCHES, RANKS, Loop

from debubble import Costs, Rates, Shape, build, costs_of, lower, read, simulate
from debubble.core.observation import Observation, Window
from debubble.core.timeline import Timeline
from debubble.diagnosis.causes import fitted, free_transfers, least_hops, stage_means
from debubble.frameworks.engines import ENGINES, engine_of

SOURCE = Path(__file__).resolve().parents[1] / "src"
STEPS = 5  # that are compared: the last ones


@dataclass(frozen=True, slots=True)
class Compared:
    """The median window of one recorded loop, and what the simulation makes of it; milliseconds and shares."""

    name: str
    engine: str
    forward_ms: float
    window_ms: float
    simulated_ms: float
    idle_share: float
    simulated_idle_share: float
    parts_ms: dict[str, float]

    @property
    def window_ratio(self) -> float:
        """The measured window over the simulated one."""
        return self.window_ms / self.simulated_ms

    @property
    def idle_difference(self) -> float:
        """The measured idle share less the simulated one."""
        return self.idle_share - self.simulated_idle_share


def record(loop: Loop, clients: Path, python: str, pace: tuple[float, float], steps: int, folder: Path) -> None:
    """Record a loop whose ops sleep ``pace`` milliseconds, forward and backward of a rank."""
    variables = {
        "SF": str(pace[0] / loop.chunks / 1e3),
        "SB": str(pace[1] / loop.chunks / 1e3),
        "STEPS": str(steps),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": str(SOURCE),
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    verb = ["-m", "debubble", "record", "--out", str(folder)]
    command = [python, *launcher, *verb, str(clients / loop.script), *loop.words]
    ran = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=500, check=False)
    if ran.returncode:
        raise RuntimeError(f"{loop.name}: {ran.stderr[-2000:]}")


def idle_share(timeline: Timeline) -> float:
    """Of the window of all ranks, what no op fills."""
    schedule = timeline.program.schedule
    ops = len(schedule)
    start, end = timeline.start[:ops], timeline.end[:ops]
    busy = 0
    for rank in range(schedule.ranks):
        done = 0
        for op in range(schedule.offsets[rank], schedule.offsets[rank + 1]):
            begun = max(int(start[op]), done)
            busy += max(int(end[op]) - begun, 0)
            done = max(done, int(end[op]))
    return 1 - busy / (schedule.ranks * (int(end.max()) - int(start.min())))


def _mean(tables: list[Costs]) -> Costs:
    """Durations and hops that the windows have in the mean."""
    durations = np.mean([costs.durations for costs in tables], axis=0)
    transfers = np.mean([costs.transfers for costs in tables], axis=0)
    return Costs(np.rint(durations).astype(np.int64), np.rint(transfers).astype(np.int64))


def compare(loop: Loop, run: Observation, pace: tuple[float, float]) -> Compared:
    """Hold the last windows of a recording against the simulation of their order."""
    windows: list[Window] = sorted(run.windows, key=lambda window: window.step)[-STEPS:]
    schedule = windows[0].timeline.program.schedule
    made = build(loop.schedule, Shape(RANKS, MICROBATCHES, loop.chunks))
    if not schedule.same_order(made):
        raise RuntimeError(f"{loop.name}: the recorded order is not {loop.schedule}")
    ops = _mean([stage_means(fitted(window.timeline), schedule) for window in windows])
    hops = _mean([least_hops(window.timeline) for window in windows])
    costs = Costs(np.broadcast_to(ops.durations, hops.transfers.shape).copy(), hops.transfers)
    program, ideal = lower(schedule, engine_of(loop.engine, schedule)), lower(schedule)
    slept = costs_of(Rates(forward=1e6 * pace[0], backward=1e6 * pace[1]), made)
    simulated = simulate(program, costs)
    ladder = {
        "slept": simulate(lower(made), slept).makespan,
        "own": simulate(ideal, free_transfers(costs)).makespan,
        "hop": simulate(ideal, costs).makespan,
        "engine": simulated.makespan,
        "rest": median(window.timeline.makespan for window in windows),
    }
    parts, before = {}, 0.0
    for name, makespan in ladder.items():
        parts[name] = (makespan - before) / 1e6
        before = makespan
    return Compared(
        loop.name,
        loop.engine,
        pace[0],
        ladder["rest"] / 1e6,
        simulated.makespan / 1e6,
        median(idle_share(window.timeline) for window in windows),
        idle_share(simulated),
        parts,
    )


def run_loop(loop: Loop, clients: Path, python: str, pace: tuple[float, float], steps: int) -> Compared:
    """Record a loop and compare it."""
    with tempfile.TemporaryDirectory() as folder:
        record(loop, clients, python, pace, steps, Path(folder) / "run")
        return compare(loop, read(Path(folder) / "run"), pace)


def main() -> None:
    """Print a line for each loop and pace, or all of it as JSON."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("clients", type=Path)
    asked.add_argument("--python", default=sys.executable)
    asked.add_argument("--steps", type=int, default=STEPS + 2)
    asked.add_argument("--only", default="", help="loops whose name begins so")
    asked.add_argument("--pace", action="append", help="milliseconds of a forward and a backward; both by default")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    for text in given.pace or ["100/200", "20/40"]:
        forward, _, backward = text.partition("/")
        for loop in LOOPS:
            if not loop.name.startswith(given.only) or loop.engine not in ENGINES:
                continue
            found = run_loop(loop, given.clients, given.python, (float(forward), float(backward)), given.steps)
            if given.json:
                more = {"window_ratio": found.window_ratio, "idle_difference": found.idle_difference}
                print(json.dumps(asdict(found) | more), flush=True)
                continue
            parts = "  ".join(f"{name} {value:.1f}" for name, value in found.parts_ms.items())
            print(
                f"{found.name:26} {text:8} window {found.window_ms:7.1f} = {found.window_ratio:.4f} x {found.engine}; "
                f"idle {found.idle_share:.4f}, simulated {found.simulated_idle_share:.4f} "
                f"({found.idle_difference:+.4f});  {parts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
