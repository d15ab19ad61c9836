"""The propagation bound against closed forms, against every order of tiny instances, and against published optima."""

import csv

import numpy as np
import pytest

from debubble import Costs, Rates, Shape, build, costs_of, lower, simulate
from debubble.core.instance import Instance, instance_of, no_limit
from debubble.core.propagation import forced, jackson, windows
from debubble.core.schedule import KINDS, Kind, Release
from instances import instance_of_row

MS = 1_000_000


def instance(spent, hop=0, *, m, room=None, placement=None, split=True, release=Release.W):
    """F, I and W of each stage in units, one hop for all links, room in half activations of each rank."""
    stages = len(spent[0])
    placement = np.arange(stages, dtype=np.int32) if placement is None else np.array(placement, np.int32)
    durations = np.zeros((KINDS, stages, 1), np.int64)
    durations[: len(spent), :, 0] = spent
    durations[Kind.B] = durations[Kind.I] + durations[Kind.W]
    costs = Costs(durations, np.full((KINDS, stages, 1), hop, np.int64))
    room = no_limit(placement, m) if room is None else np.array(room, np.int64)
    return Instance(placement, m, costs, room, split=split, release=release)


def shortest(inst):
    """The makespan of the best order, by trying every one: each op is appended when it is next in its kind and stage.

    Written for itself, on lists and without a clock of rounds: what is appended starts as soon as it can.
    """
    kinds, stages, m = len(inst.kinds), inst.stages, inst.microbatches
    home, spent, hop, frees = inst.placement.tolist(), inst.spent, inst.hop, inst.frees.tolist()
    best = [10**9]

    def input_of(kind, stage, i, end):
        if kind == 2:
            return end.get((1, stage, i))
        if kind == 0:
            return (
                0 if stage == 0 else None if (0, stage - 1, i) not in end else end[0, stage - 1, i] + hop[0, stage, i]
            )
        if stage == stages - 1:
            return end.get((0, stage, i))
        return None if (1, stage + 1, i) not in end else end[1, stage + 1, i] + hop[1, stage, i]

    def go(done, now, held, end):
        if sum(done.values()) == kinds * stages * m:
            best[0] = min(best[0], max(now))
            return
        for (kind, stage), i in done.items():
            rank = home[stage]
            if i == m or max(now) >= best[0]:
                continue
            ready = input_of(kind, stage, i, end)
            if ready is None or held[rank] + frees[kind] > inst.room[rank]:
                continue
            start = max(now[rank], ready)
            # Orders are enumerated once: what is appended must not end before what other ranks have begun already.
            if start < max(end.get("last", 0), 0):
                continue
            later = dict(end)
            later[kind, stage, i] = start + int(spent[kind, stage, i])
            later["last"] = start
            clock, kept = list(now), list(held)
            clock[rank], kept[rank] = later[kind, stage, i], held[rank] + frees[kind]
            go({**done, (kind, stage): i + 1}, clock, kept, later)

    go({(k, s): 0 for k in range(kinds) for s in range(stages)}, [0] * inst.ranks, [0] * inst.ranks, {})
    return best[0]


def drawn(seed):
    """A tiny instance: 2 ranks, 2 or 3 micro-batches, random times, hops, room and release."""
    draw = np.random.default_rng(seed)
    chunks = int(draw.integers(1, 3))
    m = 2 if chunks == 2 else int(draw.integers(2, 4))
    placement = [0, 1] if chunks == 1 else [[0, 1, 1, 0], [0, 1, 0, 1]][int(draw.integers(2))]
    spent = draw.integers(1, 9, (3, 2 * chunks))
    release = [Release.W, Release.HALF, Release.I][int(draw.integers(3))]
    room = [int(draw.integers(2 * chunks, 2 * chunks * m + 1)) for _ in range(2)]
    if m == 3:
        spent[2] = 0  # else there are too many orders to try
    split = chunks == 1  # two chunks with full backwards, for the same reason
    return instance(spent, int(draw.integers(0, 6)), m=m, room=room, placement=placement, split=split, release=release)


def test_no_order_of_a_tiny_instance_is_shorter_and_often_one_is_as_short():
    """A bound of 0 would be true as well; this one is the optimum in most of these cases."""
    bounds = [(windows(inst).bound, shortest(inst)) for inst in map(drawn, range(40))]
    assert all(bound <= least for bound, least in bounds)
    assert sum(bound == least for bound, least in bounds) >= 20


