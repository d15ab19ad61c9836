"""Many costs, one program: the windows of all of them in a single sweep, a column each."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.program import Program
from ..core.simulate import simulate

LARGEST = 200_000_000  # bytes that ends of ops may take at once


def windows(program: Program, durations: NDArray[np.int64], transfers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of the pipeline window under each set of costs, as ``simulate`` would give it.

    Args:
        program: sends that wait for nobody, so each of its rows is an op.
        durations: nanoseconds, int64[sets, kinds, stages].
        transfers: delay of the input of an op from another rank, nanoseconds, of the same shape.

    Returns:
        nanoseconds, int64[sets].
    """
    if program.schedule.joined is not None:  # overlapped pairs last as long as both: one by one
        return np.array([_alone(program, *costs) for costs in zip(durations, transfers, strict=True)], np.int64)
    sets = len(durations)
    width = max(1, LARGEST // (8 * (len(program) + 1)))
    parts = [slice(start, start + width) for start in range(0, sets, width)]
    return np.concatenate([_sweep(program, durations[part], transfers[part]) for part in parts])


def _alone(program: Program, durations: NDArray[np.int64], transfers: NDArray[np.int64]) -> int:
    return simulate(program, Costs(durations[:, :, None], transfers[:, :, None], "estimated")).makespan


def _sweep(program: Program, durations: NDArray[np.int64], transfers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Longest paths in topological order; number -1 means nothing, which ends at time 0."""
    sets = len(durations)
    spent = np.ascontiguousarray(durations.reshape(sets, -1).T)
    delay = np.ascontiguousarray(transfers.reshape(sets, -1).T)
    end = np.empty((len(program) + 1, sets), np.int64)
    end[-1] = 0
    order, before, need, key = program.order, program.before[0], program.needs[0], program.key
    needed = need >= 0
    for first, last in pairwise(program.rounds.tolist()):
        rows = slice(first, last)
        arrival = end[need[rows]] + delay[key[rows]] * needed[rows, None]
        begin = np.maximum(end[before[rows]], arrival, out=arrival)
        begin += spent[key[rows]]
        end[order[rows]] = begin
    found: NDArray[np.int64] = end[:-1].max(axis=0)
    return found
