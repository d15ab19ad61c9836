"""Reading traces: 16 ranks, 1.06 million events, 165 MB of JSON, beside json and msgspec that only parse it.

The set is a simulated 1F1B run poured into Kineto form. Each reader
is a process of its own, so that CPU seconds and peak memory are its own; HolisticTraceAnalysis 0.5.0 needs 36 CPU
seconds and 261 MB for a set of this size (without ranks on one clock, F and B, or a bubble).
"""

from __future__ import annotations

import json
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


LONG_STEPS, LONG_KERNELS, COPIES = 4, 500, 4


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, a third of its events kernels: the same steps again and again, later, under ids that go on."""
    path = tmp_path_factory.mktemp("long") / "rank1_trace.json"
    schedule = build("1f1b", Shape(4, 64))
    runs = run_of(schedule, costs_of(Rates(), schedule), LONG_STEPS)
    rows = pour_rank(runs, 1, Style(kernels=LONG_KERNELS, ahead=500_000))
    span = max(row["ts"] for row in rows) - min(row["ts"] for row in rows) + 1e4
    ids = max(row["args"].get("correlation", 0) for row in rows)
    with path.open("w") as file:
        file.write('{"distributedInfo": {"rank": 1}, "traceEvents": [{"ph": "M"}')
        for copy in range(COPIES):
            for row in rows:
                args = {key: n + copy * ids if key == "correlation" else n for key, n in row["args"].items()}
                step = row["name"].partition("ProfilerStep#")[2]
                name = f"ProfilerStep#{int(step) + copy * LONG_STEPS}" if step else row["name"]
                said = {**row, "ts": row["ts"] + copy * span, "args": args, "name": name}
                file.write("," + json.dumps(said, separators=(",", ":")))
        file.write("]}")
    return path


_ONE_FILE = """
from debubble.formats.kineto.read import read_trace
print(len(read_trace(paths[0]).devices[0]), 'ops')"""


def test_memory_of_a_long_trace(benchmark: Any, long: Path) -> None:
    """Peak memory grows by 31 bytes an event beyond 58 MB: 2 GB (12.8 million events) take some 460 MB."""
    said = benchmark.pedantic(_child, args=(long.parent, _ONE_FILE), rounds=1)
    print("\n ", f"{long.stat().st_size / 1e6:.0f} MB of JSON", *said.splitlines(), sep="   ")
