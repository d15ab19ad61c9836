"""The time of one rank, as every result prints it: five parts that sum to the window, and the most it holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .account import Account

MILLISECOND = 1e6  # nanoseconds
PARTS = ("compute", "warm_up", "waiting", "transfer", "cool_down")


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank of a window.

    Args:
        rank: position in the pipeline.
        compute_ms: F, I, W and B work.
        warm_up_ms: before its first op.
        waiting_ms: gaps in which its input had not been made.
        transfer_ms: gaps in which its input was on its way, and transfers that take up the rank.
        cool_down_ms: after its last op.
        busy_share: work over the window.
        peak_activations: micro-batches of a rank that it holds at most.
    """

    rank: int
    compute_ms: float
    warm_up_ms: float
    waiting_ms: float
    transfer_ms: float
    cool_down_ms: float
    busy_share: float
    peak_activations: float


def rank_times(spent: Account, peak: NDArray[np.float64]) -> tuple[RankTime, ...]:
    """One line a rank.

    Args:
        spent: where the time of a window went.
        peak: activations that each rank holds at most, float64[ranks].
    """
    columns = [(getattr(spent, part) / MILLISECOND).tolist() for part in PARTS]
    busy = (spent.compute / max(spent.window, 1)).tolist()
    rows = zip(*columns, busy, peak.tolist(), strict=True)
    return tuple(RankTime(rank, *row) for rank, row in enumerate(rows))
