"""Simulation: a program and its costs become a timeline by one longest-path sweep; many costs, their makespans by one.

With many costs, those of one row lie next to each other, so that each row is a few vector instructions, in NumPy as in
numba; a tile of columns is small enough that what rows wait for is still in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .engine import IDEAL, LINK, Occupies
from .kernels import compiled, has_numba, sweep
from .program import Lines, Program, Timeline

Times = NDArray[np.int64]
Keys = NDArray[np.int32]

_TILE = 64  # columns that numba takes at once
_BYTES = 200_000_000  # that ends of rows may take at once in NumPy
_WORTH = 30_000_000  # rows x columns from which on numba is faster, its start-up included


def simulate(program: Program, costs: Costs) -> Timeline:
    """When each op and transfer starts and ends if every rank does what comes next as soon as it can.

    A transfer starts when both sides have come to it and its lane is free.

    Args:
        program: what to run, and how it communicates.
        costs: how long it takes.

    Returns:
        A timeline that begins at 0, in whole nanoseconds; evidence ``simulated``.

    Raises:
        ValueError: sends take up time of their ranks by these costs, and the program was lowered without that.
    """
    start, end = sweep(program.waits, program.rounds, *_cells(program, costs))
    if program.occupied:  # rows start when the sender is taken up; people see when the transfer does
        _from_both_sides(program, start, end)
    start, end = _by_number(program, start, end)
    return Timeline(program, start, end, "simulated")


def makespan(program: Program, costs: Costs) -> int:
    """The end of the last op, as ``simulate`` would find it, in nanoseconds; spares the timeline."""
    start, end = sweep(program.waits, program.rounds, *_cells(program, costs))
    ops = program.order < len(program.schedule)
    ops[0] = False
    return int(end[ops].max(initial=0) - start[ops].min(initial=0))


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
    if not tables[lines.sender * units : lines.nothing * units].any():  # no hop takes time, so no lag is looked up
        lag = lag[:0]
    rows = len(key)
    if has_numba() and rows * len(costs) > _WORTH:
        return _by_tiles(program, key, lag, tables)
    width = max(1, _BYTES // (8 * rows))
    parts = [tables[:, first : first + width] for first in range(0, len(costs), width)]
    return np.concatenate([_by_rounds(program, key, lag, np.ascontiguousarray(part)) for part in parts])


def run(program: Program, duration: Times, lag: Times) -> tuple[Times, Times]:
    """Start and end of each op of an ``ideal`` program with a duration and a lag of its own, int64[ops] both.

    Args:
        program: of the engine ``ideal``.
        duration: of each op (of a pair, of its first), int64[ops].
        lag: between the end of an op's input and its start, int64[ops]; may be negative.
    """
    ops, op = len(program.schedule), np.maximum(program.order, 0)
    late = [
        np.where(line > 0, op + np.int32(side + ops), np.int32(2 * ops)) for side, line in enumerate(program.waits[1:])
    ]
    spent = np.concatenate([duration, lag, np.zeros(1, np.int64)])
    start, end = sweep(program.waits, program.rounds, op, np.stack(late), spent)
    start, end = _by_number(program, start, end)
    return start, end


def durations(program: Program, costs: Costs) -> Times:
    """How long each op of a program takes, int64[ops]; both ops of an overlapped pair take what the pair takes."""
    key, _, cells = _cells(program, costs)
    spent = np.zeros(len(program), np.int64)
    rows = np.flatnonzero((program.order >= 0) & (program.order < len(program)))
    spent[program.order[rows]] = cells[key[rows]]
    return _paired(program, spent)[: len(program.schedule)]


def _cells(program: Program, costs: Costs) -> tuple[Keys, Keys | None, Times]:
    """Cell of each row and of each lag, and the table; None for lags that are all zero."""
    units = units_of(costs)
    cells = table(program, costs, units)
    key, lag = keys(program, units)
    lines = Lines(program.schedule.stages)
    if not len(lag) or not cells[lines.sender * units : lines.nothing * units].any():
        return key, None, cells
    return key, lag, cells


def units_of(*every: Costs) -> int:
    """How many cells a line of the table needs: one, or one for each unit where any of the costs differ by unit."""
    return max(int(part.shape[2]) for costs in every for part in (costs.durations, costs.transfers))


def table(program: Program, costs: Costs, units: int) -> Times:
    """Nanoseconds of each line of ``Lines``, in as many cells as there are units, int64[cells].

    A hop takes ``sender + transfers + occupancy``. Which line holds which part of it:

        ideal                   arrival: all
        link                    wire: occupancy                   arrival: sender + transfers
        blocking, rendezvous    wire: all
        others                  wire: transfers + occupancy       sender: sender

    Raises:
        ValueError: as ``simulate``.
    """
    hop, sender, none = costs.hops(), costs.sender_side(), np.zeros((1, 1, 1), np.int64)
    wire, late, arrival = hop, sender, none
    if program.engine == IDEAL:
        wire, late, arrival = none, none, sender + hop
    elif program.engine == LINK:
        wire, late, arrival = hop - costs.transfers, none, sender + costs.transfers
    elif program.engine.occupies is not Occupies.NOBODY:
        wire, late = sender + hop, none
    if late.any() and len(program.producer) and not program.occupied:
        raise ValueError("sends take up time of their ranks: lower the schedule with occupied=True")
    shape = (*costs.durations.shape[:2], units)
    parts = (np.broadcast_to(part, shape).ravel() for part in (costs.durations, wire, late, arrival))
    return np.concatenate([*parts, np.zeros(1, np.int64), _pairs(program, costs)])


def keys(program: Program, units: int) -> tuple[Keys, Keys]:
    """The cell of each row, int32[rows], and of each lag, int32[lagged, rows], for a number of units."""
    if units == 1:
        return program.key, program.lag
    unit = program.schedule.unit
    key = _spread(program, program.key, unit[_subjects(program)], units)
    late = np.empty_like(program.lag)
    for at, line in enumerate(program.lag):
        late[at] = _spread(program, line, unit[_late(program, at)], units)
    return key, late


def _spread(program: Program, key: Keys, unit: Keys, units: int) -> Keys:
    """The cell of a line and a unit; lines from ``nothing`` on have one cell."""
    nothing = Lines(program.schedule.stages).nothing
    return np.where(key < nothing, key * units + unit, key + nothing * (units - 1)).astype(np.int32)


def _subjects(program: Program) -> Keys:
    """The op whose unit each row is of: itself, or the one that a transfer is for, int32[rows]."""
    ops = len(program.schedule)
    launched = np.append(program.consumer, 0)[program.launches]  # -1, a stop that only waits, finds the 0
    launched[program.launches < 0] = 0
    subject = np.concatenate([np.arange(ops), program.consumer, launched, [0]])
    return subject[program.order].astype(np.int32)  # -1, the start, finds the last


def _late(program: Program, line: int) -> Keys:
    """The op whose unit a line of lags is of, int32[rows]."""
    subject = _subjects(program)
    if program.occupied or not len(program.lag):
        return subject
    if len(program.producer):  # of the transfer that is waited for
        waited: Keys = subject[program.waits[len(program.waits) - len(program.lag) + line]]
        return waited
    return np.minimum(subject + line, len(program.schedule) - 1).astype(np.int32)  # line 1: the second op of a pair


def _pairs(program: Program, costs: Costs) -> Times:
    """How long each overlapped pair takes, int64[pairs], rounded half to even."""
    schedule = program.schedule
    if schedule.joined is None:
        return np.empty(0, np.int64)
    second = np.flatnonzero(schedule.joined)
    if isinstance(costs.pair_scale, float | int):  # one factor of the sum, as a page has it
        both = sum(_duration(program, costs, op) for op in (second - 1, second))
        return np.rint(both * costs.pair_scale).astype(np.int64)
    scale = costs.pair_scales()[schedule.kind, schedule.stage]
    together = sum(_duration(program, costs, op) * scale[op] for op in (second - 1, second))
    return np.rint(together).astype(np.int64)


def _duration(program: Program, costs: Costs, op: NDArray[np.int64]) -> Times:
    schedule = program.schedule
    unit: Keys | int = 0
    if costs.durations.shape[2] > 1:
        unit = schedule.unit[op]
    spent: Times = costs.durations[schedule.kind[op], schedule.stage[op], unit]
    return spent


def _from_both_sides(program: Program, start: Times, end: Times) -> None:
    """Let a transfer start when both sides have come to it, before its sender is taken up, not after."""
    launch = np.flatnonzero(program.order >= len(program))
    began = end.copy()
    began[launch] = start[launch]
    ops = len(program.schedule)
    rows = np.flatnonzero((program.order >= ops) & (program.order < len(program)))
    start[rows] = began[program.waits[:, rows]].max(axis=0)


def _by_number(program: Program, *columns: Times) -> list[Times]:
    """Times of rows as times of ops and transfers, int64[ops + transfers] each."""
    row = program.row.astype(np.int64)  # once for all columns
    return [times.take(row) for times in columns]


def _paired(program: Program, times: Times) -> Times:
    """The second op of each pair gets the times of the first."""
    joined = program.schedule.joined
    if joined is not None:
        second = np.flatnonzero(joined)
        times[second] = times[second - 1]
    return times


def _is_op(program: Program) -> NDArray[np.bool_]:
    return (program.order >= 0) & (program.order < len(program.schedule))


def _by_rounds(program: Program, key: Keys, lag: Keys, tables: Times) -> Times:
    """Round by round, all columns at once."""
    free = len(program.waits) - len(lag)
    end = np.zeros((len(key), tables.shape[1]), np.int64)
    for first, last in pairwise(program.rounds.tolist()):
        begin = np.zeros((last - first, tables.shape[1]), np.int64)
        for line in program.waits[:free]:
            np.maximum(begin, end[line[first:last]], out=begin)
        for line, late in zip(program.waits[free:], lag, strict=True):
            np.maximum(begin, end[line[first:last]] + tables[late[first:last]], out=begin)
        np.add(begin, tables[key[first:last]], out=end[first:last])
    found: Times = end[_is_op(program)].max(axis=0, initial=0)
    return found


def _by_tiles(program: Program, key: Keys, lag: Keys, tables: Times) -> Times:
    """Compiled, tile by tile, on all cores."""
    loop, op = compiled(_sweep_columns), _is_op(program)
    tiles = [np.ascontiguousarray(tables[:, at : at + _TILE]) for at in range(0, tables.shape[1], _TILE)]

    def swept(tile: Times) -> Times:
        latest = np.zeros(tile.shape[1], np.int64)
        loop(program.waits, key, lag, tile, (op, np.zeros((len(key), tile.shape[1]), np.int64), latest))
        return latest

    first = swept(tiles[0])  # compiles, once: several threads would each compile it
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate([first, *pool.map(swept, tiles[1:])])


def _sweep_columns(waits, key, lag, table, state):  # type: ignore[no-untyped-def]
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
