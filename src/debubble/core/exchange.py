"""Sends and receives: where they stand between the ops of each rank, and an order of them that cannot deadlock.

All ranks step together through the rounds of a program. What an op of round k makes is sent, and received on the
other side, right behind round k: first what even ranks send, then what odd ranks send, so that neighbours work in
pairs. Each rank's list is a part of that one global order. Hence on every pair of ranks the sends of one side meet
the receives of the other in the same order (engines match first in, first out), and even sends that block until they
are received make progress.

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
from .program import Program

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
    """

    act: NDArray[np.uint8]
    op: NDArray[np.int32]
    peer: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        for column in (self.act, self.op, self.peer, self.offsets):
            column.flags.writeable = False

    def rank_of(self) -> NDArray[np.int32]:
        """The rank of each row, int32[rows]."""
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))


def exchange(program: Program) -> Exchange:
    """Place the transfers of a program between its ops."""
    schedule = program.schedule
    ops = np.arange(len(schedule), dtype=np.int32)
    rank = schedule.rank_of()
    in_round = np.empty(len(program), np.int64)
    in_round[program.order] = np.repeat(np.arange(len(program.rounds) - 1), np.diff(program.rounds))
    producer, consumer = transfers(program)
    act = np.repeat(np.array([Act.COMPUTE, Act.SEND, Act.RECEIVE], np.uint8), [len(ops), len(producer), len(consumer)])
    op = np.concatenate([ops, producer, consumer])
    maker = np.concatenate([ops, producer, producer])
    peer = np.concatenate([np.full(len(ops), -1, np.int32), rank[consumer], rank[producer]])
    sender = rank[maker]
    # computations of a round before its transfers; of those, the even senders first
    order = np.lexsort((maker, sender, sender % 2, act != Act.COMPUTE, in_round[maker], rank[op]))
    return Exchange(
        act=act[order],
        op=op[order],
        peer=peer[order],
        offsets=np.concatenate([[0], np.cumsum(np.bincount(rank[op], minlength=schedule.ranks))]),
    )


def transfers(program: Program) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every pair of ops on different ranks of which one needs what the other makes: producers and consumers."""
    if len(program) > len(program.schedule):
        return program.producer, program.consumer
    needs = program.needs_by_op()[0]
    consumer = np.flatnonzero(needs >= 0).astype(np.int32)
    return needs[consumer], consumer


def mismatches(program: Program, given: Exchange) -> list[Violation]:
    """Everything wrong with sends and receives that somebody wrote down, or an empty list.

    Each transfer is sent once behind its op and received once before the op that needs it, and on every way from one
    rank to another receives stand in the order of the sends. Engines match them first in, first out: where the orders
    differ and shapes agree, tensors are swapped without an error.

    Args:
        program: the schedule, lowered without transfers of its own.
        given: ops, sends and receives of the same schedule; positions in the violations are rows of this.
    """
    computed = given.op[given.act == Act.COMPUTE]
    if not np.array_equal(computed, np.arange(len(program.schedule))):
        return [Violation(-1, -1, "the list of sends and receives computes other ops than the schedule")]
    found = [*_unpaired(program, given, Act.SEND), *_unpaired(program, given, Act.RECEIVE)]
    return found or [*_too_early(program, given), *_crossed(program, given)]


def _unpaired(program: Program, given: Exchange, act: Act) -> Iterator[Violation]:
    """Sends (or receives) that are missing, repeated, superfluous, or between the wrong ranks."""
    schedule, rank = program.schedule, program.schedule.rank_of()
    mine, other = transfers(program) if act is Act.SEND else transfers(program)[::-1]
    partner = np.full(len(schedule), -1, np.int32)
    partner[mine] = other
    rows = np.flatnonzero(given.act == act)
    verb, to = ("sends the output of", "to") if act is Act.SEND else ("receives the input of", "from")
    seen: set[int] = set()
    for row, op in zip(rows.tolist(), given.op[rows].tolist(), strict=True):
        at, name, mate = _place(given, row), _name(program, op), partner[op]
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
        sentence = f"never {verb} {_name(program, op)} {to} rank {rank[partner[op]]}"
        yield Violation(int(rank[op]), -1, sentence, "add it")


def _too_early(program: Program, given: Exchange) -> Iterator[Violation]:
    """Sends before their op, receives behind the op that needs them."""
    computed = np.flatnonzero(given.act == Act.COMPUTE)  # by op: rows and ops run in the same order
    for act, sentence, remedy in (
        (Act.SEND, "sends the output of {} before it is made", "move it behind {}"),
        (Act.RECEIVE, "receives the input of {} after it was needed", "move it before {}"),
    ):
        rows = np.flatnonzero(given.act == act)
        wrong = (rows < computed[given.op[rows]]) == (act is Act.SEND)
        for row in rows[wrong][:_MOST].tolist():
            name = _name(program, int(given.op[row]))
            yield Violation(*_place(given, row), sentence.format(name), remedy.format(name))


def _crossed(program: Program, given: Exchange) -> Iterator[Violation]:
    """Receives that do not stand in the order of the sends on the way from one rank to another."""
    producer, consumer = transfers(program)
    maker = np.empty(len(program.schedule), np.int32)
    maker[consumer] = producer
    rank = given.rank_of()
    sent, received = np.flatnonzero(given.act == Act.SEND), np.flatnonzero(given.act == Act.RECEIVE)
    sent = sent[np.lexsort((sent, given.peer[sent], rank[sent]))]
    received = received[np.lexsort((received, rank[received], given.peer[received]))]
    differ = given.op[sent] != maker[given.op[received]]
    for there, here in zip(sent[differ][:_MOST].tolist(), received[differ][:_MOST].tolist(), strict=True):
        took, came = _name(program, int(maker[given.op[here]])), _name(program, int(given.op[there]))
        sentence = f"receives {took} when rank {rank[there]} sends {came}: they are matched first in, first out"
        yield Violation(*_place(given, here), sentence, "receive in the order of the sends")


def _place(given: Exchange, row: int) -> tuple[int, int]:
    rank = int(np.searchsorted(given.offsets, row, side="right")) - 1
    return rank, int(row - given.offsets[rank])


def _name(program: Program, op: int) -> str:
    return program.schedule.op(op).text(program.schedule.slices)
