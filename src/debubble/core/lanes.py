"""Lanes: what takes its turn on each rank and each link, ops and transfers, for every way of sending.

ASYNC        rank 0  | 0F0 | 0F1 |                       no transfer has a row; edges carry a delay
LINK         rank 0  | 0F0 | 0F1 |                       one lane more for each pair of ranks and direction
             0 -> 1        | S 0F0 | S 0F1 |
BLOCKING     rank 0  | 0F0 | S 0F0 | 0F1 | S 0F1 |
RENDEZVOUS   rank 0  | 0F0 | S 0F0 | 0F1 | S 0F1 |       one row, which has its turn on two lanes
             rank 1        | R 0F0 | 1F0 | ..
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import Deadlock, Violation
from .exchange import Act, Exchange
from .program import NOTHING, Sends
from .schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Ops, and transfers numbered behind them, in their turns; lane ``l`` owns ``offsets[l]`` to ``offsets[l + 1]``.

    Args:
        schedule: whose ops they are; its ranks are the first lanes, links follow.
        items: number of the op or transfer whose turn it is, int32[turns].
        offsets: int64[lanes + 1].
        needs: what each number needs from elsewhere, int32[inputs, rows].
        producer: op whose output each transfer carries, int32[transfers].
        consumer: op that waits for it, int32[transfers].
        second: bool[turns], True where a transfer has its turn on the second of its two lanes, the receiver's;
            None where all have one lane.
        position: index of each turn in the row that somebody wrote, int64[turns]; None where turns are that row.
    """

    schedule: Schedule
    items: NDArray[np.int32]
    offsets: NDArray[np.int64]
    needs: NDArray[np.int32]
    producer: NDArray[np.int32]
    consumer: NDArray[np.int32]
    second: NDArray[np.bool_] | None = None
    position: NDArray[np.int64] | None = None

    def before(self) -> NDArray[np.int32]:
        """What has its turn just before each number, int32[1 or 2, rows]; both ops of a slot share theirs."""
        previous = np.empty_like(self.items)
        previous[1:] = self.items[:-1]
        previous[self.offsets[:-1][np.diff(self.offsets) > 0]] = NOTHING
        if not len(self.producer):
            before = previous[None]  # ops alone: turns are numbers
        elif self.second is None:
            before = np.full((1, self.needs.shape[1]), NOTHING, np.int32)
            before[0, self.items] = previous
        else:
            before = np.full((2, self.needs.shape[1]), NOTHING, np.int32)
            before[self.second.astype(np.int8), self.items] = previous
        if self.schedule.joined is not None:
            mate = np.flatnonzero(self.schedule.joined)
            before[0, mate] = before[0, mate - 1]
        return before


def rank_lanes(schedule: Schedule, needs: NDArray[np.int32]) -> Lanes:
    """The ranks with their ops and nothing else."""
    none = np.empty(0, np.int32)
    return Lanes(schedule, np.arange(len(schedule), dtype=np.int32), schedule.offsets, needs, none, none)


def lanes_with_transfers(
    plain: Lanes, sends: Sends, given: Exchange, pairs: tuple[NDArray[np.int32], NDArray[np.int32]]
) -> Lanes:
    """Give every transfer a row of its own.

    Args:
        plain: the ranks with their ops.
        sends: where that row has its turn.
        given: where sends and receives stand between the ops.
        pairs: producer and consumer of each transfer, int32[transfers] both.
    """
    schedule, (producer, consumer) = plain.schedule, pairs
    number = _numbers(len(schedule), given, producer, consumer)
    needs = _needs(plain.needs, given, number, consumer)
    kept = given.act == Act.COMPUTE
    if sends is not Sends.LINK:
        kept |= given.act == Act.SEND
    if sends is Sends.RENDEZVOUS:
        kept |= given.act == Act.RECEIVE
    turn, rank = np.flatnonzero(kept), given.rank_of()
    size = np.bincount(rank[turn], minlength=schedule.ranks)
    if sends is Sends.LINK:
        posted = np.flatnonzero(given.act == Act.SEND)
        link = rank[posted].astype(np.int64) * schedule.ranks + given.peer[posted]
        turn = np.concatenate([turn, posted[np.argsort(link, kind="stable")]])
        size = np.concatenate([size, np.unique(link, return_counts=True)[1]])
    return Lanes(
        schedule=schedule,
        items=number[turn],
        offsets=np.concatenate([[0], np.cumsum(size)]),
        needs=needs,
        producer=producer,
        consumer=consumer,
        second=given.act[turn] == Act.RECEIVE if sends is Sends.RENDEZVOUS else None,
        position=turn - given.offsets[rank[turn]],
    )


