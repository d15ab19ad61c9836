"""What recording costs a job: an empty hooked op, a step after many, and a real step with it on against off."""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from debubble.recorder.hooks import around
from debubble.recorder.session import Seat, Session
from debubble.recorder.wishes import wish_of

OPS, STEPS = 100_000, 10_000
PAIRS = 50  # of steps of a real job
MOST_BYTES = 300 * 10**6  # that a diagnosis of a long recording may hold
# By itself: a child's largest size by getrusage is at least that of this process, which holds torch.
DIAGNOSE = """
import pathlib, re, sys, time, debubble
steps = debubble.diagnose(sys.argv[1]).steps
status = pathlib.Path("/proc/self/status").read_text()
print(steps, time.process_time(), 1024 * int(re.search("VmHWM:\\s*(\\d+)", status)[1]))
"""
MOST_US = 4.0  # of an empty op


class Stage:
    """What a hook is told."""

    stage_index = 0


def run(chunk: int) -> None:
    """An op that does nothing."""


def test_an_empty_hooked_op_costs_less_than_4_us(tmp_path):
    session = Session(wish_of(tmp_path / "run"))
    tape, stage = session.tape, Stage()
    hooked = around(
        run,
        lambda chunk: tape.open(0, stage.stage_index, chunk) if session.open else None,
        lambda row, _: tape.close(row),
        session.failed,
    )
    session.begin(stage)
    began = time.process_time()
    for chunk in range(OPS):
        run(chunk)
    bare = time.process_time() - began
    began = time.process_time()
    for chunk in range(OPS):
        hooked(chunk)
    an_op = (time.process_time() - began - bare) / OPS * 1e6
    print(f"{an_op:.2f} us an op")
    assert an_op < MOST_US


def written(folder: Path, steps: int, keep: str) -> tuple[list[float], int]:
    """Processor time of each thousand steps of 16 empty ops, and the bytes on disk at the end."""
    session, stage = Session(wish_of(folder, keep=keep)), Stage()
    seat = Seat("torch", "2", "1F1B", 8, [0], [0], {})
    spent = []
    for _ in range(steps // 1000):
        began = time.process_time()
        for _ in range(1000):
            session.begin(stage)
            for kind in (0, 3):
                for unit in range(8):
                    session.tape.close(session.tape.open(kind, 0, unit))
            session.end(lambda: seat)
        spent.append(time.process_time() - began)
    session.close()
    return spent, sum(file.stat().st_size for file in folder.iterdir())


def test_ten_thousand_steps_cost_the_same_each_and_the_disk_is_bounded(tmp_path):
    spent, size = written(tmp_path / "run", STEPS, "200KB")
    print(f"first and last thousand steps: {spent[0]:.2f} and {spent[-1]:.2f} s of processor time; {size:,} bytes")
    assert sorted(spent[5:])[2] < 1.5 * sorted(spent[:5])[2]
    assert size < 200_000


def test_ten_thousand_steps_of_two_ranks_are_recorded_and_diagnosed_in_bounded_memory(tmp_path):
    """Nothing sleeps: torch's 1F1B of two processes, m=8, each second step recorded; its cost must not grow."""
    from debubble.runner.launch import launch
    from debubble.runner.self_test import job

    ran = launch(job, 2, tmp_path / "run", 8, STEPS // 2, "cpu", (0.0, 0.0))
    tenth = STEPS // 20
    first, last = (median(ran.on_ns[rows]) / median(ran.off_ns[rows]) for rows in (slice(tenth), slice(-tenth, None)))
    asked = subprocess.run(
        [sys.executable, "-c", DIAGNOSE, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    steps, spent, most = map(float, asked.stdout.split())
    size = sum(file.stat().st_size for file in (tmp_path / "run").iterdir())
    print(
        f"on over off: {first:.3f} in the first tenth, {last:.3f} in the last; "
        f"{size / STEPS:.0f} bytes a rank and step; diagnose {spent:.1f} s of processor time, {most / 1e6:.0f} MB"
    )
    assert steps > 0.95 * STEPS / 2
    assert last < 1.2 * first
    assert most < MOST_BYTES


def pairs_of_steps(folder: Path) -> list[float]:
    """On over off, less 1, of steps in turns: torch's 1F1B, p=4, m=8, 20 ms forward and 40 ms backward a stage."""
    from debubble.runner.launch import launch
    from debubble.runner.self_test import job

    ran = launch(job, 4, folder, 8, PAIRS, "cpu", (0.020, 0.040))
    return [on / off - 1 for on, off in zip(ran.on_ns, ran.off_ns, strict=True)]


def test_a_recorded_step_is_less_than_1_percent_longer(tmp_path):
    found = sorted(pairs_of_steps(tmp_path / "run"))
    spread = found[3 * PAIRS // 4] - found[PAIRS // 4]
    print(f"{median(found):+.2%} median of {PAIRS} pairs; half of them lie within {spread:.2%}")
    assert median(found) < 0.01
