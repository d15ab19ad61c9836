"""Edits: each takes a replay and returns it with one thing changed, or None where that cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.errors import InputError
from ..core.op import Kind
from ..core.schedule import Schedule, Shape, loop_placement
from ..schedules.catalog import CATALOG, build
from .fit import free_transfers, present
from .replay import MOST_OPS, Replay

EFFICIENT = "ops as efficient as now, whatever their size"
CUT = "a micro-batch can be cut so fine"
SHRINKS = "its work shrinks with its size"
SPREAD = "the work of a rank spreads evenly over its chunks"
HALVES = "a backward splits into equal halves"
FREE = "free transfers"
BALANCED = "balanced stages"
ALIKE = "micro-batches of like length"


def more_microbatches(run: Replay, microbatches: int) -> Replay | None:
    """More micro-batches of the same size in a step: a larger batch, or fewer replicas."""
    schedule = _rebuilt(run, microbatches)
    if schedule is None:
        return None
    ratio = microbatches / run.schedule.microbatches
    if ratio % 1:
        durations, transfers = (_mean_unit(table, schedule.units) for table in run.tables)
    else:
        durations, transfers = (np.tile(table, (1, 1, int(ratio))) for table in run.tables)
    return replace(
        run,
        schedule=schedule,
        costs=_costs(run, durations, transfers),
        batch=run.batch * ratio,
        changes=(*run.changes, f"{microbatches} micro-batches"),
        demands=(*run.demands, f"the batch is {ratio:.3g} x as large"),
    )


def finer_microbatches(run: Replay, microbatches: int) -> Replay | None:
    """The same batch in more, smaller micro-batches."""
    schedule = _rebuilt(run, microbatches)
    ratio = run.schedule.microbatches / microbatches
    if schedule is None or (run.micro_batch and (run.micro_batch * ratio) % 1):
        return None
    durations, transfers = run.tables
    each = microbatches // run.schedule.microbatches
    if each * run.schedule.microbatches == microbatches:
        durations, transfers = (
            np.repeat(table, each * run.schedule.slices, axis=2) for table in (durations, transfers)
        )
    else:
        durations, transfers = _mean_unit(durations, schedule.units), _mean_unit(transfers, schedule.units)
    return replace(
        run,
        schedule=schedule,
        costs=_costs(run, durations * ratio, transfers),
        size=run.size * ratio,
        changes=(
            *run.changes,
            f"micro-batches {_part(run.schedule.microbatches, microbatches)} the size",
        ),
        assumes=(*run.assumes, CUT, SHRINKS, EFFICIENT),
    )


def fewer_stages(run: Replay) -> Replay | None:
    """Half as many stages, each of two that are neighbours now, and twice the replicas; the same batch."""
    p, m = run.schedule.ranks, run.schedule.microbatches
    linear = run.schedule.stages == p and np.array_equal(run.schedule.placement, loop_placement(p, 1))
    if not linear or p % 2 or m % 2 or run.schedule.slices > 1:
        return None
    schedule = _rebuilt(run, m // 2, ranks=p // 2)
    if schedule is None:
        return None
    durations, transfers = run.tables
    paired = durations[:, 0::2] + durations[:, 1::2]
    arrival = np.where(np.arange(4)[:, None, None] == Kind.F, transfers[:, 0::2], transfers[:, 1::2])
    replicas = f"PP={p // 2} with DP={2 * run.data}" if run.data else f"PP={p // 2} with twice the replicas"
    return replace(
        run,
        schedule=schedule,
        costs=_costs(run, _mean_unit(paired, m // 2), _mean_unit(arrival, m // 2)),
        layers=run.layers * 2,
        data=2 * run.data if run.data else None,
        changes=(*run.changes, replicas),
        assumes=(*run.assumes, "a GPU holds twice the layers", "the data-parallel reduction stays hidden"),
    )


def other_schedule(run: Replay, name: str, chunks: int) -> Replay | None:
    """Another published schedule for the same ranks and micro-batches."""
    p, m = run.schedule.ranks, run.schedule.microbatches
    try:
        schedule = build(name, Shape(p, m, chunks)) if 2 * p * chunks * m <= MOST_OPS else run.schedule
    except InputError:
        return None
    alike = schedule.forward_only == run.schedule.forward_only and schedule.slices == run.schedule.slices == 1
    asked = schedule.stages == p * chunks  # a V has two chunks, whatever was asked for
    if not alike or not asked or schedule.same_order(run.schedule):
        return None
    now = run.schedule.stages // run.schedule.ranks
    parts = schedule.stages // schedule.ranks
    spread = (SPREAD,) if parts != now else ()
    split = (HALVES,) if schedule.splits and not run.schedule.splits else ()
    copies = schedule.placement.shape[0] // run.schedule.placement.shape[0]
    twice = ("a GPU holds two copies of its weights",) if copies > 1 else ()
    why = CATALOG[name].not_on_torch
    engine = (f"another engine than torch runs it: {why}",) if why else ()
    label = f"{name} with {parts} chunks" if parts > 1 else name
    return replace(
        run,
        schedule=schedule,
        costs=_costs(run, _on_ranks(run, schedule), _usual_hops(run, schedule)),
        name=name,
        changes=(*run.changes, label),
        assumes=(*run.assumes, *spread, *split),
        demands=(*run.demands, *twice, *engine),
    )


def balanced_stages(run: Replay) -> Replay:
    """Every stage with the mean work of all: work is moved, none is removed."""
    return _evened(run, 1, BALANCED, "layers can be moved so that stages weigh the same")


def cured_rank(run: Replay, rank: int) -> Replay | None:
    """One rank as fast as the mean of the others: work is removed."""
    durations = run.tables[0].copy()
    home = run.schedule.placement[0]
    mine, others = home == rank, home != rank
    if not others.any() or run.schedule.placement.shape[0] > 1:
        return None
    durations[:, mine] = np.rint(durations[:, others].mean(axis=1, keepdims=True))
    return replace(
        run,
        costs=_costs(run, durations, run.costs.transfers),
        changes=(*run.changes, f"rank {rank} as fast as the others' mean"),
        bound=True,
    )


def faster_rank(run: Replay, rank: int, factor: float) -> Replay:
    """One rank that is slow as fast as it should be: its times over ``factor``."""
    durations = run.tables[0].copy()
    mine = run.schedule.placement[0] == rank
    durations[:, mine] = np.rint(durations[:, mine] / factor)
    return replace(
        run,
        costs=_costs(run, durations, run.costs.transfers),
        changes=(*run.changes, f"rank {rank} cured, {factor:.2f} times as fast"),
    )


def without_transfer(run: Replay) -> Replay:
    """Every hop in no time."""
    return replace(run, costs=free_transfers(run.costs), changes=(*run.changes, FREE), bound=True)


def like_lengths(run: Replay) -> Replay:
    """Every micro-batch as long as the mean of its stage: work is moved between micro-batches, none is removed."""
    return _evened(run, 2, ALIKE, "samples can be packed so that micro-batches are equally long")


def _evened(run: Replay, axis: int, change: str, assumption: str) -> Replay:
    """Durations evened out along an axis of their table, int64[kinds, stages, units]: the work stays the same."""
    durations, _ = run.tables
    there = present(run.schedule)
    mean = durations.sum(axis=axis, keepdims=True, where=there) / np.maximum(there.sum(axis=axis, keepdims=True), 1)
    return replace(
        run,
        costs=_costs(run, np.broadcast_to(mean, durations.shape), run.costs.transfers),
        changes=(*run.changes, change),
        assumes=(*run.assumes, assumption),
    )


def without_hop(run: Replay, sender: int, receiver: int, *, forward: bool) -> Replay:
    """What one rank sends another, activations or gradients, in no time."""
    home, stages = run.schedule.placement[0], np.arange(run.schedule.stages)
    before = stages - 1 if forward else stages + 1
    mine = (home == receiver) & (home[before % len(home)] == sender) & (before >= 0) & (before < len(home))
    transfers = run.tables[1].copy()
    for kind in (Kind.F,) if forward else (Kind.I, Kind.B):
        transfers[kind, mine] = 0
    costs = _costs(run, run.costs.durations, transfers)
    return replace(run, costs=costs, changes=(*run.changes, f"free from rank {sender} to {receiver}"), bound=True)


def _rebuilt(run: Replay, microbatches: int, ranks: int | None = None) -> Schedule | None:
    """The same published schedule for another size; None where the order has no name or the size does not suit it."""
    here = run.schedule
    size = (ranks or here.ranks, microbatches, here.stages // here.ranks, here.slices)
    if run.name is None or 2 * here.stages * microbatches > MOST_OPS:
        return None
    try:
        return build(run.name, Shape(*size))
    except InputError:
        return None


def _costs(run: Replay, durations: NDArray[np.int64] | NDArray[np.floating], transfers: NDArray[np.int64]) -> Costs:
    whole = np.rint(durations).astype(np.int64)
    return Costs(whole, np.array(transfers), run.costs.evidence, run.costs.pair_scale)


def _mean_unit(table: NDArray[np.int64], units: int) -> NDArray[np.int64]:
    return np.repeat(np.rint(table.mean(axis=2, keepdims=True)).astype(np.int64), units, axis=2)


def _part(now: int, then: int) -> str:
    """Size of a micro-batch as a fraction of today's."""
    return f"1/{then // now}" if then % now == 0 else f"{now}/{then}"


