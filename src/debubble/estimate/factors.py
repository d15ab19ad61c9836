"""Calibration: few named factors by which measured rows correct the generic model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """One correction.

    Args:
        value: what a predicted part is multiplied by: one number, or one for each layout, float64[n].
        error: one standard error of it.
    """

    value: float | NDArray[np.float64] = 1.0
    error: float | NDArray[np.float64] = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What was learned from measured rows.

    Args:
        kernels: on time spent in matrix products, attention and memory-bound operations.
        tensor: on collectives of tensor, context and expert groups.
        data: on data-parallel traffic.
        transfer: on hops between ranks.
        floor: on the shortest time that a layer takes.
        stall: on that time where tensor groups of 8 wait for a pipeline that spans nodes; of others in proportion.
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
    stall: Factor = Factor()
    memory: Factor = Factor()
    rows: int = 0
    source: str = ""
    band: float = 0.15

    def factors(self) -> dict[str, Factor]:
        """All factors by name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Factor)}

    def rows_of(self, positions: Sequence[int]) -> Calibration:
        """The factors of some layouts, where they differ from layout to layout."""
        cut = {n: Factor(f.value[positions]) for n, f in self.factors().items() if isinstance(f.value, np.ndarray)}
        return replace(self, **cut) if cut else self  # type: ignore[arg-type]


GENERIC = Calibration()
