"""What was measured on one device, as columns: every reader of traces yields this, and ``ranks`` merges it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1  # of a step, peer or direction that nothing tells


class Clock(Enum):
    """What the zero of a device's times is worth beside the zero of another device."""

    SHARED = "shared"  # one clock for all devices, as far as their file says
    OWN = "own"  # unknown offset, the same in every step
    STEP = "step"  # unknown offset, another one in every step


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Sends and receives of one device, as columns; a span holds waiting and transfer together.

    Args:
        step: int64[transfers], the step each belongs to; -1 where it is not known.
        send: bool[transfers], True for a send.
        forward: int8[transfers], 1 for activations, 0 for gradients, -1 where it is not known.
        peer: int32[transfers], global rank of the other side; -1 where it is not known.
        start: int64[transfers], nanoseconds on the device's clock.
        end: int64[transfers], nanoseconds.
    """

    step: NDArray[np.int64]
    send: NDArray[np.bool_]
    forward: NDArray[np.int8]
    peer: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.step)

    def later(self, by: int) -> Transfers:
        """The same on a clock that is ahead by some nanoseconds."""
        return replace(self, start=self.start + by, end=self.end + by)


@dataclass(frozen=True, slots=True, eq=False)
class RankOps:
    """F, I, W and B of one device over all its steps, as columns; rows stand in any order.

    What a file does not say is None here (or -1 in single rows), and is found out when devices are merged.

    Args:
        rank: number of the device in the job (global rank).
        source: the file it was read from, for messages.
        step: int64[ops], number of the step in its source.
        kind: uint8[ops], a ``Kind``.
        start: int64[ops], nanoseconds on the device's clock.
        end: int64[ops], nanoseconds.
        stage: int32[ops], stage of the whole model; None where only chunks, or not even they, are known.
        chunk: int32[ops], the how-manieth stage of its rank; None where unknown.
        unit: int32[ops], micro-batch; None where only the order tells.
        position: the device's rank within its pipeline; None where unknown.
        replica: its data-parallel replica; None where unknown.
        clock: what its zero is worth.
        step_ns: length of each whole step, nanoseconds, with what lies outside the pipeline, by number of the step.
        transfers: sends and receives; None where the file has none.
        talks: whether it sends to or receives from other ranks, even where no transfer's times are known.
    """

    rank: int
    source: str
    step: NDArray[np.int64]
    kind: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    stage: NDArray[np.int32] | None = None
    chunk: NDArray[np.int32] | None = None
    unit: NDArray[np.int32] | None = None
    position: int | None = None
    replica: int | None = None
    clock: Clock = Clock.SHARED
    step_ns: dict[int, int] = field(default_factory=dict)
    transfers: Transfers | None = None
    talks: bool = False

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, eq=False)
class Undirected:
    """Runs of work of one device whose directions nothing of its own tells, in the order of their launch.

    Args:
        step: of each run, int64[runs].
        start: int64[runs], nanoseconds, as all times.
        end: int64[runs].
        first_end: where the first of two ops would end, int64[runs]; -1 where nothing tells.
        second_start: where the second of two would begin, int64[runs]; likewise.
        transfers: of the device, their directions unknown.
        run: the run that each transfer belongs to, int64[transfers]; -1 where there is none.
        lengths: nanoseconds of each whole step by its number.
    """

    step: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    first_end: NDArray[np.int64]
    second_start: NDArray[np.int64]
    transfers: Transfers
    run: NDArray[np.int64]
    lengths: dict[int, int]

    def __len__(self) -> int:
        return len(self.step)

    def side(self, send: bool) -> NDArray[np.bool_]:
        """Whether each run has a send behind it, or a receive before it, bool[runs]."""
        found = np.zeros(len(self), np.bool_)
        found[self.run[(self.run >= 0) & (self.transfers.send == send)]] = True
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Bare:
    """One rank whose work has no direction before it is merged: only the transfers of the other ranks can tell.

    Args:
        rank: number of the rank in the job.
        source: its file.
        runs: its work, on the common clock.
        replica: by the process groups of its header; None where it does not say.
        why: what its file lacks, a clause.
        doubt: why its transfers cannot be told apart either, a clause; empty where they can.
    """

    rank: int
    source: str
    runs: Undirected
    replica: int | None = None
    why: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What one file, or several, held.

    Args:
        source: the path that was given.
        devices: one entry a device.
        remarks: what was left out or repaired, and why, a sentence each.
        bare: devices whose directions the others must tell.
        world: how many ranks the job has, as far as any file says it; None where none does.
    """

    source: str
    devices: tuple[RankOps, ...]
    remarks: tuple[str, ...] = ()
    bare: tuple[Bare, ...] = ()
    world: int | None = None
