"""Judgement: a layout of a model on a cluster becomes a plan, and many layouts become columns of times and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..estimate.factors import Calibration
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..plan import Layout, Layouts, Plan


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """What the closed form says of many layouts.

    Args:
        step: nanoseconds, float64[n].
        peak_bytes: of the fullest rank, float64[n].
    """

    step: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]


def screen(model: Model, cluster: Cluster, layouts: Layouts, calibration: Calibration | None = None) -> Screened:
    """Closed form, all layouts at once: even stages but for the ends, the catalog's bubble, evidence ``estimated``."""
    raise NotImplementedError


def judge(model: Model, cluster: Cluster, layout: Layout, calibration: Calibration | None = None) -> Plan:
    """Exact simulation of one layout with its own stage costs, its parts, its bytes on each rank."""
    raise NotImplementedError
