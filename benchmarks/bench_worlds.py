"""Two hundred worlds by chance, each read as it is: schedule, places, windows, messages and clocks; the suite draws 30.

python -m pytest -q -s benchmarks/bench_worlds.py          200 of 200, about 150 s of CPU
"""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reconstruct"))

from test_worlds import agrees

from worlds import drawn

WORLDS = 200


def test_worlds(benchmark: Any, tmp_path: Path) -> None:
    found = benchmark.pedantic(_read_as_they_are, args=(tmp_path,), rounds=1)
    print(f"\n  {sum(found.values())} of {WORLDS} worlds are read as they are")
    assert all(found.values()), [seed for seed, good in found.items() if not good]


def _read_as_they_are(folder: Path) -> dict[int, bool]:
    """For each seed whether everything agrees with the truth."""
    found = {}
    for seed in range(WORLDS):
        here = folder / str(seed)
        here.mkdir()
        try:
            agrees(drawn(seed), here)
            found[seed] = True
        except Exception as error:
            print(f"  {seed}: {type(error).__name__}: {error}")
            found[seed] = False
        rmtree(here)
    return found
