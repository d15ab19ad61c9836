"""Clocks that run at unlike rates: matched transfers over a long trace tell the rates, and they are taken out.

What is left is one offset a rank, which cause and effect find as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .device_ops import Clock, RankOps
from .pairs_in_order import Rate, in_order, rate_of, sides, slowed
from .positions import Places

_LONG = 3  # steps; within one, what ends late may always end late
_MOST_NAMED = 4  # ranks whose rates are spelled out


def steady(devices: Sequence[RankOps], where: Places) -> tuple[tuple[RankOps, ...], list[str]]:
    """The devices on clocks as fast as that of the first rank of their pipeline, and a remark where one was not.

    Args:
        devices: each on its own clock; left as they are where times begin anew in each step.
        where: their places.
    """
    if not all(map(_runs_on, devices)):
        return tuple(devices), []
    rates = _rates(devices, where)
    if not any(each.rate for each in rates):
        return tuple(devices), []
    origin = min(int(device.start.min()) for device in devices if len(device))
    slowed = tuple(_slowed(device, each.rate, origin) for device, each in zip(devices, rates, strict=True))
    return slowed, [_said(devices, rates)]


def _runs_on(device: RankOps) -> bool:
    """Whether there are enough steps, and the times of each lie behind those of the steps before it."""
    steps, number = np.unique(device.step, return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, number, device.start)
    return device.clock is not Clock.STEP and len(steps) >= _LONG and bool((np.diff(first) > 0).all())


def _rates(devices: Sequence[RankOps], where: Places) -> list[Rate]:
    """Of each device against the first of its pipeline: those of the hops between them add up."""
    rates = [Rate(0.0, 0.0)] * len(devices)
    members = where.members()
    for q in range(max(where.replica) + 1):
        for position in range(1, max(where.position) + 1):
            before, here = members.get((q, position - 1), []), members.get((q, position), [])
            for one, other in zip(before, here, strict=False):
                hop = _of_hop(devices[one], devices[other])
                rates[other] = Rate(rates[one].rate + hop.rate, float(np.hypot(rates[one].doubt, hop.doubt)))
    return rates


def _of_hop(one: RankOps, other: RankOps) -> Rate:
    if one.transfers is None or other.transfers is None:
        return Rate(0.0, 0.0)
    pairs = in_order(sides(one.transfers), sides(other.transfers))
    return Rate(0.0, 0.0) if pairs is None else rate_of(*pairs)


def _slowed(device: RankOps, rate: float, origin: int) -> RankOps:
    if not rate:
        return device
    start, end = (slowed(times, rate, origin) for times in (device.start, device.end))
    moves = device.transfers
    if moves is not None:
        first, last = (slowed(times, rate, origin) for times in (moves.start, moves.end))
        moves = replace(moves, start=first, end=last)
    return replace(device, start=start, end=end, transfers=moves)


def _said(devices: Sequence[RankOps], rates: Sequence[Rate]) -> str:
    """The drift of each rank in words, the fastest first."""
    drifting = sorted(zip(devices, rates, strict=True), key=lambda pair: -abs(pair[1].rate))
    drifting = [pair for pair in drifting if pair[1].rate]
    named = [f"rank {d.rank} {1e6 * r.rate:+.1f} +- {1e6 * r.doubt:.1f}" for d, r in drifting[:_MOST_NAMED]]
    more = f" and {len(drifting) - _MOST_NAMED} more" if len(drifting) > _MOST_NAMED else ""
    return (
        f"clocks drift, in millionths of the time on the first rank of a pipeline: {', '.join(named)}{more}; "
        "matched transfers told it, and it was taken out"
    )
