"""Clocks of ranks, put on one by cause and effect: nothing that an op needs can have ended after it started.

For an op on rank b that needs one of rank a, offsets o (to be added to each rank's times) must satisfy
``o[b] - o[a] >= end(a) - start(b)``. F runs down the pipeline and B back up, so each hop is bounded from both sides;
the distance of the bounds is what two round trips leave unknown, and it is printed as the clocks' uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.program import Program

_NONE = -np.inf
TOLERANCE = 2_000  # nanoseconds; rounding of times in microseconds or of float32 seconds is no disagreement


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """What cause and effect say about the clocks of ranks.

    Args:
        offsets: nanoseconds to add to each rank's times, int64[ranks].
        width: how far the least certain hop's offset can move without breaking cause and effect, nanoseconds.
        violation: how much too early an op started on the clocks as they were, nanoseconds; 0 where none did.
        consistent: whether any offsets satisfy all ops.
    """

    offsets: NDArray[np.int64]
    width: int
    violation: int
    consistent: bool


def lags(program: Program, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    """Least offset of rank b against rank a that its ops ask for, float64[ranks, ranks], minus infinity for none.

    Args:
        program: the ops, with what each needs from other ranks.
        start: int64[ops], each on its own rank's clock, in the schedule's numbering.
        end: int64[ops].
    """
    schedule = program.schedule
    rank = schedule.rank_of()
    least = np.full((schedule.ranks, schedule.ranks), _NONE)
    for needs in program.needs_by_op()[:, : len(schedule)]:
        op = np.flatnonzero(needs >= 0)
        np.maximum.at(least, (rank[needs[op]], rank[op]), (end[needs[op]] - start[op]).astype(np.float64))
    np.fill_diagonal(least, _NONE)
    return least


def align(least: NDArray[np.float64], *, trust: bool) -> Alignment:
    """Offsets that put all ranks on the clock of rank 0.

    Each offset is the middle of what is possible: as if both ways between two ranks took equally long, which is how
    network time is kept (https://www.rfc-editor.org/rfc/rfc5905, section 8). The middles satisfy all bounds at once,
    because longest paths satisfy the triangle inequality.

    Args:
        least: as ``lags`` yields it; the largest over windows where offsets do not change.
        trust: keep the clocks as they are where no op contradicts them.
    """
    violation = max(0, round(float(least.max(initial=0.0))))
    agree = trust and violation <= TOLERANCE
    far = least if agree else _longest_paths(least)  # hops alone bound clocks that no op contradicts
    consistent = bool((np.diagonal(far) <= TOLERANCE).all())
    hops = np.isfinite(least) & np.isfinite(far.T)
    width = max(0, round(float((-far.T - far)[hops].max(initial=0.0))))
    ranks = len(least)
    offsets = np.zeros(ranks, np.int64)
    if not agree and consistent:
        low, high = far[0], -far[:, 0]
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
        high = np.where(np.isfinite(high), high, low)
        offsets = np.rint((low + high) / 2).astype(np.int64)
        offsets[0] = 0
    return Alignment(offsets, width, violation if violation > TOLERANCE else 0, consistent)


def _longest_paths(least: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least offset between any two ranks that the bounds imply together (Floyd and Warshall's recursion)."""
    far = least.copy()
    np.fill_diagonal(far, np.maximum(np.diagonal(far), 0.0))
    for via in range(len(far)):
        np.maximum(far, far[:, via, None] + far[None, via, :], out=far)
    return far
