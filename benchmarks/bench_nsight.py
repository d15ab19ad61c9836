"""Nsight exports of a million rows and more: microseconds of CPU a row, against SQLite's own reading of the columns.

python -m pytest -q -s benchmarks/bench_nsight.py

Before exports were read by columns a row took 4.0 to 4.7 times what SQLite and its tuples cost alone, now 1.3 to 1.6
times (on a busy machine, where SQLite alone took 1.1 us: 4.5 us before, 1.4 to 1.8 us now).
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = 700_000  # of one device; each with its launch, and a range around seven of them
PROCESS = 1 << 24

_READ = """
import sqlite3, sys, time
from pathlib import Path
way, path = sys.argv[1:]
from debubble.readers.nsight import read_nsight  # before the clock: imports are no rows
begun = time.process_time()
if way == "sqlite alone":
    connection = sqlite3.connect(path)
    for query in (
        'SELECT start, "end", streamId, correlationId, shortName FROM CUPTI_ACTIVITY_KIND_KERNEL',
        'SELECT start, "end", globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME',
        'SELECT start, "end", globalTid, textId FROM NVTX_EVENTS',
    ):
        cursor = connection.execute(query)
        while cursor.fetchmany(1 << 16):
            pass
else:
    (device,) = read_nsight([Path(path)], path).devices
    assert len(device) == int(way)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss knows the parent's
print(time.process_time() - begun, int(peak.split()[1]) / 1e6)
"""


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One device that runs 1F1B steps: each op is a range, seven kernels and their launches."""
    path = tmp_path_factory.mktemp("nsight") / "rank0.sqlite"
    base = sqlite3.connect(path)
    base.executescript("""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, correlationId, globalPid, shortName);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId);
        CREATE TABLE NVTX_EVENTS (start, "end", eventType, textId, globalTid);
    """)
    ops = [f"PP:0{kind}{unit}" for unit in range(8) for kind in "FB"]
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [*enumerate(ops), *((100 + i, f"k{i}") for i in range(7))])
    kernels, launches, ranges = [], [], []
    for number in range(KERNELS // 7):
        start = 1_000_000 * number
        ranges.append((start, start + 800_000, 59, number % len(ops), PROCESS + 1))
        for each in range(7):
            launched = start + 100_000 * each
            launches.append((launched, launched + 5000, PROCESS + 1, 7 * number + each))
            kernels.append((launched + 40_000, launched + 130_000, 0, 7, 7 * number + each, PROCESS, 100 + each))
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", kernels)
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", launches)
    base.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", ranges)
    base.commit()
    base.close()
    return path


def test_a_row_of_an_export_takes_a_microsecond(export: Path) -> None:
    rows = KERNELS * 2 + KERNELS // 7
    ours, peak = _measured(str(KERNELS // 7), export)
    alone, _ = _measured("sqlite alone", export)
    print(
        f"\n  {rows:,} rows: {1e6 * ours / rows:.2f} us a row, {peak:.2f} GB; SQLite alone {1e6 * alone / rows:.2f} us"
    )
    assert ours < 4 * alone


def _measured(way: str, path: Path) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", _READ, way, str(path)], capture_output=True, text=True, check=True)
    seconds, gigabytes = done.stdout.split()
    return float(seconds), float(gigabytes)
