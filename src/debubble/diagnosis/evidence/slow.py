"""A slow rank: one that takes longer than ranks with the same work, so that unequal stages are not taken for it.

Two things can be the same work, and only they are compared:

    the same stage in other replicas, in the same step       a rank that is slow all the time shows
    the same stage in other steps                            a rank that is slow for some of the time shows

Both are held against the other ranks of the replica: where all of them took longer, the micro-batches were longer.
With one replica, a rank that is slow all the time cannot be told from one with more layers, and is not blamed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..windows import Summary

SLOWER = 1.05  # times the same stage elsewhere, and times what the rest of its replica shows
SLOWER_ONCE = 1.2  # the same where there are too few steps to tell it from luck
FITFUL = 1.1  # the same for single steps of one replica, which noise reaches sooner
CLEAR = 5  # standard deviations of a rank's own usual steps by which such a step must stand out
MOST_STEPS = 0.9  # share of the steps in which a rank that is slow all the time must be slower
MANY = 32  # replicas, beyond which one more or less does not move their median
FEW_STEPS = 4  # below it, steps are too few to say what is usual
_SIGMA = 1.4826  # standard deviation over the median distance from the median, of normal noise


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that is slow.

    Args:
        replica: its data-parallel replica.
        rank: its position in the pipeline.
        factor: its time over that of the same stage elsewhere, beyond what all of its replica shows.
        steps: the steps in which it was slow; empty where it was so all the time.
    """

    replica: int
    rank: int
    factor: float
    steps: tuple[int, ...] = ()


def slow_ranks(summary: Summary) -> list[Slow]:
    """Every slow rank, the slowest first."""
    work, steps = _work(summary)
    found = _against_replicas(work) if work.shape[1] > 1 else []
    found += [each for each in _against_steps(work, steps) if (each.replica, each.rank) not in _places(found)]
    return sorted(found, key=lambda slow: -slow.factor)


def _places(found: list[Slow]) -> set[tuple[int, int]]:
    return {(slow.replica, slow.rank) for slow in found}


def _work(summary: Summary) -> tuple[NDArray[np.float64], list[int]]:
    """Work of every rank, float64[steps, replicas, ranks], NaN where a window is missing; and the steps' numbers."""
    steps = sorted({window.step for window in summary.windows})
    line = {step: i for i, step in enumerate(steps)}
    replicas = max(window.replica for window in summary.windows) + 1
    work = np.full((len(steps), replicas, len(summary.account.compute)), np.nan)
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        work[line[window.step], window.replica] = account.compute
    return work, steps


def _against_replicas(work: NDArray[np.float64]) -> list[Slow]:
    """Ranks that are slower than the same stage of the other replicas, in nearly every step."""
    others = _of_others(work)
    ratio = _beyond_the_rest(work / np.where(others > 0, others, np.nan))
    factor = _median(ratio, axis=0)
    seen = np.isfinite(ratio)
    slower = (np.where(seen, ratio, 0) > 1 + (SLOWER - 1) / 2).sum(axis=0) >= MOST_STEPS * seen.sum(axis=0)
    least = np.where(seen.sum(axis=0) < FEW_STEPS, SLOWER_ONCE, SLOWER)
    return [Slow(int(q), int(rank), float(factor[q, rank])) for q, rank in np.argwhere((factor > least) & slower)]


def _of_others(work: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median work of the same stage in the other replicas, float64[steps, replicas, ranks]."""
    if work.shape[1] > MANY:
        return np.broadcast_to(_median(work, axis=1)[:, None], work.shape)
    return np.stack([_median(np.delete(work, q, axis=1), axis=1) for q in range(work.shape[1])], axis=1)


def _against_steps(work: NDArray[np.float64], steps: list[int]) -> list[Slow]:
    """Ranks that are slower in some steps than in most."""
    if len(steps) < FEW_STEPS:
        return []
    usual = _median(work, axis=0)
    beyond = _beyond_the_rest(work / np.where(usual > 0, usual, np.nan))
    noise = _SIGMA * _median(np.abs(beyond - 1), axis=0)
    slower = np.where(np.isfinite(beyond), beyond, 0) > np.maximum(FITFUL, 1 + CLEAR * noise)
    count = slower.sum(axis=0)
    found = []
    for q, rank in np.argwhere((count > 1) & (count < len(steps) / 2)):
        rows = np.flatnonzero(slower[:, q, rank])
        factor = float(np.median(beyond[rows, q, rank]))
        found.append(Slow(int(q), int(rank), factor, tuple(steps[row] for row in rows)))
    return found


def _beyond_the_rest(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each rank's ratio over the median of the other ranks of its replica in that step; ranks along the last axis."""
    ranks = ratio.shape[-1]
    if ranks == 1:
        return ratio
    rest = [_median(np.delete(ratio, rank, axis=-1), axis=-1) for rank in range(ranks)]
    return ratio / np.stack(rest, axis=-1)


def _median(table: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The median of what is there along an axis; NaN where nothing is."""
    whole = np.moveaxis(table, axis, -1)
    there = np.isfinite(whole)
    filled = np.sort(np.where(there, whole, np.inf), axis=-1)
    count = there.sum(axis=-1)
    low, high = np.maximum(count - 1, 0) // 2, np.maximum(count, 1) // 2
    pick = [np.take_along_axis(filled, at[..., None], -1)[..., 0] for at in (low, high)]
    middle = (np.where(count > 0, pick[0], np.nan) + np.where(count > 0, pick[1], np.nan)) / 2
    return np.asarray(middle, np.float64)
