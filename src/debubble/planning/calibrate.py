"""Calibration: measured rows correct the generic model through few named factors, each with its uncertainty.

The factors f are those that minimise

    sum over rows   (log predicted(f) - log measured)^2 / NOISE^2
  + sum over f      (log f)^2 / PRIOR^2

so that three rows cannot bend what they say nothing about: a factor that no row depends on stays at 1 with the
uncertainty of its prior. Found by Gauss-Newton on finite differences; errors are those of the curvature at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import Fault, InputError
from ..estimate.factors import GENERIC, Calibration, Factor
from .predict import predict
from .rows import Row

Column = NDArray[np.float64]

# How far each factor is expected from 1 before anything is measured, in e-folds: how well vendors' figures and the
# public data that the generic model rests on pin it down.
PRIOR = {"kernels": 0.2, "tensor": 0.5, "data": 0.7, "transfer": 0.7, "floor": 0.5}
NOISE = 0.06
MEMORY_PRIOR = 0.3
STEPS = 8
NUDGE = 0.02


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
        raise InputError(Fault(source or "calibration", "no row has a step time", "add a column step_time_s"))
    names = list(PRIOR)
    spread = np.array([PRIOR[name] for name in names])
    target = np.log([row.seconds for row in timed])
    at = np.zeros(len(names))
    for _ in range(STEPS):
        off, slope, curve = _linear(timed, at, target, spread)
        step = np.linalg.solve(curve, -(slope.T @ (_weights(off) * off) + at / spread**2))
        at = at + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 5e-3:
            break
    off, slope, curve = _linear(timed, at, target, spread)
    covariance = np.linalg.inv(curve)
    found = _with(names, at, np.sqrt(np.diag(covariance)))
    unsure = float(np.mean(np.einsum("ij,jk,ik->i", slope, covariance, slope)))
    band = float(np.sqrt(NOISE**2 + max(float(np.median(off**2)), unsure)))
    return replace(found, memory=_memory(rows), rows=len(timed), source=source, band=band)


def _linear(rows: Sequence[Row], at: Column, target: Column, spread: Column) -> tuple[Column, Column, Column]:
    """Log of predicted over measured, its change with each factor, and the curvature of the sum of squares."""
    count = len(at)
    nudges = at + NUDGE * np.eye(count + 1, count, -1)  # as it is, then each factor moved
    several = [row for row in rows for _ in nudges]
    moved = np.tile(nudges, (len(rows), 1))
    log = np.log(predict(several, _with(list(PRIOR), moved.T))[0]).reshape(len(rows), count + 1)
    off, slope = log[:, 0] - target, (log[:, 1:] - log[:, :1]) / NUDGE
    return off, slope, slope.T @ (_weights(off)[:, None] * slope) + np.diag(spread**-2)


def _weights(off: Column) -> Column:
    """Of each row in the sum: that of Student's t, so that one run gone wrong does not bend the rest."""
    freedom = 4
    found: Column = (freedom + 1) / (freedom + (off / NOISE) ** 2) / NOISE**2
    return found


def _with(names: Sequence[str], at: Column, errors: Column | None = None) -> Calibration:
    spread = np.zeros(len(at)) if errors is None else errors
    factors = {
        name: Factor(np.exp(log), np.exp(log) * error) for name, log, error in zip(names, at, spread, strict=True)
    }
    return replace(GENERIC, **factors)  # type: ignore[arg-type]


def _memory(rows: Sequence[Row]) -> Factor:
    """One factor on peak bytes: the median of the rows that print it, with the error of a median."""
    sized = [row for row in rows if row.memory > 0]
    if not sized:
        return Factor(1.0, MEMORY_PRIOR)
    ratio = np.log([row.memory for row in sized]) - np.log(predict(sized)[1])
    error = float(1.25 * max(ratio.std(), 0.03) / np.sqrt(len(sized)))
    middle = float(np.exp(np.median(ratio)))
    return Factor(middle, middle * error)
