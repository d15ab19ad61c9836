"""Factors of a calibration as results hold them: value, standard error, and whether anything was learned of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..estimate.constants import Calibration
from .calibrate import silent_factors


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
    silent = silent_factors(calibration)
    return {
        name: FactorValue(float(factor.value), float(factor.error), name not in silent)
        for name, factor in calibration.factors().items()
    }
