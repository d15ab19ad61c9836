"""V-Half and V-Min: one micro-batch laid out in slots, repeated, and packed."""

import pytest

from debubble import InputError, Shape, build
from evenly import run


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_the_drawing_in_the_file_is_the_schedule(drawings, name):
    drawn, is_ = drawings(name, Shape(4, 4))
    assert drawn == is_


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_the_stages_lie_on_a_v(name):
    assert build(name, Shape(3, 5)).placement.tolist() == [[0, 1, 2, 2, 1, 0]]


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_other_chunks_than_two_are_refused(name):
    with pytest.raises(InputError, match="give 2 or none"):
        build(name, Shape(4, 8, 3))


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_one_rank_has_no_gap(name):
    assert run(build(name, Shape(1, 5)), 2, 2, 2).idle.tolist() == [0]
