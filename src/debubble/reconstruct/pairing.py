"""Both sides of each message: by their order, and of those that name nobody by ends that come together.

Messages from one rank to another do not overtake each other within a communicator, so the k-th send of a step is the
k-th receive of that step at the other side. If the sides are not equally many (a file was cut, an event was lost), the
messages of that step pair up by their ends, once other steps have shown how far apart the two clocks are.

    rank 0   s0    s1    s2            channel 0 -> 1, step 7: three sends, three receives: s0-r0, s1-r1, s2-r2
    rank 1      r0     r1    r2

Both sides of a message end together, so the ends of what one rank sends and its neighbour receives differ by one offset
of clocks, the same for what goes and for what comes back; those of strangers wander by as much as ops vary.

    rank 0 sends      |    |      |   |        the k-th end of one against the k-th of the other: 3, 3, 3, 3
    rank 1 receives      |    |      |   |
    rank 2 receives        |     |     |   |   5, 6, 5, 4: a stranger

In every pipeline the first micro-batch passes all ranks first, so the first send of a rank in a step and the first
receive of the next one are the two sides of one message. That gives the offset at which to look.

A trace that has kernels alone does not even say which side sends. Then the streams of two ranks tell:

    rank p       work  s            r  work        what goes down a hop has one stream at either side,
    rank p + 1         r  work work s              what comes back has two others

Of two neighbours the one that works first is nearer to the beginning of the pipeline, and of the two ways between them
the one that is used first leads down: nothing can come back before something went.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.observation import Link
from ..core.schedule import Kind
from .device_ops import (
    UNKNOWN,
    UNTOLD,
    Floats,
    Ints,
    Mask,
    RankOps,
    Transfers,
    group_of,
    index_of,
    of_each_op,
    parted,
    place_within,
)
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


_SOME = 0.3  # of the transfers of the quieter of two neighbours are between them: a middle rank shares half with each
_NEARLY = 0.75  # of the messages of the first or last rank have their other side: a middle one shares half with each
_FEW = 64  # devices among which all are compared, whatever the offsets of their clocks
_FASTEST = 1e-3  # nanoseconds a nanosecond; no clock is that bad
_TRIED = 32  # of many that fit, those whose clocks agree best
_LONG = 3  # steps from which it shows that an offset does not stay
_MOST = 0.9  # of the transfers of a stream must end with those of the other: a few may be lost
_COMPARED_ENDS = 256  # transfers of a stream
_REMEDY = "(give the exports of all ranks at once, or record NVTX ranges: NCCL names its sends and receives in them)"


@dataclass(frozen=True, slots=True)
class _Line:
    """By how much ends at one rank lie after those at another: ``offset`` nanoseconds at ``zero``, and growing."""

    zero: int
    offset: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Meeting:
    """Messages between two ranks, the second of which comes right after the first.

    Args:
        upper: rows of the first rank's transfers.
        lower: rows of the second's; as many if none was lost.
        offset: nanoseconds by which the second's ends lie after the first's, the median.
        spread: median deviation from it, nanoseconds.
    """

    upper: Ints
    lower: Ints
    offset: float
    spread: float

    @property
    def score(self) -> tuple[int, int, float]:
        """The less, the surer: many messages, whose ends differ alike, and by little."""
        return -len(self.upper), int(self.spread / TOGETHER), abs(self.offset)


def with_peers(devices: Sequence[RankOps], position: Ints | None = None) -> tuple[RankOps, ...]:
    """The devices with a peer for each transfer whose other side can be told.

    Args:
        devices: some of whose transfers may name their peers already.
        position: of each device in its pipeline, int64[devices]; None if nothing tells.
    """
    moves: dict[int, Transfers] = {}
    peer: dict[int, NDArray[np.int32]] = {}
    for i, device in enumerate(devices):
        if device.transfers is not None and len(device.transfers) and (device.transfers.peer < 0).all():
            moves[i], peer[i] = device.transfers, device.transfers.peer.copy()
    if len(moves) < 2:
        return tuple(devices)
    silent = [devices[i] for i in moves]
    # Ends of strangers wander by as much as ops vary; a quarter of an op is more than noise, and less than that.
    reach = float(np.median(of_each_op(silent, "end") - of_each_op(silent, "start"))) / 4
    before = None if position is None else _right_before(devices, position)
    for one, other, mine, theirs in _neighbours(moves, before, reach):
        peer[one][mine] = devices[other].rank
        peer[other][theirs] = devices[one].rank
    told = list(devices)
    for i, move in moves.items():
        told[i] = replace(devices[i], transfers=replace(move, peer=_with_the_few_lost(peer[i])))
    return tuple(told)


def _right_before(devices: Sequence[RankOps], position: Ints) -> dict[int, list[int]]:
    """For each device those that may come right before it: at the position before, or at the last before the first."""
    ranks = int(position.max()) + 1
    held: dict[tuple[int, int | None], list[int]] = {}
    for i, at in enumerate(position.tolist()):
        held.setdefault((at, devices[i].replica), []).append(i)
    before: dict[int, list[int]] = {}
    for i, at in enumerate(position.tolist()):
        there = held.get(((at - 1) % ranks, devices[i].replica), [])
        before[i] = [j for j in there if j != i]
    return before


def _with_the_few_lost(peer: NDArray[np.int32]) -> NDArray[np.int32]:
    """Peers of a rank; if nearly all of its messages are with one neighbour, so are those whose other side was lost."""
    known = np.unique(peer[peer >= 0])
    if len(known) == 1 and (peer >= 0).mean() >= _NEARLY:
        return np.full_like(peer, known[0])
    return peer


def in_line(devices: Sequence[RankOps]) -> Iterator[tuple[RankOps, RankOps]]:
    """Devices of which the second takes what the first sends, by the peers that messages name or by their ends."""
    told = with_peers(devices)
    by_rank = {device.rank: device for device in told}
    for device in told:
        moves = device.transfers
        if moves is not None:
            sent = moves.peer[moves.send & (moves.forward == 1)]
            yield from ((device, by_rank[peer]) for peer in np.unique(sent).tolist() if peer in by_rank)


def _neighbours(
    moves: Mapping[int, Transfers], before: Mapping[int, Sequence[int]] | None, reach: float
) -> Iterator[tuple[int, int, Ints, Ints]]:
    """Each rank with the one that comes right after it, and rows of the messages between the two at either side.

    Each pipeline is walked down from the rank that begins by sending: if stages are alike, ops run in lockstep, and
    messages of strangers end together as well, until those of true neighbours are taken out.
    """
    firsts = _Firsts(moves)
    after = _surest_neighbours(moves, before, firsts, reach)
    free: dict[int, Ints] = {}
    for i, move in moves.items():
        free[i] = np.arange(len(move))
    follow = dict.fromkeys(after.values())
    # A ring, as interleaved chunks make one, has no head: then who sends before it receives is tried first.
    heads = [i for i in moves if i not in follow] + sorted(follow, key=firsts.received_first)
    while heads:
        one = heads.pop(0)
        while one in after:
            other = after.pop(one)
            mine, theirs = moves[one].only(free[one]), moves[other].only(free[other])
            if not len(mine) or not len(theirs):
                break
            meeting = _meeting(mine, theirs, firsts.lag(one, other), reach)
            if meeting is None or not _enough(len(meeting.upper), moves[one], moves[other]):
                break
            yield one, other, free[one][meeting.upper], free[other][meeting.lower]
            free[one], free[other] = np.delete(free[one], meeting.upper), np.delete(free[other], meeting.lower)
            one = other


def _surest_neighbours(
    moves: Mapping[int, Transfers], before: Mapping[int, Sequence[int]] | None, firsts: _Firsts, reach: float
) -> dict[int, int]:
    """Who comes right after whom: of all ranks that meet, those whose messages fit best first."""
    found: list[tuple[tuple[int, int, float], int, int]] = []
    for other in moves:
        for one in _candidates(other, moves, before, firsts):
            meeting = _meeting(moves[one], moves[other], firsts.lag(one, other), reach)
            if meeting is not None:
                found.append((meeting.score, one, other))
    after: dict[int, int] = {}
    taken: dict[int, int] = {}
    for _, one, other in sorted(found):
        if one not in after and other not in taken and after.get(other) != one:
            after[one], taken[other] = other, one
    return after


def _enough(messages: int, upper: Transfers, lower: Transfers) -> bool:
    """Whether two ranks have so many messages between them that they are neighbours."""
    return messages >= max(_SOME * min(len(upper), len(lower)), 1)


def _candidates(
    other: int, moves: Mapping[int, Transfers], before: Mapping[int, Sequence[int]] | None, firsts: _Firsts
) -> list[int]:
    """Ranks that may come right before one: those of that place, or those whose first sends fit its first receives."""
    if before is not None:
        return [one for one in before[other] if one in moves]
    possible = [one for one in moves if one != other]
    if len(possible) < _FEW:
        return possible
    return firsts.before(other, possible)


class _Firsts:
    """When the first send and the first receive of each rank ended, step by step."""

    def __init__(self, moves: Mapping[int, Transfers]) -> None:
        self.steps = np.unique(np.concatenate([move.step for move in moves.values()]))
        self.row = dict(zip(moves, range(len(moves)), strict=True))
        self.sent, self.received = np.full((2, len(moves), len(self.steps)), np.nan)
        self.zero = min(int(move.end.min()) for move in moves.values())
        for i, move in moves.items():
            at = np.searchsorted(self.steps, move.step)
            for table, rows in ((self.sent, move.send), (self.received, ~move.send)):
                ends = np.full(len(self.steps), np.inf)
                np.minimum.at(ends, at[rows], (move.end[rows] - self.zero).astype(float))
                table[self.row[i]] = np.where(np.isinf(ends), np.nan, ends)

    def received_first(self, i: int) -> float:
        """In which share of steps a rank received before it sent anything; those that begin pipelines never do."""
        row = self.row[i]
        sent, received = np.nan_to_num(self.sent[row], nan=np.inf), np.nan_to_num(self.received[row], nan=np.inf)
        return float((received < sent).mean())

    def lag(self, one: int, other: int) -> _Line:
        """How far two clocks are apart, as the first message of each step between them shows it."""
        time = self.sent[self.row[one]]
        lag = self.received[self.row[other]] - time
        known = ~np.isnan(lag)
        if not known.any():
            return _Line(self.zero)
        # What lies outside of every step is one heap, and its first messages need not be the two sides of one.
        inside = known & (self.steps >= 0)
        rate = 0.0
        if inside.sum() >= _LONG:
            known = inside
            rate = _slope(time[known], lag[known])
        time, lag = time[known], lag[known]
        return _Line(self.zero, float(np.median(lag - rate * time)), rate)

    def before(self, other: int, possible: Sequence[int]) -> list[int]:
        """Of many ranks those whose first sends lie as far from a rank's first receives in each step."""
        rows = np.array([self.row[one] for one in possible])
        sent = self.sent[rows]
        lag = self.received[self.row[other]][None] - sent
        moved = lag[:, -1] - lag[:, 0]  # a clock may drift meanwhile
        level = lag - lag[:, :1] - moved[:, None] * np.linspace(0.0, 1.0, lag.shape[1])[None]
        slow = np.nan_to_num(np.abs(moved) < _FASTEST * (sent[:, -1] - sent[:, 0]) + 4 * TOGETHER, nan=1.0).astype(bool)
        fits = slow & (np.nan_to_num(np.abs(level), nan=0.0).max(axis=1) < 4 * TOGETHER)
        apart = np.abs(np.nanmedian(lag, axis=1))
        near = fits & (apart < TOGETHER)
        chosen = np.flatnonzero(near if near.any() else fits)
        return [possible[i] for i in chosen[np.argsort(apart[chosen], kind="stable")][:_TRIED].tolist()]


