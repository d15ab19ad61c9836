"""Calibration: measured rows correct the generic model through few named factors, each with its uncertainty.

The factors are the most likely ones by what was measured and by how far each is known to lie from 1
(``posterior.py``), so that three rows cannot bend what they say nothing about: a factor that no row depends on stays
at 1 with the uncertainty of its prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..estimate.constants import Calibration, Factor
from .posterior import NORMAL, Posterior, posterior
from .predict import predict
from .priors import MEMORY_PRIOR, NOISE, PRIOR, TAILS, corrected
from .rows import Row

Column = NDArray[np.float64]

STALLED = 4.0  # times longer, where any do


def calibrate(rows: Sequence[Row], source: str = "") -> Calibration:
    """Fit the factors to measured steps, and one factor to measured memory where rows have it.

    Args:
        rows: measured runs; three to five of different layouts are enough.
        source: what they are, for reports.

    Raises:
        InputError: no row has a step time.
    """
    timed = [row for row in rows if row.seconds > 0]
    if not timed:
        raise InputError(Fault(source or "calibration", "no row has a step time", "add a column step_s"))
    seconds = np.log([row.seconds for row in timed])
    steps = steps_of(timed)
    alike = np.zeros(len(PRIOR))
    alike[0] = np.median(seconds - steps(alike[None])[0])  # a machine that is slower throughout is no row of outliers
    noise = np.full(len(timed), NOISE)
    fit = likeliest(steps, (seconds, noise), np.array(list(PRIOR.values())), alike, tails=TAILS)
    found, band = corrected(fit.at, fit.errors), band_of(fit, fit.off, fit.slope)
    return replace(found, memory=memory_of(rows), rows=len(timed), source=source, band=band)


def likeliest(
    predict: Callable[[Column], Column],
    measured: tuple[Column, Column],
    prior: Column,
    start: Column,
    *,
    tails: Column | float = NORMAL,
) -> Posterior:
    """The better of two fits: from a start, and from there with hosts that stall, of which the slope at 1 says nothing.

    Args:
        predict: see ``posterior``, as all others.
        measured: logs and their noise.
        prior: of the factors in the order of ``PRIOR``.
        start: logs of the factors.
        tails: of the priors.
    """
    stalled = start + np.log(STALLED) * (np.array(list(PRIOR)) == "stall")
    fits = [posterior(predict, measured, prior, one, tails=tails) for one in (start, stalled)]
    return min(fits, key=lambda fit: fit.lost)


def steps_of(rows: Sequence[Row]) -> Callable[[Column], Column]:
    """What predicts the logs of the steps of some rows, float64[n, rows], from logs of factors, float64[n, factors]."""

    def logs(several: Column) -> Column:
        each = corrected(np.tile(several, (len(rows), 1)).T)
        found: Column = np.log(predict([row for row in rows for _ in several], each)[0])
        return found.reshape(len(rows), len(several)).T

    return logs


def band_of(fit: Posterior, off: Column, slope: Column) -> float:
    """Relative error of a step like those measured: noise, and what the model gets wrong or the factors leave open.

    Args:
        fit: the factors.
        off: log of predicted over measured, float64[measurements].
        slope: change of the logs of steps with the logs of the factors, float64[steps, factors].
    """
    unsure = float(np.mean(np.einsum("ij,jk,ik->i", slope, fit.covariance, slope)))
    return float(np.sqrt(NOISE**2 + max(float(np.median(off**2)), unsure)))


def memory_of(rows: Sequence[Row]) -> Factor:
    """One factor on peak bytes: the median of the rows that print it, with the error of a median."""
    sized = [row for row in rows if row.memory > 0]
    if not sized:
        return Factor(1.0, MEMORY_PRIOR)
    ratio = np.log([row.memory for row in sized]) - np.log(predict(sized)[1])
    error = float(1.25 * max(ratio.std(), 0.03) / np.sqrt(len(sized)))
    middle = float(np.exp(np.median(ratio)))
    return Factor(middle, middle * error)
