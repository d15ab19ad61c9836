"""Robust choice: layouts are ranked by the step to expect if the cluster may stall, not by the best case alone.

On some clusters tensor groups in a pipeline across nodes lose milliseconds a layer for each of their members, whatever
the micro-batch; the factor ``stall`` is that loss. Of the published clusters with such layouts (vTrain, BigScience,
Ultra-Scale, Selene, NVIDIA's recipes on H100 and on GB200) two stall. Unless measured runs say otherwise, that is the
chance that this one does, and a layout that would lose by it must be ahead by more than the chance of losing.
"""

from __future__ import annotations

from dataclasses import replace

from ..estimate.constants import GENERIC, Calibration, Factor
from .calibrate import STALLED, Column, silent_factors

CHANCE = 1 / 3


def chance_of_stalling(calibration: Calibration | None) -> float:
    """That this cluster stalls more than is known: 0 if measured runs tell."""
    if calibration is None or not calibration.rows or "stall" in silent_factors(calibration):
        return CHANCE
    return 0.0


def if_stalled(calibration: Calibration | None) -> Calibration:
    """The same factors on a cluster that stalls."""
    known = calibration or GENERIC
    return replace(known, stall=Factor(STALLED * known.stall.value))


def expected(steps: Column, stalled: Column, calibration: Calibration | None) -> Column:
    """The step to expect of each layout, from the one predicted and the one on a cluster that stalls."""
    chance = chance_of_stalling(calibration)
    weighed: Column = (1 - chance) * steps + chance * stalled
    return weighed
