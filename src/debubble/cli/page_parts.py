"""Parts that the pages of all verbs share: tiles, runs and causes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from ..core.units import percent
from ..diagnosis.causes import Causes
from ..diagnosis.diagnose import REMEDIES
from ..drawing.html import Run
from ..report.causes import WHAT
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import ratio_of_any_costs, sizes_of
from .report import per_rank

Tile = dict[str, str]


def promise_tile(found: Causes, schedule: Schedule, name: str | None) -> Tile:
    """What the order would idle with even stages and free transfers: by formula where there is one."""
    ratio = ratio_of_any_costs(CATALOG[name], sizes_of(schedule)) if name else None
    share = 1 - found.most_busy if ratio is None else ratio / (1 + ratio)
    evidence = "simulated" if ratio is None else "exact"
    return tile(
        "What the schedule itself promises", f"{percent(share)} idle share", f"even stages, free transfers; {evidence}"
    )


def fit_tile(value: str, trusted: bool) -> Tile:
    """How well simulating a run again fits, and whether what-ifs can be trusted."""
    note = "of the measured window; " + ("close enough for what-ifs" if trusted else "too far off for what-ifs")
    return tile("Simulated again it takes", value, note)


def tile(name: str, value: str, note: str) -> Tile:
    """A number with its name and what it means."""
    return {"name": name, "value": value, "note": note}


def bubble_tile(share: str, ratio: str, evidence: str) -> Tile:
    """Both numbers called bubble, each by its name and definition."""
    note = f"idle share = idle / (ranks x window); bubble ratio = idle / busy, {ratio}; {evidence}"
    return tile("Idle share (bubble ratio)", f"{share} ({ratio})", note)


def run_of(name: str, timeline: Timeline, spent: Account, peak: NDArray[np.float64]) -> Run:
    """A timeline with the table of its ranks."""
    return Run(name, timeline, spent, per_rank(spent, peak))


def causes_of(found: Causes, evidence: str, name: str = "") -> dict[str, Any]:
    """The causes of a window as rows that sum to it.

    Args:
        found: the causes.
        evidence: of the window.
        name: of the run, where the page holds several.
    """
    window = found.window or 1
    rows = [
        {
            "cause": cause,
            "cost_ms": cost / 1e6,
            "cost_share": cost / window,
            "evidence": evidence if cause in ("ideal", "unexplained") else "simulated",
            "remedy": "; ".join(
                [WHAT[cause], *([REMEDIES[cause]] if cost > 0.01 * window and cause in REMEDIES else [])]
            ),
        }
        for cause, cost in found
    ]
    return {"name": name, "rows": rows}
