"""Receives split by their matched sends: what was waiting for the sender, and what can have been transfer.

send                      |-----|        nothing travels before both sides are there, so the transfer is at most
receive  |----------------------|        the time from the later start to the common end; the rest of the receive
         |    waiting     |<=5  |        is waiting
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.observation import Link
from .device_ops import Transfers
from .matching import Match, opposite

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Receives of one rank from another, each with its send.

    Args:
        sender: position in the pipeline.
        receiver: likewise.
        waiting: int64[receives], nanoseconds.
        transfer: int64[receives], nanoseconds, at most.
    """

    sender: int
    receiver: int
    waiting: Ints
    transfer: Ints


def split(first: Transfers, second: Transfers, found: Match, positions: tuple[int, int]) -> list[Split]:
    """Split the receives of two devices that were matched, one direction after the other.

    Args:
        first: transfers of one device.
        second: of the other.
        found: both sides matched.
        positions: of the two devices in their pipeline.
    """
    one, other = _closest(first, second, found)
    here, there = positions
    start, begun = first.start[one], second.start[other] - found.offset  # both on the first one's clock
    end = np.where(second.send[other], first.end[one], second.end[other] - found.offset)
    opened = np.where(second.send[other], start, begun)
    transfer = np.clip(end - np.maximum(start, begun), 0, end - opened)
    down = first.send[one]
    halves = ((here, there, down), (there, here, ~down))
    return [Split(a, b, (end - opened - transfer)[rows], transfer[rows]) for a, b, rows in halves if rows.any()]


def links(splits: Sequence[Split]) -> tuple[Link, ...]:
    """What the receives of all devices and steps add up to, by sender and receiver."""
    by_way: defaultdict[tuple[int, int], list[Split]] = defaultdict(list)
    for each in splits:
        by_way[each.sender, each.receiver].append(each)
    found = []
    for (sender, receiver), parts in sorted(by_way.items()):
        transfer = np.concatenate([each.transfer for each in parts])
        waiting = sum(int(each.waiting.sum()) for each in parts)
        usual = round(float(np.median(transfer)))
        found.append(Link(sender, receiver, len(transfer), waiting, int(transfer.sum()), usual))
    return tuple(found)


def _closest(first: Transfers, second: Transfers, found: Match) -> tuple[Ints, Ints]:
    """Pairs of a send and a receive of one direction, each row at most once, the closest ends first."""
    one, other = found.pairs
    fits = opposite(first, second, one, other)
    one, other = one[fits], other[fits]
    apart = np.abs(second.end[other] - first.end[one] - found.offset)
    order = np.argsort(apart, kind="stable")
    for column in (0, 1):
        rows = (one, other)[column][order]
        order = order[np.sort(np.unique(rows, return_index=True)[1])]
    return one[order], other[order]
