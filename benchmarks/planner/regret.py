"""What choosing a layout by five measured rows costs: ``python regret.py TABLE.csv``, as ``published.py`` wrote it.

For each seed as ``debubble validate`` does: the mean over 20 draws of 5 rows, of the measured step of the layout that
comes first among the others of its group, over the best of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from debubble.planning.runs import read_runs
from debubble.planning.validate import (
    as_they_fit,
    calibrated_errors,
    errors,
    expected_steps,
    is_to_be_trusted,
    simulated_steps,
)

ASKED = 8  # percent, of most seeds


def main() -> None:
    """Print the regret of each seed, their median, and that without any measured row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="a table of measured runs with groups of layouts")
    parser.add_argument("--seeds", type=int, default=20, help="how many; each takes as long as one validation")
    given = parser.parse_args()
    runs = [run for run in as_they_fit(read_runs(given.table).runs) if is_to_be_trusted(run)]
    seconds = simulated_steps(runs)[0]
    found = []
    for seed in range(given.seeds):
        found.append(calibrated_errors(runs, seconds, seed=seed).top1_regret_percent)
        print(f"seed {seed}: {found[-1]:.2f} %", flush=True)
    generic = errors(runs, seconds, expected_steps(runs, seconds, None)).top1_regret_percent
    few = sum(regret <= ASKED for regret in found)
    print(f"{len(runs)} runs: median {np.median(found):.1f} %, {few} of {len(found)} seeds at most {ASKED} %")
    print(f"uncalibrated {generic:.1f} %")


if __name__ == "__main__":
    main()
