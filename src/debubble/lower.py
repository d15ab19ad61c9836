"""Lowering: from the order of ops to a program whose dependencies are integers, or to the cycle that forbids it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import Deadlock, IllegalSchedule, Violation
from .laws import FORWARD, GRADIENT, locate, violations
from .op import Kind
from .program import NOTHING, Program
from .schedule import Schedule


def lower(schedule: Schedule) -> Program:
    """Prove a schedule legal and lay it out for simulation and execution.

    Transfers are asynchronous: they delay the op that needs them and occupy no rank.

    Raises:
        IllegalSchedule: an op is missing, repeated, misplaced or too early; carries every violation.
        Deadlock: ranks wait for each other in a circle; carries the circle.
    """
    broken = violations(schedule)
    if broken:
        raise IllegalSchedule(schedule.name, broken)
    needs = needs_of(schedule)
    order, rounds = topological_rounds(schedule, needs)
    return Program(
        schedule=schedule,
        order=order,
        rounds=rounds,
        before=lane_before(schedule)[None, order],
        needs=needs[:, order],
        key=(schedule.kind * np.int32(schedule.stages) + schedule.stage)[order],
        producer=np.empty(0, np.int32),
        consumer=np.empty(0, np.int32),
    )


def needs_of(schedule: Schedule) -> NDArray[np.int32]:
    """What each op needs from another rank, in the schedule's numbering, int32[1 or 2, ops].

    F of stage s needs F of stage s-1; I and B need the gradient of stage s+1. What an op needs from its own rank
    stands before it by law. A second line is there only where slots hold two ops: each then waits for the inputs of both.
    """
    where = locate(schedule)
    needs = np.full(len(schedule), NOTHING, np.int32)
    forward = schedule.kind == Kind.F
    upstream = np.flatnonzero(forward & (schedule.stage > 0))
    needs[upstream] = where[FORWARD, schedule.stage[upstream] - 1, schedule.unit[upstream]]
    downstream = np.flatnonzero(~forward & (schedule.kind != Kind.W) & (schedule.stage < schedule.stages - 1))
    needs[downstream] = where[GRADIENT, schedule.stage[downstream] + 1, schedule.unit[downstream]]
    rank = schedule.rank_of()
    local = (needs >= 0) & (rank[needs] == rank)
    needs[local & (needs < np.arange(len(needs)))] = NOTHING  # satisfied by the lane; the rest deadlocks and is found
    if schedule.joined is None:
        return needs[None]
    second = np.flatnonzero(schedule.joined)
    mate = np.full(len(needs), NOTHING, np.int32)
    mate[second], mate[second - 1] = needs[second - 1], needs[second]
    return np.stack([needs, mate])


def lane_before(schedule: Schedule) -> NDArray[np.int32]:
    """The op that occupies the rank just before each op, int32[ops]; both ops of a slot share theirs."""
    before = np.arange(-1, len(schedule) - 1, dtype=np.int32)
    before[schedule.offsets[:-1][np.diff(schedule.offsets) > 0]] = NOTHING
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        before[second] = before[second - 1]
    return before


def topological_rounds(schedule: Schedule, needs: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Let all ranks step together: in each round every rank whose next slot is ready runs it.

    Returns:
        The ops in order of rounds, int32[ops], and the first row of each round, int64[rounds + 1].

    Raises:
        Deadlock: in some round no rank is ready.
    """
    width = np.ones(len(schedule), np.int64)  # ops in the slot that starts here
    if schedule.joined is not None:
        width[np.flatnonzero(schedule.joined) - 1] = 2
    here, stop = schedule.offsets[:-1].copy(), schedule.offsets[1:]
    done = np.zeros(len(schedule) + 1, np.bool_)
    done[NOTHING] = True
    active = np.flatnonzero(here < stop)
    rounds: list[NDArray[np.int64]] = []
    while active.size:
        at = here[active]
        ready = done[needs[:, at]].all(axis=0)
        rank, now = active[ready], at[ready]
        if not now.size:
            raise _deadlock(schedule, needs, here, active)
        if schedule.joined is not None:
            now = np.concatenate([now, now[width[now] == 2] + 1])
        done[now] = True
        rounds.append(now)
        here[rank] += width[here[rank]]
        if (here[rank] == stop[rank]).any():
            active = active[here[active] < stop[active]]
    sizes = np.cumsum([0, *map(len, rounds)], dtype=np.int64)
    return np.concatenate(rounds or [np.empty(0)]).astype(np.int32), sizes


def _deadlock(
    schedule: Schedule, needs: NDArray[np.int32], here: NDArray[np.int64], active: NDArray[np.int64]
) -> Deadlock:
    """Follow who waits for whom from any blocked rank until a rank repeats: that is the circle."""
    rank_of = schedule.rank_of()
    place = {int(rank): int(here[rank]) for rank in active}

    def wanted(rank: int) -> int:
        """The first input of the rank's next slot that has not been made yet."""
        inputs = [int(i) for i in needs[:, place[rank]] if i >= 0]
        return next(i for i in inputs if int(rank_of[i]) in place and i >= place[int(rank_of[i])])

    path = [next(iter(place))]
    while (following := int(rank_of[wanted(path[-1])])) not in path:
        path.append(following)
    circle = path[path.index(following) :]

    def text(row: int) -> str:
        return schedule.op(row).text(schedule.slices)

    return Deadlock(
        schedule.name,
        [f"{text(place[rank])} (rank {rank})" for rank in circle],
        [
            Violation(
                rank, place[rank] - int(schedule.offsets[rank]), f"{text(row)} waits for {text(wanted(rank))} for ever"
            )
            for rank, row in place.items()
        ],
    )
