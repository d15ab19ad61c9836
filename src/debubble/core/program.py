"""A program: a schedule under its engine, laid out for one sweep; and a timeline: when each of its ops ran."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .engine import Engine
from .results import Pictured
from .schedule import KINDS, Schedule


@dataclass(frozen=True, slots=True)
class Lines:
    """Where each kind of duration lies in the table that ``simulate`` builds; within each, ``kind x stages + stage``.

    Args:
        stages: of the schedule.
    """

    stages: int

    @property
    def size(self) -> int:
        """Lines of one kind of duration: ops come first."""
        return KINDS * self.stages

    @property
    def wire(self) -> int:
        """Transfers, by their consumer."""
        return self.size

    @property
    def sender(self) -> int:
        """What a transfer takes up of its sender before it begins, by its consumer."""
        return 2 * self.size

    @property
    def arrival(self) -> int:
        """How long after a transfer, or after its producer where transfers have no rows, the consumer has it."""
        return 3 * self.size

    @property
    def nothing(self) -> int:
        """One line of zero; behind it a line for each overlapped pair."""
        return 4 * self.size


@dataclass(frozen=True, slots=True, eq=False)
class Program(Pictured):
    """A schedule under an engine, with its dependencies as integers, in an order in which they are all satisfied.

    Only ``lower`` makes one, so to hold a program is to hold a proof: every op is there once, where its stage lives,
    and no rank waits for ever, computing or communicating. Rows run in topological order, round after round; the rows
    of one round do not depend on each other, and each row waits for rows with lower numbers only. Row 0 is the start of
    the step, which ends at time 0. A *stop* is a moment at which a rank waits for transfers before it posts another.

    Args:
        schedule: what was lowered.
        engine: how it communicates.
        order: what stands in each row, int32[rows]: an op by its number in the schedule (of an overlapped pair the
            first op stands for both), a transfer by its number + ops, a stop by its number + ops + transfers, in row 0
            ``NOTHING``.
        row: where each op (both of a pair in one) and each transfer stands, int32[ops + transfers].
        rounds: first row of each round, int64[rounds + 1]; the first round begins at row 1.
        waits: rows that must have ended before each row starts, int32[width, rows]; 0, the start, where nothing.
        key: line of the table of durations for each row, int32[rows]; see ``Lines``.
        lag: line of the same table that is added to the end of what the last lines of ``waits`` name,
            int32[lagged, rows].
        producer: op whose output each transfer carries, int32[transfers]; empty where transfers have no rows.
        consumer: op that needs it, int32[transfers].
        holds: op that its sender, and op that its receiver, cannot start before each transfer has ended,
            int32[2, transfers]; ``NOTHING`` where there is none.
        launches: transfer that each stop launches on the sender's side, int32[stops]; ``NOTHING`` where it only waits.
        occupied: whether transfers take up time of their senders, as costs with ``sender`` say.
    """

    schedule: Schedule
    engine: Engine
    order: NDArray[np.int32]
    row: NDArray[np.int32]
    rounds: NDArray[np.int64]
    waits: NDArray[np.int32]
    key: NDArray[np.int32]
    lag: NDArray[np.int32]
    producer: NDArray[np.int32]
    consumer: NDArray[np.int32]
    holds: NDArray[np.int32]
    launches: NDArray[np.int32]
    occupied: bool = False

    def __post_init__(self) -> None:
        columns = (self.order, self.row, self.rounds, self.waits, self.key, self.lag)
        for column in (*columns, self.producer, self.consumer, self.holds, self.launches):
            column.flags.writeable = False

    def __len__(self) -> int:
        """Ops and transfers: what a timeline of this program has times for."""
        return len(self.schedule) + len(self.producer)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline(Pictured):
    """Start and end of every op (and explicit transfer) of a program, in the schedule's numbering.

    Args:
        program: what ran.
        start: int64[rows], nanoseconds on one clock for all ranks.
        end: int64[rows], nanoseconds.
        evidence: ``simulated`` or ``measured``.
    """

    program: Program
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    evidence: str

    def __post_init__(self) -> None:
        self.start.flags.writeable = False
        self.end.flags.writeable = False

    @property
    def window(self) -> tuple[int, int]:
        """From the first op's start to the last op's end, in nanoseconds."""
        ops = len(self.program.schedule)
        return int(self.start[:ops].min()), int(self.end[:ops].max())

    @property
    def makespan(self) -> int:
        """Length of the window in nanoseconds."""
        first, last = self.window
        return last - first


def one_by_one(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end of each op of the schedule from the start of the window, so that pictures have no overlap.

    An op that was measured to start before the op before it on its rank had ended begins at that end; so does the
    second op of an overlapped pair, which the caller places.

    Returns:
        int64[ops] both, nanoseconds; arrays of the caller's own.
    """
    schedule, begin = timeline.program.schedule, timeline.window[0]
    start, end = (times[: len(schedule)] - begin for times in (timeline.start, timeline.end))
    for first, last in pairwise(schedule.offsets.tolist()):
        if first < last:  # a file may leave a rank without ops
            np.maximum.accumulate(end[first:last], out=end[first:last])
            np.maximum(start[first + 1 : last], end[first : last - 1], out=start[first + 1 : last])
    return start, end
