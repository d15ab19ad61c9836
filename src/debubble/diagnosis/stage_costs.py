"""Stage costs: what a micro-batch takes on each stage and on its way, as the medians of all windows of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.op import KINDS, Kind
from ..core.schedule import Schedule
from .fit import hops, present, spent
from .windows import Summary


def stage_costs(summary: Summary) -> Costs:
    """Durations and delays of a whole micro-batch, evidence ``measured``; medians, so that no hiccup counts.

    Where ops ran together in pairs, what one of them takes alone is not known: forward and backward then each have half
    of all that the stage did for a micro-batch, and a pair of two stages is shared out evenly between them.

    Returns:
        durations and transfers int64[kinds, stages, 1], nanoseconds; 0 for kinds that a stage does not have.
    """
    several = [window.timeline for window in summary.windows]
    paired = any(timeline.program.schedule.joined is not None for timeline in several)
    own = _halves if paired else _medians
    durations = [own(spent(timeline), timeline.program.schedule) for timeline in several]
    delays = [_medians(hops(timeline), timeline.program.schedule) for timeline in several]
    slices = several[0].program.schedule.slices
    return Costs(_middle(durations) * (1 if paired else slices), _middle(delays), "measured")


def _middle(tables: list[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Over windows, int64[kinds, stages, 1]."""
    return np.rint(np.median(tables, axis=0)).astype(np.int64)[:, :, None]


def _medians(values: NDArray[np.int64], schedule: Schedule) -> NDArray[np.float64]:
    """Of each kind and stage over its units, float64[kinds, stages]; 0 where there is none."""
    table = np.full((KINDS, schedule.stages, schedule.units), np.nan)
    table[schedule.kind, schedule.stage, schedule.unit] = values
    found = np.zeros(table.shape[:2])
    there = present(schedule).any(axis=2)
    found[there] = np.nanmedian(table[there], axis=1)
    return found


def _halves(values: NDArray[np.int64], schedule: Schedule) -> NDArray[np.float64]:
    """Forward and backward of equal length that together are all work of a stage for one micro-batch."""
    found = np.zeros((KINDS, schedule.stages))
    work = np.bincount(schedule.stage, values, schedule.stages) / schedule.microbatches
    found[[Kind.F, Kind.B]] = work / 2
    return found