def _meeting(upper: Transfers, lower: Transfers, lag: _Line, reach: float) -> _Meeting | None:
    """The messages between two ranks if the second takes what the first sends and sends back; None if it does not."""
    if _directed(upper) and _directed(lower):
        found = _by_order(upper, lower)
        if found is not None:
            return found if found.spread < reach else None
    found = _by_time(upper, lower, lag)
    if not _enough(len(found.upper), upper, lower):
        return None
    return found


def _directed(moves: Transfers) -> bool:
    """Whether most transfers are known as of activations or of gradients; where a file was cut, some are not."""
    return 2 * int((moves.forward >= 0).sum()) > len(moves)


def _by_order(upper: Transfers, lower: Transfers) -> _Meeting | None:
    """All activations down and gradients up, told by steps in which both sides are as many; None if these are few."""
    known = upper.forward >= 0, lower.forward >= 0
    down, up = ((mine & known[0], theirs & known[1]) for mine, theirs in _ways(upper, lower))
    first, second = _in_step(upper, down[0], lower, down[1]), _in_step(upper, up[0], lower, up[1])
    if not len(first[0]) or not len(second[0]):
        return None
    mine, theirs = np.append(first[0], second[0]), np.append(first[1], second[1])
    zero = int(upper.end[mine].min())
    time, lag = (upper.end[mine] - zero).astype(float), (lower.end[theirs] - upper.end[mine]).astype(float)
    level = lag - _slope(time, lag) * time
    every = np.flatnonzero(down[0] | up[0]), np.flatnonzero(down[1] | up[1])
    return _Meeting(*every, float(np.median(lag)), _deviation(level))