def _on_ranks(run: Replay, schedule: Schedule) -> NDArray[np.float64]:
    """Durations for another order of the same ranks: each stage its rank's mean share, B and its halves alike."""
    durations, _ = run.tables
    if np.array_equal(schedule.placement, run.schedule.placement):
        by_stage = durations.astype(np.float64)
    else:
        by_rank = np.zeros((4, schedule.ranks, schedule.units))
        for stage, rank in enumerate(run.schedule.placement.T):
            by_rank[:, rank] += durations[:, stage : stage + 1]
        home = schedule.placement[0]
        share = schedule.chunks_of()[0][home] * run.schedule.placement.shape[0]
        by_stage = by_rank[:, home] / share[None, :, None]
    halves = by_stage[Kind.B] / 2
    whole = by_stage[Kind.B] + by_stage[Kind.I] + by_stage[Kind.W]
    return np.stack([by_stage[Kind.F], by_stage[Kind.I] + halves, by_stage[Kind.W] + halves, whole])


def _usual_hops(run: Replay, schedule: Schedule) -> NDArray[np.int64]:
    """One delay for every hop forward and one for every hop back: the means of what the run shows."""
    _, transfers = run.tables
    forward, back = transfers[Kind.F], transfers[[Kind.I, Kind.B]]
    usual = [int(np.rint(table[table > 0].mean())) if (table > 0).any() else 0 for table in (forward, back)]
    return np.array([usual[0], usual[1], 0, usual[1]])[:, None, None] * np.ones((1, schedule.stages, 1), np.int64)
