"""Lower bounds on the makespan: what no order of the same ops on the same ranks can beat.

The largest of three counts; the first two are the bounds of https://arxiv.org/abs/2401.10241, appendix H, for one
rank, with the way there and the way back added:

    rank      the way from the input to a rank + all its work
    back      the way there + F, I and B of the rank, since W may run last + the way back + one W of stage 0
    chain     one micro-batch from end to end and back
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .op import Kind
from .schedule import Schedule

_FAR = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class _Ways:
    """Shortest ways through one copy of the pipeline, int64[stages], nanoseconds."""

    there: NDArray[np.int64]  # until the first op of a stage can start
    onward: NDArray[np.int64]  # from the end of F there to the end of the last F
    back: NDArray[np.int64]  # from the end of a gradient there to the end of the step
    chain: int


def lower_bound(schedule: Schedule, costs: Costs) -> int:
    """Nanoseconds that no schedule of the same placement, costs and split of the backward can go below."""
    spent = _least(schedule, costs)
    rank = schedule.rank_of()
    work = np.bincount(rank, spent, schedule.ranks)
    weight = schedule.kind == Kind.W
    without_w = work - np.bincount(rank[weight], spent[weight], schedule.ranks)
    there, back = np.full(schedule.ranks, _FAR), np.full(schedule.ranks, _FAR)
    chain = 0
    for copy, home in enumerate(schedule.placement):
        ways = _ways(schedule, costs, spent, copy)
        np.minimum.at(there, home, ways.there)
        np.minimum.at(back, home, ways.onward if schedule.forward_only else ways.back)
        chain = max(chain, ways.chain)
    by_rank = there + work
    by_return = there + without_w + back  # of a rank without W all its work
    used = work > 0
    return int(max(chain, by_rank[used].max(initial=0), by_return[used].max(initial=0)))


def _least(schedule: Schedule, costs: Costs) -> NDArray[np.int64]:
    """The least time that each op can take, int64[ops]: its own, or its share of a pair that runs faster together."""
    unit = schedule.unit if costs.durations.shape[2] > 1 else 0
    alone: NDArray[np.int64] = costs.durations[schedule.kind, schedule.stage, unit]
    if schedule.joined is not None and costs.pair_scale < 1:
        alone = np.floor(alone * costs.pair_scale).astype(np.int64)
    return alone


def _ways(schedule: Schedule, costs: Costs, spent: NDArray[np.int64], copy: int) -> _Ways:
    mine = schedule.copy_of(schedule.unit) == copy
    forward = _per_stage(schedule, spent, mine & (schedule.kind == Kind.F))
    gradient = _per_stage(schedule, spent, mine & ((schedule.kind == Kind.I) | (schedule.kind == Kind.B)))
    home = schedule.placement[copy]
    hops = np.concatenate([[False], home[1:] != home[:-1]])  # between stage s-1 and s
    down = np.where(hops, costs.hops()[Kind.F].min(axis=1), 0)
    gradients = [kind for kind in (Kind.I, Kind.B) if (schedule.kind == kind).any()]  # a table may leave the other at 0
    backward = costs.hops()[gradients].min(axis=(0, 2), initial=_FAR) % _FAR
    up = np.where(hops, np.roll(backward, 1), 0)
    there = np.cumsum(down) + np.cumsum(forward) - forward
    last = _last_w(schedule, spent, mine)
    back = np.cumsum(up) + np.cumsum(gradient) - gradient + last
    whole = int(there[-1] + forward[-1])
    onward = whole - (there + forward)
    chain = whole if schedule.forward_only else whole + int(gradient[-1] + back[-1])
    return _Ways(there, onward, back, chain)


def _per_stage(schedule: Schedule, spent: NDArray[np.int64], rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    least = np.full(schedule.stages, _FAR)
    np.minimum.at(least, schedule.stage[rows], spent[rows])
    return np.where(least == _FAR, 0, least)


def _last_w(schedule: Schedule, spent: NDArray[np.int64], mine: NDArray[np.bool_]) -> int:
    """W of stage 0, which follows the last I; 0 where a full backward may end the step."""
    at_first = mine & (schedule.stage == 0)
    if (at_first & (schedule.kind == Kind.B)).any():
        return 0
    return int(spent[at_first & (schedule.kind == Kind.W)].min(initial=_FAR)) % _FAR