def _ways(upper: Transfers, lower: Transfers) -> list[tuple[Mask, Mask]]:
    """Which transfers of two ranks may be the two sides of one message down, and which of one up."""
    return [
        (upper.send & (upper.forward != 0), ~lower.send & (lower.forward != 0)),
        (~upper.send & (upper.forward != 1), lower.send & (lower.forward != 1)),
    ]


def _deviation(values: Floats) -> float:
    """The median distance from the median; 0 of nothing."""
    if not len(values):
        return 0.0
    return float(np.median(np.abs(values - np.median(values))))


def _in_step(upper: Transfers, mine: Mask, lower: Transfers, theirs: Mask) -> tuple[Ints, Ints]:
    """Rows of both sides in order, over the steps in which they are as many; none if these are few."""
    one, other = np.flatnonzero(mine), np.flatnonzero(theirs)
    steps, number = np.unique(np.concatenate([upper.step[one], lower.step[other]]), return_inverse=True)
    of_one, of_other = number[: len(one)], number[len(one) :]
    here, there = np.bincount(of_one, minlength=len(steps)), np.bincount(of_other, minlength=len(steps))
    equal = (here == there) & (here > 0)
    if 2 * int(equal.sum()) < int(((here > 0) & (there > 0)).sum()):  # what is cut or set aside spoils its step only
        return one[:0], other[:0]
    one, other = one[equal[of_one]], other[equal[of_other]]
    return one[np.argsort(upper.step[one], kind="stable")], other[np.argsort(lower.step[other], kind="stable")]


