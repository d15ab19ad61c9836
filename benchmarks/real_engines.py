"""Schedules of Megatron-Core, DeepSpeed and torch with a slow link, measured on CPU, and what their engine predicts.

    python benchmarks/real_engines.py CLIENTS [--python PYTHON] [--steps N] [--only NAME] [--json]

CLIENTS is a folder with ``megatron_core.py``, ``deepspeed_pipe.py`` and ``torch_pipelining.py``: training loops whose
stages sleep for SF seconds in a forward and SB in a backward (a chunk each), and which print the median step. PYTHON
has these frameworks installed. Each loop runs with 0, 10 and 30 ms on the link between ranks 2 and 3
(``delayed_link.py``). Of each loop one figure is fitted, to its run without delay: what a message takes, or for torch's
runtime, which posts long before it waits, by how much ops are longer than they sleep.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from debubble import Hops, Rates, Shape, build, costs_of, lower, simulate
from debubble.core.engine import Lane
from debubble.frameworks.engines import ENGINES

RANKS, MICROBATCHES = 4, 8
FORWARD_MS, BACKWARD_MS = 20.0, 40.0  # of a micro-batch on a rank
LINK, DELAYS_MS = (2, 3), (0.0, 10.0, 30.0)
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Loop:
    """A training loop of an engine: its script, our name of its order, its engine."""

    name: str
    script: str
    schedule: str
    chunks: int
    engine: str
    words: tuple[str, ...]
    longer_ops: bool = False  # what is fitted: the length of ops, or of messages


LOOPS = (
    Loop("Megatron-Core 1F1B", "megatron_core.py", "1f1b", 1, "megatron", ("1", str(MICROBATCHES))),
    Loop("Megatron-Core interleaved", "megatron_core.py", "interleaved", 2, "megatron", ("2", str(MICROBATCHES))),
    Loop("DeepSpeed 1F1B", "deepspeed_pipe.py", "1f1b", 1, "deepspeed", ()),
    Loop("torch 1F1B", "torch_pipelining.py", "1f1b", 1, "torch-1f1b", ("1F1B", "1", str(MICROBATCHES))),
    Loop(
        "torch interleaved",
        "torch_pipelining.py",
        "interleaved",
        2,
        "torch",
        ("Interleaved1F1B", "2", "8"),
        longer_ops=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One loop with one delay."""

    name: str
    engine: str
    delay_ms: float
    measured_ms: float
    predicted_ms: float
    ideal_ms: float
    fitted: float

    @property
    def error_percent(self) -> float:
        """Of the prediction."""
        return 100 * (self.predicted_ms / self.measured_ms - 1)


def measure(loop: Loop, clients: Path, python: str, delay_ms: float, steps: int) -> float:
    """The quiet median step of a loop, milliseconds: the lower quartile of its steps, of the slowest rank."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as board:  # memory that processes share
        os.truncate(board.name, 8 * 8 * 2 * 50_000 * 8)
        variables = {
            "DELAYED_BOARD": board.name,
            "DELAYED_LINK": "-".join(map(str, LINK)),
            "DELAYED_MS": str(delay_ms),
            "SF": str(FORWARD_MS / loop.chunks / 1e3),
            "SB": str(BACKWARD_MS / loop.chunks / 1e3),
            "DELAYED_LANE": str(int(ENGINES[loop.engine].lane is Lane.PAIR)),
            "STEPS": str(steps),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
        }
        words = ["--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        command = [python, "-m", "torch.distributed.run", *words, str(HERE / "delayed_link.py")]
        script = [str(clients / loop.script), *loop.words]
        ran = subprocess.run(
            [*command, *script], env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
        )
    found = re.findall(r"P25 (\d+)", ran.stdout)
    if ran.returncode or len(found) != RANKS:
        raise RuntimeError(f"{loop.name}: {ran.stderr[-2000:]}")
    return max(map(int, found)) / 1e3


def predicted(loop: Loop, engine: str, fitted: float, delay_ms: float) -> float:
    """The step that an engine makes of it, milliseconds.

    Args:
        loop: what runs.
        engine: under which.
        fitted: what a message takes, milliseconds, or how many times as long ops are.
        delay_ms: on the link.
    """
    order = build(loop.schedule, Shape(RANKS, MICROBATCHES, loop.chunks))
    message, longer = (0.0, fitted) if loop.longer_ops else (1e6 * fitted, 1.0)
    links = Hops(message).with_pair(*LINK, message + 1e6 * delay_ms)
    rates = Rates(forward=1e6 * FORWARD_MS * longer, backward=1e6 * BACKWARD_MS * longer, transfer=links)
    return simulate(lower(order, ENGINES[engine]), costs_of(rates, order)).makespan / 1e6


def fit(loop: Loop, engine: str, quiet_ms: float) -> float:
    """The one figure with which the run without delay comes out."""
    low, high = 0.0, FORWARD_MS
    while high - low > 1e-5:
        middle = (low + high) / 2
        if predicted(loop, engine, middle, 0) < quiet_ms:
            low = middle
        else:
            high = middle
    return low


def run(loop: Loop, clients: Path, python: str, steps: int) -> list[Measured]:
    """A loop with each delay."""
    found: list[Measured] = []
    fits: dict[str, float] = {}
    for delay in DELAYS_MS:
        took = measure(loop, clients, python, delay, steps)
        if not fits:
            fits = {engine: fit(loop, engine, took) for engine in (loop.engine, "ideal")}
        steps_ms = [predicted(loop, engine, fits[engine], delay) for engine in (loop.engine, "ideal")]
        found.append(Measured(loop.name, loop.engine, delay, took, *steps_ms, fits[loop.engine]))
    return found


def main() -> None:
    """Print a line for each loop and delay, or all of it as JSON."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("clients", type=Path)
    asked.add_argument("--python", default="python3")
    asked.add_argument("--steps", type=int, default=12)
    asked.add_argument("--only", default="", help="loops whose name begins so")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    found = [
        each
        for loop in LOOPS
        if loop.name.startswith(given.only)
        for each in run(loop, given.clients, given.python, given.steps)
    ]
    if given.json:
        print(json.dumps([asdict(each) | {"error_percent": each.error_percent} for each in found]))
        return
    for each in found:
        print(
            f"{each.name:26} {each.delay_ms:4g} ms   measured {each.measured_ms:7.1f}   {each.engine} "
            f"{each.predicted_ms:7.1f} ({each.error_percent:+.1f} %)   ideal {each.ideal_ms:7.1f}   "
            f"a message {each.fitted:.2f}"
        )


if __name__ == "__main__":
    main()
