"""The intervals that ``plan`` prints, from published runs: ``python intervals.py FOLDER``.

FOLDER is as ``published.py`` wrote it. Writes ``src/debubble/data/validated.toml``.
Run it after any change of the estimate: the intervals are its errors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from debubble.planning.runs import read_runs
from debubble.planning.validate import as_they_fit, is_to_be_trusted, kind_of, simulated_steps
from debubble.planning.verdict import FILE, intervals, written


def main() -> None:
    """Predict every run of every table, and write the error of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="tables of measured runs")
    kinds, ratios = [], []
    tables = sorted(parser.parse_args().folder.glob("*.csv"))
    for path in tables:
        runs = [run for run in as_they_fit(read_runs(path).runs) if is_to_be_trusted(run)]
        seconds = simulated_steps(runs)[0]
        kinds += [kind_of(run) for run in runs]
        ratios += (seconds / np.array([run.seconds for run in runs])).tolist()
    names = ", ".join(path.stem for path in tables)
    source = f"Errors of predicted steps of {len(ratios)} published runs ({names}), by benchmarks/planner/intervals.py"
    FILE.write_text(written(intervals(kinds, np.array(ratios)), source), encoding="utf-8")
    print(f"{FILE}: {len(ratios)} runs")


if __name__ == "__main__":
    main()