def _slope(time: Floats, lag: Floats) -> float:
    """How fast a lag grows: the median slope between messages half a trace apart, if a clock can run so."""
    order = np.argsort(time, kind="stable")
    half = len(time) // 2
    apart = time[order][-half:] - time[order][:half]
    if not half or not (apart > 0).all():
        return 0.0
    rate = float(np.median((lag[order][-half:] - lag[order][:half]) / apart))
    if abs(rate) >= _FASTEST:
        return 0.0
    return rate


def _by_time(upper: Transfers, lower: Transfers, lag: _Line) -> _Meeting:
    """Messages whose ends lie within ``TOGETHER`` of each other at an offset of clocks, both ways.

    The offset of first messages is a guess; all that meet at it together tell it better, and then more may meet.
    """
    down, up = _ways(upper, lower)
    for _ in range(2):
        first, second = _at_offset(upper, down[0], lower, down[1], lag), _at_offset(upper, up[0], lower, up[1], lag)
        one, other, late = (np.concatenate(both) for both in zip(first, second, strict=True))
        if len(late):  # the middle is not moved by the few that met by chance
            lag = replace(lag, offset=lag.offset + float(np.median(late)))
    return _Meeting(one, other, lag.offset, _deviation(late))


def _at_offset(upper: Transfers, mine: Mask, lower: Transfers, theirs: Mask, lag: _Line) -> tuple[Ints, Ints, Floats]:
    """Rows of both sides that meet, and by how much the lower's ends are later than an offset would have them."""
    one, other = np.flatnonzero(mine), np.flatnonzero(theirs)
    ends, there = (upper.end[one] - lag.zero).astype(float), (lower.end[other] - lag.zero).astype(float)
    due = ends + lag.offset + lag.rate * ends
    a, b = nearest(due, there, TOGETHER)
    return one[a], other[b], there[b] - due[a]


# Which side sends, of bare kernels.


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """The transfers of one stream of one rank.

    Args:
        owner: index of the device.
        rows: of its transfers, by their ends.
        end: when the first of them ended, int64[at most _COMPARED], nanoseconds.
    """

    owner: int
    rows: Ints
    end: Ints


