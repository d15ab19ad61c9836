"""GPipe, 1F1B, eager 1F1B, ZB-H1, ZB-H2: one stage a rank."""

import numpy as np
import pytest

from debubble import InputError, Shape, build
from evenly import run


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gpipe", Shape(4, 4)),
        ("1f1b", Shape(4, 6)),
        ("eager-1f1b", Shape(4, 6)),
        ("zb-h1", Shape(4, 6)),
        ("zb-h2", Shape(3, 6)),
    ],
)
def test_the_drawing_in_the_file_is_the_schedule(drawings, name, shape):
    drawn, is_ = drawings(name, shape)
    assert drawn == is_


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("gpipe", lambda p, m, r: m),
        ("1f1b", lambda p, m, r: min(p - r, m)),
        ("eager-1f1b", lambda p, m, r: min(2 * (p - r) - 1, m)),
        ("zb-h1", lambda p, m, r: min(p, m)),
    ],
)
def test_every_rank_holds_what_its_formula_says(name, held):
    for p in range(1, 9):
        for m in (1, 2, p, p + 1, 3 * p):
            peak = run(build(name, Shape(p, m)), 1, 1, 1).peak
            assert peak.tolist() == [held(p, m, r) for r in range(p)]


def test_zb_h2_has_no_idle_time_between_the_first_and_last_op_of_a_rank():
    for p in (2, 4, 8):
        m = 2 * p - 1
        ours = run(build("zb-h2", Shape(p, m)), 1, 1, 1)
        assert ours.span == 3 * m
        assert ours.makespan == 3 * m + p - 1


def test_zb_h1_and_h2_differ_from_1f1b_only_in_the_backward_when_there_is_one_rank():
    for name in ("zb-h1", "zb-h2"):
        assert [str(op) for op in build(name, Shape(1, 2)).row(0)] == ["0F0", "0I0", "0W0", "0F1", "0I1", "0W1"]


def test_no_zero_bubble_schedule_goes_below_the_barrier_bound():
    for p in (2, 4, 8):
        for name in ("zb-h1", "zb-h2"):
            assert run(build(name, Shape(p, 3 * p)), 10, 12, 6).makespan >= 28 * 3 * p + (p - 1) * 10


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"])
def test_chunks_slices_and_groups_are_refused_all_at_once(name):
    with pytest.raises(InputError) as caught:
        build(name, Shape(2, 2, chunks=3, slices=2, group=2))
    assert [fault.value for fault in caught.value.faults] == ["chunks = 3", "group = 2", "slices = 2"]
    assert f"{name} has 1 on each rank; give 1 or none" in str(caught.value)


def test_a_thousand_ranks_and_eight_thousand_micro_batches_are_columns_not_objects():
    schedule = build("zb-h1", Shape(64, 8192))
    assert len(schedule) == 3 * 64 * 8192
    assert schedule.kind.dtype == np.uint8
    assert schedule.unit.dtype == np.int32