def _numbers(ops: int, given: Exchange, producer: NDArray[np.int32], consumer: NDArray[np.int32]) -> NDArray[np.int32]:
    """The number of the op or transfer in each row of an exchange, int32[its rows]."""
    number = given.op.copy()
    for act, end in ((Act.SEND, producer), (Act.RECEIVE, consumer)):
        transfer = np.full(ops, NOTHING, np.int32)
        transfer[end] = np.arange(ops, ops + len(end), dtype=np.int32)
        rows = given.act == act
        number[rows] = transfer[given.op[rows]]
    return number


def _needs(
    plain: NDArray[np.int32], given: Exchange, number: NDArray[np.int32], consumer: NDArray[np.int32]
) -> NDArray[np.int32]:
    """A transfer needs the op behind which its send stands, an op the transfer that brings its input."""
    inputs, ops = plain.shape
    needs = np.full((inputs, ops + len(consumer)), NOTHING, np.int32)
    carried = np.full(ops, NOTHING, np.int32)
    carried[plain[0, consumer]] = np.arange(ops, ops + len(consumer), dtype=np.int32)
    needs[:, :ops] = np.where(plain >= 0, carried[plain], NOTHING)
    posted = given.act == Act.SEND
    behind = np.maximum.accumulate(np.where(given.act == Act.COMPUTE, np.arange(len(given.act)), 0))
    needs[0, number[posted]] = given.op[behind[posted]]
    return needs


@dataclass(frozen=True, slots=True, eq=False)
class _Meeting:
    """Finds the transfers whose turn has come on both of their lanes."""

    twice: NDArray[np.bool_]  # per number: has two lanes
    seat: NDArray[np.int64]  # scratch, per number: where in the round it was seen last
    met: NDArray[np.bool_]  # scratch, per number

    def ready(self, at: NDArray[np.int32]) -> NDArray[np.bool_]:
        here = np.arange(len(at))
        self.seat[at] = here
        both = at[self.seat[at] != here]  # seen again later in the same round
        self.met[both] = True
        ready = ~self.twice[at] | self.met[at]
        self.met[both] = False
        return ready

    def once(self, now: NDArray[np.int32]) -> NDArray[np.int32]:
        here = np.arange(len(now))
        self.seat[now] = here
        last: NDArray[np.int32] = now[self.seat[now] == here]
        return last


def _meeting(lanes: Lanes) -> _Meeting | None:
    if lanes.second is None:
        return None
    rows = lanes.needs.shape[1]
    twice = np.zeros(rows, np.bool_)
    twice[len(lanes.schedule) :] = True
    return _Meeting(twice, np.empty(rows, np.int64), np.zeros(rows, np.bool_))


def _widths(lanes: Lanes) -> NDArray[np.int8] | None:
    """Ops in the slot that starts with each number, int8[rows]; None where all hold one."""
    joined = lanes.schedule.joined
    if joined is None:
        return None
    width = np.ones(lanes.needs.shape[1], np.int8)
    width[np.flatnonzero(joined) - 1] = 2
    return width


