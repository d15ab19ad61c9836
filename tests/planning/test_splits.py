"""Uneven splits: the lightest heaviest stage against every split there is, and makespans of even ones."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.planning.idle import enough, idle_share
from debubble.planning.splits import best_splits, judged, lightest, split_by_speed, splits_of


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


def test_30_alike_layers_on_4_ranks_can_be_split_in_6_ways_that_take_84_to_86():
    """The two longer stages lie on any two of four ranks: 6 ways, all of 8 layers at most."""
    found = splits_of((1.0,) * 30, 4, (8,), (), "1f1b")
    assert [len(set(split.split)) for split in found.splits] == [2] * 6
    assert (found.splits[0].split, found.splits[0].makespan) == ((8, 8, 7, 7), pytest.approx(84))
    assert max(split.makespan for split in found.splits) == pytest.approx(86)
    assert found.heaviest_at_least == 8
    assert found.verdict == ("8 micro-batches: 8,8,7,7 is best, 84; 6 splits have the same heaviest stage, up to 86",)


def test_heaviest_stages_that_differ_by_rounding_are_the_same():
    """[.1, .2, .3] sums to more than [.3, .3] by a bit in binary; of 3 ranks each holds .6 at most in 4 of 6 ways."""
    found = splits_of((0.1, 0.2, 0.3, 0.3, 0.3), 3, (4,), (), "1f1b")
    assert sum(split.heaviest < 0.7 for split in found.splits) == 4
    assert "4 splits have the same heaviest stage" in found.verdict[0]


def test_of_too_many_ways_to_place_the_rest_the_first_the_last_and_the_spread_are_tried():
    """18 blocks on 12 ranks: 6 of them hold two, which are 924 choices."""
    found = best_splits([1.0] * 18, 12, 2)
    assert {split.blocks for split in found} == {(2,) * 6 + (1,) * 6, (1,) * 6 + (2,) * 6, (2, 1) * 6}


def test_of_too_many_cuts_the_full_the_full_from_the_end_and_the_even_are_tried():
    """Weights 3 and 27 ones on 4 ranks, 8 at most: the shares of 7.5, 15 and 22.5 are passed at 7, 15 and 22."""
    found = best_splits([3.0, *[1.0] * 27], 4, 8)
    assert {split.blocks: split.weights for split in found} == {
        (6, 8, 8, 6): (8, 8, 8, 6),
        (4, 8, 8, 8): (6, 8, 8, 8),
        (5, 8, 7, 8): (7, 8, 7, 8),
    }


def test_10_splits_are_shown_and_those_that_were_asked_for():
    """Of 6 blocks on 3 ranks there are 10 splits, of 7 there are 15; 5,1,1 is among the slowest of these."""
    assert len(splits_of((1.0,) * 6, 3, (4,), (), "1f1b").splits) == 10
    asked = splits_of((1.0,) * 7, 3, (4,), ((5, 1, 1),), "1f1b").splits
    assert [split.split for split in asked].count((5, 1, 1)) == 1
    assert len(asked) == 11
    assert not any(split.empty_stage for split in asked)


def test_an_empty_stage_is_shown_as_one():
    found = splits_of((1.0,) * 4, 2, (2,), ((4, 0),), "1f1b").splits
    assert {split.split: split.empty_stage for split in found}[4, 0]
    # All the work on one rank: 2 micro-batches of 4 blocks, while the other waits all the time.
    assert {split.split: (split.makespan, split.idle_share) for split in found}[4, 0] == (8, 0.5)


def test_layers_go_to_devices_by_their_speed_and_the_last_of_equals_first():
    assert split_by_speed(12, [1.0, 2.0, 1.0], 0.0) == (3, 6, 3)
    assert split_by_speed(5, [1.0, 1.0], 0.0) == (2, 3)
    assert split_by_speed(7, [1.0, 1.0], 1.0) == (4, 3)  # the head weighs as a layer on the last: 4 and 4


@pytest.mark.parametrize(("ranks", "most"), [(4, 5_000), (2, 10_000)])
def test_a_split_of_more_than_40_000_ops_is_not_simulated(ranks, most):
    splits_of((1.0,) * ranks, ranks, (most,), (), "1f1b")
    with pytest.raises(InputError, match=f"microbatches = {most + 1}"):
        splits_of((1.0,) * ranks, ranks, (most + 1,), (), "1f1b")
