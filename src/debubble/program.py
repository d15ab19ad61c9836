"""A program: a schedule proved legal and laid out for one sweep; simulator and runner both eat it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A schedule with its dependencies as integers, in an order in which they are all satisfied.

    Only ``lower`` makes one, so to hold a program is to hold a proof: every op is there once, where its stage
    lives, and no rank waits for ever. Ops are numbered as in the schedule, rank after rank; explicit transfers
    (sends that occupy a rank or a link) follow behind the last op. All columns below run in topological order,
    round after round; the rows of one round do not depend on each other.

    Args:
        schedule: what was lowered.
        order: number of the op or transfer in each row, int32[rows].
        rounds: first row of each round, int64[rounds + 1].
        before: numbers that occupy the same lane just before, int32[lanes, rows]; ``NOTHING`` where none does.
        needs: numbers on other lanes whose results must arrive first, int32[inputs, rows]; ``NOTHING`` where none.
        key: line of a table of costs for each row, ``kind x stages + stage``, int32[rows].
        producer: op whose output each transfer carries, int32[transfers].
        consumer: op that waits for it, int32[transfers].
    """

    schedule: Schedule
    order: NDArray[np.int32]
    rounds: NDArray[np.int64]
    before: NDArray[np.int32]
    needs: NDArray[np.int32]
    key: NDArray[np.int32]
    producer: NDArray[np.int32]
    consumer: NDArray[np.int32]

    def __post_init__(self) -> None:
        for column in (self.order, self.rounds, self.before, self.needs, self.key, self.producer, self.consumer):
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.order)

    def needs_by_op(self) -> NDArray[np.int32]:
        """What each op or transfer needs from another lane, in the schedule's numbering, int32[inputs, rows]."""
        by_op = np.empty_like(self.needs)
        by_op[:, self.order] = self.needs
        return by_op


NOTHING = -1
