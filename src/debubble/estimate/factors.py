"""Calibration: few named factors by which measured rows correct the generic model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Factor:
    """One correction.

    Args:
        value: what a predicted part is multiplied by (or nanoseconds, for ``fixed``).
        error: one standard error of it.
    """

    value: float = 1.0
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was learned from measured rows.

    Args:
        kernels: on time spent in matrix products, attention and memory-bound operations.
        tensor: on collectives of tensor, context and expert groups.
        data: on data-parallel traffic.
        transfer: on hops between ranks.
        floor: on the shortest time that a layer takes.
        memory: on peak bytes.
        rows: how many rows it was fitted on.
        source: what they were.
        band: relative error of a prediction, one standard deviation, 0 to 1.
    """

    kernels: Factor = Factor()
    tensor: Factor = Factor()
    data: Factor = Factor()
    transfer: Factor = Factor()
    floor: Factor = Factor()
    memory: Factor = Factor()
    rows: int = 0
    source: str = ""
    band: float = 0.15


GENERIC = Calibration()
