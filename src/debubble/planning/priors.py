"""Priors: what is known of each factor before anything is measured, and of which ones nothing was learned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..estimate.constants import GENERIC, Calibration, Factor
from .posterior import NORMAL

Column = NDArray[np.float64]

# How far each factor is expected from 1 before anything is measured, in e-folds: about as far as it lies in the five
# published sets that the generic model was made from. The three that it is tested on are not among them.
PRIOR = {"kernels": 0.08, "tensor": 0.45, "data": 0.7, "transfer": 0.5, "floor": 0.3, "stall": 0.8}
MEMORY_PRIOR = 0.3
# A device may be throttled, or its file wrong, by far more, and few clusters stall, but those much: degrees of freedom
# of each prior.
TAILS = np.array([4.0 if name in ("kernels", "stall") else NORMAL for name in PRIOR])
NOISE = 0.06  # of a step, in e-folds
NOTHING = 0.95  # of a prior's error that is left where a source says next to nothing


def corrected(at: Column, errors: Column | None = None, names: Iterable[str] = PRIOR) -> Calibration:
    """The generic model under some factors.

    Args:
        at: logs of the factors, float64[factors], or for each of several layouts, float64[factors, layouts].
        errors: one standard error of each log; None for 0.
        names: of the factors.
    """
    spread = np.zeros_like(at) if errors is None else errors
    factors = {n: Factor(np.exp(log), np.exp(log) * error) for n, log, error in zip(names, at, spread, strict=True)}
    return replace(GENERIC, **factors)  # type: ignore[arg-type]


def untold(calibration: Calibration) -> tuple[str, ...]:
    """Factors of which what was measured says next to nothing: they lie about where they lay, as uncertain."""
    factors = calibration.factors()
    priors = PRIOR | {"memory": MEMORY_PRIOR}
    return tuple(name for name, prior in priors.items() if _is_untold(factors[name], prior))


def _is_untold(factor: Factor, prior: float) -> bool:
    error = float(np.mean(factor.error / factor.value))
    return error > NOTHING * prior and abs(float(np.mean(np.log(factor.value)))) < error
