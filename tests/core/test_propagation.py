"""The propagation bound against closed forms, against every order of tiny instances, and against published optima."""

import csv

import numpy as np
import pytest

from debubble import Costs, Rates, Shape, build, costs_of, lower, simulate
from debubble.core.bounds import forced, instance_of, jackson, windows
from debubble.core.schedule import Release, peak_activations
from instances import drawn, instance, instance_of_row, shortest

MS = 1_000_000


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


def test_who_fills_his_memory_with_forwards_stands_still():
    """Two chunks on a rank, room for K activations: K first chunks would leave no room for any second one.

    So F of chunk 0 and micro-batch i comes after F of chunk 1 and micro-batch i - (K - 1): with K = 3

        F0 F0 . F1 F0 ..       the third F0 would fill the rank before a micro-batch has gone through it
    """
    inst = instance(np.full((3, 4), 1), m=5, room=[6, 6], placement=[0, 1, 1, 0])
    before = forced(inst, 0)
    assert before[0, 0, :, 0, 1].tolist() == [0, 0, 1, 2, 3]
    # With halves freed at I nothing changes: a micro-batch whose second chunk has not run has no gradient yet.
    halves = instance(np.full((3, 4), 1), m=5, room=[6, 6], placement=[0, 1, 1, 0], release=Release.HALF)
    assert forced(halves, 0)[0, 0, :, 0, 1].tolist() == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(("name", "m"), [("v-min", 8), ("v-half", 7), ("zb-v", 9)])
def test_what_is_forced_of_two_chunks_is_so_in_schedules_that_fit_exactly(name, m):
    """The published V schedules, with no more room than they need."""
    schedule = build(name, Shape(4, m))
    room = np.rint(4 * peak_activations(schedule)).astype(np.int64)
    inst = instance_of(schedule, costs_of(Rates(), schedule), room=room)
    for rank in range(4):
        row, before = list(schedule.row(rank)), forced(inst, rank)
        chunk = {op.stage: int(inst.chunk[op.stage]) for op in row}
        for place, op in enumerate(row):
            for kind in range(3):
                for other in range(2):
                    count = sum(each.kind == kind and chunk[each.stage] == other for each in row[:place])
                    assert count >= before[op.kind, chunk[op.stage], op.microbatch, kind, other], (rank, op)


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
