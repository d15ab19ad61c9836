"""Interleaved, looped breadth-first, interleaved zero bubble, forward only: chunks in a loop over the ranks."""

import pytest

from debubble import InputError, Shape, build
from debubble.schedules.breadth_first import forward_only
from debubble.schedules.interleaved import interleaved_zb
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
