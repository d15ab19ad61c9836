"""What is left when a run is killed or stopped at a random moment: no lost step, no process, and the right name.

    python benchmarks/bench_kills.py [--kills 200] [--stops 50] [--seed 1] [--json]

A run of four ranks is started, and after its second step one of its ranks, by chance and at a moment by chance, gets
SIGKILL or SIGSTOP (or the launcher SIGTERM, SIGHUP or SIGINT). Each trial holds

* every step that the run had told of before is in the recording, whole;
* no process of the run is alive when it has ended, and no file of its own is left in the temporary folder;
* the line names the rank that was hit, and a stopped one ends the run within the time limit and 5 s (reported, since a
  busy machine adds its own).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from debubble import InputError
from debubble.readers.recording import read_recording, read_tracks

RANKS, LIMIT_S = 4, 8
OF_LAUNCHER = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True)
class Trial:
    """What came of one run that was harmed."""

    harm: str
    rank: int | None
    named: bool
    lost: int
    alive: int
    left: int
    seconds: float
    line: str


def trial(folder: Path, harm: signal.Signals, rank: int | None, delay_s: float) -> Trial:
    """Start a run, harm it a while after its second step, and look at what is left."""
    command = ["run", "--schedule", "1f1b", "-p", RANKS, "-m", 8, "--pace", "F=5ms", "--steps", 100_000]
    command += ["--timeout", f"{LIMIT_S}s", "--out", folder]
    temporary = folder.parent / f"{folder.name}-tmp"
    temporary.mkdir()
    run = subprocess.Popen(
        [sys.executable, "-m", "debubble", *map(str, command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,  # so that Ctrl-C of this program is not theirs
    )
    told: list[str] = []
    listener = threading.Thread(target=lambda: told.extend(run.stderr or ()), daemon=True)
    listener.start()
    while sum(line.startswith("step ") for line in told) < 2:
        if run.poll() is not None:
            listener.join()
            raise RuntimeError(f"the run ended by itself: {told[-1].strip() if told else 'without a word'}")
        time.sleep(0.02)
    time.sleep(delay_s)
    processes = [track.process.pid for track in read_tracks(folder)[0]]
    before = sum(line.startswith("step ") for line in told)
    os.kill(run.pid if rank is None else processes[rank], harm)
    began = time.monotonic()
    run.wait(timeout=120)
    seconds = time.monotonic() - began
    listener.join()
    if run.stderr is not None:
        run.stderr.close()
    line = told[-1].strip() if told else ""
    by_rank = re.search(r"rank (\d)", line)
    named = harm.name in line if rank is None else by_rank is not None and by_rank[1] == str(rank)
    return Trial(
        harm=harm.name,
        rank=rank,
        named=named,
        lost=max(before - _steps(folder), 0),
        alive=sum(map(_alive, processes)),
        left=len(list(temporary.glob("*.beats"))),
        seconds=seconds,
        line=line,
    )


def _steps(folder: Path) -> int:
    try:
        return len({window.step for window in read_recording(folder).windows})
    except InputError:
        return 0


def _alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def drawn(kills: int, stops: int, seed: int) -> list[tuple[signal.Signals, int | None, float]]:
    """Harms by chance: of ten kills one is of the launcher."""
    dice = random.Random(seed)
    made: list[tuple[signal.Signals, int | None, float]] = []
    for number in range(kills):
        delay = dice.uniform(0, 2)
        if number % 10 == 9:
            made.append((dice.choice(OF_LAUNCHER), None, delay))
        else:
            made.append((signal.SIGKILL, dice.randrange(RANKS), delay))
    made += [(signal.SIGSTOP, dice.randrange(RANKS), dice.uniform(0, 2)) for _ in range(stops)]
    return made


def main() -> int:
    """Run all trials and print what did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (harm, rank, delay) in enumerate(drawn(asked.kills, asked.stops, asked.seed)):
            trials.append(trial(Path(folder, str(number)), harm, rank, delay))
            if not trials[-1].named or trials[-1].lost or trials[-1].alive:
                print(trials[-1], file=sys.stderr)
    stopped = [each.seconds for each in trials if each.harm == "SIGSTOP"]
    found = {
        "trials": len(trials),
        "named": sum(each.named for each in trials),
        "lost_steps": sum(each.lost for each in trials),
        "processes_left": sum(each.alive for each in trials),
        "files_left": sum(each.left for each in trials),
        "slowest_stop_s": max(stopped, default=None),
        "limit_s": LIMIT_S,
    }
    if asked.json:
        found["each"] = [asdict(each) for each in trials]
    print(json.dumps(found, indent=1))
    return 0 if not (found["lost_steps"] or found["processes_left"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
