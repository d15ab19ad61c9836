"""Calibration: measured steps correct the generic model through few named factors, each with its uncertainty.

The logs x of the factors are those that minimise

    sum over measurements   (log predicted(x) - log measured)^2 / noise^2   (as Student's t, 1 degree of freedom)
  + sum over factors        x^2 / prior^2                                   (as Student's t, where it has tails)

so that one run gone wrong does not bend the rest, and a machine may be far from what is usual where all say so. Found
by Gauss-Newton on finite differences; errors are those of the curvature at the end. So three rows cannot bend what they
say nothing about: a factor that no row depends on stays at 1 with the uncertainty of its prior.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.plan import columns
from ..core.errors import Fault, InputError
from ..estimate.setting import GENERIC, MEMORY_PRIOR, PRIOR, STALLED, Calibration, Factor
from .runs import Run
from .screen import screen

Column = NDArray[np.float64]

FREEDOM = 1  # of Student's t for measurements: so heavy a tail that a run gone wrong counts as one more good one
NORMAL = 1e9  # degrees of freedom, as good as infinite: Student's t is the normal distribution there
STEPS = 12  # of Gauss-Newton at most, for fits that swing between two kinks
LONGEST_STEP = 0.5  # of a step, in e-folds
CLOSE = 1e-3  # step at which it stops: far below the noise of any measurement
NUDGE = 0.02  # of a finite difference: above the rounding to nanoseconds, below the distance of kinks


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
    at = np.zeros(len(prior))
    if start is not None:
        at = start

    # Student's t by reweighting: each measurement weighs (freedom + 1) / (freedom + its misfit^2) as much as if normal.
    def pull(off: Column) -> Column:
        believed = np.ones_like(off)
        if robust:
            believed = (FREEDOM + 1) / (FREEDOM + (off / noise) ** 2)
        weights: Column = believed / noise**2
        return weights

    def hold(at: Column) -> Column:
        weights: Column = 1 / (1 + (at / prior) ** 2 / tails) / prior**2
        return weights

    for _ in range(STEPS):
        here, slope = linear(predict, at)
        off = here - target
        weights, held = pull(off), hold(at)
        # Gauss-Newton: the slopes' products stand for the second derivatives, which are never negative then.
        step = np.linalg.solve(_curve(slope, weights, held), -(slope.T @ (weights * off) + held * at))
        # The host's floor and the device's time trade places at a kink: a long step would leap over it.
        at = at + np.clip(step, -LONGEST_STEP, LONGEST_STEP)
        if np.abs(step).max() < CLOSE:
            break
    here, slope = linear(predict, at)
    off = here - target
    misfit = (off / noise) ** 2
    if robust:
        misfit = (FREEDOM + 1) * np.log1p(misfit / FREEDOM)
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


# A device may be throttled, or its file wrong, by far more, and few clusters stall, but those much: degrees of freedom
# of each prior.
TAILS = np.array([4.0 if name in ("kernels", "stall") else NORMAL for name in PRIOR])
NOISE = 0.06  # of a step, in e-folds: successive releases of one recipe differ by up to as much
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
    # Steps differ by factors, so all is in logarithms: an error of 10 % weighs the same in a short step and a long one.
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
    # Where the host hides behind the device, its factor has no slope: a fit from 1 would never find a stalled one.
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
    # What the factors leave open of a step, by the covariance of the factors and the slopes of the step.
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


LARGEST = 4_000_000  # bytes
LONGEST = 200  # characters of a source that are shown
MOST = 1e6  # no factor, nor any other number here, is that large; nor any factor one over it


@dataclass(frozen=True, slots=True)
class FactorValue:
    """A factor on what the cost model estimates.

    Args:
        value: measured over estimated.
        error: one standard deviation of it.
        told: whether what was measured says anything of it.
    """

    value: float
    error: float
    told: bool


def factor_values(calibration: Calibration) -> Mapping[str, FactorValue]:
    """Every factor by name."""
    silent = calibration.silent()
    return {
        name: FactorValue(float(factor.value), float(factor.error), name not in silent)
        for name, factor in calibration.factors().items()
    }


def read_calibration(path: Path) -> Calibration:
    """Factors that were saved.

    Raises:
        InputError: what cannot be read, or is no factor.
    """
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise InputError(Fault(str(path), f"it has less than {LARGEST:,} bytes", "give a file of --save-calibration"))
    return _saved(raw.decode("utf-8", errors="replace"), path)


def _saved(text: str, path: Path) -> Calibration:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error}", "give a file of --save-calibration")) from None
    found: dict[str, Any] = {name: _factor(table[name]) for name in GENERIC.factors() if name in table}
    for name in ("rows", "band"):
        if name in table:
            found[name] = table[name] if _is_size(table[name]) else None
    rule = "a factor is a table of a value above 0 and its error, rows and band are numbers from 0 on"
    faults = [Fault(f"{path}: {name}", rule, "calibrate again") for name, one in found.items() if one is None]
    if faults:
        raise InputError(*faults)
    source = " ".join(str(table.get("source", path))[:LONGEST].split())
    return replace(GENERIC, **found, source=source)


def _factor(entry: object) -> Factor | None:
    """A factor as ``written`` has it; None where it is none."""
    if not isinstance(entry, dict):
        return None
    value, error = entry.get("value", 1.0), entry.get("error", 0.0)
    known = _is_size(value) and value > 1 / MOST and _is_size(error)
    return Factor(float(value), float(error)) if known else None


def _is_size(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < MOST


def written(calibration: Calibration) -> str:
    """A calibration as TOML, each factor with its standard error."""
    lines = [
        f"{name} = {{ value = {float(factor.value):.12g}, error = {float(factor.error):.6g} }}"
        for name, factor in calibration.factors().items()
    ]
    source = f"source = {_quoted(calibration.source)}"
    return "\n".join([source, f"rows = {calibration.rows}", f"band = {calibration.band:.6g}", *lines, ""])


def _quoted(text: str) -> str:
    """A TOML string, whatever the bytes of a file's name: JSON escapes all that TOML does but for DEL."""
    # Names of files may hold bytes that are no text; TOML takes none of them.
    whole = text.encode("utf-8", "replace").decode()
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
