"""Stage costs: what a micro-batch takes on each stage and on its way, as the medians of all windows of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..costs import Costs
from ..op import KINDS
from ..schedule import Schedule
from .fit import hops, present, spent
from .windows import Summary


def stage_costs(summary: Summary) -> Costs:
    """Durations and delays of a whole micro-batch, evidence ``measured``; medians, so that no hiccup counts.

    Returns:
        durations and transfers int64[kinds, stages, 1], nanoseconds; 0 for kinds that a stage does not have.
    """
    several = [window.timeline for window in summary.windows]
    tables = []
    for read in (spent, hops):
        each = [_medians(read(timeline), timeline.program.schedule) for timeline in several]
        tables.append(np.rint(np.median(each, axis=0)).astype(np.int64)[:, :, None])
    return Costs(tables[0] * several[0].program.schedule.slices, tables[1], "measured")


def _medians(values: NDArray[np.int64], schedule: Schedule) -> NDArray[np.float64]:
    """Of each kind and stage over its units, float64[kinds, stages]; 0 where there is none."""
    own = schedule.kind, schedule.stage, schedule.unit
    table = np.full((KINDS, schedule.stages, schedule.units), np.nan)
    table[own] = values
    found = np.zeros(table.shape[:2])
    there = present(schedule).any(axis=2)
    found[there] = np.nanmedian(table[there], axis=1)
    return found
