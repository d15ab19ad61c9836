"""The loops that must run at memory speed: one sweep over a program, as plain Python, in NumPy or compiled by numba.

All compute the longest path in topological order, and all find the same integers:

    start = the latest end of what the row waits for (+ its lag);  end = start + duration

Row 0 is the start of the step, which ends at time 0. Durations and lags are looked up: ``table[key]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import Program

SMALL = 3_000  # rows; below, a loop over lists beats NumPy, whose every call costs a microsecond
LARGE = 8_000_000  # rows; above, importing numba (.5 s) and loading what it compiled (.3 s) is paid back

Times = NDArray[np.int64]
Keys = NDArray[np.int32]


@cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """A plain loop, compiled; kept on disk, so that only the first process ever compiles it.

    Raises:
        ImportError: the extra ``fast`` is not installed.
    """
    import numba  # half a second: only for programs that win it back

    made: Callable[..., Any] = numba.njit(cache=True, nogil=True)(loop)
    return made


def worth_compiling(rows: int) -> bool:
    """Whether a pass over so many rows is faster compiled, all included: always once this process has numba loaded."""
    return rows > SMALL and has_numba() and (rows > LARGE or compiled.cache_info().currsize > 0)


@cache
def has_numba() -> bool:
    """Whether the extra ``fast`` is installed."""
    return find_spec("numba") is not None


def as_list(column: NDArray[Any]) -> list[Any]:
    """A column as a list, which plain Python reads several times faster than an array."""
    found: list[Any] = column.tolist()
    return found


def sweep(program: Program, key: Keys, lag: Keys | None, table: Times) -> tuple[Times, Times]:
    """Start and end of each row, int64[rows] both, in the order of the program's rows.

    Args:
        program: the rows and what they wait for.
        key: line of the table with the duration of each row, int32[rows].
        lag: lines with what is added to the last lines of ``waits``, int32[lagged, rows]; None for nothing.
        table: nanoseconds, int64[lines].
    """
    rows = len(program.order)
    if rows <= SMALL:
        return _small(program.waits, key, lag, table)
    if worth_compiling(rows):
        start, end = np.empty(rows, np.int64), np.empty(rows, np.int64)
        lag = np.empty((0, rows), np.int32) if lag is None else lag
        compiled(_loop)(program.waits, key, lag, table, (start, end))
        return start, end
    return _large(program, key, lag, table)


def _loop(waits, key, lag, table, times):  # type: ignore[no-untyped-def]
    """One row after the other, for numba."""
    start, end = times
    free = waits.shape[0] - lag.shape[0]
    start[0] = end[0] = 0
    for row in range(1, key.size):
        begin = end[waits[0, row]] if free > 0 else np.int64(0)
        for line in range(1, free):
            begin = max(begin, end[waits[line, row]])
        for line in range(lag.shape[0]):
            begin = max(begin, end[waits[free + line, row]] + table[lag[line, row]])
        start[row] = begin
        end[row] = begin + table[key[row]]


def _small(waits: Keys, key: Keys, lag: Keys | None, table: Times) -> tuple[Times, Times]:
    """The same over lists, several lines at once."""
    columns = waits.tolist()
    lags = [] if lag is None else table[lag].tolist()
    free = columns[: len(columns) - len(lags)]
    lagged = list(zip(columns[len(free) :], lags, strict=True))
    end = [0] * len(key)
    start = end.copy()
    for row, spent in enumerate(table[key].tolist()):
        if not row:
            continue
        begin = 0
        for column in free:
            if (arrived := end[column[row]]) > begin:
                begin = arrived
        for column, late in lagged:
            if (arrived := end[column[row]] + late[row]) > begin:
                begin = arrived
        start[row] = begin
        end[row] = begin + spent
    return np.array(start, np.int64), np.array(end, np.int64)


def _large(program: Program, key: Keys, lag: Keys | None, table: Times) -> tuple[Times, Times]:
    """The same round by round."""
    waits, duration = program.waits, table.take(key)
    late = [] if lag is None else [table.take(line) for line in lag]
    free = len(waits) - len(late)
    lagged = list(zip(waits[free:], late, strict=True))
    start, end = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    for first, last in pairwise(program.rounds.tolist()):
        begin = start[first:last]
        if free:
            end.take(waits[0, first:last], out=begin, mode="clip")  # clip: the indices are right, and out needs no copy
        for line in waits[1:free]:
            np.maximum(begin, end.take(line[first:last]), out=begin)
        for line, delay in lagged:
            arrived = end.take(line[first:last])
            arrived += delay[first:last]
            np.maximum(begin, arrived, out=begin)
        np.add(begin, duration[first:last], out=end[first:last])
    return start, end
