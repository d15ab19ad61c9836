"""Reading traces: 16 ranks, 1.06 million events, 165 MB of JSON, beside json and msgspec that only parse it.

The set is a simulated 1F1B run poured into Kineto form. Each reader
is a process of its own, so that CPU seconds and peak memory are its own; HolisticTraceAnalysis 0.5.0 needs 36 CPU
seconds and 261 MB for a set of this size (without ranks on one clock, F and B, or a bubble).
"""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from debubble.costs import Rates, costs_of
from debubble.schedule import Shape
from debubble.schedules.catalog import build
from pour import Style, pour_rank, run_of, write

RANKS, STEPS, MICROBATCHES, KERNELS = 16, 2, 64, 84

READERS = {
    "debubble, to windows": """
from debubble.formats.source import read
print(len(read([sys.argv[1]]).windows), 'windows')""",
    "msgspec, parse only": """
import msgspec
class Event(msgspec.Struct):
    ph: str; name: str; pid: int | str; tid: int | str; ts: float = 0; dur: float = 0; cat: str = ''; args: dict = {}
class Trace(msgspec.Struct):
    traceEvents: list[Event]
print(sum(len(msgspec.json.decode(path.read_bytes(), type=Trace).traceEvents) for path in paths), 'events')""",
    "json, parse only": """
import json
print(sum(len(json.loads(path.read_bytes())['traceEvents']) for path in paths), 'events')""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set, plain JSON, one file a rank."""
    path = tmp_path_factory.mktemp("traces")
    schedule = build("1f1b", Shape(RANKS, MICROBATCHES))
    runs = run_of(schedule, costs_of(Rates(), schedule), STEPS)
    events = 0
    for rank in range(RANKS):
        rows = pour_rank(runs, rank, Style(kernels=KERNELS, ahead=500_000))
        events += len(rows)
        write(path, {rank: rows}, packed=False)
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"\n{RANKS} ranks, {events:,} events, {size / 1e6:.0f} MB")
    return path


def _child(folder: Path, reader: str) -> str:
    """CPU seconds and peak memory of one reader in its own process, and what it found."""
    start = "import sys, time; from pathlib import Path; paths = sorted(Path(sys.argv[1]).iterdir())\n"
    peak = "next(int(x.split()[1]) for x in open('/proc/self/status') if 'VmHWM' in x)"  # ru_maxrss counts ours too
    end = f"\nprint('%6.2f s CPU %6.0f MB peak' % (time.process_time(), {peak} / 1024))"
    return run(
        [sys.executable, "-c", start + reader + end, str(folder)], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("name", READERS)
def test_reading(benchmark: Any, folder: Path, name: str) -> None:
    said = benchmark.pedantic(_child, args=(folder, READERS[name]), rounds=1)
    print("\n ", name, *said.splitlines(), sep="   ")
