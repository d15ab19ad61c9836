"""Both sides of a transfer, found by their ends: how many have a partner, and how far two ranks' clocks are apart.

A receive waits inside its span until its send comes, so the two begin whenever they like, but end together (within
0.2 ms in production runs). The differences of ends of two neighbours therefore pile up at the offset of their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device_ops import Transfers

TOGETHER = 200_000  # nanoseconds within which both sides of a transfer end
_MOST_PAIRS = 1 << 22  # that are looked at: 300 MB, far beyond what transfers have within reach of true clocks
_ENOUGH = 0.3  # of the transfers of the quieter side; a middle rank shares half of its own with each neighbour


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Transfers of two devices that end together.

    Args:
        mine: bool[transfers] of the first device, whether each has a partner on the second.
        theirs: likewise for the second.
        pairs: int64[2, pairs], rows of the first and the second; one may stand in several pairs.
        offset: nanoseconds by which the second's ends lie behind the first's, the median.
        spread: half the range in which 98 % of the differences lie, nanoseconds.
    """

    mine: NDArray[np.bool_]
    theirs: NDArray[np.bool_]
    pairs: NDArray[np.int64]
    offset: int
    spread: int

    @property
    def sure(self) -> bool:
        """Whether there are too many pairs for chance."""
        return int(self.mine.sum()) >= _ENOUGH * min(len(self.mine), len(self.theirs)) > 0


def match(first: Transfers, second: Transfers, reach: int) -> Match:
    """Pair transfers of two devices by their ends.

    Args:
        first: of one device.
        second: of another.
        reach: nanoseconds by which their clocks may differ; less than half an op, or the schedule's own period matches.
            Where millions of pairs lie within it, each transfer meets the ends next to its own alone.
    """
    mine, theirs = _by_step(first, second, 2 * reach + 1)
    order = np.argsort(theirs, kind="stable")
    low, count = _within(theirs[order], mine, reach)
    a = np.repeat(np.arange(len(mine)), count)
    b = order[np.arange(len(a)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)]
    fits = opposite(first, second, a, b)
    if fits.any():  # else nothing tells sends from receives
        a, b = a[fits], b[fits]
    difference = theirs[b] - mine[a]
    paired_a, paired_b = np.zeros(len(mine), bool), np.zeros(len(theirs), bool)
    if not len(difference):
        return Match(paired_a, paired_b, np.empty((2, 0), np.int64), 0, 0)
    near = np.abs(difference - _fullest(difference)) <= TOGETHER
    paired_a[a[near]] = True
    paired_b[b[near]] = True
    least, middle, most = np.percentile(difference[near], [1, 50, 99])
    return Match(
        mine=paired_a,
        theirs=paired_b,
        pairs=np.stack([a[near], b[near]]),
        offset=round(float(middle)),
        spread=round(float(most - least) / 2),
    )


def opposite(first: Transfers, second: Transfers, a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether pairs of rows are a send and a receive of one direction, as far as that is known, bool[pairs].

    Where stages are even all of a rank's receives end one hop behind those of the rank before it, or one ahead.
    """
    way, back = first.forward[a], second.forward[b]
    fits: NDArray[np.bool_] = (first.send[a] != second.send[b]) & ((way == back) | (way < 0) | (back < 0))
    return fits


def only(moves: Transfers, rows: NDArray[Any]) -> Transfers:
    """Some rows of the transfers of a device."""
    return Transfers(**{field.name: getattr(moves, field.name)[rows] for field in fields(Transfers)})


def _within(ends: NDArray[np.int64], mine: NDArray[np.int64], reach: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each of mine the first of the ends within reach, and how many there are; half of the most on either side."""
    low, high = np.searchsorted(ends, mine - reach), np.searchsorted(ends, mine + reach, side="right")
    if (high - low).sum() > _MOST_PAIRS:
        each = max(_MOST_PAIRS // len(mine), 1)
        first = np.searchsorted(ends, mine) - each // 2
        low, high = np.maximum(low, first), np.minimum(high, first + each)
    return low, high - low


def _by_step(first: Transfers, second: Transfers, apart: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ends of both, steps pulled apart so that transfers of different steps never meet (each may begin at 0)."""
    steps, index = np.unique(np.concatenate([first.step, second.step]), return_inverse=True)
    ends = np.concatenate([first.end, second.end])
    span = int(ends.max() - ends.min()) + apart if len(ends) else 0
    if span * len(steps) < 1 << 62:
        ends = ends - ends.min(initial=0) + index.reshape(-1) * span
    return ends[: len(first)], ends[len(first) :]


def _fullest(difference: NDArray[np.int64]) -> float:
    """The middle of the two adjacent bins that hold the most differences."""
    bins = (difference - difference.min()) // TOGETHER
    filled, counts = np.unique(bins, return_counts=True)  # a count for each bin of hours would fill memory
    beside = np.append(np.where(np.diff(filled) == 1, counts[1:], 0), 0)
    best = int(filled[(counts + beside).argmax()])
    inside = difference[(bins == best) | (bins == best + 1)]
    return float(np.median(inside))
