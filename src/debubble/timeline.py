"""A timeline: when each op of a program started and ended, simulated or measured alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .picture import Pictured
from .program import Program


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
