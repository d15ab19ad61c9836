"""Interleaved, looped breadth-first, interleaved zero bubble, forward only: chunks in a loop over the ranks."""

import pytest

from debubble import InputError, Shape, build
from debubble.schedules.loops import forward_only, interleaved_zb
from drawn import draw
from evenly import run


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("interleaved", Shape(2, 4, 2)),
        ("looped-bfs", Shape(3, 3, 2)),
        ("interleaved-zb", Shape(2, 4, 2)),
        ("forward-only", Shape(3, 4)),
    ],
)
def test_the_drawing_in_the_file_is_the_schedule(drawings, name, shape):
    drawn, is_ = drawings(name, shape)
    assert drawn == is_


def forwards(schedule, rank=0):
    return [str(op) for op in schedule.row(rank) if op.kind.name == "F"]


def test_a_rank_passes_a_group_through_all_chunks_and_a_shorter_last_one_likewise():
    schedule = build("interleaved", Shape(2, 5, 2, group=3))
    assert forwards(schedule) == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2", "0F3", "0F4", "2F3", "2F4"]


def test_a_group_of_p_is_the_default_and_one_of_m_is_breadth_first():
    assert build("interleaved", Shape(4, 8, 2)).same_order(build("interleaved", Shape(4, 8, 2, group=4)))
    wide = build("interleaved", Shape(2, 4, 2, group=4))
    assert forwards(wide) == forwards(build("looped-bfs", Shape(2, 4, 2)))


def refused(*shape, **more):
    with pytest.raises(InputError) as caught:
        build(more.pop("name", "interleaved"), Shape(*shape, **more))
    return str(caught.value)


# Megatron-Core's combined 1F1B on p = 2, m = 4, v = 2, B = 2F; small letters are chunk 1, a pair takes what both take.
IN_PAIRS = [
    "rank 0  F0 F1 f0 f1 F2  .  . F3&b0--- f2&b1--- f3&B0--- B1---  . b2--- b3--- B2--- B3---",
    "rank 1   . F0 F1 f0 f1&b0--- F2&b1--- F3&B0--- f2&B1--- f3&b2--- b3--- B2--- B3---  .  .",
]


def test_interleaved_in_pairs_is_drawn():
    assert draw(build("interleaved", Shape(2, 4, 2, pairs=True)), 2) == IN_PAIRS


def test_in_pairs_there_is_one_more_forward_of_warm_up_and_then_slots_of_two():
    for p, m, v in ((2, 4, 2), (4, 8, 2), (4, 16, 3)):
        apart, pairs = build("interleaved", Shape(p, m, v)), build("interleaved", Shape(p, m, v, pairs=True))
        for rank in range(p):
            first = [[op.kind.name for op in each.row(rank)].index("B") for each in (apart, pairs)]
            assert first[1] == first[0] + 1
        # Each rank runs m v - w pairs, w = 2 (p-1-r) + (v-1) p + 1 (core/pipeline_parallel/schedules.py).
        joined = [int(pairs.joined[pairs.offsets[r] : pairs.offsets[r + 1]].sum()) for r in range(p)]
        assert joined == [m * v - (2 * (p - 1 - r) + (v - 1) * p + 1) for r in range(p)]


@pytest.mark.parametrize(
    ("p", "m", "v", "pair"), [(2, 4, 2, 4), (4, 8, 2, 4), (8, 32, 4, 4), (4, 16, 3, 5), (4, 8, 2, 6)]
)
def test_pairs_that_overlap_shorten_the_step_by_what_the_last_rank_saves(p, m, v, pair):
    # F = 2, I = W = 2, B = 4, so 6 apart. The last rank waits for p-1 forwards of a chunk and its last gradient passes
    # p-1 ranks; in between it runs w forwards, m v - w pairs and w backwards without a gap, w = (v-1) p + 1.
    w = (v - 1) * p + 1
    expected = ((p - 1) * 6 + w * 6 + (m * v - w) * pair) / v
    assert run(build("interleaved", Shape(p, m, v, pairs=True)), 2, 2, 2, pair=pair).makespan == pytest.approx(expected)


def test_pairs_are_asked_for_where_they_may_be_alone():
    assert "runs no forward and backward as one slot" in refused(4, 8, name="1f1b", pairs=True)


def test_interleaved_names_the_nearest_multiples_and_a_group_that_would_do():
    assert refused(4, 10, 2) == (
        "microbatches = 10: interleaved takes micro-batches in groups of 4, one for each rank; "
        "nearest: 8 or 12; or a group of 5"
    )
    assert "nearest: 4" in refused(4, 3, 2)


def test_interleaved_names_the_nearest_legal_groups():
    assert "group = 4: " in refused(4, 10, 2, group=4)
    assert refused(4, 10, 2, group=4).endswith("nearest: 5")
    assert refused(4, 11, 2, group=5).endswith("nearest: 6")
    assert refused(4, 10, 2, group=99).endswith("nearest: 10")
    assert "give 4 or more" in refused(4, 3, 2, group=3)


def test_interleaved_zb_names_the_nearest_numbers_that_its_rounds_divide():
    assert refused(4, 9, 2, name="interleaved-zb") == (
        "microbatches = 9: interleaved-zb takes them in 2 rounds of equal size; nearest: 8 or 10"
    )


def test_interleaved_zb_with_one_chunk_is_zb_h1():
    loop, line = interleaved_zb(Shape(4, 8)), build("zb-h1", Shape(4, 8))
    assert loop.same_order(line)


def test_interleaved_zb_reaches_the_barrier_bound_where_f_i_w_are_equal():
    for v in (1, 2, 4):
        assert run(interleaved_zb(Shape(8, 16, v)), 8, 8, 8).makespan == 16 * 24 + 7 * 8 / v


def test_forwards_of_a_schedule_keep_its_order_and_its_copies_of_the_weights():
    both = forward_only(build("dualpipe", Shape(4, 8)))
    assert both.forward_only
    assert both.joined is None
    assert forwards(both) == ["0F0", "0F1", "0F2", "3F4", "3F5", "0F3", "3F6", "3F7"]
