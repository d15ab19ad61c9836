"""Transfers of two neighbours paired by their order, which no clock can spoil, and how fast their clocks run apart.

The k-th send of a step in one direction is the k-th receive at the other side, and both end together: what the ends
differ by is the distance of two clocks, and its slope over a trace is how much faster one of them runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .device_ops import Transfers
from .matching import TOGETHER

_ENOUGH = 16  # pairs from which a rate is told
_SURE = 5.0  # times its own uncertainty that a rate must be
_NOISE = 3.0  # times by which ends of one transfer differ anyhow; less, over the whole trace, nobody need care about
_FASTEST = 1e-3  # nanoseconds a nanosecond; no clock is that bad
Ints = NDArray[np.int64]
Side = tuple[Ints, Ints]  # step and end of transfers, in order


@dataclass(frozen=True, slots=True)
class Rate:
    """How much faster the second of two clocks runs than the first.

    Args:
        rate: nanoseconds a nanosecond; 0 where none can be told from the noise.
        doubt: its standard error.
    """

    rate: float
    doubt: float


def sides(moves: Transfers, steps: Ints | None = None) -> dict[tuple[bool, int], Side]:
    """Step and end of every transfer in order, by whether it sends and whether forward.

    Args:
        moves: of one device.
        steps: of which alone; None for all.
    """
    found = {}
    for send in (False, True):
        for forward in (0, 1):
            mine = (moves.send == send) & (moves.forward == forward)
            rows = np.flatnonzero(mine if steps is None else mine & np.isin(moves.step, steps))
            rows = rows[np.lexsort((moves.end[rows], moves.step[rows]))]
            found[send, forward] = moves.step[rows], moves.end[rows]
    return found


def in_order(one: dict[tuple[bool, int], Side], other: dict[tuple[bool, int], Side]) -> tuple[Ints, Ints, Ints] | None:
    """Ends of all transfers between a device and the next one down, int64[3, pairs] as rows; None where few pair up.

    Returns:
        Ends on the first device; those on the second; 1 for activations, 0 for gradients.
    """
    down, up = _pairs(one[True, 1], other[False, 1]), _pairs(other[True, 0], one[False, 0])
    if down is None or up is None or not len(down[0]):
        return None
    way = np.repeat(np.array([1, 0]), [len(down[0]), len(up[0])])
    return np.concatenate([down[0], up[1]]), np.concatenate([down[1], up[0]]), way


def _pairs(sent: Side, received: Side) -> tuple[Ints, Ints] | None:
    """Ends at both sides, over the steps in which both are as many; None where these are few."""
    steps, number = np.unique(np.concatenate([sent[0], received[0]]), return_inverse=True)
    mine, theirs = (np.bincount(part, minlength=len(steps)) for part in np.split(number, [len(sent[0])]))
    good = steps[mine == theirs]
    if 2 * len(good) < len(steps):  # a cut step, or a transfer that was set aside, spoils its step only
        return None
    return sent[1][np.isin(sent[0], good)], received[1][np.isin(received[0], good)]


def rate_of(mine: Ints, theirs: Ints, way: Ints) -> Rate:
    """How much faster the second clock runs: the median slope between pairs half a trace apart.

    Such slopes need no more than half of the pairs to be right (H. Theil 1950, "incomplete" method). What one direction
    always ends later than the other is no distance of clocks, and is taken out first.
    """
    order = np.argsort(mine, kind="stable")
    time, lag = (mine[order] - mine[order[:1]]).astype(float), (theirs - mine)[order].astype(float)
    slopes = np.concatenate([_slopes(time[way[order] == each], lag[way[order] == each]) for each in (0, 1)])
    if len(slopes) < _ENOUGH // 2:
        return Rate(0.0, 0.0)
    rate = float(np.median(slopes))
    spread = 1.4826 * float(np.median(np.abs(slopes - rate)))  # as a standard deviation, for normal errors
    doubt = 1.2533 * spread / float(np.sqrt(len(slopes)))  # of a median
    left = lag - rate * time
    noise = 1.4826 * float(np.median(np.abs(left - np.median(left))))
    moved = abs(rate) * time[-1]
    sure = abs(rate) > _SURE * doubt and moved > max(TOGETHER, _NOISE * noise) and abs(rate) < _FASTEST
    return Rate(rate if sure else 0.0, doubt)


def slowed(times: Ints, rate: float, origin: int) -> Ints:
    """Times of a clock that runs faster by a rate as the slower one would show them; both agree at ``origin``."""
    ahead: Ints = np.rint((times - origin) * (rate / (1 + rate))).astype(np.int64)
    return times - ahead


def _slopes(time: NDArray[np.float64], lag: NDArray[np.float64]) -> NDArray[np.float64]:
    half = len(time) // 2
    apart = time[-half:] - time[:half]
    return ((lag[-half:] - lag[:half])[apart > 0] / apart[apart > 0]) if half else np.empty(0)
