"""A timeline: when each op of a program started and ended, simulated or measured alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .program import Program
from .results import Pictured


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
