"""Lowering: from the order of ops to a program whose dependencies are integers, or to the cycle that forbids it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .errors import IllegalSchedule
from .exchange import Exchange, exchange, mismatches, transfers
from .lanes import Lanes, lanes_with_transfers, rank_lanes, topological_rounds
from .laws import FORWARD, GRADIENT, cells, locate, violations
from .op import KINDS, Kind
from .program import NOTHING, Program, Sends
from .schedule import Schedule

# For each kind: how far away the stage is whose output it takes in, and the line of `locate` where that stands.
_STEP = np.array([-1, 1, 0, 1], np.int32)
_FEEDS = np.array([FORWARD, GRADIENT, GRADIENT, GRADIENT], np.int32)


def lower(schedule: Schedule, sends: Sends = Sends.ASYNC, given: Exchange | None = None) -> Program:
    """Prove a schedule legal and lay it out for simulation and execution.

    The output of an overlapped pair leaves when both of its ops have ended, as engines send it; ``apart`` gives the
    schedule in which each half sends at once.

    Args:
        schedule: what to lower.
        sends: what a transfer takes up. Only ``ASYNC`` without a given order does without rows for transfers.
        given: where sends and receives stand, if somebody wrote that down; else each output is sent behind the
            round in which it is made, an order that never deadlocks (see ``exchange``).

    Raises:
        IllegalSchedule: an op is missing, repeated, misplaced or too early, or a given send or receive is; carries
            every violation.
        Deadlock: ranks wait for each other in a circle; carries the circle.
    """
    broken = violations(schedule)
    if broken:
        raise IllegalSchedule(schedule.name, broken)
    plain = rank_lanes(schedule, needs_of(schedule))
    program = _lay_out(plain, Sends.ASYNC)
    if given is None and sends is Sends.ASYNC:
        return program
    if given is not None and (wrong := mismatches(program, given)):
        raise IllegalSchedule(schedule.name, wrong)
    order = exchange(program) if given is None else given
    return _lay_out(lanes_with_transfers(plain, sends, order, transfers(program)), sends)


def apart(schedule: Schedule) -> Schedule:
    """The same order with every overlapped pair run as two ops, one after the other, each sending at once.

    Ideal DualPipeV at p=4, m=8 with 10 ms a forward and 20 ms a backward of a chunk takes 540 ms with pairs whose
    outputs leave together, which is what PyTorch's runtime does, and 510 ms so.
    """
    return replace(schedule, joined=None)


def _lay_out(lanes: Lanes, sends: Sends) -> Program:
    order, rounds = topological_rounds(lanes)
    schedule = lanes.schedule
    key = schedule.kind * np.int32(schedule.stages) + schedule.stage
    if len(lanes.consumer):
        key = np.concatenate([key, key[lanes.consumer] + np.int32(KINDS * schedule.stages)])
    return Program(
        schedule=schedule,
        order=order,
        rounds=rounds,
        before=lanes.before()[:, order],
        needs=lanes.needs[:, order],
        key=key[order],
        producer=lanes.producer,
        consumer=lanes.consumer,
        sends=sends,
    )


def needs_of(schedule: Schedule) -> NDArray[np.int32]:
    """What each op needs from another rank, in the schedule's numbering, int32[1 or 2, ops].

    F of stage s needs F of stage s-1; I and B need the gradient of stage s+1. What an op needs from its own rank
    stands before it by law. A second line is there only where slots hold two ops: each waits for the inputs of both.
    """
    source = schedule.stage + _STEP[schedule.kind]
    none = (schedule.kind == Kind.W) | (source < 0) | (source >= schedule.stages)
    cell = cells(schedule, _FEEDS[schedule.kind], source)
    cell[none] = 0
    needs = locate(schedule).ravel()[cell]
    needs[none] = NOTHING
    if (schedule.placement[:, 1:] == schedule.placement[:, :-1]).any():
        rank = schedule.rank_of()
        local = ~none & (rank[needs] == rank)
        needs[local & (needs < np.arange(len(needs)))] = NOTHING  # satisfied by the lane; the rest deadlocks: found
    if schedule.joined is None:
        return needs[None]
    second = np.flatnonzero(schedule.joined)
    mate = np.full(len(needs), NOTHING, np.int32)
    mate[second], mate[second - 1] = needs[second - 1], needs[second]
    return np.stack([needs, mate])
