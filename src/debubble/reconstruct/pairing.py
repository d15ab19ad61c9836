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
from .device_ops import UNKNOWN, Floats, Ints, Mask, RankOps, Transfers, index_of
from .groups import group_of, parted, place_within
from .positions import NOWHERE, Places

ABSENT = -2  # index of a peer that is named, and whose trace is not here
TOGETHER = 200_000  # nanoseconds within which both sides of a message end in production runs
_COMPARED = 512  # messages of two devices whose ends are compared each with each


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

    def ways(self, rows: Ints) -> tuple[Ints, Ints]:
        """The devices that the messages of some sides come from and go to, int64[rows] each."""
        mine, theirs, send = self.device[rows].astype(np.int64), self.peer[rows].astype(np.int64), self.send[rows]
        return np.where(send, mine, theirs), np.where(send, theirs, mine)


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

    def cover(self, sides: Sides) -> Mask:
        """Which sides have their other one, bool[sides]."""
        found = np.zeros(len(sides), np.bool_)
        found[self.send] = found[self.receive] = True
        return found

    def and_by_time(self, sends: Sequence[Ints], receives: Sequence[Ints]) -> Pairs:
        """These and others after them, that times paired."""
        send, receive = np.concatenate([self.send, *sends]), np.concatenate([self.receive, *receives])
        return Pairs(send, receive, self.by_time + len(send) - len(self))


def sides_of(devices: Sequence[RankOps]) -> Sides:
    """All sends and receives in one table."""
    owners: list[int] = []
    tables: list[Transfers] = []
    for i, device in enumerate(devices):
        if device.transfers is not None:
            owners.append(i)
            tables.append(device.transfers)

    def column(name: str, kind: type[np.generic]) -> NDArray[Any]:
        parts: list[NDArray[Any]] = [np.empty(0, kind)]
        for moves in tables:
            part = getattr(moves, name)
            parts.append(np.full(len(moves), UNKNOWN) if part is None else part)
        return np.concatenate(parts).astype(kind)

    index = index_of(devices)
    ranks, number = np.unique(column("peer", np.int64), return_inverse=True)
    peers = np.full(len(ranks), UNKNOWN, np.int32)
    for i, rank in enumerate(ranks.tolist()):
        if rank >= 0:
            peers[i] = index.get(rank, ABSENT)
    owner = np.repeat(np.array(owners, np.int32), list(map(len, tables)))
    return Sides(
        device=owner,
        row=place_within(owner),
        peer=peers[number],
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
    named = sides.peer >= 0
    first = Pairs(*_equal_channels(sides, np.flatnonzero(named), by_group=True))
    send, receive = _equal_channels(sides, np.flatnonzero(named & ~first.cover(sides)), by_group=False)
    return Pairs(np.concatenate([first.send, send]), np.concatenate([first.receive, receive]))


def _equal_channels(sides: Sides, rows: Ints, *, by_group: bool) -> tuple[Ints, Ints]:
    """Rows of sends and of receives that belong together, over the channels and steps in which both are as many."""
    source, target = sides.ways(rows)
    columns = [source, target, sides.step[rows]]
    if by_group:
        columns.append(sides.group[rows])
    channel = group_of(*columns)
    order = np.argsort(channel, kind="stable")  # each side stays in the order of its posts
    rows, channel, send = rows[order], channel[order], sides.send[rows][order]
    channels = int(channel.max(initial=-1)) + 1
    sent, received = np.bincount(channel[send], minlength=channels), np.bincount(channel[~send], minlength=channels)
    equal = (sent == received)[channel]
    return rows[send & equal], rows[~send & equal]


def pair_by_time(sides: Sides, pairs: Pairs, level: Ints, part: Ints, within: float) -> Pairs:
    """Pair what is left, each with the nearest other side of its channel on one clock; those pairs come last.

    Args:
        sides: of all messages.
        pairs: those that their order paired.
        level: ends of all sides on the clock of their part, int64[sides], nanoseconds.
        part: of each device, a number for the devices whose clocks are known against each other, int64[devices].
        within: nanoseconds by which ends of one message may differ.
    """
    free = (sides.peer >= 0) & ~pairs.cover(sides)
    free[free] = part[sides.device[free]] == part[sides.peer[free]]
    rows = np.flatnonzero(free)
    channel = group_of(*sides.ways(rows))
    sends, receives = [], []
    for some in parted(np.argsort(channel, kind="stable"), channel):
        mine, theirs = rows[some[sides.send[rows[some]]]], rows[some[~sides.send[rows[some]]]]
        zero = int(level[rows[some[0]]])  # of times since 1970 a float would lose the last 200 nanoseconds
        a, b = nearest((level[mine] - zero).astype(float), (level[theirs] - zero).astype(float), within)
        sends.append(mine[a])
        receives.append(theirs[b])
    return pairs.and_by_time(sends, receives)


def pair_by_pile(sides: Sides, pairs: Pairs) -> Pairs:
    """Pair messages of two devices of which no step has as many at either side: their ends differ most often alike.

    The right offset of two clocks makes all differences pile up at it; any other one only those that an order which
    repeats itself makes fit. These pairs count as paired by time.
    """
    devices = int(max(sides.device.max(initial=0), sides.peer.max(initial=0))) + 1
    joined = np.zeros((devices, devices), np.bool_)
    joined[sides.device[pairs.send], sides.device[pairs.receive]] = True
    sent = np.zeros_like(joined)
    named = sides.send & (sides.peer >= 0)
    sent[sides.device[named], sides.peer[named]] = True
    sends, receives = [], []
    for source, target in np.argwhere(sent & ~joined & ~joined.T).tolist():
        mine = np.flatnonzero(sides.send & (sides.device == source) & (sides.peer == target))[:_COMPARED]
        theirs = np.flatnonzero(~sides.send & (sides.device == target) & (sides.peer == source))[:_COMPARED]
        a, b = _at_the_pile(sides.end[mine], sides.end[theirs])
        sends.append(mine[a])
        receives.append(theirs[b])
    return pairs.and_by_time(sends, receives)


def _at_the_pile(mine: Ints, theirs: Ints) -> tuple[Ints, Ints]:
    """Rows of ends of two devices that lie as far apart as most do; none if they are too few to be told from chance."""
    nothing = np.empty(0, np.int64)
    if not len(mine) or not len(theirs):
        return nothing, nothing
    apart = theirs[None] - mine[:, None]
    offset = _fullest(apart.ravel())
    near = (np.abs(apart - offset) <= TOGETHER).any(axis=1)
    if 2 * int(near.sum()) < min(len(mine), len(theirs)):
        return nothing, nothing
    zero = int(mine[0])
    return nearest((mine - zero + offset).astype(float), (theirs - zero).astype(float), TOGETHER)


def _fullest(differences: Ints) -> int:
    """The middle of the two adjacent bins that hold the most differences."""
    # Two adjacent bins, because the pile may lie astride of a border.
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
    position = places.position
    source, target = position[sides.device[pairs.send]], position[sides.device[pairs.receive]]
    waiting, transfer = split(start[pairs.send], start[pairs.receive], end[pairs.receive])
    inside = np.flatnonzero((source != NOWHERE) & (target != NOWHERE) & (source != target))
    found = []
    for rows in parted(inside[np.lexsort((target[inside], source[inside]))], source, target):
        usual = round(float(np.median(transfer[rows])))
        totals = int(waiting[rows].sum()), int(transfer[rows].sum())
        found.append(Link(int(source[rows[0]]), int(target[rows[0]]), len(rows), *totals, usual))
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
