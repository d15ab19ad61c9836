"""Uneven splits: the lightest heaviest stage against every split there is, and makespans of even ones."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.planning.idle import enough, idle_share
from debubble.planning.splits import best_splits, judged, lightest


@given(st.lists(st.integers(1, 20), min_size=2, max_size=9), st.data())
def test_the_lightest_heaviest_stage_is_that_of_the_best_of_all_splits(weights, data):
    ranks = data.draw(st.integers(1, len(weights)))
    all_splits = [
        max(sum(weights[a:b]) for a, b in zip((0, *cut), (*cut, len(weights)), strict=True))
        for cut in combinations(range(1, len(weights)), ranks - 1)
    ]
    assert lightest(weights, ranks) == min(all_splits)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 5))
def test_an_even_split_takes_m_plus_p_minus_1_slots(ranks, microbatches, each):
    split = judged([each] * ranks, [1.0] * each * ranks, microbatches)
    assert split.makespan == pytest.approx(each * (microbatches + ranks - 1))
    assert split.balance == 1


@settings(max_examples=15, deadline=None)
@given(st.integers(60, 140), st.integers(8, 16), st.floats(0.2, 3), st.floats(0.2, 3))
def test_many_blocks_between_heavy_ends_get_a_split_with_the_lightest_heaviest_stage(blocks, ranks, first, last):
    weights = [first, *[1.0] * blocks, last]
    found = best_splits(weights, ranks, ranks)
    assert min(split.heaviest for split in found) == pytest.approx(lightest(weights, ranks))
    assert all(sum(split.blocks) == len(weights) and min(split.blocks) > 0 for split in found)


def test_10_percent_idle_at_4_ranks_needs_27_micro_batches():
    assert enough("1f1b", 4, 0.10) == 27


@given(st.integers(2, 64), st.floats(0.01, 0.5))
def test_the_least_number_of_micro_batches_is_enough_and_one_less_is_not(ranks, share):
    least = enough("1f1b", ranks, share)
    assert idle_share("1f1b", ranks, least) <= share + 1e-9
    assert least == 1 or idle_share("1f1b", ranks, least - 1) > share - 1e-9


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (2, 6, 3), (3, 9, 1)])
def test_closed_forms_are_what_simulation_gives(p, m, v):
    from debubble.planning.idle import _shape, _simulated

    name = "interleaved" if v > 1 else "1f1b"
    assert idle_share(name, p, m, v) == pytest.approx(_simulated(*_shape(name, p, m, v)))
