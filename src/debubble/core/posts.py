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

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .exchange import Act, Exchange
from .kernels import Rounds, rounds
from .laws import NOTHING
from .schedule import Schedule

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
