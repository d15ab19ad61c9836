"""The posterior: held against a search of the sum that it minimises, and against closed forms where there are some."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.planning.calibrate import FREEDOM, one_by_one, posterior

PRIOR = np.array([0.2, 0.5])


def lost(at, target, noise):
    off = at.sum(axis=-1, keepdims=True) - target
    student = (FREEDOM + 1) * np.log1p((off / noise) ** 2 / FREEDOM)
    return student.sum(axis=-1) + (at**2 / PRIOR**2).sum(axis=-1)


@given(st.floats(-0.3, 0.3), st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(0.03, 0.3))
def test_of_measurements_that_agree_it_is_where_the_sum_is_least(middle, off, noise):
    target = middle + noise * np.array(off)
    measured = target, np.full(len(target), noise)
    found = posterior(one_by_one(lambda at: np.full(len(target), at.sum())), measured, PRIOR)
    grid = np.stack(np.meshgrid(*[np.linspace(-0.4, 0.4, 161)] * 2), axis=-1).reshape(-1, 2)
    assert lost(found.at, target, noise) <= lost(grid, target, noise).min() + 1e-2


def test_one_sure_measurement_of_one_factor_is_taken_over():
    found = posterior(lambda at: at[:, :1], (np.log([1.3]), np.array([1e-3])), PRIOR)
    assert np.exp(found.at) == pytest.approx([1.3, 1.0], rel=1e-3)
    assert found.errors[0] == pytest.approx(1e-3 * np.sqrt(FREEDOM / (FREEDOM + 1)), rel=0.05)
    assert found.errors[1] == pytest.approx(PRIOR[1])


def test_two_factors_that_cannot_be_told_apart_share_what_is_measured_by_their_priors():
    found = posterior(one_by_one(lambda at: np.full(1, at.sum())), (np.array([0.29]), np.array([1e-3])), PRIOR)
    assert found.at == pytest.approx([0.04, 0.25], abs=1e-3)
    assert found.covariance[0, 1] < 0


def test_one_measurement_gone_wrong_does_not_bend_twenty():
    target = np.array([0.1] * 20 + [3.0])
    found = posterior(one_by_one(lambda at: np.full(21, at[0])), (target, np.full(21, 0.05)), PRIOR)
    assert found.at[0] == pytest.approx(0.1, abs=0.02)


def test_all_that_is_off_alike_is_believed_however_far():
    far = np.full(8, np.log(20)), np.full(8, 0.06)
    found = posterior(one_by_one(lambda at: np.full(8, at[0])), far, PRIOR, np.log([20, 1]))
    assert np.exp(found.at[0]) == pytest.approx(20, rel=0.1)
    assert posterior(one_by_one(lambda at: np.full(8, at[0])), far, PRIOR).at[0] < 1


def test_what_is_sure_is_believed_however_far_without_a_start():
    found = posterior(lambda at: at[:, :1], (np.log([20]), np.array([0.01])), PRIOR, robust=False)
    assert np.exp(found.at[0]) == pytest.approx(20, rel=0.02)
    assert found.errors[0] == pytest.approx(0.01, rel=0.01)
