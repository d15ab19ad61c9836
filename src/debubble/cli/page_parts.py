"""Parts that the pages of all verbs share: tiles, runs, causes, and where the sliders start."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account
from ..core.costs import Costs
from ..core.lower import needs_of
from ..core.op import KINDS, Kind
from ..core.schedule import Schedule, Shape
from ..core.timeline import Timeline
from ..core.units import percent
from ..diagnosis.causes import Causes
from ..diagnosis.diagnose import REMEDIES
from ..diagnosis.measured_costs import fitted, present, stage_means
from ..diagnosis.own_idle import closed_form
from ..diagnosis.recognise import recognise
from ..drawing.html import MOST_SIMULATED, Run
from ..report.causes import WHAT
from .report import per_rank

Tile = dict[str, str]

_HALVES = "A schedule that splits the backward takes half of it for each part: state or measure I and W to know better."


def promise_tile(found: Causes, schedule: Schedule, name: str | None) -> Tile:
    """What the order would idle with even stages and free transfers: by formula where there is one."""
    size = Shape(schedule.ranks, schedule.microbatches, max(1, schedule.stages // schedule.ranks), schedule.slices)
    ratio = closed_form(name, size) if name else None
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


def what_if_measured(timeline: Timeline, found: Causes, number: int = 0) -> dict[str, Any] | None:
    """Sliders from the mean durations of each stage; none where simulating the run again misses its window."""
    if not found.trusted:
        return None
    fit = f"the run simulated again takes {percent(found.resim_ratio)} of its window"
    note = f"Simulated with the mean of each stage and one hop for all; {fit}."
    return what_if(timeline, fitted(timeline), note, number)


def what_if(timeline: Timeline, costs: Costs, note: str, number: int = 0) -> dict[str, Any] | None:
    """Where the sliders start; None where the run has too many ops for a page to simulate.

    Args:
        timeline: of the run.
        costs: of its ops.
        note: on where the durations come from.
        number: of the run on the page.
    """
    schedule = timeline.program.schedule
    if len(schedule) > MOST_SIMULATED:
        return None
    return {
        "run": number,
        "schedule": recognise(schedule).name or schedule.name,
        "ranks": schedule.ranks,
        "microbatches": schedule.microbatches,
        "chunks": int(schedule.chunks_of().max()),
        "slices": schedule.slices,
        "stages": schedule.stages,
        "table": table_of(costs, schedule).tolist(),
        "transfer": _hop(costs, schedule),
        "pairScale": costs.pair_scale,
        "note": note if schedule.splits or schedule.forward_only else f"{note} {_HALVES}",
    }


def table_of(costs: Costs, schedule: Schedule) -> NDArray[np.int64]:
    """The mean duration of each kind and stage, int64[kinds, stages]; a backward and its halves from each other."""
    there = present(schedule).any(axis=2)
    said = np.rint(costs.durations.mean(axis=2)).astype(np.int64)  # of kinds that the order does not have
    table = np.where(there, stage_means(costs, schedule).durations[:, :, 0], said)
    if not table[[Kind.I, Kind.W]].any():
        table[Kind.I] = table[Kind.B] // 2
        table[Kind.W] = table[Kind.B] - table[Kind.I]
    elif not table[Kind.B].any():
        table[Kind.B] = table[Kind.I] + table[Kind.W]
    return table


def _hop(costs: Costs, schedule: Schedule) -> int:
    """The mean delay of all hops between ranks, nanoseconds."""
    crossing = needs_of(schedule)[0] >= 0
    delays = np.broadcast_to(costs.hops(), (KINDS, schedule.stages, schedule.units))
    mine = delays[schedule.kind[crossing], schedule.stage[crossing], schedule.unit[crossing]]
    return round(float(mine.mean())) if mine.size else 0
