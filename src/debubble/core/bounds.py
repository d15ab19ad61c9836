"""Lower bounds on the makespan: what no order of the same ops on the same ranks can beat.

The largest of four counts; the first two are the bounds of https://arxiv.org/abs/2401.10241, appendix H, for one
rank, with the way there and the way back added:

    rank      the way from the input to a rank + all its work
    back      the way there + F, I and B of the rank, since W may run last + the way back + one W of stage 0
    chain     one micro-batch from end to end and back
    windows   heads and tails of all ops, from rank to rank; see ``propagation``

An engine adds two, whatever the order:

    lane      all transfers that have to take turns on one lane
    blocked   all work of a rank + the transfers for which it stands still, those of one way to one neighbour at least
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .engine import IDEAL, Engine, Lane
from .laws import transfers
from .propagation import propagated
from .schedule import Kind, Schedule

_FAR = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class _Ways:
    """Shortest ways through one copy of the pipeline, int64[stages], nanoseconds."""

    there: NDArray[np.int64]  # until the first op of a stage can start
    back: NDArray[np.int64]  # from the end of a gradient there (of F without any) to the end of the step
    chain: int


def lower_bound(schedule: Schedule, costs: Costs, engine: Engine = IDEAL) -> int:
    """Nanoseconds that no schedule of the same placement, costs and split of the backward can go below.

    Args:
        schedule: for its placement, and for what it computes.
        costs: how long that takes.
        engine: who executes it.
    """
    return max(counted_bound(schedule, costs, engine), propagated(schedule, costs))


def counted_bound(schedule: Schedule, costs: Costs, engine: Engine = IDEAL) -> int:
    """The largest of the counts alone, without windows: the closed forms of even stages, and fast at every size.

    Args:
        schedule: as in ``lower_bound``.
        costs: likewise.
        engine: likewise.
    """
    spent = _least(schedule, costs)
    rank = schedule.rank_of()
    work = np.bincount(rank, spent, schedule.ranks)
    weight = schedule.kind == Kind.W
    without_w = work - np.bincount(rank[weight], spent[weight], schedule.ranks)
    there, back = np.full(schedule.ranks, _FAR), np.full(schedule.ranks, _FAR)
    chain = 0
    for copy in np.unique(schedule.copy_of(schedule.unit)).tolist():  # a copy that nobody passes bounds nothing
        home = schedule.placement[copy]
        ways = _ways(schedule, costs, spent, copy)
        np.minimum.at(there, home, ways.there)
        np.minimum.at(back, home, ways.back)
        chain = max(chain, ways.chain)
    by_rank = there + work
    by_return = there + without_w + back  # of a rank without W all its work
    used = work > 0
    bounds = [chain, by_rank[used].max(initial=0), by_return[used].max(initial=0)]
    if engine.meets:
        bounds += _of_engine(schedule, costs, engine, work)
    return int(max(bounds))


def _of_engine(schedule: Schedule, costs: Costs, engine: Engine, work: NDArray[np.int64]) -> list[int]:
    producer, consumer = transfers(schedule)
    hop = costs.hops() + costs.sender_side()
    lasts = _by_op(hop, schedule)[consumer]
    rank, ranks = schedule.rank_of().astype(np.int64), schedule.ranks
    sender, receiver = rank[producer], rank[consumer]
    bounds = []
    if engine.lane is Lane.PAIR and not engine.coalesced and not (engine.two_ways and ranks == 2):
        _, pair = np.unique(np.minimum(sender, receiver) * ranks + np.maximum(sender, receiver), return_inverse=True)
        bounds.append(np.bincount(pair, lasts).max(initial=0))
    each = np.bincount(sender, lasts, ranks) + np.bincount(receiver, lasts, ranks)
    if engine.lane is Lane.GROUP and not engine.coalesced:
        bounds.append(each.max(initial=0))
    if engine.one_by_one:
        bounds.append((work + each).max(initial=0))
    elif engine.stands_still:
        ways, way = np.unique(sender * ranks + receiver, return_inverse=True)
        total = np.bincount(way, lasts, len(ways))
        for end in (ways // ranks, ways % ranks):
            bounds.append((work[end] + total).max(initial=0))
    return [int(bound) for bound in bounds]


def _least(schedule: Schedule, costs: Costs) -> NDArray[np.int64]:
    """The least time that each op can take, int64[ops]: its own, or its share of a pair that runs faster together."""
    alone = _by_op(costs.durations, schedule)
    if schedule.joined is not None:
        shorter = np.minimum(costs.pair_scales(), 1.0)[schedule.kind, schedule.stage]
        alone = np.floor(alone * shorter).astype(np.int64)
    return alone


def _by_op(table: NDArray[np.int64], schedule: Schedule) -> NDArray[np.int64]:
    """The cell of each op in a table by kind, stage and, where it has more than one, unit, int64[ops]."""
    unit: NDArray[np.int32] | int = 0
    if table.shape[2] > 1:
        unit = schedule.unit
    cell: NDArray[np.int64] = table[schedule.kind, schedule.stage, unit]
    return cell


def _ways(schedule: Schedule, costs: Costs, spent: NDArray[np.int64], copy: int) -> _Ways:
    mine = schedule.copy_of(schedule.unit) == copy
    forward = _per_stage(schedule, spent, mine & (schedule.kind == Kind.F))
    gradient = _per_stage(schedule, spent, mine & ((schedule.kind == Kind.I) | (schedule.kind == Kind.B)))
    home = schedule.placement[copy]
    hops = np.concatenate([[False], home[1:] != home[:-1]])  # between stage s-1 and s
    reach = costs.hops() + costs.sender_side()
    down = np.where(hops, reach[Kind.F].min(axis=1), 0)
    gradients = [kind for kind in (Kind.I, Kind.B) if (schedule.kind == kind).any()]  # a table may leave the other at 0
    backward = reach[gradients].min(axis=(0, 2), initial=_FAR) % _FAR
    up = np.where(hops, np.roll(backward, 1), 0)
    there = np.cumsum(down) + np.cumsum(forward) - forward
    last = _last_w(schedule, spent, mine)
    back = np.cumsum(up) + np.cumsum(gradient) - gradient + last
    whole = int(there[-1] + forward[-1])
    if schedule.forward_only:  # the end of the step is that of the last F
        return _Ways(there, whole - (there + forward), whole)
    return _Ways(there, back, whole + int(gradient[-1] + back[-1]))


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
