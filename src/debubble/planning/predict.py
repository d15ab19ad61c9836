"""Prediction of measured rows: step and memory of many runs of different models, each kind screened at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..config.layout import columns
from ..estimate.constants import Calibration
from ..estimate.count import flops_per_token
from .rows import Row
from .screen import screen

Column = NDArray[np.float64]
CONSTANT_MFU = 0.45  # of the line that a planner must beat


def predict(rows: Sequence[Row], calibration: Calibration | None = None) -> tuple[Column, Column]:
    """Seconds of a step and peak bytes of a device, float64[rows] each; factors may differ from row to row."""
    alike = defaultdict(list)
    for position, row in enumerate(rows):
        alike[row.model, row.cluster.device.name, row.cluster.gpus_per_node, row.cluster.nic].append(position)
    seconds, memory = np.zeros(len(rows)), np.zeros(len(rows))
    for positions in alike.values():
        one = rows[positions[0]]
        layouts = columns([rows[i].layout for i in positions], one.model.layers)
        screened = screen(one.model, one.cluster, layouts, calibration and calibration.rows_of(positions))
        seconds[positions], memory[positions] = screened.step / 1e9, screened.peak_bytes
    return seconds, memory


def constant_mfu(rows: Sequence[Row]) -> Column:
    """Seconds of a step at one model FLOP utilisation for all, full recomputation counted as a third more work."""
    return np.array([_at_constant_mfu(row) for row in rows])


def _at_constant_mfu(row: Row) -> float:
    layout = row.layout
    work = flops_per_token(row.model, layout.sequence) * layout.sequence * layout.global_batch
    again = 4 / 3 if layout.recompute == "full" else 1.0
    return work * again / (layout.gpus * row.cluster.device.peak(layout.precision) * CONSTANT_MFU)
