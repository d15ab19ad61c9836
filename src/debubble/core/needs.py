"""What each op needs from another rank: the transfers of a schedule, whoever carries them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .laws import FORWARD, GRADIENT, cells, locate
from .op import Kind
from .schedule import Schedule

NOTHING = -1

# For each kind: how far away the stage is whose output it takes in, and the line of `locate` where that stands.
_STEP = np.array([-1, 1, 0, 1], np.int32)
_FEEDS = np.array([FORWARD, GRADIENT, GRADIENT, GRADIENT], np.int32)


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


def transfers(schedule: Schedule) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every pair of ops on different ranks of which one needs what the other makes: producers and consumers.

    Both int32[transfers], in the order of the consumers.
    """
    needs = needs_of(schedule)[0]
    consumer = np.flatnonzero(needs >= 0).astype(np.int32)
    return needs[consumer], consumer
