"""Lower bounds by hand: the way to a rank, its work, the way back, and what may run after everything else."""

import numpy as np
import pytest

from debubble import Costs, Op, Rates, Shape, build, costs_of, from_rows, lower, lower_bound, simulate
from debubble.core.schedule import KINDS, Kind, loop_placement
from debubble.frameworks.engines import ENGINES

MS = 1_000_000


def table(*rows):
    """Durations by kind F, I, W, B; one number a stage."""
    return np.array(rows, np.int64)[:, :, None]


def costs(durations, transfers=None, **more):
    free = np.zeros((KINDS, durations.shape[1], 1), np.int64)
    return Costs(durations, free if transfers is None else transfers, **more)


def bound(name, shape, rates):
    schedule = build(name, shape)
    return lower_bound(schedule, costs_of(rates, schedule))


def test_even_1f1b_at_p8_m32_with_f_and_b_of_1_needs_78():
    """The last rank: 7 forwards until it can begin, 64 ops, 7 backwards until the step is over."""
    assert bound("1f1b", Shape(8, 32), Rates(MS, backward=MS)) == 78 * MS


@pytest.mark.parametrize(
    ("name", "chunks", "distance", "backward"),
    [
        ("1f1b", 1, 7, 2),  # a full backward has to come back too
        ("interleaved", 2, 7, 2),
        ("looped-bfs", 4, 7, 2),
        ("hanayo", 2, 7, 2),
        ("chimera", 1, 3, 2),  # rank 3 is 3 hops from its nearer end, and so is rank 4
        ("zb-h1", 1, 7, 0),  # W may run last, so that nothing need come back after the work
        ("interleaved-zb", 4, 7, 0),
        ("zb-v", 2, 7, 0),
        ("dualpipe", 1, 3, 0),
    ],
)
def test_the_barrier_bound_of_even_stages(name, chunks, distance, backward):
    """Makespan >= d(F/v + c) + m T with d hops to the farthest rank, and d(B/v + c) more for a full backward."""
    hop = 0.25 * MS
    rates = Rates(MS, input=MS, weight=MS, transfer=hop)
    way = MS / chunks + hop
    back = backward * MS / chunks + hop if backward else 0
    assert bound(name, Shape(8, 32, chunks), rates) == 32 * 3 * MS + distance * (way + back)


def test_forwards_alone_come_out_at_the_far_end():
    """(m + p - 1) F, and p-1 hops."""
    assert bound("forward-only", Shape(4, 8), Rates(MS, transfer=MS)) == (8 + 3) * MS + 3 * MS


def test_with_few_micro_batches_gradients_and_the_last_w_count():
    """m <= p and W < I: no order with a split backward is below (m+p-1)(F+I) + W (appendix H of the paper)."""
    f, i, w = 10 * MS, 12 * MS, 6 * MS
    for m in range(1, 9):
        found = bound("zb-h1", Shape(8, m), Rates(f, input=i, weight=w))
        assert found == (m + 7) * (f + i) + w


def test_one_micro_batch_alone_takes_the_way_there_and_back():
    """A chain has no slack: the bound is what simulation finds, whatever the stages and hops."""
    schedule = build("1f1b", Shape(3, 1))
    durations = table([3, 5, 7], [0, 0, 0], [0, 0, 0], [11, 13, 17])
    hops = table([0, 2, 4], [0, 0, 0], [0, 0, 0], [6, 8, 0])
    assert lower_bound(schedule, costs(durations, hops)) == (3 + 5 + 7) + (11 + 13 + 17) + (2 + 4) + (6 + 8)
    assert simulate(lower(schedule), costs(durations, hops)).makespan == 76


@pytest.mark.parametrize(
    ("heavy", "least"),
    [
        (0, 4 * 30 + 0 + 0),  # the first rank: no way there, no way back
        (1, 4 * 30 + (1 + 5) + (2 + 6)),  # a forward and a hop to it, a hop and a backward from it
        (2, 4 * 30 + (1 + 5 + 1 + 5) + (2 + 6 + 2 + 6)),
    ],
)
def test_a_heavy_rank_in_the_middle(heavy, least):
    """F 1, B 2 but 10 and 20 on one rank; a hop takes 5 forward and 6 backward."""
    scale = np.where(np.arange(3) == heavy, 10, 1)
    zero = [0, 0, 0]
    durations = table(1 * scale, zero, zero, 2 * scale)
    hops = table([0, 5, 5], zero, zero, [6, 6, 0])
    schedule = build("1f1b", Shape(3, 4))
    assert lower_bound(schedule, costs(durations, hops)) == least
    assert simulate(lower(schedule), costs(durations, hops)).makespan >= least


