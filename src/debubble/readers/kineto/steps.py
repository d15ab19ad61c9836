"""Steps of one file: from ``ProfilerStep#N`` ranges, else from the ends of optimizer steps, else unknown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import UNKNOWN
from .names import Role, step_of
from .pieces import marks
from .posts import posts_of
from .tables import Ints, Tables

_FAR = 1 << 61


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Spans of steps on the CPU, in order; none where the file marks none.

    Args:
        number: int64[steps].
        start: int64[steps], nanoseconds.
        end: int64[steps], nanoseconds.
        whole: bool[steps], whether both ends are marked, so that the span is the length of the step.
    """

    number: Ints
    start: Ints
    end: Ints
    whole: NDArray[np.bool_]

    def of(self, moment: Ints) -> Ints:
        """The number of the step around each moment; -1 outside of all."""
        if not len(self.number):
            return np.full(len(moment), UNKNOWN, np.int64)
        at = np.searchsorted(self.start, moment, side="right") - 1
        inside = (at >= 0) & (moment <= self.end[np.maximum(at, 0)])
        return np.where(inside, self.number[np.maximum(at, 0)], UNKNOWN)

    def lengths(self) -> dict[int, int]:
        """Nanoseconds of each whole step by its number."""
        rows = np.flatnonzero(self.whole)
        return {int(self.number[row]): int(self.end[row] - self.start[row]) for row in rows}


def steps_of(tables: Tables) -> Steps:
    """The steps that a file marks."""
    word, start, end = marks(tables, Role.STEP)
    if len(word):
        number = np.array([step_of(tables.names[w]) for w in word.tolist()], np.int64)
        return Steps(number, start, end, np.ones(len(word), np.bool_))
    _, begun, done = marks(tables, Role.OPTIMIZER)
    busy = np.sort(np.concatenate([marks(tables, Role.LABEL)[1], posts_of(tables)]))
    between = np.diff(np.searchsorted(busy, begun), prepend=0) > 0
    done = done[between]  # a second optimizer right behind the first ends no further step
    if not len(done):
        none = np.empty(0, np.int64)
        return Steps(none, none, none, none.astype(np.bool_))
    bounds = np.concatenate([[-_FAR], done, [_FAR]])
    whole = np.ones(len(bounds) - 1, np.bool_)
    whole[[0, -1]] = False
    return Steps(np.arange(len(whole)), bounds[:-1] + 1, bounds[1:], whole)
