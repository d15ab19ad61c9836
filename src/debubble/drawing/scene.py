"""A scene: a timeline as boxes on rows, or, where boxes would be too narrow, as exact shares of each column.

A chart library blends boxes that are narrower than a pixel, and the idle gap and the slow rank vanish in the blend.
Shares are exact: a column of which 1 % is idle is not full.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.program import Timeline, one_by_one
from ..core.schedule import KINDS, Schedule

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The ops of a timeline as boxes, rank after rank, in the order and numbering of its schedule.

    Boxes of a rank do not overlap: an op that was measured to start before the one before had ended begins at that
    end, and the two ops of an overlapped pair take half of their slot each.

    Args:
        schedule: whose ops they are.
        start: int64[ops], nanoseconds from the start of the window.
        end: int64[ops].
        window: length of the window, nanoseconds.
        evidence: of the timeline.
    """

    schedule: Schedule
    start: Times
    end: Times
    window: int
    evidence: str

    def busy(self) -> NDArray[np.float64]:
        """The share of the window that each rank works, float64[ranks]."""
        worked = np.concatenate([[0], np.cumsum(self.end - self.start)])
        return np.diff(worked[self.schedule.offsets]) / max(self.window, 1)


def scene(timeline: Timeline) -> Scene:
    """Lay the ops of a timeline out as boxes."""
    schedule = timeline.program.schedule
    start, end = one_by_one(timeline)
    if schedule.joined is not None:
        # Both ops of a pair run all the time of their slot: half of it each is a drawing, not a measurement.
        second = np.flatnonzero(schedule.joined)
        middle = (start[second - 1] + end[second]) // 2
        end[second - 1] = start[second] = middle
    return Scene(schedule, start, end, timeline.makespan, timeline.evidence)


def shares(scene: Scene, columns: int) -> NDArray[np.float64]:
    """How much of each column each kind of op fills, float64[ranks, columns, kinds]; what is left is idle."""
    schedule = scene.schedule
    # Whole nanoseconds, so that columns tile the window and their shares sum to the time of each kind exactly.
    edges = np.array([column * scene.window // columns for column in range(columns + 1)], np.int64)
    filled = np.zeros((schedule.ranks, columns, KINDS))
    present = np.unique(schedule.kind).tolist()
    for rank, (first, last) in enumerate(pairwise(schedule.offsets.tolist())):
        mine = slice(first, last)
        for kind in present:
            which = schedule.kind[mine] == kind
            until = _filled_until(scene.start[mine][which], scene.end[mine][which], edges)
            filled[rank, :, kind] = np.diff(until)
    return filled / np.maximum(np.diff(edges), 1)[None, :, None]


def _filled_until(start: Times, end: Times, edges: Times) -> Times:
    """Time that boxes, in order and without overlap, fill before each edge."""
    if not start.size:
        return np.zeros_like(edges)
    # A search for each edge instead of a look at each box: a million ops cost as much as a thousand columns.
    before = np.concatenate([[0], np.cumsum(end - start)])
    whole = np.searchsorted(end, edges, side="right")  # boxes that end by then
    running = np.minimum(whole, len(start) - 1)
    part = np.where(whole < len(start), np.clip(edges - start[running], 0, None), 0)
    return before[whole] + part


def chunk_of_stage(schedule: Schedule) -> NDArray[np.int64]:
    """Which of its rank's stages each stage is, from 0, int64[copies, stages]."""
    chunk = np.zeros(schedule.placement.shape, np.int64)
    for copy, home in enumerate(schedule.placement):
        order = np.argsort(home, kind="stable")
        opens = np.searchsorted(home[order], home[order], side="left")
        chunk[copy, order] = np.arange(len(home)) - opens
    return chunk