def with_senses(devices: Sequence[RankOps]) -> tuple[tuple[RankOps, ...], list[str]]:
    """The devices with all transfers known as sends or receives, and why others were left out, a sentence each."""
    streams: list[_Stream] = []
    send: dict[int, Mask] = {}
    for i, device in enumerate(devices):
        some = _streams(i, device.transfers)
        if some and device.transfers is not None:
            streams += some
            send[i] = device.transfers.send.copy()
    if not streams:
        return tuple(devices), []
    partner = _partners(streams)
    faults: dict[int, str] = {}
    hops: defaultdict[tuple[int, int], list[tuple[_Stream, _Stream]]] = defaultdict(list)
    for a, stream in enumerate(streams):
        if a not in partner:
            faults[stream.owner] = f"a stream of its transfers ends with that of no rank here, or of several {_REMEDY}"
        elif a < partner[a]:
            hops[stream.owner, streams[partner[a]].owner].append((stream, streams[partner[a]]))
    for both, ways in hops.items():
        upper, lower = sorted(both, key=lambda i: int(devices[i].start.min()))
        if fault := _unclear(ways, int(devices[lower].start.min())):
            faults |= dict.fromkeys(both, f"{fault} {_REMEDY}")
            continue
        for down, way in zip((True, False), sorted(ways, key=_begin), strict=True):
            for stream in way:
                send[stream.owner][stream.rows] = down == (stream.owner == upper)
    told = list(devices)
    for i, mask in send.items():
        told[i] = _sensed(devices[i], mask)
    remarks: list[str] = []
    for i in sorted(faults, reverse=True):
        remarks.insert(0, f"rank {devices[i].rank}: {faults[i]}; it was left out")
        del told[i]
    return tuple(told), remarks


def _sensed(device: RankOps, send: Mask) -> RankOps:
    """The device with known senses; what turned out to be a receive belongs to the op after it, not to that before."""
    moves = device.transfers
    if moves is None:
        return device
    if moves.stream is None or moves.op is None:
        return replace(device, transfers=replace(moves, send=send, stream=None))
    after = np.where(moves.op + 1 < len(device), moves.op + 1, UNKNOWN)
    op = np.where(send | (moves.stream == UNKNOWN), moves.op, after)
    kind = device.kind[op]
    forward = np.where((op < 0) | (kind == UNTOLD), UNKNOWN, kind == Kind.F).astype(np.int8)
    return replace(device, transfers=replace(moves, send=send, op=op, forward=forward, stream=None))


def _streams(owner: int, moves: Transfers | None) -> list[_Stream]:
    """The streams of a device of which only the other side can tell whether they send; none if all is known."""
    if moves is None or moves.stream is None:
        return []
    order = np.lexsort((moves.end, moves.stream))
    found = []
    for rows in parted(order[moves.stream[order] != UNKNOWN], moves.stream):
        found.append(_Stream(owner, rows, moves.end[rows[:_COMPARED_ENDS]]))
    return found


def _partners(streams: Sequence[_Stream]) -> dict[int, int]:
    """The stream that ends together with each, by index, if two are each other's only one."""
    near: list[list[int]] = [[] for _ in streams]
    for b, other in enumerate(streams):
        for a, one in enumerate(streams[:b]):
            if one.owner != other.owner and _together(one.end, other.end):
                near[a].append(b)
                near[b].append(a)
    partner: dict[int, int] = {}
    for a, found in enumerate(near):
        if len(found) == 1 and near[found[0]] == [a]:
            partner[a] = found[0]
    return partner


def _together(one: Ints, other: Ints) -> bool:
    if min(len(one), len(other)) < _MOST * max(len(one), len(other)):
        return False
    zero = one[0]
    rows, _ = nearest((one - zero).astype(float), (other - zero).astype(float), TOGETHER)
    return len(rows) >= _MOST * max(len(one), len(other))


def _begin(way: tuple[_Stream, _Stream]) -> int:
    return int(way[0].end[0])


def _unclear(ways: Sequence[tuple[_Stream, _Stream]], begun: int) -> str:
    """Why it is not certain which of the ways between two ranks leads down, or an empty string.

    Args:
        ways: between two ranks, two streams each.
        begun: when the lower of them begins to work, nanoseconds.
    """
    if len(ways) != 2:
        return "the sends and receives of two ranks share one stream, or use more than two"
    first, second = sorted(ways, key=_begin)
    down, up = first[0].end, second[0].end
    # Both ways are cut at as many transfers, so after that many of both together one of them may be over already.
    order = np.argsort(np.concatenate([down, up]), kind="stable")[:_COMPARED_ENDS]
    flight = np.cumsum(np.where(order < len(down), 1, -1))
    if begun < down[0] - TOGETHER or (flight < 0).any():
        return "the trace begins in the middle of a step, so its first transfer may be no forward's"
    return ""
