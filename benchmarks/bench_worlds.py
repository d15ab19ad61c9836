"""Two hundred worlds by chance, each read as it is, faults too, and fifty without a fault; the suite draws 30 and 10.

python -m pytest -q -s benchmarks/bench_worlds.py          200 of 200 and 50 of 50, about 300 s of CPU
"""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reconstruct"))

from test_worlds import agrees, generator, is_clean

from worlds import drawn

WORLDS, CLEAN = 200, 50
SHARED = Path(__file__).resolve().parents[2] / "shared"


def test_worlds(benchmark: Any, tmp_path: Path) -> None:
    found = benchmark.pedantic(_read_as_they_are, args=(tmp_path,), rounds=1)
    print(f"\n  {sum(found.values())} of {WORLDS} worlds are read as they are")
    assert all(found.values()), [seed for seed, good in found.items() if not good]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the generator of ../shared is not here")
def test_clean_worlds(benchmark: Any, tmp_path: Path) -> None:
    other = generator(SHARED)

    def all_clean() -> None:
        for seed in range(CLEAN):
            folder = tmp_path / str(seed)
            folder.mkdir()
            is_clean(other, folder, seed)

    benchmark.pedantic(all_clean, rounds=1)
    print(f"\n  {CLEAN} of {CLEAN} worlds without a fault have no finding of one")


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
