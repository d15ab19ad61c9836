"""Posterior: log factors that fit measurements as well as they are sure, and keep to their priors elsewhere.

The logs x of the factors are those that minimise

    sum over measurements   (log predicted(x) - log measured)^2 / noise^2   (as Student's t, 1 degree of freedom)
  + sum over factors        x^2 / prior^2                                   (as Student's t, where it has tails)

so that one run gone wrong does not bend the rest, and a machine may be far from what is usual where all say so. Found
by Gauss-Newton on finite differences; errors are those of the curvature at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

FREEDOM = 1  # of Student's t for measurements
NORMAL = 1e9  # as good as infinite
STEPS = 12
LONGEST = 0.5  # of a step, in e-folds
CLOSE = 1e-3
NUDGE = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """What measurements and priors say together.

    Args:
        at: logs of the factors, float64[factors].
        covariance: of them, float64[factors, factors].
        off: log of predicted over measured, float64[measurements].
        slope: change of the log of each prediction with the log of each factor, float64[measurements, factors].
        lost: the sum that they minimise.
    """

    at: Column
    covariance: Column
    off: Column
    slope: Column
    lost: float

    @property
    def errors(self) -> Column:
        """One standard error of each log factor, float64[factors]."""
        found: Column = np.sqrt(np.diag(self.covariance))
        return found


def posterior(
    predict: Callable[[Column], Column],
    measured: tuple[Column, Column],
    prior: Column,
    start: Column | None = None,
    *,
    robust: bool = True,
    tails: Column | float = NORMAL,
) -> Posterior:
    """Fit log factors.

    Args:
        predict: logs of the predictions, float64[n, measurements], from logs of the factors, float64[n, factors]: many
            at once, since each call costs as much as many; see ``one_by_one``.
        measured: logs of the measurements, and the noise of each, in e-folds; float64[measurements] both.
        prior: how far each factor is expected from 1, in e-folds, float64[factors].
        start: logs of the factors where most measurements lie, so that what is off alike is not taken for outliers;
            None for 0.
        robust: whether one measurement may have gone wrong; else all are believed, as with infinite freedom.
        tails: degrees of freedom of each prior, or of all: few where a factor may lie far off, ``NORMAL`` where not.
    """
    target, noise = measured
    at = np.zeros(len(prior)) if start is None else start

    def pull(off: Column) -> Column:
        student = (FREEDOM + 1) / (FREEDOM + (off / noise) ** 2)
        weights: Column = (student if robust else np.ones_like(off)) / noise**2
        return weights

    def hold(at: Column) -> Column:
        weights: Column = 1 / (1 + (at / prior) ** 2 / tails) / prior**2
        return weights

    for _ in range(STEPS):
        here, slope = linear(predict, at)
        off = here - target
        weights, held = pull(off), hold(at)
        step = np.linalg.solve(_curve(slope, weights, held), -(slope.T @ (weights * off) + held * at))
        at = at + np.clip(step, -LONGEST, LONGEST)
        if np.abs(step).max() < CLOSE:
            break
    here, slope = linear(predict, at)
    off = here - target
    misfit = (FREEDOM + 1) * np.log1p((off / noise) ** 2 / FREEDOM) if robust else (off / noise) ** 2
    odd = tails * np.log1p((at / prior) ** 2 / tails)
    lost = float(misfit.sum() + odd.sum())
    return Posterior(at, np.linalg.inv(_curve(slope, pull(off), hold(at))).astype(np.float64), off, slope, lost)


def one_by_one(predict: Callable[[Column], Column]) -> Callable[[Column], Column]:
    """A prediction of one set of factors, as one of many."""
    return lambda several: np.stack([predict(at) for at in several])


def linear(predict: Callable[[Column], Column], at: Column) -> tuple[Column, Column]:
    """Predictions at some log factors, float64[measurements], and their slopes, float64[measurements, factors]."""
    here, *moved = predict(at + NUDGE * np.eye(len(at) + 1, len(at), -1))  # as it is, then each factor moved
    return here, (np.stack(moved, axis=1) - here[:, None]) / NUDGE


def _curve(slope: Column, weights: Column, held: Column) -> Column:
    """Curvature of the sum."""
    found: Column = slope.T @ (weights[:, None] * slope) + np.diag(held)
    return found
