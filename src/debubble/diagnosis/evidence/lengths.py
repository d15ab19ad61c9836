"""Micro-batches of unlike length: the same ones take longer on every stage, which jitter does not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.op import Kind
from ...core.timeline import Timeline
from ..fit import spent
from ..windows import Summary

UNLIKE = 0.05  # standard deviation of a micro-batch's length over the mean
SHARED = 0.5  # share of the spread that stages must have in common
_MOST_WINDOWS = 64


@dataclass(frozen=True, slots=True)
class Lengths:
    """How micro-batches differ.

    Args:
        spread: standard deviation over the mean of their lengths, over all windows that were looked at.
        common_share: of the forwards' variance that all stages have in common.
        longest: micro-batch of the median window that takes longest.
        factor: its time over the mean.
    """

    spread: float
    common_share: float
    longest: int
    factor: float

    @property
    def differ(self) -> bool:
        """Whether micro-batches differ in length, and not only in luck."""
        return self.spread > UNLIKE and self.common_share > SHARED


def lengths(summary: Summary) -> Lengths | None:
    """How micro-batches differ in length; None where there are too few stages or micro-batches to tell."""
    schedule = summary.window.timeline.program.schedule
    if schedule.stages < 2 or schedule.units < 2:
        return None
    every = max(1, len(summary.windows) // _MOST_WINDOWS)
    tables = [_forwards(window.timeline) for window in summary.windows[::every]]
    common, whole = (float(np.mean(column)) for column in zip(*map(_variances, tables), strict=True))
    mine = _forwards(summary.window.timeline).mean(axis=0)
    longest = int(mine.argmax())
    share = common / whole if whole else 0.0
    return Lengths(common**0.5, share, longest // schedule.slices, float(mine[longest]))


def _forwards(timeline: Timeline) -> NDArray[np.float64]:
    """Each forward over the mean of its stage, float64[stages, units]."""
    schedule = timeline.program.schedule
    table = np.zeros((schedule.stages, schedule.units))
    rows = schedule.kind == Kind.F
    table[schedule.stage[rows], schedule.unit[rows]] = spent(timeline)[rows]
    mean = table.mean(axis=1, keepdims=True)
    relative: NDArray[np.float64] = np.divide(table, mean, out=np.ones_like(table), where=mean > 0)
    return relative


def _variances(table: NDArray[np.float64]) -> Iterator[float]:
    """Variance that stages have in common (of pairs of stages, so that jitter adds nothing), and all of it."""
    stages = len(table)
    away = table - 1
    whole = float((away**2).mean())
    total = float((away.sum(axis=0) ** 2).mean())
    yield max(0.0, (total - stages * whole) / (stages * (stages - 1)))
    yield whole
