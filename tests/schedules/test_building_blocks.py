"""V-Half and V-Min: one micro-batch laid out in slots, repeated, and packed."""

import pytest

from debubble import InputError, Shape, build
from debubble.schedules import v_shapes
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
def test_long_runs_are_short_ones_with_their_steady_state_repeated(name, monkeypatch):
    """Every op placed by itself gives the same order, for any p."""
    shapes = [Shape(p, m) for p in range(1, 14) for m in (p + 5, 2 * p + 4, 3 * p + 7)]
    repeated = [build(name, shape) for shape in shapes]
    monkeypatch.setattr(v_shapes, "_SETTLED", 10**6)
    for shape, short in zip(shapes, repeated, strict=True):
        assert build(name, shape).same_order(short), shape


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_more_ranks_than_are_packed_in_a_minute_are_refused(name):
    with pytest.raises(InputError, match=r"ranks = 257: .* give 256 or less"):
        build(name, Shape(257, 16))
    assert len(build(name, Shape(4, 100_000))) == 6 * 4 * 100_000


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_one_rank_has_no_gap(name):
    assert run(build(name, Shape(1, 5)), 2, 2, 2).idle.tolist() == [0]
