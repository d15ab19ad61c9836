"""The costs that a measured run shows: op by op for one window, and per stage as medians over all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.needs import NOTHING, needs_of
from ..core.op import KINDS, Kind
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from .windows import Summary


def fitted(timeline: Timeline) -> Costs:
    """Every op's own duration and every hop's own delay, so that simulating with them shows the run again.

    Returns:
        durations and transfers int64[kinds, stages, units], nanoseconds; 0 where the schedule has no such op.
    """
    schedule = timeline.program.schedule
    own = (schedule.kind, schedule.stage, schedule.unit)
    durations, transfers = (np.zeros((KINDS, schedule.stages, schedule.units), np.int64) for _ in range(2))
    durations[own] = spent(timeline)
    transfers[own] = hops(timeline)
    return Costs(durations, transfers, timeline.evidence)


def spent(timeline: Timeline) -> NDArray[np.int64]:
    """Time that each op occupied its rank, int64[ops], nanoseconds: sums to ``compute`` of the account.

    Where two ops of a rank overlap, the later one begins when the earlier ends; a slot of two ops is halved.
    """
    schedule = timeline.program.schedule
    start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
    before = np.concatenate([end[:1], end[:-1]])
    opens = schedule.offsets[:-1][np.diff(schedule.offsets) > 0]
    before[opens] = start[opens]
    own = np.asarray(end - np.maximum(start, before), np.int64)
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        slot = own[second - 1] + own[second]
        own[second - 1], own[second] = slot - slot // 2, slot // 2
    return own


def hops(timeline: Timeline) -> NDArray[np.int64]:
    """Delay between the end of each op's input on another rank and its arrival, int64[ops], nanoseconds.

    Where the rank was free before its input had been made, the whole delay shows, and is taken as it is. Elsewhere it
    hides behind work: there it is the median of what shows at the same kind and stage (where nothing shows, the least
    of them), and never more than the op's own start allows. So a simulation with these delays starts no op later than
    it did start; what it lacks (a late host) stays unexplained.
    """
    schedule = timeline.program.schedule
    start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
    need = needs_of(schedule)[0]
    needed = need != NOTHING
    since = np.maximum(start - end[need], 0)
    free = start - lane_free(schedule, end)
    shows = needed & (since <= free)
    group = schedule.kind.astype(np.int64) * schedule.stages + schedule.stage
    usual = np.full(KINDS * schedule.stages, np.iinfo(np.int64).max)
    _set_least(usual, group[needed], since[needed])
    _set_median(usual, group[shows], since[shows])
    return np.where(shows, since, np.where(needed, np.minimum(since, usual[group]), 0))


def lane_free(schedule: Schedule, end: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the rank of each op had nothing else to do, int64[ops]; long ago for its first op."""
    free = np.concatenate([[0], end[:-1]])
    free[schedule.offsets[:-1][np.diff(schedule.offsets) > 0]] = np.iinfo(np.int64).min // 2
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        free[second] = free[second - 1]
    return free


def _set_least(table: NDArray[np.int64], group: NDArray[np.int64], value: NDArray[np.int64]) -> None:
    np.minimum.at(table, group, value)


def _set_median(table: NDArray[np.int64], group: NDArray[np.int64], value: NDArray[np.int64]) -> None:
    order = np.lexsort((value, group))
    named, first, count = np.unique(group[order], return_index=True, return_counts=True)
    table[named] = value[order][first + (count - 1) // 2]


def kind_means(costs: Costs, schedule: Schedule) -> Costs:
    """One duration for each kind, the mean over all its ops; free transfers."""
    there = present(schedule)
    count = there.sum(axis=(1, 2), keepdims=True)
    mean = _mean(costs.durations, there, count, (1, 2))
    return Costs(np.where(there.any(axis=2, keepdims=True), mean, 0), np.zeros((KINDS, schedule.stages, 1), np.int64))


def stage_means(costs: Costs, schedule: Schedule) -> Costs:
    """One duration and one delay for each kind and stage, the mean over micro-batches."""
    there = present(schedule)
    count = there.sum(axis=2, keepdims=True)
    return Costs(
        _mean(costs.durations, there, count, 2),
        _mean(costs.transfers, there, count, 2),
        costs.evidence,
        costs.pair_scale,
    )


def present(schedule: Schedule) -> NDArray[np.bool_]:
    """Which ops a schedule has, bool[kinds, stages, units]."""
    there = np.zeros((KINDS, schedule.stages, schedule.units), np.bool_)
    there[schedule.kind, schedule.stage, schedule.unit] = True
    return there


def free_transfers(costs: Costs) -> Costs:
    """The same durations, and no delay between ranks."""
    return Costs(costs.durations, np.zeros_like(costs.transfers), costs.evidence, costs.pair_scale)


def _mean(
    table: NDArray[np.int64], there: NDArray[np.bool_], count: NDArray[np.int64], axis: int | tuple[int, ...]
) -> NDArray[np.int64]:
    """Mean over what is there, rounded half to even; 0 where nothing is."""
    total = np.where(there, table, 0).sum(axis=axis, keepdims=True)
    mean: NDArray[np.int64] = np.rint(total / np.maximum(count, 1)).astype(np.int64)
    return mean


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
    return Costs(_over_windows(durations) * (1 if paired else slices), _over_windows(delays), "measured")


def _over_windows(tables: list[NDArray[np.float64]]) -> NDArray[np.int64]:
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
