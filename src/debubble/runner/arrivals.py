"""Stamps: when each output was made, in memory that the processes of one host share, so that arrivals can be timed.

A hop of D delays an arrival: an input is there at (end of the op that made it) + D, however early the receiver asks
and however late. The receiver therefore has to know when the output was made. Messages carry tensors only; so the
sender notes the moment here just before it posts the send, and the receiver, who finds the note in place once the
message has come, sleeps until that moment + D. All processes of a host share one monotonic clock, and so does this
file; between hosts neither is shared, and a hop is refused there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FORWARD, GRADIENT = 0, 1


class Stamps:
    """Moments of all ranks, int64[replicas, 2, stages, micro-batches], nanoseconds.

    Args:
        path: a file that all processes of the run open; whoever made it may delete it once all have.
        replica: whose moments are read and written.
        shape: stages and micro-batches.
    """

    def __init__(self, path: Path, replica: int, shape: tuple[int, int]) -> None:
        stages, units = shape
        size = 2 * stages * units * 8
        table = np.memmap(path, np.int64, "r+", offset=replica * size, shape=(2, stages, units))
        self._table: NDArray[np.int64] = table

    def note(self, line: int, stage: int, unit: int, moment: int) -> None:
        """Say when the output of this stage was made."""
        self._table[line, stage, unit] = moment

    def read(self, line: int, stage: int, unit: int) -> int:
        """When the output of this stage was made."""
        return int(self._table[line, stage, unit])


def make_file(path: Path, replicas: int, shape: tuple[int, int]) -> None:
    """Lay out an empty table for ``Stamps``."""
    path.write_bytes(bytes(replicas * 2 * shape[0] * shape[1] * 8))
