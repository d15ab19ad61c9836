"""Posts: in which gap between the ops of a rank each send and receive stands, and until when the rank waits for it.

A *slot* holds one op, or the two of an overlapped pair, which start and end together. A *gap* lies before each slot of
a rank and behind its last one; in a gap, posts stand in the order in which the rank makes them. Slots and posts, in
their order, are the *rows* of a rank:

    gap          0        1               2
    rank 0          0F0         0F1
                         S 0F0           S 0F1
    row              0     1     2         3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import Violation
from .kernels import Rounds, rounds
from .laws import transfers
from .schedule import NOTHING, Schedule

_MOST = 1000  # violations of one law that are spelled out


class Act(IntEnum):
    """What a rank does next."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Ops with their sends and receives; rank ``r`` owns rows ``offsets[r]`` to ``offsets[r + 1]``.

    Args:
        act: uint8[rows], an ``Act``.
        op: the op that is computed, whose output is sent, or whose input is received, int32[rows].
        peer: the rank on the other side of a transfer, -1 for a computation, int32[rows].
        offsets: int64[ranks + 1].
        batch: sends and receives of a rank that are posted together have the same number, int32[rows]; None where
            each is posted by itself.
        until: row before which the rank waits for what it posted here, the end of its rows where it never does,
            int64[rows]; None where the one who executes decides.
    """

    act: NDArray[np.uint8]
    op: NDArray[np.int32]
    peer: NDArray[np.int32]
    offsets: NDArray[np.int64]
    batch: NDArray[np.int32] | None = None
    until: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for column in (self.act, self.op, self.peer, self.offsets, self.batch, self.until):
            if column is not None:
                column.flags.writeable = False

    def rank_of(self) -> NDArray[np.int32]:
        """The rank of each row, int32[rows]."""
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))


def mismatches(schedule: Schedule, given: Exchange) -> list[Violation]:
    """Everything wrong with sends and receives that somebody wrote down, or an empty list.

    Each transfer is sent once behind its op and received once before the op that needs it, and on every way from one
    rank to another receives stand in the order of the sends. Engines match them first in, first out: where the orders
    differ and shapes agree, tensors are swapped without an error.

    Args:
        schedule: a legal one.
        given: ops, sends and receives of the same schedule; positions in the violations are rows of this.
    """
    computed = given.op[given.act == Act.COMPUTE]
    if not np.array_equal(computed, np.arange(len(schedule))):
        return [Violation(-1, -1, "the list of sends and receives computes other ops than the schedule")]
    found = [*_unpaired(schedule, given, Act.SEND), *_unpaired(schedule, given, Act.RECEIVE)]
    # Orders are compared only where every transfer has two sides; else one that lacks would shift all behind it.
    return found or [*_too_early(schedule, given), *_crossed(schedule, given)]


def _unpaired(schedule: Schedule, given: Exchange, act: Act) -> Iterator[Violation]:
    """Sends (or receives) that are missing, repeated, superfluous, or between the wrong ranks."""
    rank = schedule.rank_of()
    mine, other = transfers(schedule)
    verb, to = "sends the output of", "to"
    if act is Act.RECEIVE:
        mine, other = other, mine
        verb, to = "receives the input of", "from"
    partner = np.full(len(schedule), -1, np.int32)
    partner[mine] = other
    rows = np.flatnonzero(given.act == act)
    seen: set[int] = set()  # a loop over rows: such a list was written by hand, or read from a file of one step
    for row, op in zip(rows.tolist(), given.op[rows].tolist(), strict=True):
        at, name, mate = _place(given, row), _name(schedule, op), partner[op]
        if mate < 0:
            yield Violation(*at, f"{verb} {name}, which no transfer carries", "leave it out")
        elif (at[0], given.peer[row]) != (rank[op], rank[mate]):
            sentence = f"{verb} {name} {to} rank {given.peer[row]} here"
            yield Violation(*at, sentence, f"do so on rank {rank[op]}, {to} rank {rank[mate]}")
        elif op in seen:
            yield Violation(*at, f"{verb} {name} a second time", "leave it out")
        else:
            seen.add(op)
    for op in mine[~np.isin(mine, given.op[rows])][:_MOST].tolist():
        sentence = f"never {verb} {_name(schedule, op)} {to} rank {rank[partner[op]]}"
        yield Violation(int(rank[op]), -1, sentence, "add it")


def _too_early(schedule: Schedule, given: Exchange) -> Iterator[Violation]:
    """Sends before their op, receives behind the op that needs them."""
    computed = np.flatnonzero(given.act == Act.COMPUTE)  # by op: rows and ops run in the same order
    for act, sentence, remedy in (
        (Act.SEND, "sends the output of {} before it is made", "move it behind {}"),
        (Act.RECEIVE, "receives the input of {} after it was needed", "move it before {}"),
    ):
        rows = np.flatnonzero(given.act == act)
        wrong = (rows < computed[given.op[rows]]) == (act is Act.SEND)
        for row in rows[wrong][:_MOST].tolist():
            name = _name(schedule, int(given.op[row]))
            yield Violation(*_place(given, row), sentence.format(name), remedy.format(name))


def _crossed(schedule: Schedule, given: Exchange) -> Iterator[Violation]:
    """Receives that do not stand in the order of the sends on the way from one rank to another."""
    producer, consumer = transfers(schedule)
    maker = np.empty(len(schedule), np.int32)
    maker[consumer] = producer
    rank = given.rank_of()
    sent, received = np.flatnonzero(given.act == Act.SEND), np.flatnonzero(given.act == Act.RECEIVE)
    # Both by sender, receiver and time: then the n-th send of a way stands beside the n-th receive.
    sent = sent[np.lexsort((sent, given.peer[sent], rank[sent]))]
    received = received[np.lexsort((received, rank[received], given.peer[received]))]
    differ = given.op[sent] != maker[given.op[received]]
    for there, here in zip(sent[differ][:_MOST].tolist(), received[differ][:_MOST].tolist(), strict=True):
        took, came = _name(schedule, int(maker[given.op[here]])), _name(schedule, int(given.op[there]))
        sentence = f"receives {took} when rank {rank[there]} sends {came}: they are matched first in, first out"
        yield Violation(*_place(given, here), sentence, "receive in the order of the sends")


def _place(given: Exchange, row: int) -> tuple[int, int]:
    rank = int(np.searchsorted(given.offsets, row, side="right")) - 1
    return rank, int(row - given.offsets[rank])


def _name(schedule: Schedule, op: int) -> str:
    return schedule.op(op).text(schedule.slices)


Column = NDArray[np.int32]
Index = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]


class Order:
    """A schedule as an engine sees it: slots, and for each op its partner on another rank.

    Each column is made when it is first asked for: no engine needs all of them.

    Args:
        schedule: a legal one.
        source: op whose output each op takes in from another rank, int32[ops]; ``NOTHING`` where none.
    """

    def __init__(self, schedule: Schedule, source: Column) -> None:
        self.schedule, self.source = schedule, source

    @cached_property
    def consumer(self) -> Index:
        """The op that each transfer is for, int64[transfers]: transfers are numbered by it."""
        return np.flatnonzero(self.source >= 0)

    @cached_property
    def producer(self) -> Column:
        """The op whose output each transfer carries, int32[transfers]."""
        return self.source[self.consumer]

    @cached_property
    def sink(self) -> Column:
        """Op on another rank that takes in the output of each op, int32[ops]; ``NOTHING`` where none."""
        sink = np.full(len(self.source), NOTHING, np.int32)
        sink[self.producer] = self.consumer
        return sink

    @cached_property
    def rank(self) -> Column:
        """The rank of each op, int32[ops]."""
        return self.schedule.rank_of()

    @cached_property
    def sends_to(self) -> Column:
        """The rank that takes in the output of each op, int32[ops]; ``NOTHING`` where none."""
        return np.where(self.sink >= 0, self.rank[self.sink], np.int32(NOTHING))

    @cached_property
    def receives_from(self) -> Column:
        """The rank whose output each op takes in, int32[ops]; ``NOTHING`` where none."""
        return np.where(self.source >= 0, self.rank[self.source], np.int32(NOTHING))

    @cached_property
    def first(self) -> Column:
        """The first op of each slot, int32[slots]."""
        op = np.arange(len(self.schedule), dtype=np.int32)
        if self.schedule.joined is None:
            return op
        return op[~self.schedule.joined]

    @cached_property
    def last(self) -> Column:
        """The last op of each slot, the first but for pairs, int32[slots]."""
        if self.schedule.joined is None:
            return self.first
        return np.append(self.first[1:], np.int32(len(self.schedule))) - np.int32(1)

    @cached_property
    def slot(self) -> Column:
        """The slot of each op, int32[ops]."""
        if self.schedule.joined is None:
            return self.first
        return np.cumsum(~self.schedule.joined, dtype=np.int32) - np.int32(1)

    def slot_of(self, op: Index) -> Index:
        """The slots of some ops; spares the table where each op is a slot by itself."""
        if self.schedule.joined is None:
            return op
        return self.slot.take(op)

    def of_slots(self, column: Index) -> Index:
        """A column by slot as a column by op."""
        if self.schedule.joined is None:
            return column
        return column.take(self.slot)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """First slot of each rank, int64[ranks + 1]."""
        if self.schedule.joined is None:
            return self.schedule.offsets
        return np.searchsorted(self.first, self.schedule.offsets)

    @cached_property
    def gap(self) -> Index:
        """The gap before each slot, int64[slots]; the one behind it has the next number."""
        return np.arange(len(self.first)) + np.repeat(np.arange(self.schedule.ranks), np.diff(self.offsets))

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of slots, if nothing but their inputs is waited for.

        Raises:
            Stuck: slots wait for each other for ever.
        """
        return rounds(self.offsets, self.needs())

    def needs(self) -> Column:
        """Slots whose outputs each slot needs from other ranks, int32[1 or 2, slots]."""
        if self.schedule.joined is None:
            return self.source[None]
        makers = np.stack([self.source[self.first], self.source[self.last]])
        makers[1, self.first == self.last] = NOTHING
        return np.where(makers >= 0, self.slot[makers], NOTHING).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Posts:
    """Sends and receives in the order of ranks, gaps and posting, and where slots stand between them.

    Args:
        op: producer of what is sent, consumer of what is received, int32[posts].
        sends: whether it is a send, bool[posts].
        row: int64[posts]; ascending.
        opens: whether it is the first of those that are posted together, bool[posts].
        until: row before which the rank waits for it; the end of its rows where it never does, int64[posts].
        slot_row: row of the first op of each slot, int64[slots].
        rows: first row of each rank, int64[ranks + 1].
        rank: of each post, int32[posts].
    """

    op: Column
    sends: Flags
    row: Index
    opens: Flags
    until: Index
    slot_row: Index
    rows: NDArray[np.int64]
    rank: Column

    def ends(self) -> Index:
        """The end of the rows of each post's rank, int64[posts]."""
        return self.rows[1:].take(self.rank)

    def behind_batch(self) -> Index:
        """The row behind the batch of each post, int64[posts]."""
        behind = self.row + 1
        joins = np.flatnonzero(~self.opens)
        while (behind[joins - 1] != behind[joins]).any():  # as often as a batch has posts but one
            behind[joins - 1] = behind[joins]
        return behind

    def when_used(self, order: Order) -> Index:
        """The row of the slot that uses what is received; the end of the rank's rows for what is sent."""
        until = self.ends()
        received = np.flatnonzero(~self.sends)
        until[received] = self.slot_row.take(order.slot_of(self.op.take(received)))
        return until


