"""Costs: what a user says per micro-batch and rank becomes whole nanoseconds per stage and kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.schedule import Kind, Shape
from debubble.core.units import MILLISECOND
from debubble.schedules.catalog import build

ms = st.integers(0, 1000).map(lambda n: float(n * MILLISECOND))


def test_defaults_are_one_and_two_milliseconds():
    costs = costs_of(Rates(), build("1f1b", Shape(2, 2)))
    assert costs.durations[Kind.F, :, 0].tolist() == [MILLISECOND] * 2
    assert costs.durations[Kind.B, :, 0].tolist() == [2 * MILLISECOND] * 2


@given(ms, ms, ms)
def test_a_full_backward_is_the_sum_of_its_halves_however_it_was_given(forward, first, second):
    for rates in (
        Rates(forward, input=first, weight=second),
        Rates(forward, first + second, input=first),
        Rates(forward, first + second, weight=second),
    ):
        assert rates.by_kind() == (forward, first, second, first + second)


def test_backward_alone_splits_in_half():
    assert Rates(backward=6.0).by_kind()[1:] == (3.0, 3.0, 6.0)


def test_a_chunk_takes_its_share_and_scales_multiply():
    schedule = build("interleaved", Shape(2, 2, 2))
    rates = Rates(8.0, 16.0, stage_scale=(1, 2, 3, 4), rank_scale=(1, 10), microbatch_scale=(1, 0.5))
    forward = costs_of(rates, schedule).durations[Kind.F]
    assert forward.tolist() == [[4, 2], [80, 40], [12, 6], [160, 80]]


@given(st.integers(1, 6), st.integers(1, 4))
def test_every_rank_has_the_same_work_whatever_the_chunks(ranks, chunks):
    schedule = build("interleaved", Shape(ranks, ranks, chunks))
    forward = costs_of(Rates(12 * MILLISECOND), schedule).durations[Kind.F, :, 0]
    assert np.bincount(schedule.placement[0], forward).tolist() == [12 * MILLISECOND] * ranks


def test_durations_round_half_to_even():
    forward = costs_of(Rates(1.0, stage_scale=(0.5, 1.5, 2.5)), build("1f1b", Shape(3, 1))).durations[Kind.F, :, 0]
    assert forward.tolist() == [0, 2, 2]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_every_bad_number_is_named_at_once(bad):
    with pytest.raises(InputError) as caught:
        Rates(forward=bad, transfer=bad, stage_scale=(1.0, bad))
    assert [fault.value.split(" =")[0] for fault in caught.value.faults] == ["forward", "transfer", "stage_scale"]


def test_halves_that_do_not_add_up_are_refused():
    with pytest.raises(InputError, match="add up"):
        Rates(backward=5.0, input=1.0, weight=1.0)


def test_a_list_of_the_wrong_length_is_refused_with_both_numbers():
    with pytest.raises(InputError, match="stage-scale has 3 factors: it needs one for each of the 2 stages"):
        costs_of(Rates(stage_scale=(1, 1, 1)), build("1f1b", Shape(2, 2)))


def test_tables_of_costs_cannot_be_changed():
    spent = costs_of(Rates(link=1, payload=5), build("1f1b", Shape(2, 2)))
    for table in (spent.durations, spent.transfers, spent.occupancy):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1
