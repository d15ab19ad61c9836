"""Reading traces: 16 ranks, 1.06 million events, 165 MB of JSON, beside json and msgspec that only parse it; and 2 GB.

The set is a simulated 1F1B run poured into Kineto form. Each reader is a process of its own, so that CPU seconds, its
start among them, and peak memory are its own; HolisticTraceAnalysis 0.5.0 needs 36 CPU seconds and 261 MB for a set of
this size (without ranks on one clock, F and B, or a bubble).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from debubble.core.costs import Rates, costs_of
from debubble.core.schedule import Shape
from debubble.schedules.catalog import build
from pour import Style, pour_rank, run_of, write

RANKS, STEPS, MICROBATCHES, KERNELS = 16, 2, 64, 84

READERS = {
    "debubble, to windows": """
from debubble.readers.source import read
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
    # As the command line runs it where it is installed: compiled before, and without threads of BLAS that spin.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", start + reader + end, str(folder)]
    return run(command, check=True, capture_output=True, text=True, env=env).stdout


@pytest.mark.parametrize("name", READERS)
def test_reading(benchmark: Any, folder: Path, name: str) -> None:
    said = benchmark.pedantic(_child, args=(folder, READERS[name]), rounds=1)
    print("\n ", name, *said.splitlines(), sep="   ")


LONG_STEPS, LONG_KERNELS, COPIES = 4, 500, 17
ORDERS = {"as it happened": (), "work on the CPU first, as Kineto writes it": ("cuda_runtime", "kernel")}


@pytest.fixture(scope="module", params=list(ORDERS.values()), ids=list(ORDERS))
def long(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One rank, a third of its events kernels: the same steps again and again, later, under ids that go on."""
    path = tmp_path_factory.mktemp("long") / "rank1_trace.json"
    schedule = build("1f1b", Shape(4, 64))
    runs = run_of(schedule, costs_of(Rates(), schedule), LONG_STEPS)
    rows = pour_rank(runs, 1, Style(kernels=LONG_KERNELS, ahead=500_000))
    first = [row for row in rows if row["cat"] not in request.param]
    last = [row for row in rows if row["cat"] in request.param]
    span = max(row["ts"] for row in rows) - min(row["ts"] for row in rows) + 1e4
    ids = max(row["args"].get("correlation", 0) for row in rows)
    with path.open("w", buffering=1 << 20) as file:
        file.write('{"distributedInfo": {"rank": 1}, "traceEvents": [{"ph": "M"}')
        for part in (first, last):
            holes = [_with_holes(row, span, ids) for row in part]
            for copy in range(COPIES):
                file.writelines("," + text % tuple(n + copy * more for n, more in numbers) for text, numbers in holes)
        file.write("]}")
    yield path
    path.unlink()


def _with_holes(row: dict[str, Any], span: float, ids: int) -> tuple[str, list[tuple[float, float]]]:
    """An event as text with a hole for each number that copies change; these numbers, and what a copy adds to each."""
    name, _, step = row["name"].partition("#") if row["name"].startswith("ProfilerStep#") else (row["name"], "", "")
    linked = {"correlation": "%r"} if "correlation" in row["args"] else {}
    said = {**row, "name": f"{name}#%r" if step else name, "ts": "%r", "args": {**row["args"], **linked}}
    numbers = [(row["ts"], span), *((row["args"][key], ids) for key in linked)]
    text = json.dumps(said, separators=(",", ":")).replace('"%r"', "%r")
    return text, [(int(step), LONG_STEPS), *numbers] if step else numbers


_ONE_FILE = """
from debubble.readers.kineto import read_trace
print(len(read_trace(paths[0]).devices[0]), 'ops')"""


def test_memory_of_a_long_trace(benchmark: Any, long: Path) -> None:
    """2.06 GB, 13.1 million events, a third of them kernels: 364 MB in either order, 24 bytes an event beyond 55 MB."""
    said = benchmark.pedantic(_child, args=(long.parent, _ONE_FILE), rounds=1)
    print("\n ", f"{long.stat().st_size / 1e6:.0f} MB of JSON", *said.splitlines(), sep="   ")
