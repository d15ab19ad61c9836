"""Sends and receives: where they stand between the ops of each rank, and what is wrong with those that somebody wrote.

rank 0   0F0  0SEND_F0             0F1  0SEND_F1   0RECV_B0             0B0
rank 1             1RECV_F0  1F0        1B0  1RECV_F1  1SEND_B0 ..
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .errors import Violation
from .laws import transfers
from .schedule import Schedule

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
