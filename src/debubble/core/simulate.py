"""Simulation: a program and its costs become a timeline by one longest-path sweep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .kernels import fast_sweep, sweep
from .program import Program, Sends
from .timeline import Timeline

Table = NDArray[np.int64]


def simulate(program: Program, costs: Costs, *, fast: bool = False) -> Timeline:
    """When each op starts and ends if every rank runs its ops in order, each as soon as its inputs have come.

    Args:
        program: what to run, with what its transfers take up.
        costs: how long it takes.
        fast: compile the sweep with numba (the extra ``fast``); worth its start-up for millions of ops.

    Returns:
        A timeline that begins at 0, in whole nanoseconds; evidence ``simulated``.
    """
    spent, delayed = tables(program, costs)
    if fast and spent.shape[1] == delayed.shape[1] == 1 and program.schedule.joined is None:
        start, end = fast_sweep(program, spent.ravel(), delayed.ravel())
    else:
        start, end = sweep(program, durations(program, costs), delays(program, costs))
    return Timeline(program, start, end, "simulated")


def tables(program: Program, costs: Costs) -> tuple[Table, Table]:
    """Duration of a row, and delay until its input has come, for each line that ``program.key`` names.

    A hop takes ``transfers + occupancy``. Which part of it is a row of the program, and which a delay between rows:

        ASYNC                    delay: all
        LINK                     row: occupancy           delay: transfers
        BLOCKING, RENDEZVOUS     row: all

    Returns:
        int64[lines, 1 or units] each, nanoseconds; lines of ops, then (where transfers have rows) lines of transfers.
    """
    spent, hop = _lines(costs.durations), _lines(costs.hops())
    if len(program) == len(program.schedule):
        return spent, hop
    nothing = np.zeros_like(hop)
    if program.sends is Sends.ASYNC:
        row, delay = nothing, hop
    elif program.sends is Sends.LINK:
        row, delay = hop - _lines(costs.transfers), _lines(costs.transfers)
    else:
        row, delay = hop, nothing
    return _stack(spent, row), _stack(delay, nothing)


def durations(program: Program, costs: Costs) -> NDArray[np.int64]:
    """How long each row of a program takes, int64[rows] in topological order."""
    spent = _look_up(tables(program, costs)[0], program, None)
    second = _seconds(program)
    if len(second):
        by_op = np.empty_like(spent)
        by_op[program.order] = spent
        together = np.rint((by_op[second - 1] + by_op[second]) * costs.pair_scale).astype(np.int64)
        by_op[second - 1] = by_op[second] = together
        spent = by_op[program.order]
    return spent


def delays(program: Program, costs: Costs) -> NDArray[np.int64] | None:
    """How long after a need has ended its result is there, int64[inputs, rows]; None where transfers are free."""
    table = tables(program, costs)[1]
    if not table.any():
        return None
    lines = [_look_up(table, program, None)]
    if len(program.needs) > 1:
        lines.append(_look_up(table, program, _mates(program)))
    return np.where(program.needs >= 0, np.stack(lines), 0)


def _seconds(program: Program) -> NDArray[np.int64]:
    """The second ops of all slots that hold two, int64[pairs]."""
    joined = program.schedule.joined
    return np.empty(0, np.int64) if joined is None else np.flatnonzero(joined)


def _mates(program: Program) -> NDArray[np.int32]:
    """For each row the other op of its slot, or the row's own number, in topological order."""
    mate = np.arange(len(program), dtype=np.int32)
    second = _seconds(program)
    mate[second], mate[second - 1] = second - 1, second
    return mate[program.order]


def _look_up(table: Table, program: Program, instead: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """The line of each row in a table, or of the op that stands ``instead`` of it."""
    key = program.key
    if instead is not None:
        by_number = np.empty_like(key)
        by_number[program.order] = key
        key = by_number[instead]
    column: NDArray[np.int32] | int = 0
    if table.shape[1] > 1:
        unit = np.concatenate([program.schedule.unit, program.schedule.unit[program.consumer]])
        column = unit[program.order if instead is None else instead]
    found: NDArray[np.int64] = table[key, column]
    return found


def _lines(table: Table) -> Table:
    return table.reshape(-1, table.shape[2])


def _stack(ops: Table, transfers: Table) -> Table:
    units = max(ops.shape[1], transfers.shape[1])
    return np.concatenate([np.broadcast_to(part, (len(part), units)) for part in (ops, transfers)])