def topological_rounds(lanes: Lanes) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Let all lanes step together: in each round every lane whose next slot is ready runs it.

    Returns:
        The ops and transfers in order of rounds, int32[rows], and the first row of each round, int64[rounds + 1].

    Raises:
        Deadlock: in some round no lane is ready.
    """
    needs, items, meeting, width = lanes.needs, lanes.items, _meeting(lanes), _widths(lanes)
    here, stop = lanes.offsets[:-1].copy(), lanes.offsets[1:]
    done = np.zeros(needs.shape[1] + 1, np.bool_)
    done[NOTHING] = True
    active = np.flatnonzero(here < stop)
    rounds: list[NDArray[np.int32]] = []
    while active.size:
        at = items[here[active]]
        ready = done[needs[:, at]].all(axis=0)
        if meeting is not None:
            ready &= meeting.ready(at)
        lane, now = active[ready], at[ready]
        if not now.size:
            raise _deadlock(lanes, done, here, active)
        here[lane] += 1 if width is None else width[now]
        if meeting is not None:
            now = meeting.once(now)
        if width is not None:
            now = np.concatenate([now, now[width[now] == 2] + 1])
        done[now] = True
        rounds.append(now)
        if (here[lane] == stop[lane]).any():
            active = active[here[active] < stop[active]]
    sizes = np.cumsum([0, *map(len, rounds)], dtype=np.int64)
    return np.concatenate(rounds or [np.empty(0, np.int32)]), sizes


@dataclass(frozen=True, slots=True, eq=False)
class _Stuck:
    """Lanes that can go no further, and whom each of them waits for."""

    lanes: Lanes
    done: NDArray[np.bool_]
    here: NDArray[np.int64]
    rank_of: NDArray[np.int32]

    def item(self, lane: int) -> int:
        return int(self.lanes.items[self.here[lane]])

    def wanted(self, lane: int) -> int:
        """The op or transfer that must happen before the lane's turn, or that must come to it on its other lane."""
        at = self.item(lane)
        missing = [int(need) for need in self.lanes.needs[:, at] if not self.done[need]]
        return missing[0] if missing else at

    def lane_of(self, number: int, asking: int) -> int:
        """The lane on which a number still has its turn to come; of two lanes the one that does not ask."""
        ops = len(self.lanes.schedule)
        if number < ops:
            return int(self.rank_of[number])
        turns = np.flatnonzero(self.lanes.items == number)
        found = (np.searchsorted(self.lanes.offsets, turns, side="right") - 1).tolist()
        return int(next((lane for lane in found if lane != asking), found[0]))

    def text(self, number: int, lane: int) -> str:
        """``2F0``; of a transfer ``S 2F0`` on the side that sends the output of 2F0, ``R 2F0`` on the other."""
        schedule = self.lanes.schedule
        if number < len(schedule):
            return schedule.op(number).text(schedule.slices)
        producer = int(self.lanes.producer[number - len(schedule)])
        receives = lane < schedule.ranks and lane != self.rank_of[producer]
        return f"{'R' if receives else 'S'} {schedule.op(producer).text(schedule.slices)}"

    def place(self, lane: int) -> int:
        turn, position = self.here[lane], self.lanes.position
        return int(turn - self.lanes.offsets[lane] if position is None else position[turn])


def _deadlock(lanes: Lanes, done: NDArray[np.bool_], here: NDArray[np.int64], active: NDArray[np.int64]) -> Deadlock:
    """Follow who waits for whom from any blocked rank until one repeats: that is the circle."""
    schedule = lanes.schedule
    stuck = _Stuck(lanes, done, here, schedule.rank_of())
    path = [int(active[0])]
    while (following := stuck.lane_of(stuck.wanted(path[-1]), path[-1])) not in path:
        path.append(following)
    circle = [lane for lane in path[path.index(following) :] if lane < schedule.ranks]
    return Deadlock(
        schedule.name,
        [f"{stuck.text(stuck.item(rank), rank)} (rank {rank})" for rank in circle],
        [_waits(stuck, int(rank)) for rank in active if rank < schedule.ranks],
    )


def _waits(stuck: _Stuck, rank: int) -> Violation:
    wanted = stuck.wanted(rank)
    other = stuck.lane_of(wanted, rank)
    sentence = f"{stuck.text(stuck.item(rank), rank)} waits for {stuck.text(wanted, other)} on rank {other} for ever"
    return Violation(rank, stuck.place(rank), sentence, "let it come later, or what it waits for earlier")
