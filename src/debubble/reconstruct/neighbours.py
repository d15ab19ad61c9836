"""Who is at the other side of a message whose file does not name it: told by places, else by sequences of ends.

Both sides of a message end together, so the ends of what one rank sends and its neighbour receives differ by one offset
of clocks, the same for what goes and for what comes back; those of strangers wander by as much as ops vary.

    rank 0 sends      |    |      |   |        the k-th end of one against the k-th of the other: 3, 3, 3, 3
    rank 1 receives      |    |      |   |
    rank 2 receives        |     |     |   |   5, 6, 5, 4: a stranger

In every pipeline the first micro-batch passes all ranks first, so the first send of a rank in a step and the first
receive of the next one are the two sides of one message. That gives the offset at which to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .device_ops import Ints, Mask, RankOps, Transfers
from .pairing import TOGETHER, Floats, nearest

_SOME = 0.3  # of the transfers of the quieter of two neighbours are between them: a middle rank shares half with each
_NEARLY = 0.9  # of the messages of the first or last rank of a pipeline have their other side: a few may be lost
_FEW = 64  # devices among which all are compared, whatever the offsets of their clocks
_FASTEST = 1e-3  # nanoseconds a nanosecond; no clock is that bad
_TRIED = 32  # of many that fit, those whose clocks agree best
_LONG = 3  # steps from which it shows that an offset does not stay

Follows = Mapping[int, Sequence[int]]  # for each device, those that may come right after it in its pipeline


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


def with_peers(devices: Sequence[RankOps], follows: Follows | None = None) -> tuple[RankOps, ...]:
    """The devices with a peer for each transfer whose other side can be told.

    Args:
        devices: some of whose transfers may name their peers already.
        follows: which devices may come right after which; None if nothing tells.
    """
    silent = [i for i, device in enumerate(devices) if _silent(device)]
    if len(silent) < 2:
        return tuple(devices)
    moves = {i: move for i in silent if (move := devices[i].transfers) is not None}
    reach = float(np.median(np.concatenate([devices[i].end - devices[i].start for i in silent]))) / 4
    peer = {i: move.peer.copy() for i, move in moves.items()}
    for one, other, mine, theirs in _neighbours(moves, follows, reach):
        peer[one][mine] = devices[other].rank
        peer[other][theirs] = devices[one].rank
    named = {i: replace(move, peer=_with_the_few_lost(peer[i])) for i, move in moves.items()}
    return tuple(replace(device, transfers=named.get(i, device.transfers)) for i, device in enumerate(devices))


def _with_the_few_lost(peer: NDArray[np.int32]) -> NDArray[np.int32]:
    """Peers of a rank; if nearly all of its messages are with one neighbour, so are those whose other side was lost."""
    known = np.unique(peer[peer >= 0])
    return np.full_like(peer, known[0]) if len(known) == 1 and (peer >= 0).mean() >= _NEARLY else peer


def in_line(devices: Sequence[RankOps]) -> Iterator[tuple[RankOps, RankOps]]:
    """Devices of which the second takes what the first sends, by the peers that messages name or by their ends."""
    told = with_peers(devices)
    by_rank = {device.rank: device for device in told}
    for device in told:
        moves = device.transfers
        if moves is not None:
            sent = moves.peer[moves.send & (moves.forward == 1)]
            yield from ((device, by_rank[peer]) for peer in np.unique(sent).tolist() if peer in by_rank)


def _silent(device: RankOps) -> bool:
    moves = device.transfers
    return moves is not None and len(moves) > 0 and bool((moves.peer < 0).all())


def _neighbours(
    moves: Mapping[int, Transfers], follows: Follows | None, reach: float
) -> Iterator[tuple[int, int, Ints, Ints]]:
    """Each rank with the one that comes right after it, and rows of the messages between the two at either side.

    Each pipeline is walked down from the rank that begins by sending: if stages are alike, ops run in lockstep, and
    messages of strangers end together as well, until those of true neighbours are taken out.
    """
    firsts = _Firsts(moves)
    found: list[tuple[tuple[int, int, float], int, int]] = []
    for other in moves:
        for one in _candidates(other, moves, follows, firsts):
            meeting = _meeting(moves[one], moves[other], firsts.lag(one, other), reach)
            if meeting is not None:
                found.append((meeting.score, one, other))
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for _, one, other in sorted(found):
        if one not in after and other not in before and after.get(other) != one:
            after[one], before[other] = other, one
    free = {i: np.arange(len(move)) for i, move in moves.items()}
    heads = [i for i in moves if i not in before] + sorted(before, key=firsts.received_first)
    while heads:
        one = heads.pop(0)
        while one in after:
            other = after.pop(one)
            mine, theirs = moves[one].only(free[one]), moves[other].only(free[other])
            meeting = _meeting(mine, theirs, firsts.lag(one, other), reach) if len(mine) and len(theirs) else None
            if meeting is None or not _enough(len(meeting.upper), moves[one], moves[other]):
                break
            yield one, other, free[one][meeting.upper], free[other][meeting.lower]
            free[one], free[other] = np.delete(free[one], meeting.upper), np.delete(free[other], meeting.lower)
            one = other


def _enough(messages: int, upper: Transfers, lower: Transfers) -> bool:
    """Whether two ranks have so many messages between them that they are neighbours."""
    return messages >= max(_SOME * min(len(upper), len(lower)), 1)


def _candidates(other: int, moves: Mapping[int, Transfers], follows: Follows | None, firsts: _Firsts) -> list[int]:
    """Ranks that may come right before one: those of that place, or those whose first sends fit its first receives."""
    if follows is not None:
        return [one for one in moves if other in follows.get(one, ())]
    possible = [one for one in moves if one != other]
    if len(possible) < _FEW:
        return possible
    return firsts.before(other, possible)


class _Firsts:
    """When the first send and the first receive of each rank ended, step by step."""

    def __init__(self, moves: Mapping[int, Transfers]) -> None:
        steps = sorted({step for move in moves.values() for step in np.unique(move.step).tolist()})
        self.steps = np.array(steps, np.int64)
        self.row = {i: row for row, i in enumerate(moves)}
        self.sent, self.received = (np.full((len(moves), len(steps)), np.nan) for _ in range(2))
        self.zero = min((int(move.end.min()) for move in moves.values()), default=0)
        for i, move in moves.items():
            at = np.searchsorted(self.steps, move.step)
            for table, rows in ((self.sent, move.send), (self.received, ~move.send)):
                ends = np.full(len(steps), np.inf)
                np.minimum.at(ends, at[rows], (move.end[rows] - self.zero).astype(float))
                table[self.row[i]] = np.where(np.isinf(ends), np.nan, ends)

    def received_first(self, i: int) -> float:
        """In which share of steps a rank received before it sent anything; those that begin pipelines never do."""
        row = self.row[i]
        sent, received = (np.nan_to_num(table[row], nan=np.inf) for table in (self.sent, self.received))
        return float((received < sent).mean())

    def lag(self, one: int, other: int) -> _Line:
        """How far two clocks are apart, as the first message of each step between them shows it."""
        time = self.sent[self.row[one]]
        lag = self.received[self.row[other]] - time
        known = ~np.isnan(lag)
        if not known.any():
            return _Line(self.zero)
        time, lag = time[known], lag[known]
        in_steps = len(time) >= _LONG and not (self.steps < 0).any()
        rate = _slope(time, lag) if in_steps else 0.0
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
    if (upper.forward >= 0).all() and (lower.forward >= 0).all():
        found = _by_order(upper, lower)
        if found is not None:
            return found if found.spread < reach else None
    found = _by_time(upper, lower, lag)
    return found if _enough(len(found.upper), upper, lower) else None


def _by_order(upper: Transfers, lower: Transfers) -> _Meeting | None:
    """All activations down and gradients up, told by steps in which both sides are as many; None if these are few."""
    ways = _ways(upper, lower)
    parts = [_in_step(upper, mine, lower, theirs) for mine, theirs in ways]
    mine, theirs = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    if not all(len(rows) for rows, _ in parts):
        return None
    zero = int(upper.end[mine].min())
    time, lag = (upper.end[mine] - zero).astype(float), (lower.end[theirs] - upper.end[mine]).astype(float)
    level = lag - _slope(time, lag) * time
    down, up = ways
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
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def _in_step(upper: Transfers, mine: Mask, lower: Transfers, theirs: Mask) -> tuple[Ints, Ints]:
    """Rows of both sides in order, over the steps in which they are as many; none if these are few."""
    one, other = np.flatnonzero(mine), np.flatnonzero(theirs)
    steps, number = np.unique(np.concatenate([upper.step[one], lower.step[other]]), return_inverse=True)
    of_one, of_other = number[: len(one)], number[len(one) :]
    here, there = (np.bincount(number, minlength=len(steps)) for number in (of_one, of_other))
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
    return rate if abs(rate) < _FASTEST else 0.0


def _by_time(upper: Transfers, lower: Transfers, lag: _Line) -> _Meeting:
    """Messages whose ends lie within ``TOGETHER`` of each other at an offset of clocks, both ways.

    The offset of first messages is a guess; all that meet at it together tell it better, and then more may meet.
    """
    for _ in range(2):
        parts = [_at_offset(upper, mine, lower, theirs, lag) for mine, theirs in _ways(upper, lower)]
        one, other, late = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        middle = float(np.median(late)) if len(late) else 0.0
        lag = replace(lag, offset=lag.offset + middle)
    return _Meeting(one, other, lag.offset, _deviation(late))


def _at_offset(upper: Transfers, mine: Mask, lower: Transfers, theirs: Mask, lag: _Line) -> tuple[Ints, Ints, Floats]:
    """Rows of both sides that meet, and by how much the lower's ends are later than an offset would have them."""
    one, other = np.flatnonzero(mine), np.flatnonzero(theirs)
    ends, there = ((side.end[rows] - lag.zero).astype(float) for side, rows in ((upper, one), (lower, other)))
    due = ends + lag.offset + lag.rate * ends
    a, b = nearest(due, there, TOGETHER)
    return one[a], other[b], there[b] - due[a]
