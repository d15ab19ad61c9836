"""Op tables of five million rows: CSV by pyarrow and by NumPy, Parquet, each against pyarrow alone in the same run.

python -m pytest -q -s benchmarks/bench_tables.py          seconds of CPU and the peak of memory, a process each

Before tables were read by columns: CSV 17.6 s and 1.13 GB, Parquet 4.2 s and 1.21 GB. Now CSV 2.9 s and .52 GB (5.4 s
by NumPy's reader alone), Parquet 1.8 s and .55 GB; pyarrow alone 2.0 s and .9 s.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest

ROWS = 5_000_000
RANKS, UNITS = 8, 16

_READ = """
import sys, time
begun = time.process_time()
way, path = sys.argv[1:]
if way == "pyarrow alone":
    from pyarrow import csv, parquet
    (csv.read_csv if path.endswith("csv") else parquet.read_table)(path)
else:
    from debubble.readers import table_chunks
    from debubble.readers.table import read_table
    if way == "numpy":
        table_chunks._fast_reader = lambda: table_chunks._by_numpy
    read_table(path)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss knows the parent's
print(time.process_time() - begun, int(peak.split()[1]) / 1e6)
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same ops as CSV and as Parquet."""
    folder = tmp_path_factory.mktemp("tables")
    text = folder / "ops.csv"
    with text.open("w") as stream:
        stream.write("rank,step,op,stage,microbatch,start_ns,end_ns\n")
        for step in range(ROWS // (2 * RANKS * UNITS)):
            begun = 1_700_000_000_000_000_000 + step * 1_000_000
            for rank in range(RANKS):
                for unit in range(UNITS):
                    start = begun + (rank + unit) * 10_000
                    stream.write(f"{rank},{step},F,{rank},{unit},{start},{start + 9000}\n")
                for unit in range(UNITS):
                    start = begun + 400_000 + (RANKS - 1 - rank + unit) * 20_000
                    stream.write(f"{rank},{step},B,{rank},{unit},{start},{start + 19000}\n")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(text), folder / "ops.parquet")
    return {"csv": text, "parquet": folder / "ops.parquet"}


def test_tables(tables: dict[str, Path]) -> None:
    spent = {}
    for kind, way in (("csv", "pyarrow"), ("csv", "numpy"), ("parquet", "pyarrow")):
        spent[kind, way] = _measured(way, tables[kind])
    for kind in tables:
        spent[kind, "alone"] = _measured("pyarrow alone", tables[kind])
    for (kind, way), (seconds, gigabytes) in spent.items():
        print(f"\n  {kind:8} {way:8} {seconds:5.1f} s CPU {gigabytes:5.2f} GB", end="")
    assert spent["csv", "pyarrow"][0] < 3 * spent["csv", "alone"][0]
    assert spent["parquet", "pyarrow"][0] < 4 * spent["parquet", "alone"][0]
    assert all(gigabytes < 0.8 for (_, way), (_, gigabytes) in spent.items() if way != "alone")


def _measured(way: str, path: Path) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", _READ, way, str(path)], capture_output=True, text=True, check=True)
    seconds, gigabytes = done.stdout.split()
    return float(seconds), float(gigabytes)
