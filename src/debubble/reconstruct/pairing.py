"""Both sides of each message, by their order: what no clock can spoil.

Messages from one rank to another do not overtake each other within a communicator, so the k-th send of a step is the
k-th receive of that step at the other side. If the sides are not equally many (a file was cut, an event was lost), the
messages of that step pair up by their ends, once other steps have shown how far apart the two clocks are.

    rank 0   s0    s1    s2            channel 0 -> 1, step 7: three sends, three receives: s0-r0, s1-r1, s2-r2
    rank 1      r0     r1    r2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.observation import Link
from .device_ops import UNKNOWN, Ints, Mask, RankOps
from .positions import NOWHERE, Places

ABSENT = -2  # index of a peer that is named, and whose trace is not here
TOGETHER = 200_000  # nanoseconds within which both sides of a message end in production runs
_COMPARED = 512  # messages of two devices whose ends are compared each with each

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Every send and every receive of all devices in one table, device after device, each in the order of its posts.

    Args:
        device: index of the device, int32[sides].
        row: of its transfers, int64[sides].
        peer: index of the device at the other side, int32[sides]; -1 if unknown, ``ABSENT`` if it is not here.
        send: bool[sides].
        forward: int8[sides], as ``Transfers`` has it.
        step: int64[sides].
        group: int64[sides], the communicator; -1 if unknown.
        start: int64[sides], nanoseconds on the device's clock.
        end: int64[sides].
        op: row of the device's ops, int64[sides]; -1 if unknown.
    """

    device: NDArray[np.int32]
    row: Ints
    peer: NDArray[np.int32]
    send: Mask
    forward: NDArray[np.int8]
    step: Ints
    group: Ints
    start: Ints
    end: Ints
    op: Ints

    def __len__(self) -> int:
        return len(self.device)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Messages of which both sides are here, as rows of ``Sides``.

    Args:
        send: row of the send, int64[pairs].
        receive: row of the receive, int64[pairs].
        by_time: of these, how many their times paired; they come last.
    """

    send: Ints
    receive: Ints
    by_time: int = 0

    def __len__(self) -> int:
        return len(self.send)


def sides_of(devices: Sequence[RankOps]) -> Sides:
    """All sends and receives in one table."""
    index = {device.rank: i for i, device in enumerate(devices)}
    here = [i for i, device in enumerate(devices) if device.transfers is not None]
    moves = [move for device in devices if (move := device.transfers) is not None]

    def column(name: str, kind: type[np.generic]) -> NDArray[Any]:
        parts = [getattr(move, name) for move in moves]
        full = [np.full(len(move), UNKNOWN) if part is None else part for move, part in zip(moves, parts, strict=True)]
        return np.concatenate([np.empty(0, kind), *full]).astype(kind)

    named = column("peer", np.int64)
    ranks, number = np.unique(named, return_inverse=True)
    peers = np.array([UNKNOWN if rank < 0 else index.get(rank, ABSENT) for rank in ranks.tolist()], np.int32)
    return Sides(
        device=np.repeat(np.array(here, np.int32), [len(move) for move in moves]),
        row=np.concatenate([np.empty(0, np.int64), *(np.arange(len(move)) for move in moves)]),
        peer=peers[number] if len(named) else np.empty(0, np.int32),
        send=column("send", np.bool_),
        forward=column("forward", np.int8),
        step=column("step", np.int64),
        group=column("group", np.int64),
        start=column("start", np.int64),
        end=column("end", np.int64),
        op=column("op", np.int64),
    )


def pair_in_order(sides: Sides) -> Pairs:
    """Pair the k-th send with the k-th receive of each channel and step in which both are equally many.

    A channel is an ordered pair of devices and a communicator. If two sides call one communicator by two numbers, and
    all of their messages together are equally many, they pair up without it.
    """
    found_send, found_receive = _equal_channels(sides, np.flatnonzero(sides.peer >= 0), by_group=True)
    free = sides.peer >= 0
    free[found_send] = free[found_receive] = False
    more_send, more_receive = _equal_channels(sides, np.flatnonzero(free), by_group=False)
    return Pairs(np.concatenate([found_send, more_send]), np.concatenate([found_receive, more_receive]))


def _equal_channels(sides: Sides, rows: Ints, *, by_group: bool) -> tuple[Ints, Ints]:
    """Rows of sends and of receives that belong together, over the channels and steps in which both are as many."""
    send = sides.send[rows]
    source = np.where(send, sides.device[rows], sides.peer[rows])
    target = np.where(send, sides.peer[rows], sides.device[rows])
    group = sides.group[rows] if by_group else np.zeros(len(rows), np.int64)
    columns = (group, sides.step[rows], target, source)
    order = np.lexsort(columns)  # stable: each side stays in the order of its posts
    changed = np.zeros(len(rows), np.bool_)
    for column in columns:
        changed[1:] |= np.diff(column[order]) != 0
    channel = np.cumsum(changed)
    sends, receives = rows[order][send[order]], rows[order][~send[order]]
    of_send, of_receive = channel[send[order]], channel[~send[order]]
    channels = int(channel[-1]) + 1 if len(rows) else 0
    equal = np.bincount(of_send, minlength=channels) == np.bincount(of_receive, minlength=channels)
    return sends[equal[of_send]], receives[equal[of_receive]]


def pair_by_time(sides: Sides, pairs: Pairs, level: Ints, part: Ints, within: float) -> Pairs:
    """Pair what is left, each with the nearest other side of its channel on one clock; those pairs come last.

    Args:
        sides: of all messages.
        pairs: those that their order paired.
        level: ends of all sides on the clock of their part, int64[sides], nanoseconds.
        part: of each device, a number for the devices whose clocks are known against each other, int64[devices].
        within: nanoseconds by which ends of one message may differ.
    """
    free = sides.peer >= 0
    free[pairs.send] = free[pairs.receive] = False
    free[free] = part[sides.device[free]] == part[sides.peer[free]]
    rows = np.flatnonzero(free)
    send = sides.send[rows]
    source = np.where(send, sides.device[rows], sides.peer[rows]).astype(np.int64)
    target = np.where(send, sides.peer[rows], sides.device[rows]).astype(np.int64)
    channel = np.unique(np.stack([source, target]), axis=1, return_inverse=True)[1].reshape(-1)
    sends, receives = [rows[:0]], [rows[:0]]
    for number in range(int(channel.max(initial=-1)) + 1):
        mine, theirs = rows[send & (channel == number)], rows[~send & (channel == number)]
        zero = int(level[rows[channel == number][0]])
        a, b = nearest((level[mine] - zero).astype(float), (level[theirs] - zero).astype(float), within)
        sends.append(mine[a])
        receives.append(theirs[b])
    more = np.concatenate(sends), np.concatenate(receives)
    return Pairs(np.append(pairs.send, more[0]), np.append(pairs.receive, more[1]), pairs.by_time + len(more[0]))


def pair_by_pile(sides: Sides, pairs: Pairs) -> Pairs:
    """Pair messages of two devices of which no step has as many at either side: their ends differ most often alike.

    The right offset of two clocks makes all differences pile up at it; any other one only those that an order which
    repeats itself makes fit. These pairs count as paired by time.
    """
    joined = set(zip(sides.device[pairs.send].tolist(), sides.device[pairs.receive].tolist(), strict=True))
    joined |= {(other, one) for one, other in joined}
    free = sides.send & (sides.peer >= 0)
    channels = set(zip(sides.device[free].tolist(), sides.peer[free].tolist(), strict=True)) - joined
    sends, receives = [pairs.send], [pairs.receive]
    for source, target in sorted(channels):
        mine = np.flatnonzero(sides.send & (sides.device == source) & (sides.peer == target))[:_COMPARED]
        theirs = np.flatnonzero(~sides.send & (sides.device == target) & (sides.peer == source))[:_COMPARED]
        if len(mine) and len(theirs):
            apart = sides.end[theirs][None] - sides.end[mine][:, None]
            offset = _fullest(apart.ravel())
            near = (np.abs(apart - offset) <= TOGETHER).any(axis=1)
            if 2 * int(near.sum()) >= min(len(mine), len(theirs)):
                zero = int(sides.end[mine[0]])
                due = (sides.end[mine] - zero + offset).astype(float)
                a, b = nearest(due, (sides.end[theirs] - zero).astype(float), TOGETHER)
                sends.append(mine[a])
                receives.append(theirs[b])
    found = np.concatenate(sends), np.concatenate(receives)
    return Pairs(found[0], found[1], len(found[0]) - len(pairs))


def _fullest(differences: Ints) -> int:
    """The middle of the two adjacent bins that hold the most differences."""
    bins = (differences - differences.min()) // TOGETHER
    filled, counts = np.unique(bins, return_counts=True)  # a count for each bin of hours would fill memory
    beside = np.append(np.where(np.diff(filled) == 1, counts[1:], 0), 0)
    best = int(filled[(counts + beside).argmax()])
    return int(np.median(differences[(bins == best) | (bins == best + 1)]))


def nearest(mine: Floats, theirs: Floats, within: float) -> tuple[Ints, Ints]:
    """Rows of two lists of times that are each other's nearest, and not further apart than a bound."""
    if not len(mine) or not len(theirs):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    there, back = _closest(mine, theirs), _closest(theirs, mine)
    rows = np.arange(len(mine))
    good = (back[there] == rows) & (np.abs(theirs[there] - mine) <= within)
    return rows[good], there[good]


def _closest(of: Floats, among: Floats) -> Ints:
    order = np.argsort(among, kind="stable")
    at = np.clip(np.searchsorted(among[order], of), 1, max(len(among) - 1, 1))
    left = at - 1
    right = np.minimum(at, len(among) - 1)
    nearer = np.abs(among[order[left]] - of) <= np.abs(among[order[right]] - of)
    closest: Ints = order[np.where(nearer, left, right)]
    return closest


# Receives split by their sends: what was waiting for the sender, and what can have been transfer.
#
#     send                      |-----|     nothing travels before both sides are there, so the transfer is at most the
#     receive  |----------------------|     time from the later start to the common end; the rest of the receive is
#              |    waiting     |<=5  |     waiting


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
