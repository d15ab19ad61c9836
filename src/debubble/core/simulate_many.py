"""Many costs, one program: the windows of all of them in one sweep, some dozens of columns side by side.

Columns of one row lie next to each other, so that each row is a few vector instructions, in NumPy as in numba; a tile
of columns is small enough that what rows wait for is still in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .kernels import compiled, has_numba
from .program import Lines, Program
from .simulate import keys, table, units_of

Times = NDArray[np.int64]
Keys = NDArray[np.int32]

_TILE = 64  # columns that numba takes at once
_BYTES = 200_000_000  # that ends of rows may take at once in NumPy
_WORTH = 30_000_000  # rows x columns from which on numba is faster, its start-up included


def simulate_many(program: Program, costs: Sequence[Costs]) -> Times:
    """Length of the window under each of many costs, as ``simulate`` finds it for one.

    Args:
        program: what to run, and how it communicates.
        costs: how long it takes; every one of the same stages.

    Returns:
        nanoseconds, int64[costs].

    Raises:
        ValueError: as ``simulate``.
    """
    if not costs:
        return np.empty(0, np.int64)
    units = units_of(*costs)
    key, lag = keys(program, units)
    tables = np.stack([table(program, each, units) for each in costs], axis=1)
    lines = Lines(program.schedule.stages)
    late = tables[lines.sender * units : lines.nothing * units].any()
    lag = lag if late else lag[:0]
    rows = len(key)
    if has_numba() and rows * len(costs) > _WORTH:
        return _by_tiles(program, key, lag, tables)
    width = max(1, _BYTES // (8 * rows))
    parts = [tables[:, first : first + width] for first in range(0, len(costs), width)]
    return np.concatenate([_by_rounds(program, key, lag, np.ascontiguousarray(part)) for part in parts])


def _is_op(program: Program) -> NDArray[np.bool_]:
    return (program.order >= 0) & (program.order < len(program.schedule))


def _by_rounds(program: Program, key: Keys, lag: Keys, tables: Times) -> Times:
    """Round by round, all columns at once."""
    free = len(program.waits) - len(lag)
    end = np.zeros((len(key), tables.shape[1]), np.int64)
    for first, last in pairwise(program.rounds.tolist()):
        begin = end[program.waits[0, first:last]] if free else np.zeros((last - first, tables.shape[1]), np.int64)
        for line in program.waits[1:free]:
            np.maximum(begin, end[line[first:last]], out=begin)
        for line, late in zip(program.waits[free:], lag, strict=True):
            np.maximum(begin, end[line[first:last]] + tables[late[first:last]], out=begin)
        np.add(begin, tables[key[first:last]], out=end[first:last])
    found: Times = end[_is_op(program)].max(axis=0, initial=0)
    return found


def _by_tiles(program: Program, key: Keys, lag: Keys, tables: Times) -> Times:
    """Compiled, tile by tile, on all cores."""
    loop, op = compiled(_loop), _is_op(program)
    tiles = [np.ascontiguousarray(tables[:, at : at + _TILE]) for at in range(0, tables.shape[1], _TILE)]

    def swept(tile: Times) -> Times:
        latest = np.zeros(tile.shape[1], np.int64)
        loop(program.waits, key, lag, tile, (op, np.zeros((len(key), tile.shape[1]), np.int64), latest))
        return latest

    first = swept(tiles[0])  # compiles, once
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate([first, *pool.map(swept, tiles[1:])])


def _loop(waits, key, lag, table, state):  # type: ignore[no-untyped-def]
    """One row after the other, all columns of a tile at once, for numba."""
    op, end, latest = state
    free = waits.shape[0] - lag.shape[0]
    for row in range(1, key.size):
        mine = end[row]
        for line in range(free):
            other = end[waits[line, row]]
            for column in range(mine.size):
                mine[column] = max(mine[column], other[column])
        for line in range(lag.shape[0]):
            other, late = end[waits[free + line, row]], table[lag[line, row]]
            for column in range(mine.size):
                mine[column] = max(mine[column], other[column] + late[column])
        spent = table[key[row]]
        for column in range(mine.size):
            mine[column] += spent[column]
        if op[row]:
            for column in range(mine.size):
                latest[column] = max(latest[column], mine[column])