def test_a_heavy_rank_that_splits_its_backward_may_run_w_while_gradients_go_back():
    """All its work but W, the way back, and the last W of stage 0, where that is longer than all its work."""
    zero = [0, 0]
    schedule = build("zb-h1", Shape(2, 2))
    few_w = table([1, 10], [40, 10], [3, 1], zero)  # rank 1: F + I = 20, W = 1 a micro-batch
    first_gradient = 1 + 10 + 10  # before that rank 0 has nothing but its forwards to do; then 2 x (I + W) are left
    assert lower_bound(schedule, costs(few_w)) == max(1 + 2 * 21, 1 + 2 * 20 + 40 + 3, first_gradient + 2 * 43)
    much_w = table([1, 10], [4, 10], [3, 50], zero)
    assert lower_bound(schedule, costs(much_w)) == 1 + 2 * 70


def test_two_copies_count_from_the_nearer_end():
    """Rank 0 holds stage 0 of one copy and stage 1 of the other: it can begin at once, and end last."""
    assert bound("chimera", Shape(2, 2), Rates(MS, backward=2 * MS)) == 2 * 3 * MS


def test_micro_batches_of_different_length_count_by_the_shortest_on_the_way_and_all_at_work():
    schedule = build("1f1b", Shape(2, 2))
    durations = np.zeros((KINDS, 2, 2), np.int64)
    durations[Kind.F] = [[1, 5], [1, 5]]
    durations[Kind.B] = [[2, 7], [2, 7]]
    spent = Costs(durations, np.zeros((KINDS, 2, 1), np.int64))
    assert lower_bound(schedule, spent) == 1 + (1 + 5 + 2 + 7) + 2


def test_pairs_that_save_time_lower_the_bound_by_as_much():
    schedule = build("dualpipe-v", Shape(2, 4))
    alone = costs(table([4] * 4, [4] * 4, [4] * 4, [8] * 4))
    paired = costs(alone.durations.copy(), pair_scale=0.5)
    assert 2 * lower_bound(schedule, paired) == lower_bound(schedule, alone)


def test_a_micro_batch_passes_all_chunks_one_after_the_other():
    """p(F+B) however few micro-batches there are: a rank alone would need less."""
    assert bound("looped-bfs", Shape(4, 1, 2), Rates(MS, backward=2 * MS)) == 4 * 3 * MS
    assert bound("forward-only", Shape(4, 1, 3), Rates(3 * MS)) == 4 * 3 * MS


def test_hops_of_different_length_count_by_the_shortest():
    schedule = build("1f1b", Shape(2, 2))
    hops = np.zeros((KINDS, 2, 2), np.int64)
    hops[Kind.F, 1], hops[Kind.B, 0] = [4, 9], [5, 7]
    spent = Costs(table([1, 1], [0, 0], [0, 0], [2, 2]), hops)
    assert lower_bound(schedule, spent) == (1 + 4) + 2 * 3 + (5 + 2)


def test_a_rank_without_ops_bounds_nothing():
    row = [Op(Kind.F, 0, 0), Op(Kind.B, 0, 0)]
    schedule = from_rows("idle rank", [row, []], [0], 1)
    assert lower_bound(schedule, costs(table([3], [0], [0], [5]))) == 8


def test_stages_that_share_a_rank_have_no_hop_between_them():
    """Both on one rank, in a loop of one: 2 F and 2 B, however long a hop would take."""
    schedule = from_rows(
        "one rank",
        [[Op(Kind.F, 0, 0), Op(Kind.F, 1, 0), Op(Kind.B, 1, 0), Op(Kind.B, 0, 0)]],
        loop_placement(1, 2),
        1,
    )
    hops = np.full((KINDS, 2, 1), 100, np.int64)
    assert lower_bound(schedule, costs(table([1, 1], [0, 0], [0, 0], [2, 2]), hops)) == 6


def test_a_copy_of_the_weights_that_no_micro_batch_passes_bounds_nothing():
    """Two stages on two ranks; the other copy has both on rank 0, and its hop of 9 is never taken."""
    placement = np.array([[0, 1], [0, 0]], np.int32)
    rows = [[Op(Kind.F, 0, 0), Op(Kind.F, 1, 0), Op(Kind.B, 1, 0), Op(Kind.B, 0, 0)], []]
    schedule = from_rows("one way", rows, placement, 1, route=[1])
    spent = costs(table([1, 1], [0, 0], [0, 0], [2, 2]), table([0, 9], [9, 0], [0, 0], [9, 0]))
    assert lower_bound(schedule, spent) == simulate(lower(schedule), spent).makespan == 6


@pytest.mark.parametrize(
    ("engine", "bound_ms"),
    [
        ("ideal", 107),  # the last rank: 7 F and 7 B of others, 7 hops there, 7 back, its own 24 x 3
        ("megatron", 107),  # a rank stands still for the 24 hops of one way at least: 72 + 24 is less
        ("deepspeed", 168),  # a rank in the middle waits for 24 hops in and out each way, one by one: 72 + 4 x 24
    ],
)
def test_an_engine_that_stands_still_bounds_the_step_by_its_transfers(engine, bound_ms):
    schedule = build("1f1b", Shape(8, 24))
    spent = costs_of(Rates(MS, backward=2 * MS, transfer=MS), schedule)
    found = lower_bound(schedule, spent, ENGINES[engine])
    assert found <= simulate(lower(schedule, ENGINES[engine]), spent).makespan
    assert found / MS == bound_ms
