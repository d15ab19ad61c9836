"""Robust choice: layouts rank by the step to expect if the cluster may stall, those with memory to spare first.

On some clusters tensor groups in a pipeline across nodes lose milliseconds a layer for each of their members, whatever
the micro-batch; the factor ``stall`` is that loss. Of the published clusters with such layouts (vTrain, BigScience,
Ultra-Scale, Selene, NVIDIA's recipes on H100 and on GB200) two stall. Unless measured runs say otherwise, that is the
chance that this one does, and a layout that would lose by it must be ahead by more than the chance of losing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config.plan import Layouts, Plan
from ..estimate.constants import GENERIC, Calibration, Factor
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from .calibrate import STALLED, Column, silent_factors
from .screen import screen

CHANCE = 1 / 3
SPARE = 0.9  # share of a device's memory that an estimate may fill: published peaks lie within 10 % of ours


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


def weighed(
    plans: Sequence[Plan], layouts: Layouts, model: Model, cluster: Cluster, calibration: Calibration | None
) -> list[Plan]:
    """The plans with the step to expect: what the screen says that a stall costs, on top of what was simulated.

    Args:
        plans: simulated.
        layouts: the same, a row each.
        model: what is trained.
        cluster: on what.
        calibration: of the cost model, or None.
    """
    steps = screen(model, cluster, layouts, calibration).step
    stalled = screen(model, cluster, layouts, if_stalled(calibration)).step
    slower = expected(steps, stalled, calibration) / steps
    return [replace(plan, expected_step=plan.step * times) for plan, times in zip(plans, slower.tolist(), strict=True)]


def by_rank(plan: Plan, memory: float) -> tuple[bool, float, int]:
    """What plans are sorted by: memory to spare, the step to expect, the fewest devices a sequence.

    Args:
        plan: that fits.
        memory: bytes of a device.
    """
    return is_tight(plan, memory), plan.expected_step, plan.layout.context


def is_tight(plan: Plan, memory: float) -> bool:
    """Whether a plan fits only if its estimate of memory is right."""
    return max(plan.peak_bytes) > SPARE * memory