@pytest.mark.parametrize("release", Release)
def test_what_is_forced_is_so_in_every_schedule_that_fits(release):
    """Orders of zb-auto under a cap, which was written from the paper: nothing forced comes late in any of them."""
    for p, m, cap in ((3, 8, 2), (4, 9, 3), (2, 7, 1.5)):
        schedule = build("zb-auto", Shape(p, m), Rates(MS, input=MS, weight=MS), cap=cap, release=release)
        room = np.full(p, int(2 * cap), np.int64)
        inst = instance_of(schedule, costs_of(Rates(), schedule), room=room, release=release)
        for rank in range(p):
            row = list(schedule.row(rank))
            before = forced(inst, rank)
            for op in row:
                earlier = row[: row.index(op)]
                for kind in range(3):
                    count = sum(each.kind == kind for each in earlier)
                    assert count >= before[op.kind, 0, op.microbatch, kind, 0], (rank, op)


def test_one_in_flight_is_one_micro_batch_after_the_other():
    """p = 3, F 1 2 3, I 4 5 6, W 1 1 1, hop 2: the second F of rank 2 waits for its W, and so on: a closed form."""
    spent, hop, m = ([1, 2, 3], [4, 5, 6], [1, 1, 1]), 2, 4
    alone = (1 + 2 + 3) + (4 + 5 + 6) + 4 * hop + 1
    assert windows(instance(spent, hop, m=m, room=[2, 2, 2])).bound == m * alone


@pytest.mark.parametrize(("p", "m", "hop"), [(2, 4, 0), (4, 8, 3), (8, 24, 1), (5, 3, 2)])
def test_even_stages_with_memory_enough_reach_the_barrier_bound(p, m, hop):
    """(p-1)(F + c) + m T for m >= p; facts of the zero-bubble paper, attained by ZB-H1 at c = 0."""
    inst = instance(np.full((3, p), 10), hop, m=m)
    assert windows(inst).bound >= (p - 1) * (10 + hop) + 30 * m
    if hop == 0 and m >= p:
        schedule = build("zb-h1", Shape(p, m))
        assert simulate(lower(schedule), inst.costs).makespan == windows(inst).bound


def test_littles_law_of_memory():
    """p = 8, K = 4, 10/10/10: a micro-batch stays on rank 0 for 160 and a W, so one comes every (160 + 10) / 4."""
    long, longer = (windows(instance(np.full((3, 8), 10), m=m, room=[8] * 8)).bound for m in (32, 64))
    assert (longer - long) / 32 == pytest.approx((160 + 10) / 4)


def test_micro_batches_of_different_length_count_by_the_shortest_on_the_way():
    inst = instance(([1, 1], [1, 1], [1, 1]), m=2)
    durations = np.repeat(inst.costs.durations, 2, axis=2)
    durations[:, :, 1] *= 5
    uneven = inst.but(costs=Costs(durations, inst.costs.transfers))
    assert windows(uneven).bound == windows(inst).bound


def test_a_machine_with_heads_and_tails():
    """Carlier 1982: it takes as long as the largest, over subsets, of least head + work + least tail."""
    head, work, tail = [10, 13, 11, 20, 30, 0, 30], [5, 6, 7, 4, 3, 6, 2], [7, 26, 24, 21, 8, 17, 0]
    subsets = [[i for i in range(7) if bits >> i & 1] for bits in range(1, 2**7)]
    largest = max(min(head[i] for i in j) + sum(work[i] for i in j) + min(tail[i] for i in j) for j in subsets)
    assert jackson(np.array(head), np.array(work), np.array(tail)) == largest == 49


def test_published_bounds_and_optima(shared):
    """38 instances whose bound a second program found, by iteration, and whose best makespans were replayed."""
    with open(shared / "data" / "synthesis" / "instances.csv") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        bound = windows(instance_of_row(row)).bound / 1e6
        assert bound <= float(row["best_known_ms"]) + 1e-6, row["id"]
        if row["placement"] == "linear":
            assert bound == pytest.approx(float(row["propagation_bound_ms"]), abs=0.006), row["id"]
