"""A program: a schedule proved legal and laid out for one sweep; simulator and runner both eat it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .notebook_hook import Pictured
from .schedule import Schedule

NOTHING = -1


class Sends(Enum):
    """What a transfer takes up while it lasts; the first costs least, the last is what a bare send and receive do.

    With ``LINK`` and ``ASYNC`` an output leaves when its op ends (both ops, where a slot holds two).
    """

    ASYNC = "async"  # nothing: it delays the op that needs it
    LINK = "link"  # the way from one rank to another, one transfer at a time, in the order of the sender
    BLOCKING = "blocking"  # the sender, until everything has been handed over; the receiver has room for it
    RENDEZVOUS = "rendezvous"  # sender and receiver, from the moment at which both have come to it


@dataclass(frozen=True, slots=True, eq=False)
class Program(Pictured):
    """A schedule with its dependencies as integers, in an order in which they are all satisfied.

    Only ``lower`` makes one, so to hold a program is to hold a proof: every op is there once, where its stage
    lives, and no rank waits for ever. Ops are numbered as in the schedule, rank after rank; explicit transfers
    (which occupy a rank or a link) follow behind the last op. All columns below run in topological order,
    round after round; the rows of one round do not depend on each other.

    Args:
        schedule: what was lowered.
        order: number of the op or transfer in each row, int32[rows].
        rounds: first row of each round, int64[rounds + 1].
        before: numbers that occupy the same lane just before, int32[lanes, rows]; ``NOTHING`` where none does.
            The second line is the receiver's, of transfers that occupy two ranks.
        needs: numbers whose results must arrive first, int32[inputs, rows]; ``NOTHING`` where none.
        key: line of a table of costs for each row, ``kind x stages + stage``, int32[rows]; of a transfer that of
            its consumer, behind the lines of all ops.
        producer: op whose output each explicit transfer carries, int32[transfers].
        consumer: op that waits for it, int32[transfers].
        sends: what a transfer takes up.
    """

    schedule: Schedule
    order: NDArray[np.int32]
    rounds: NDArray[np.int64]
    before: NDArray[np.int32]
    needs: NDArray[np.int32]
    key: NDArray[np.int32]
    producer: NDArray[np.int32]
    consumer: NDArray[np.int32]
    sends: Sends = Sends.ASYNC

    def __post_init__(self) -> None:
        for column in (self.order, self.rounds, self.before, self.needs, self.key, self.producer, self.consumer):
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.order)

    @property
    def occupies_ranks(self) -> bool:
        """Whether transfers take up time of ranks."""
        return self.sends in (Sends.BLOCKING, Sends.RENDEZVOUS)

    def needs_by_op(self) -> NDArray[np.int32]:
        """What each op or transfer needs from elsewhere, in the schedule's numbering, int32[inputs, rows]."""
        by_op = np.empty_like(self.needs)
        by_op[:, self.order] = self.needs
        return by_op
