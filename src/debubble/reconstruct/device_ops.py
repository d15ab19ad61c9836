"""What was measured on one device, as columns: ops and messages, and rows that belong together by what they hold.

Every reader of traces yields this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1  # of a step, peer, direction or anything else that a file does not say
UNTOLD = 255  # kind of an op whose direction its own file does not tell

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Retime = Callable[[Ints], Ints]  # from times of one clock to those of another


class Clock(Enum):
    """What the zero of a device's times is worth compared with the zero of another device."""

    SHARED = "shared"  # one clock for all devices, as far as their file says
    OWN = "own"  # unknown offset, the same in every step
    STEP = "step"  # unknown offset, another one in every step


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Sends and receives of one device, as columns in the order in which it posted them.

    A span holds waiting and transfer together.

    Args:
        step: int64[transfers], the step each belongs to; -1 if unknown.
        send: bool[transfers], True for a send.
        forward: int8[transfers], 1 for activations, 0 for gradients, -1 if unknown.
        peer: int32[transfers], global rank of the other side; -1 if unknown.
        start: int64[transfers], nanoseconds on the device's clock.
        end: int64[transfers], nanoseconds.
        group: int64[transfers], the communicator, a number that all of its members share; None if unknown.
        op: int64[transfers], row of the op that made what is sent, or that needs what is received; -1 if unknown;
            None if no transfer's is known.
        stream: int64[transfers], the stream of a transfer of which only its other side can tell whether it is a send
            (``send`` then means nothing), else -1; None if all are known.
    """

    step: Ints
    send: Mask
    forward: NDArray[np.int8]
    peer: NDArray[np.int32]
    start: Ints
    end: Ints
    group: Ints | None = None
    op: Ints | None = None
    stream: Ints | None = None

    def __len__(self) -> int:
        return len(self.step)

    def later(self, by: int) -> Transfers:
        """The same on a clock that is ahead by some nanoseconds."""
        return self.retimed(lambda times: times + by)

    def retimed(self, clock: Retime) -> Transfers:
        """The same with all times as another clock would show them."""
        return replace(self, start=clock(self.start), end=clock(self.end))

    def only(self, rows: Ints | Mask) -> Transfers:
        """Some of them; ``op`` stays as it is, because the ops do."""
        some: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            if column is not None:
                some[each.name] = column[rows]
        return Transfers(**some)


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """Collectives of one device, as columns in the order in which it posted them.

    Args:
        step: int64[collectives], -1 if unknown.
        members: int64[collectives], a number that stands for the ranks that take part; -1 if they are not named.
        size: int32[collectives], how many ranks take part.
        start: int64[collectives], nanoseconds on the device's clock.
        end: int64[collectives], nanoseconds.
    """

    step: Ints
    members: Ints
    size: NDArray[np.int32]
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.step)

    def retimed(self, clock: Retime) -> Collectives:
        """The same with all times as another clock would show them."""
        return replace(self, start=clock(self.start), end=clock(self.end))


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What a device held over time, as columns.

    Args:
        time: int64[samples], nanoseconds on the device's clock, ascending.
        held: int64[samples], bytes.
    """

    time: Ints
    held: Ints

    def retimed(self, clock: Retime) -> Memory:
        """The same with all times as another clock would show them."""
        return replace(self, time=clock(self.time))


