"""Receives split by their sends: what was waiting for the sender, and what can have been transfer.

send                      |-----|        nothing travels before both sides are there, so the transfer is at most
receive  |----------------------|        the time from the later start to the common end; the rest of the receive
         |    waiting     |<=5  |        is waiting
"""

from __future__ import annotations

import numpy as np

from ..core.observation import Link
from .device_ops import Ints
from .pairing import Pairs, Sides
from .positions import NOWHERE, Places


def links_of(sides: Sides, pairs: Pairs, places: Places, start: Ints, end: Ints) -> tuple[Link, ...]:
    """What the receives of all devices and steps add up to, by sender and receiver.

    Args:
        sides: of all messages.
        pairs: of which both sides are known.
        places: of the devices.
        start: of each side, int64[sides], nanoseconds on one clock for the devices of a replica.
        end: likewise.
    """
    position = np.append(np.array(places.position, np.int64), NOWHERE)
    source, target = position[sides.device[pairs.send]], position[sides.device[pairs.receive]]
    waiting, transfer = split(start[pairs.send], start[pairs.receive], end[pairs.receive])
    found = []
    for sender, receiver in sorted(set(zip(source.tolist(), target.tolist(), strict=True))):
        rows = (source == sender) & (target == receiver)
        if NOWHERE not in (sender, receiver) and sender != receiver:
            usual = round(float(np.median(transfer[rows])))
            totals = int(waiting[rows].sum()), int(transfer[rows].sum())
            found.append(Link(sender, receiver, int(rows.sum()), *totals, usual))
    return tuple(found)


def split(sent: Ints, posted: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Waiting and transfer of receives, int64[receives] each; together they are the receive.

    Args:
        sent: when the sends began, nanoseconds.
        posted: when the receives began.
        end: when the receives ended.
    """
    transfer: Ints = np.clip(end - np.maximum(sent, posted), 0, end - posted)
    return end - posted - transfer, transfer
