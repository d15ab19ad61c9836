"""Sends and receives: where they stand between the ops of each rank, so that no order of them can deadlock.

All ranks step together through the rounds of a program. What an op of round k makes is sent, and received on the
other side, right behind round k; transfers of one round stand in the order of their senders. Each rank's list is a
part of that one global order. Hence on every pair of ranks the sends of one side meet the receives of the other in
the same order (engines match first in, first out), and even sends that block until they are received make progress.

    rank 0   0F0  0SEND_F0             0F1  0SEND_F1   0RECV_B0             0B0
    rank 1             1RECV_F0  1F0        1B0  1SEND_B0   1RECV_F1 ..
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .program import Program


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


def exchange(program: Program) -> Exchange:
    """Place the transfers of a program between its ops."""
    schedule = program.schedule
    rank = schedule.rank_of()
    in_round = np.empty(len(schedule), np.int64)
    in_round[program.order] = np.repeat(np.arange(len(program.rounds) - 1), np.diff(program.rounds))
    producer, consumer = transfers(program)
    ops = np.arange(len(schedule), dtype=np.int32)
    act = np.repeat(np.array([Act.COMPUTE, Act.SEND, Act.RECEIVE], np.uint8), [len(ops), len(producer), len(consumer)])
    op = np.concatenate([ops, producer, consumer])
    when = np.concatenate([in_round, in_round[producer], in_round[producer]])
    sender = np.concatenate([rank, rank[producer], rank[producer]])
    peer = np.concatenate([np.full(len(ops), -1, np.int32), rank[consumer], rank[producer]])
    order = np.lexsort((op, sender, act != Act.COMPUTE, when, rank[op]))
    return Exchange(
        act=act[order],
        op=op[order],
        peer=peer[order],
        offsets=np.concatenate([[0], np.cumsum(np.bincount(rank[op], minlength=schedule.ranks))]),
    )


def transfers(program: Program) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every pair of ops on different ranks of which one needs what the other makes: producers and consumers."""
    needs = program.needs_by_op()[0, : len(program.schedule)]
    consumer = np.flatnonzero(needs >= 0).astype(np.int32)
    return needs[consumer], consumer
