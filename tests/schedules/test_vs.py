"""ZB-V, 1F1B-V, Hanayo: the chunks of a rank lie on the arms of a V, or on several in a row."""

import numpy as np
import pytest

from debubble import InputError, Shape, build
from evenly import run


@pytest.mark.parametrize(
    ("name", "shape", "backward"),
    [("zb-v", Shape(3, 5), 2), ("1f1b-v", Shape(3, 4), 2), ("hanayo", Shape(3, 3), 1)],
)
def test_the_drawing_in_the_file_is_the_schedule(drawings, name, shape, backward):
    drawn, is_ = drawings(name, shape, backward)
    assert drawn == is_


@pytest.mark.parametrize("name", ["zb-v", "1f1b-v", "hanayo"])
def test_a_v_turns_on_the_last_rank(name):
    assert build(name, Shape(3, 5)).placement.tolist() == [[0, 1, 2, 2, 1, 0]]


def test_hanayo_with_two_waves_lays_a_snake():
    assert build("hanayo", Shape(2, 2, 4)).placement.tolist() == [[0, 1, 1, 0, 0, 1, 1, 0]]


def test_zb_v_has_no_idle_time_between_first_and_last_op_and_p_over_2_forwards_with_a_barrier():
    for p in (2, 4, 8):
        ours = run(build("zb-v", Shape(p, 2 * p)), 2, 2, 2)
        assert ours.span == 6 * 2 * p
        assert ours.makespan == 6 * 2 * p + p - 1
        assert np.all(ours.peak == p)


def test_1f1b_v_holds_two_thirds_of_1f1b_and_is_faster_than_it():
    for p in range(2, 17):
        v, line = (run(build(name, Shape(p, 3 * p)), 2, 2, 2) for name in ("1f1b-v", "1f1b"))
        assert v.peak.max() == 2 * p // 3 + 1
        assert v.makespan < line.makespan


def test_hanayo_divides_the_bubble_of_1f1b_by_its_chunks_where_b_is_f():
    for p in (2, 3, 4, 8):
        for v in (2, 4, 6):
            for m in (p, 2 * p, 4 * p):
                assert run(build("hanayo", Shape(p, m, v)), 60, 60, 0).makespan == m * 120 + (p - 1) * 120 / v


def test_hanayo_idles_longer_where_b_is_twice_f():
    assert run(build("hanayo", Shape(4, 4, 2)), 10, 10, 10).makespan > 4 * 30 + 3 * 30 / 2


@pytest.mark.parametrize(
    ("name", "chunks", "remedy"),
    [("zb-v", 3, "give 2 or none"), ("1f1b-v", 4, "give 2 or none"), ("hanayo", 3, "nearest: 2 or 4")],
)
def test_a_wrong_number_of_chunks_is_refused(name, chunks, remedy):
    with pytest.raises(InputError, match=remedy):
        build(name, Shape(4, 8, chunks))


def test_1f1b_v_refuses_what_would_take_minutes():
    with pytest.raises(InputError, match="give 195 micro-batches or less"):
        build("1f1b-v", Shape(1024, 8192))
