"""Seq1F1B: slices of a sequence as units, forward in order, backward in reverse."""

import pytest

from debubble import Shape, build
from evenly import run


def test_the_drawing_in_the_file_is_the_schedule(drawings):
    drawn, is_ = drawings("seq1f1b", Shape(3, 2, slices=2))
    assert drawn == is_


def test_one_slice_is_1f1b():
    assert build("seq1f1b", Shape(4, 8)).same_order(build("1f1b", Shape(4, 8)))


def test_the_last_rank_waits_for_all_slices_before_the_first_backward():
    ops = [op.text(3) for op in build("seq1f1b", Shape(2, 2, slices=3)).row(1)]
    assert ops[:5] == ["1F0.0", "1F0.1", "1F0.2", "1B0.2", "1F1.0"]


@pytest.mark.parametrize("s", [1, 2, 4])
def test_bubble_and_memory_shrink_with_the_slices(s):
    for p in (1, 2, 4, 8):
        for m in (1, p, 3 * p):
            ours = run(build("seq1f1b", Shape(p, m, slices=s)), 4, 4, 4)
            assert ours.makespan == 12 * m + (p - 1) * 12 / s
            assert ours.peak.tolist() == [min((p - r - 1 + s) / s, m) for r in range(p)]
