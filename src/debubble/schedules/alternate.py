"""The pattern that many schedules share: some forwards, then one forward and one backward in turn, then the rest.

warm-up w = 3, n = 5 of each:   F F F  F B F B  B B B
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..op import Kind

Columns = tuple[NDArray[np.uint8], NDArray[np.int32]]


def alternate(warm_up: NDArray[np.int32], n: int) -> Columns:
    """Kind of each op and its turn among the ops of its kind.

    Args:
        warm_up: forwards before the first backward on each rank, at most n, int32[ranks].
        n: forwards, and backwards, of each rank.

    Returns:
        uint8[ranks, 2n] and int32[ranks, 2n].
    """
    w = warm_up[:, None]
    column = np.arange(2 * n, dtype=np.int32)[None, :]
    inside = column - w  # columns since the warm-up
    steady = (inside >= 0) & (inside < 2 * (n - w))
    backward = np.where(steady, inside % 2 == 1, inside >= 0)
    in_turn = inside // 2 + np.where(backward, 0, w)
    turn = np.where(steady, in_turn, np.where(backward, column - n, column))
    return np.where(backward, np.uint8(Kind.B), np.uint8(Kind.F)), turn
