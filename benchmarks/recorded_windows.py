"""Recordings of real engines beside the simulation of their order under their engine: window, idle share, the excess.

    python benchmarks/recorded_windows.py CLIENTS [--python PYTHON] [--steps N] [--only NAME] [--pace 100/200] [--json]

CLIENTS is the folder of ``real_engines.py``: loops whose stages sleep. Each is recorded by ``debubble record``, which
gets no more than the script. A window is simulated again under the engine by its rule, with ops as long as they were
measured and the least hop of each link; ratio and idle share are medians over the last steps. The window is also named
part by part, each the difference of two simulations but the last:

    slept      the order by its closed form, with ops as long as they sleep
    own        what ops take beside their sleep, the mean of each kind and stage: the engine's own time
    hop        what the hops of messages cost it without an engine
    engine     what the engine's posts and waits make of them
    variation  that ops are not all as long as their mean
    between    what the engine does between two ops of a rank of which the second has its input: the median of each rank
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
from debubble.core.laws import needs_of
from debubble.core.observation import Observation
from debubble.core.program import Timeline
from debubble.core.schedule import NOTHING
from debubble.diagnosis.causes import fitted, free_transfers, least_hops, stage_means
from debubble.frameworks.engines import ENGINES, engine_of

SOURCE = Path(__file__).resolve().parents[1] / "src"
STEPS = 5  # that are compared: the last ones


@dataclass(frozen=True, slots=True)
class Compared:
    """The last windows of one recorded loop, and what the simulation makes of them.

    Args:
        name: of the loop, with its engine.
        engine: of the simulation.
        forward_ms: that a forward slept.
        window_ms: measured, the median.
        window_ratio: measured over simulated, the median over windows.
        idle_share: measured, the median.
        idle_difference: measured less simulated, the median over windows.
        parts_ms: of the median window.
    """

    name: str
    engine: str
    forward_ms: float
    window_ms: float
    window_ratio: float
    idle_share: float
    idle_difference: float
    parts_ms: dict[str, float]


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


def between(timeline: Timeline, hops: np.ndarray) -> np.ndarray:
    """What each rank does between two ops of which the second has its input already, the median, int64[ranks], ns.

    Args:
        timeline: measured.
        hops: that an input takes, int64[kinds, stages, units].
    """
    schedule, ops = timeline.program.schedule, len(timeline.program.schedule)
    start, end = timeline.start[:ops], timeline.end[:ops]
    need = needs_of(schedule)[0]
    hop = np.broadcast_to(hops, (len(hops), schedule.stages, schedule.units))[
        schedule.kind, schedule.stage, schedule.unit
    ]
    arrived = np.where(need == NOTHING, start.min(), end[need] + hop)
    found = np.zeros(schedule.ranks, np.int64)
    for rank in range(schedule.ranks):
        rows = np.arange(schedule.offsets[rank] + 1, schedule.offsets[rank + 1])
        rows = rows[arrived[rows] <= end[rows - 1]]
        if len(rows):
            found[rank] = max(int(np.median(start[rows] - end[rows - 1])), 0)
    return found


def _mean(tables: list[Costs]) -> Costs:
    """Durations and hops that the windows have in the mean."""
    durations = np.mean([costs.durations for costs in tables], axis=0)
    transfers = np.mean([costs.transfers for costs in tables], axis=0)
    return Costs(np.rint(durations).astype(np.int64), np.rint(transfers).astype(np.int64))


def compare(loop: Loop, run: Observation, pace: tuple[float, float]) -> Compared:
    """Hold the last windows of a recording against the simulation of their order."""
    windows = [window.timeline for window in sorted(run.windows, key=lambda window: window.step)[-STEPS:]]
    schedule = windows[0].program.schedule
    made = build(loop.schedule, Shape(RANKS, MICROBATCHES, loop.chunks))
    if not schedule.same_order(made):
        raise RuntimeError(f"{loop.name}: the recorded order is not {loop.schedule}")
    program, ideal = lower(schedule, engine_of(loop.engine, schedule)), lower(schedule)
    again = [simulate(program, least_hops(window)) for window in windows]
    ops = _mean([stage_means(fitted(window), schedule) for window in windows])
    hops = _mean([least_hops(window) for window in windows]).transfers
    means = Costs(np.broadcast_to(ops.durations, hops.shape).copy(), hops)
    gaps = np.median([between(window, hops) for window in windows], axis=0).astype(np.int64)
    owner = schedule.placement[0]
    spaced = []
    for window in windows:
        own = least_hops(window)
        held = np.where(own.durations > 0, own.durations + gaps[owner][None, :, None], 0)
        spaced.append(simulate(program, Costs(held, own.transfers)).makespan)
    slept = costs_of(Rates(forward=1e6 * pace[0], backward=1e6 * pace[1]), made)
    ladder = {
        "slept": simulate(lower(made), slept).makespan,
        "own": simulate(ideal, free_transfers(means)).makespan,
        "hop": simulate(ideal, means).makespan,
        "engine": simulate(program, means).makespan,
        "variation": median(each.makespan for each in again),
        "between": median(spaced),
        "rest": median(window.makespan for window in windows),
    }
    parts, before = {}, 0.0
    for name, makespan in ladder.items():
        parts[name] = (makespan - before) / 1e6
        before = makespan
    pairs = list(zip(windows, again, strict=True))
    return Compared(
        name=loop.name,
        engine=loop.engine,
        forward_ms=pace[0],
        window_ms=ladder["rest"] / 1e6,
        window_ratio=median(window.makespan / other.makespan for window, other in pairs),
        idle_share=median(map(idle_share, windows)),
        idle_difference=median(idle_share(window) - idle_share(other) for window, other in pairs),
        parts_ms=parts,
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
                print(json.dumps(asdict(found)), flush=True)
                continue
            parts = "  ".join(f"{name} {value:.1f}" for name, value in found.parts_ms.items())
            print(
                f"{found.name:26} {text:8} window {found.window_ms:7.1f} = {found.window_ratio:.4f} x {found.engine}; "
                f"idle {found.idle_share:.4f} ({found.idle_difference:+.4f});  {parts}",
                flush=True,
            )


if __name__ == "__main__":
    main()
