"""Calibration: measured rows correct the generic model through few named factors, each with its uncertainty.

The factors are the most likely ones by what was measured and by how far each is known to lie from 1
(``posterior.py``), so that three rows cannot bend what they say nothing about: a factor that no row depends on stays
at 1 with the uncertainty of its prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import Fault, InputError
from ..estimate.factors import GENERIC, Calibration, Factor
from .posterior import posterior
from .predict import predict
from .rows import Row

Column = NDArray[np.float64]

# How far each factor is expected from 1 before anything is measured, in e-folds: about as far as it lies in the five
# published sets that the generic model was made from (those that `planning/validate.py` tests it on are not among them).
PRIOR = {"kernels": 0.08, "tensor": 0.45, "data": 0.8, "transfer": 0.5, "floor": 0.3}
# A device may be throttled, or its file wrong, by far more: degrees of freedom of each prior.
TAILS = np.array([4.0 if name == "kernels" else np.inf for name in PRIOR])
NOISE = 0.06
MEMORY_PRIOR = 0.3


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
    spread = np.array(list(PRIOR.values()))
    seconds = np.log([row.seconds for row in timed])

    def logs(several: Column) -> Column:
        each = _with(np.tile(several, (len(timed), 1)).T)
        found: Column = np.log(predict([row for row in timed for _ in several], each)[0])
        return found.reshape(len(timed), len(several)).T

    alike = np.zeros(len(PRIOR))
    alike[0] = np.median(seconds - logs(alike[None])[0])  # a machine that is slower throughout is no row of outliers
    fit = posterior(logs, (seconds, np.full(len(timed), NOISE)), spread, alike, tails=TAILS)
    unsure = float(np.mean(np.einsum("ij,jk,ik->i", fit.slope, fit.covariance, fit.slope)))
    band = float(np.sqrt(NOISE**2 + max(float(np.median(fit.off**2)), unsure)))
    found = _with(fit.at, fit.errors)
    return replace(found, memory=_memory(rows), rows=len(timed), source=source, band=band)


def _with(at: Column, errors: Column | None = None) -> Calibration:
    spread = np.zeros(len(at)) if errors is None else errors
    factors = {n: Factor(np.exp(log), np.exp(log) * error) for n, log, error in zip(PRIOR, at, spread, strict=True)}
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
