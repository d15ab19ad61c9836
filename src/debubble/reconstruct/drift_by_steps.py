"""Transfers of a clock that drifts, put straight before anything is known of them: their distance is followed by steps.

Within one step clocks hardly move, so there the ends of neighbours still differ by one offset, and the next step's lies
close to where the last two lead.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .device_ops import Transfers
from .matching import TOGETHER, match, only
from .pairs_in_order import slowed

_LONG = 3  # steps; fewer show no drift
_MOST = 24  # steps that are followed: enough for a rate
_FASTEST = 4e-4  # nanoseconds a nanosecond by which two clocks run apart
_HALF = 0.5  # of those must show the offset


def straight(mine: Transfers, theirs: Transfers, reach: int) -> Transfers | None:
    """The second rank's transfers on a clock as fast as the first one's; None where no drift explains their ends.

    Args:
        mine: of one rank.
        theirs: of another.
        reach: nanoseconds by which an offset may differ from what the steps before it lead to.
    """
    steps = np.intersect1d(mine.step[mine.step >= 0], theirs.step)[:_MOST]
    seen: list[tuple[float, float]] = []  # moment and offset
    for step in steps.tolist():
        here, there = only(mine, mine.step == step), only(theirs, theirs.step == step)
        moment = float(np.median(here.end - mine.end[0]))
        led = _led(seen, moment)
        wander = _FASTEST * (moment - seen[-1][0]) if len(seen) == 1 else 0.0  # nothing leads to the second offset
        offset = _offset(here, there.later(-round(led)), reach + round(wander))
        if offset is not None:
            seen.append((moment, led + offset))
    if len(seen) < max(_LONG, _HALF * len(steps)):
        return None
    moments, offsets = np.array(seen).T
    half = len(seen) // 2
    rate = float(np.median((offsets[-half:] - offsets[:half]) / (moments[-half:] - moments[:half])))
    start, end = (slowed(times, rate, int(theirs.end[0])) for times in (theirs.start, theirs.end))
    return replace(theirs, start=start, end=end)


def _led(seen: list[tuple[float, float]], moment: float) -> float:
    """Where the last two offsets lead."""
    if len(seen) < 2:
        return seen[-1][1] if seen else 0.0
    (one, first), (two, second) = seen[-2:]
    return second + (second - first) * (moment - two) / max(two - one, 1.0)


def _offset(here: Transfers, there: Transfers, reach: int) -> float | None:
    """By how much the ends of one step differ at the second rank; None where both ways do not agree on it."""
    offsets: list[int] = []
    for way in (True, False):
        found = match(only(here, here.send == way), only(there, there.send != way), reach)
        if not found.pairs.size:
            return None
        offsets.append(found.offset)
    return sum(offsets) / 2 if abs(offsets[0] - offsets[1]) <= TOGETHER else None
