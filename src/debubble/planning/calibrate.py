"""Calibration: measured rows correct the generic model through few named factors, each with its uncertainty.

The factors are the most likely ones by what was measured and by how far each is known to lie from 1
(``posterior.py``), so that three rows cannot bend what they say nothing about: a factor that no row depends on stays
at 1 with the uncertainty of its prior.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..config.plan import columns
from ..core.errors import Fault, InputError
from ..estimate.constants import GENERIC, Calibration, Factor
from .posterior import NORMAL, Posterior, posterior
from .runs import Run
from .screen import screen

Column = NDArray[np.float64]

# How far each factor is expected from 1 before anything is measured, in e-folds: about as far as it lies in the five
# published sets that the generic model was made from. The three that it is tested on are not among them.
PRIOR = {"kernels": 0.08, "tensor": 0.45, "data": 0.7, "transfer": 0.5, "floor": 0.3, "stall": 0.8}
MEMORY_PRIOR = 0.3
# A device may be throttled, or its file wrong, by far more, and few clusters stall, but those much: degrees of freedom
# of each prior.
TAILS = np.array([4.0 if name in ("kernels", "stall") else NORMAL for name in PRIOR])
NOISE = 0.06  # of a step, in e-folds: successive releases of one recipe differ by up to as much
NOTHING = 0.95  # of a prior's error that is left if a source says next to nothing
STALLED = 4.0  # times longer that the host takes, where any do: from which the second fit starts
LEAST_SCATTER = 0.03  # of printed peaks, in e-folds, however few there are
MEDIAN_ERROR = 1.25  # standard error of a median over that of a mean, if errors are normal


def calibrate(runs: Sequence[Run], source: str = "") -> Calibration:
    """Fit the factors to measured steps, and one factor to measured memory if runs have it.

    Args:
        runs: measured; three to five of different layouts are enough.
        source: what they are, for reports.

    Raises:
        InputError: no run has a step time.
    """
    timed = [run for run in runs if run.seconds > 0]
    if not timed:
        raise InputError(Fault(source or "calibration", "no row has a step time", "add a column step_seconds"))
    seconds = np.log([run.seconds for run in timed])
    steps = steps_of(timed)
    alike = np.zeros(len(PRIOR))
    alike[0] = np.median(seconds - steps(alike[None])[0])  # a machine that is slower throughout is no row of outliers
    noise = np.full(len(timed), NOISE)
    fit = likeliest(steps, (seconds, noise), np.array(list(PRIOR.values())), alike, tails=TAILS)
    fitted, band = corrected(fit.at, fit.errors), band_of(fit, fit.off, fit.slope)
    return replace(fitted, memory=memory_of(runs), rows=len(timed), source=source, band=band)


def predict(runs: Sequence[Run], calibration: Calibration | None = None) -> tuple[Column, Column]:
    """Seconds of a step and peak bytes of a device, float64[runs] each; factors may differ from run to run.

    Runs of one model on one kind of cluster are screened at once.
    """
    alike = defaultdict(list)
    for position, run in enumerate(runs):
        alike[run.model, run.cluster.device.name, run.cluster.gpus_per_node, run.cluster.nic].append(position)
    seconds, memory = np.zeros(len(runs)), np.zeros(len(runs))
    for positions in alike.values():
        first = runs[positions[0]]
        layouts = columns([runs[i].layout for i in positions], first.model.layers)
        factors = calibration.rows_of(positions) if calibration else None
        screened = screen(first.model, first.cluster, layouts, factors)
        seconds[positions], memory[positions] = screened.step / 1e9, screened.peak_bytes
    return seconds, memory


def corrected(at: Column, errors: Column | None = None, names: Iterable[str] = PRIOR) -> Calibration:
    """The generic model under some factors.

    Args:
        at: logs of the factors, float64[factors], or for each of several layouts, float64[factors, layouts].
        errors: one standard error of each log; None for 0.
        names: of the factors.
    """
    spread = np.zeros_like(at) if errors is None else errors
    factors = {}
    for name, log, error in zip(names, at, spread, strict=True):
        factors[name] = Factor(np.exp(log), np.exp(log) * error)
    return replace(GENERIC, **factors)  # type: ignore[arg-type]


def silent_factors(calibration: Calibration) -> tuple[str, ...]:
    """Factors of which what was measured says next to nothing: they lie about as before, as uncertain."""
    factors = calibration.factors()
    silent = []
    for name, prior in (PRIOR | {"memory": MEMORY_PRIOR}).items():
        factor = factors[name]
        error = float(np.mean(factor.error / factor.value))
        shift = abs(float(np.mean(np.log(factor.value))))
        if error > NOTHING * prior and shift < error:
            silent.append(name)
    return tuple(silent)


def likeliest(
    predicted: Callable[[Column], Column],
    measured: tuple[Column, Column],
    prior: Column,
    start: Column,
    *,
    tails: Column | float = NORMAL,
) -> Posterior:
    """The better of two fits: from a start, and from there with hosts that stall, of which the slope at 1 says nothing.

    Args:
        predicted: see ``posterior``, as all others.
        measured: logs and their noise.
        prior: of the factors in the order of ``PRIOR``.
        start: logs of the factors.
        tails: of the priors.
    """
    stalled = start + np.log(STALLED) * (np.array(list(PRIOR)) == "stall")
    fits = [posterior(predicted, measured, prior, each, tails=tails) for each in (start, stalled)]
    return min(fits, key=lambda fit: fit.lost)


def steps_of(runs: Sequence[Run]) -> Callable[[Column], Column]:
    """What predicts the logs of the steps of some runs, float64[n, runs], from logs of factors, float64[n, factors]."""

    def logs(several: Column) -> Column:
        factors = corrected(np.tile(several, (len(runs), 1)).T)
        repeated = [run for run in runs for _ in several]
        steps: Column = np.log(predict(repeated, factors)[0])
        return steps.reshape(len(runs), len(several)).T

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


def memory_of(runs: Sequence[Run]) -> Factor:
    """One factor on peak bytes: the median of the runs that print it, with the error of a median."""
    sized = [run for run in runs if run.memory > 0]
    if not sized:
        return Factor(1.0, MEMORY_PRIOR)
    ratio = np.log([run.memory for run in sized]) - np.log(predict(sized)[1])
    error = float(MEDIAN_ERROR * max(ratio.std(), LEAST_SCATTER) / np.sqrt(len(sized)))
    middle = float(np.exp(np.median(ratio)))
    return Factor(middle, middle * error)
