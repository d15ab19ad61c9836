"""Windows: what is left out, which one stands in front, and how shares and lengths are averaged."""

import numpy as np
import pytest

from debubble import InputError, Observation, Rates, Shape, Timeline, Window, build, costs_of, lower, simulate
from debubble.diagnosis.causes import median_window, summarise

SCHEDULE = build("1f1b", Shape(2, 4))
PROGRAM = lower(SCHEDULE)


def window(step, length=1.0, replica=0, scale=(1.0, 1.0), step_ns=None):
    """A measured window of 15 ms x length; a scale makes one stage heavier."""
    rates = Rates(forward=1e6 * length, backward=2e6 * length, stage_scale=scale)
    exact = simulate(PROGRAM, costs_of(rates, SCHEDULE))
    shift = 1_000_000 * step  # any clock
    return Window(step, replica, Timeline(PROGRAM, exact.start + shift, exact.end + shift, "measured"), step_ns)


def observed(*windows):
    return summarise(Observation("run", windows))


def test_leading_steps_longer_than_one_and_a_half_medians_are_left_out():
    found = observed(window(0, 3), window(1, 1.6), *(window(step) for step in range(2, 7)), window(7, 3))
    assert found.left_out == (0, 1)  # the slow last step is part of the run
    assert found.steps == 6


def test_the_median_window_is_one_that_was_measured():
    found = observed(*(window(step, length) for step, length in enumerate((1.0, 1.2, 1.1, 1.3))))
    assert found.makespan_ns == 16_500_000
    assert found.window.step == 2


def test_of_some_windows_the_shorter_of_two_in_the_middle_is_the_median_one():
    found = observed(*(window(step, length) for step, length in enumerate((1.2, 1.0, 1.3, 1.1))))
    assert median_window(found, [0, 1]) == 1
    assert median_window(found, [0, 2, 3]) == 0
    assert median_window(found, [2, 3, 0, 1]) == 3


def test_a_first_step_of_exactly_one_and_a_half_medians_counts():
    assert observed(window(0, 1.5), *(window(step) for step in range(1, 6))).left_out == ()


def test_clocks_that_end_a_step_before_its_window_leave_nothing_outside_and_never_less():
    assert observed(*(window(step, step_ns=14_999_000) for step in range(3))).outside_ns == 0


def test_shares_are_means_and_the_pooled_share_weighs_by_length():
    found = observed(window(0), window(1, 1.4, scale=(1.0, 2.0)))
    assert found.idle_share == pytest.approx(np.mean(found.idle_shares))
    weights = [each.window for each in found.accounts]
    assert found.pooled_idle_share == pytest.approx(np.average(found.idle_shares, weights=weights))


def test_outside_is_what_a_step_holds_beside_its_window():
    found = observed(*(window(step, step_ns=15_000_000 + extra) for step, extra in enumerate((1, 2, 9))))
    assert (found.outside_ns, found.step_ns) == (2, 15_000_002)
    assert observed(window(0)).outside_ns is None


def test_replicas_are_counted_and_a_slow_replica_makes_its_step_slow():
    found = observed(window(0), window(0, 2, replica=1), *(window(1 + s // 2, replica=s % 2) for s in range(8)))
    assert (found.replicas, found.left_out) == (2, (0,))


def test_ops_that_take_no_time_are_no_measurement():
    nothing = np.zeros(len(SCHEDULE), np.int64)
    with pytest.raises(InputError, match="take no time"):
        observed(Window(0, 0, Timeline(PROGRAM, nothing, nothing.copy(), "measured")))


def test_no_complete_step_is_an_error():
    with pytest.raises(InputError, match="holds no complete step"):
        observed()


def test_what_lies_outside_is_never_less_than_nothing():
    """Steps that begin before the last one has ended are shorter than their windows of 15 ms."""
    assert observed(*(window(step, step_ns=14_000_000) for step in range(3))).outside_ns == 0