@dataclass(frozen=True, slots=True, eq=False)
class RankOps:
    """F, I, W and B of one device over all its steps, as columns; rows stand in any order.

    What a file does not say is None here (or -1 in single rows), and is found out when devices are merged.

    Args:
        rank: number of the device in the job (global rank).
        source: the file it was read from, for messages.
        step: int64[ops], number of the step in its source; -1 if unknown.
        kind: uint8[ops], a ``Kind``; ``UNTOLD`` in every row if the file tells no direction.
        start: int64[ops], nanoseconds on the device's clock.
        end: int64[ops], nanoseconds.
        stage: int32[ops], stage of the whole model; None if only chunks, or not even they, are known.
        chunk: int32[ops], index of the stage among those of its rank; None if unknown.
        unit: int32[ops], micro-batch; None if only the order tells.
        counted: whether ``unit`` is no label, but the index of an op among those of its kind.
        steps_counted: whether ``step`` is no number of the run, but counted from where the file begins.
        position: the device's rank within its pipeline; None if unknown.
        replica: its data-parallel replica; None if unknown.
        clock: what its zero is worth.
        step_ns: length of each whole step, nanoseconds, with what lies outside the pipeline, by number of the step.
        transfers: sends and receives; None if the file has none.
        talks: whether it sends to or receives from other ranks, even if no transfer's times are known.
        collectives: None if the file has none.
        memory: None if the file has none.
        first_end: of untold ops, where the first of two ops would end, int64[ops]; -1 if nothing tells.
        second_start: likewise where the second of two would begin.
        untold: what the file lacks to tell directions, a clause; empty if it lacks nothing.
    """

    rank: int
    source: str
    step: Ints
    kind: NDArray[np.uint8]
    start: Ints
    end: Ints
    stage: NDArray[np.int32] | None = None
    chunk: NDArray[np.int32] | None = None
    unit: NDArray[np.int32] | None = None
    counted: bool = False
    steps_counted: bool = False
    position: int | None = None
    replica: int | None = None
    clock: Clock = Clock.SHARED
    step_ns: dict[int, int] = field(default_factory=dict)
    transfers: Transfers | None = None
    talks: bool = False
    collectives: Collectives | None = None
    memory: Memory | None = None
    first_end: Ints | None = None
    second_start: Ints | None = None
    untold: str = ""

    def __len__(self) -> int:
        return len(self.step)

    def only(self, keep: Mask) -> RankOps:
        """The device without some ops; transfers forget those that are gone."""
        kept: dict[str, Any] = {}
        for name in _OP_COLUMNS:
            column = getattr(self, name)
            if column is not None:
                kept[name] = column[keep]
        moves = self.transfers
        if moves is not None and moves.op is not None:
            # UNKNOWN is the index -1, so one element more at the end keeps unknown ops unknown.
            row = np.append(np.where(keep, np.cumsum(keep) - 1, UNKNOWN), UNKNOWN)
            moves = replace(moves, op=row[moves.op])
        return replace(self, **kept, transfers=moves)

    def later(self, by: int) -> RankOps:
        """The same on a clock that is ahead by some nanoseconds."""
        if not by:
            return self
        return self.retimed(lambda times: times + by)

    def retimed(self, clock: Retime) -> RankOps:
        """The same with all times as another clock would show them."""
        changed: dict[str, Any] = {"start": clock(self.start), "end": clock(self.end)}
        for name in ("first_end", "second_start"):
            cut = getattr(self, name)
            if cut is not None:
                changed[name] = np.where(cut == UNKNOWN, UNKNOWN, clock(cut))
        for name in ("transfers", "collectives", "memory"):
            held = getattr(self, name)
            if held is not None:
                changed[name] = held.retimed(clock)
        return replace(self, **changed)


# What RankOps holds one element an op of; the rest is of the device, or has rows of its own.
_OP_COLUMNS = ("step", "kind", "start", "end", "stage", "chunk", "unit", "first_end", "second_start")


def index_of(devices: Sequence[RankOps]) -> dict[int, int]:
    """The index of each device by its global rank."""
    return {device.rank: i for i, device in enumerate(devices)}


def of_each_op(devices: Sequence[RankOps], name: str) -> NDArray[Any]:
    """A column of all devices' ops, device after device; of no device, one of no element."""
    parts = [getattr(device, name) for device in devices]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What one file, or several, held.

    Args:
        source: the path that was given.
        devices: one entry a device.
        remarks: what was left out or repaired, and why, a sentence each.
        world: how many ranks the job has, as far as any file says it; None if none does.
        chunks: stages a rank, as far as a configuration beside the files says it.
    """

    source: str
    devices: tuple[RankOps, ...]
    remarks: tuple[str, ...] = ()
    world: int | None = None
    chunks: int | None = None


def group_of(*columns: NDArray[Any]) -> Ints:
    """A number for each row, from 0, int64[rows]: the same where all columns are, in the order of their values.

    Args:
        columns: of integers, one element a row; the first orders before the second.
    """
    # Sorting the columns one after the other is far cheaper than np.unique(axis=1), which compares whole rows.
    order = np.lexsort(columns[::-1])
    fresh = np.zeros(len(order), np.bool_)
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(fresh)
    return number


def place_within(group: NDArray[np.integer[Any]]) -> Ints:
    """How many rows of the same group come before each one, int64[rows]."""
    # Rows of a group lie together once sorted, so a row's place is how far it lies from where its group begins.
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    fresh = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(fresh, np.diff(fresh, append=len(group)))
    return place


def parted(rows: Ints, *columns: NDArray[Any]) -> list[Ints]:
    """Rows cut wherever a column changes from one to the next; an empty list of no rows.

    Args:
        rows: in an order in which those of a group lie together.
        columns: one element for each row of the whole table.
    """
    if not len(rows):
        return []
    changed = np.zeros(len(rows) - 1, np.bool_)
    for column in columns:
        changed |= column[rows[1:]] != column[rows[:-1]]
    return np.split(rows, np.flatnonzero(changed) + 1)
