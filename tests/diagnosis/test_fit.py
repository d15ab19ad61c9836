"""A line through step times: exact lines come back, what is off the line is set aside, and the model is said."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.core.observation import StepLog
from debubble.core.schedule import Shape, peak_activations
from debubble.diagnosis.fit import (
    CONSTANT,
    GROWS,
    ONE_POINT,
    Sizes,
    StepTimes,
    fit_memory,
    fit_of,
    fit_steps,
    gains,
    holdouts,
    in_flight,
    sentences,
)
from debubble.diagnosis.log_run import settings_of
from debubble.schedules.catalog import build


def times(microbatches, seconds, *, constant=False):
    return StepTimes(np.array(microbatches, float), np.array(seconds, float), None, constant, "the test says so")


@given(
    ranks=st.integers(1, 64),
    slot=st.floats(1e-3, 10),
    fixed=st.floats(0, 100),
    settings=st.lists(st.integers(1, 512), min_size=2, max_size=12, unique=True),
)
def test_slot_bubble_and_fixed_time_of_an_exact_step_come_back(ranks, slot, fixed, settings):
    fit = fit_steps(times(settings, [fixed + (m + ranks - 1) * slot for m in settings]), ranks)
    assert fit.model == GROWS
    assert not fit.outliers
    assert (fit.slot, fit.bubble) == pytest.approx((slot, (ranks - 1) * slot))
    assert fit.fixed == pytest.approx(fixed, abs=1e-6 * (fixed + 600 * slot))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_what_is_simulated_is_fitted_exactly(name):
    from debubble import Rates, costs_of, lower, simulate

    settings = [8, 12, 16, 32]
    built = [build(name, Shape(4, m)) for m in settings]
    spans = [simulate(lower(s), costs_of(Rates(forward=10e6, backward=20e6), s)).makespan / 1e9 for s in built]
    fit = fit_steps(times(settings, spans), 4)
    assert (fit.slot, fit.bubble) == pytest.approx((0.03, 0.09))
    assert fit.fixed == pytest.approx(0, abs=1e-9)


def test_a_slow_first_step_of_a_setting_is_set_aside():
    fit = fit_steps(times([4, 4, 4, 8, 8, 8], [9.0, 0.7, 0.7, 1.1, 1.1, 1.1]), 4)
    assert [outlier.row for outlier in fit.outliers] == [0]
    assert fit.slot == pytest.approx(0.1)


def test_a_setting_far_off_the_line_is_set_aside():
    fit = fit_steps(times([4, 8, 16, 32, 64], [0.7, 1.1, 1.9, 9.9, 6.7]), 4)
    assert [(outlier.microbatches, round(outlier.expected, 6)) for outlier in fit.outliers] == [(32, 3.5)]
    assert fit.slot == pytest.approx(0.1)


def test_one_setting_bounds_the_bubble_and_says_that_it_is_an_estimate():
    fit = fit_steps(times([8, 8], [1.1, 1.1]), 4)
    assert (fit.model, fit.evidence) == (ONE_POINT, "estimated")
    assert fit.bubble == pytest.approx(0.3)
    assert "the most it can be" in sentences(fit)[0]


def test_a_constant_batch_has_no_one_bubble_and_gains_are_measured_against_it():
    fit = fit_steps(times([1, 2, 4], [4.0, 4.5, 5.5], constant=True), 2)
    assert (fit.model, fit.bubble) == (CONSTANT, None)
    assert (fit.slot, fit.intercept, fit.fixed) == pytest.approx((0.5, 3.5, 3.5))
    assert gains(fit)[0] == pytest.approx((2, 4 / 3, 4 / 4.5))


def test_each_setting_is_foretold_by_the_smaller_ones_only():
    assert holdouts(fit_steps(times([1, 2, 3], [1.0, 2.0, 3.3]), 1)) == [(3.0, pytest.approx(3.0), 3.3)]


@pytest.mark.parametrize("seconds", [[], [1.0, np.nan], [1.0, 0.0], [1.0, -2.0]])
def test_what_is_no_step_time_is_refused(seconds):
    with pytest.raises(InputError):
        fit_steps(times(range(1, 1 + len(seconds)), seconds), 4)


@pytest.mark.parametrize("m", [1, 2, 3, 7, 20])
def test_in_flight_is_what_the_schedule_holds(m):
    held = peak_activations(build("1f1b", Shape(8, m)))
    assert [int(in_flight(np.array([float(m)]), 8, rank)[0]) for rank in range(8)] == held.tolist()


def test_memory_that_stops_growing_at_m_equal_p_is_no_leak():
    fit = fit_memory(np.array([1.0, 2, 8, 64]), np.array([11e9, 12e9, 18e9, 18e9]), 8)
    assert (fit.each, fit.base, fit.grows) == (pytest.approx(1e9), pytest.approx(10e9), False)
    assert "not a leak: 1.00 GB for each micro-batch in flight" in fit.verdict


def test_memory_that_grows_beyond_m_equal_p_is_said():
    fit = fit_memory(np.array([8.0, 16, 32]), np.array([10e9, 12e9, np.inf]), 8)
    assert fit.grows
    assert fit.verdict.startswith("grows with m beyond p = 8")
    assert fit.each is None  # 8 in flight in each row


def test_runs_below_m_equal_p_grow_as_they_should():
    """4 and 7 micro-batches are all in flight on the first of 8 ranks: 3 more, 3 GB more."""
    fit = fit_memory(np.array([4.0, 7]), np.array([10e9, 13e9]), 8)
    assert (fit.each, fit.base, fit.grows) == (pytest.approx(1e9), pytest.approx(6e9), False)


def test_memory_without_a_run_that_lived_is_refused():
    with pytest.raises(InputError, match="finite"):
        fit_memory(np.array([8.0]), np.array([np.inf]), 8)


def test_of_two_steps_of_a_setting_the_mean_stands_in_forecasts_and_gains():
    """Settings of 4, 8, 16 micro-batches at 1, 1.8 and 3.4 s (0.2 + 0.2 m), each measured 10 ms below and above it."""
    settings = np.repeat([4.0, 8.0, 16.0], 2)
    seconds = 0.2 + 0.2 * settings + np.tile([-0.01, 0.01], 3)
    fit = fit_steps(times(settings, seconds), 2)
    ((m, said, was),) = holdouts(fit)
    assert (m, said, was) == pytest.approx((16, 3.4, 3.4))
    cut = fit_steps(times(settings, seconds, constant=True), 2)
    assert [ratio for *_, ratio in gains(cut)] == pytest.approx([1.0 / 1.8, 1.0 / 3.4])


def test_of_two_rows_of_a_setting_the_mean_stands_in_the_table_of_a_fit():
    seconds = np.array([0.9, 1.1, 1.75, 1.85])
    nothing = np.full(4, np.nan)
    log = StepLog("runs.csv", seconds, nothing, np.array([4.0, 4.0, 8.0, 8.0]), nothing, ordered=False)
    assert sorted(each.seconds for each in settings_of(log)) == pytest.approx([1.0, 1.8])
    assert [row.step_ms for row in fit_of(log, Sizes(ranks=2)).rows] == pytest.approx([1000, 1800])


def test_a_setting_that_scatters_evenly_about_the_line_is_no_stray():
    """Steps of 2 + m seconds, twice each; at m = 8 one is 20 % below the line and one 20 % above it."""
    fit = fit_steps(times([4, 4, 8, 8, 12, 12, 16, 16], [6, 6, 8, 12, 14, 14, 18, 18]), 2)
    assert fit.outliers == ()
    assert (fit.slot, fit.intercept) == (pytest.approx(1), pytest.approx(2))


def test_of_two_steps_of_one_setting_the_mean_is_the_median():
    """p = 4, m = 8: 11 slots in 11 seconds, the middle of 10 and 12."""
    assert fit_steps(times([8, 8], [10, 12]), 4).slot == pytest.approx(1)


@pytest.mark.parametrize(
    ("said", "needs"),
    [
        ({}, "--ranks and --data and --micro-batch"),
        ({"ranks": 4}, "--data and --micro-batch"),
        ({"ranks": 4, "data": 2}, "--micro-batch"),
        ({"ranks": 4, "micro_batch": 1}, "--data"),
    ],
)
def test_what_a_bubble_needs_is_asked_for_and_nothing_that_was_said(said, needs):
    """A log of one setting, which prints its batch of 64 samples but not how it is cut."""
    seconds, nothing = np.ones(12), np.full(12, np.nan)
    log = StepLog("train.log", seconds, np.full(12, 64.0), nothing, nothing, step=np.arange(1.0, 13.0))
    assert fit_of(log, Sizes(**said)).verdict[0].endswith(f"its bubble needs {needs}")
