"""The loops that must run at memory speed: one sweep over a program, in NumPy or, where installed, numba.

Both compute the longest path in topological order:

    start = max(end of what came before on the lane, end of each need + its delay);  end = start + duration

An index of -1 means nothing, which ends at time 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import Program

Times = tuple[NDArray[np.int64], NDArray[np.int64]]


def sweep(program: Program, duration: NDArray[np.int64], delay: NDArray[np.int64] | None) -> Times:
    """Start and end of each row, in the numbering of the schedule.

    Args:
        program: the rows and what they wait for.
        duration: int64[rows], topological order.
        delay: int64[inputs, rows], topological order, 0 where nothing is needed; None for no delay at all.
    """
    order, before, needs = program.order, program.before, program.needs
    start, end = np.empty(len(order), np.int64), np.empty(len(order) + 1, np.int64)
    end[-1] = 0  # what index -1 finds
    bounds = program.rounds.tolist()
    for first, last in pairwise(bounds):
        begin = end[before[0, first:last]]
        for lane in before[1:]:
            np.maximum(begin, end[lane[first:last]], out=begin)
        for line in range(len(needs)):
            arrival = end[needs[line, first:last]]
            if delay is not None:
                arrival += delay[line, first:last]
            np.maximum(begin, arrival, out=begin)
        at = order[first:last]
        start[at] = begin
        begin += duration[first:last]
        end[at] = begin
    return start, end[:-1]


def fast_sweep(program: Program, durations: NDArray[np.int64], transfers: NDArray[np.int64]) -> Times:
    """The same sweep by numba, for costs that do not differ between micro-batches.

    Args:
        program: rows without overlapped pairs.
        durations: nanoseconds for each line that ``program.key`` names, int64[lines].
        transfers: delay of the input, the same.

    Raises:
        ImportError: the extra ``fast`` is not installed.
    """
    start, end = np.empty(len(program), np.int64), np.empty(len(program), np.int64)
    rows = (program.order, program.before, program.needs, program.key)
    _compiled()(rows, (durations, transfers), (start, end))
    return start, end


@cache
def _compiled() -> Callable[..., Any]:
    import numba  # a second to import, several to compile the first time: only where asked for

    @numba.njit(cache=True)
    def loop(rows, costs, times):  # type: ignore[no-untyped-def]
        (order, before, needs, key), (durations, transfers), (start, end) = rows, costs, times
        for row in range(order.size):
            begin = np.int64(0)
            for line in range(before.shape[0]):
                previous = before[line, row]
                if previous >= 0:
                    begin = max(begin, end[previous])
            for line in range(needs.shape[0]):
                need = needs[line, row]
                if need >= 0:
                    begin = max(begin, end[need] + transfers[key[row]])
            start[order[row]] = begin
            end[order[row]] = begin + durations[key[row]]

    return loop