def in_gaps(order: Order, count: Index, op: Column, sends: Flags, opens: Flags) -> Posts:
    """Posts without what is waited for when, from how many stand in each gap.

    Args:
        order: the schedule.
        count: posts of each gap, int64[slots + ranks].
        op: as in ``Posts``.
        sends: likewise.
        opens: likewise.
    """
    ranks = order.schedule.ranks
    posted = np.cumsum(count)
    ends = order.offsets[1:] + np.arange(ranks)  # the last gap of each rank
    ops_before = np.empty(len(count), np.int64)
    ops_before[order.gap] = order.first
    ops_before[ends] = order.schedule.offsets[1:]
    row = np.repeat(ops_before, count)
    row += np.arange(len(op))
    rows = order.schedule.offsets.copy()
    rows[1:] += posted[ends]
    rank = np.repeat(np.arange(ranks, dtype=np.int32), np.diff(posted[ends], prepend=0))
    return Posts(op, sends, row, opens, np.empty(0, np.int64), order.first + posted.take(order.gap), rows, rank)


def as_exchange(order: Order, posts: Posts) -> Exchange:
    """The same as a list of what each rank computes, sends and receives."""
    rows = int(posts.rows[-1])
    act, op = np.zeros(rows, np.uint8), np.empty(rows, np.int32)
    peer, batch = np.full(rows, -1, np.int32), np.full(rows, -1, np.int32)
    until = np.full(rows, NOTHING, np.int64)
    act[posts.row] = np.where(posts.sends, Act.SEND, Act.RECEIVE)
    op[act == Act.COMPUTE] = np.arange(len(order.schedule), dtype=np.int32)
    op[posts.row], until[posts.row] = posts.op, posts.until
    batch[posts.row] = np.cumsum(posts.opens)
    peer[posts.row] = np.where(posts.sends, order.sends_to[posts.op], order.receives_from[posts.op])
    return Exchange(act, op, peer, posts.rows.copy(), batch, until)


def from_exchange(order: Order, exchange: Exchange) -> Posts:
    """A list that somebody wrote, as posts; each by itself unless the list says otherwise."""
    row = np.flatnonzero(exchange.act != Act.COMPUTE)
    computed = np.flatnonzero(exchange.act == Act.COMPUTE)
    opens = np.ones(len(row), np.bool_)
    if exchange.batch is not None:
        opens[1:] = np.diff(exchange.batch[row]) != 0
    until = np.empty(0, np.int64)
    if exchange.until is not None:
        until = exchange.until[row]
    sends = exchange.act[row] == Act.SEND
    rank = exchange.rank_of()[row]
    return Posts(exchange.op[row], sends, row, opens, until, computed[order.first], exchange.offsets, rank)
