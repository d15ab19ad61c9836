"""Simulation: a program and its costs become a timeline by one longest-path sweep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .kernels import fast_sweep, sweep
from .program import Program
from .timeline import Timeline


def simulate(program: Program, costs: Costs, *, fast: bool = False) -> Timeline:
    """When each op starts and ends if every rank runs its ops in order, each as soon as its inputs have come.

    Args:
        program: what to run.
        costs: how long it takes.
        fast: compile the sweep with numba (the extra ``fast``); worth its start-up for millions of ops.

    Returns:
        A timeline that begins at 0, in whole nanoseconds; evidence ``simulated``.
    """
    plain = costs.durations.shape[2] == 1 and costs.transfers.shape[2] == 1 and program.schedule.joined is None
    if fast and plain:
        start, end = fast_sweep(program, costs.durations.ravel(), costs.transfers.ravel())
    else:
        start, end = sweep(program, durations(program, costs), delays(program, costs))
    return Timeline(program, start, end, "simulated")


def durations(program: Program, costs: Costs) -> NDArray[np.int64]:
    """How long each row of a program takes, int64[rows] in topological order."""
    spent = _look_up(costs.durations, program, program.order)
    joined = program.schedule.joined
    if joined is not None:
        by_op = np.empty_like(spent)
        by_op[program.order] = spent
        second = np.flatnonzero(joined)
        together = np.rint((by_op[second - 1] + by_op[second]) * costs.pair_scale).astype(np.int64)
        by_op[second - 1] = by_op[second] = together
        spent = by_op[program.order]
    return spent


def delays(program: Program, costs: Costs) -> NDArray[np.int64] | None:
    """How long after a need has ended its result is there, int64[inputs, rows]; None where transfers are free."""
    if not costs.transfers.any():
        return None
    lines = [_look_up(costs.transfers, program, program.order)]
    if len(program.needs) > 1:
        lines.append(_look_up(costs.transfers, program, _mates(program)))
    return np.where(program.needs >= 0, np.stack(lines), 0)


def _mates(program: Program) -> NDArray[np.int32]:
    """For each row the other op of its slot, or the row's own op, in topological order."""
    mate = np.arange(len(program), dtype=np.int32)
    second = np.flatnonzero(program.schedule.joined)
    mate[second], mate[second - 1] = second - 1, second
    return mate[program.order]


def _look_up(table: NDArray[np.int64], program: Program, ops: NDArray[np.int32]) -> NDArray[np.int64]:
    schedule = program.schedule
    key = program.key if ops is program.order else schedule.kind[ops] * np.int32(schedule.stages) + schedule.stage[ops]
    if table.shape[2] == 1:
        return table.ravel()[key]
    return table.reshape(-1, table.shape[2])[key, schedule.unit[ops]]
