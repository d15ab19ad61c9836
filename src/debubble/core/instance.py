"""An instance: everything but the order, of which a schedule is sought; what bounds and searches take.

Ops of one kind and stage take micro-batches first in, first out. That costs nothing where micro-batches are alike: sort
the starts of each (kind, stage) and deal them out in order; every precedence and every count of memory stays.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .engine import IDEAL, Engine
from .schedule import FREED, Kind, Release, Schedule

SPLIT = (Kind.F, Kind.I, Kind.W)
FUSED = (Kind.F, Kind.B)


def searchable(schedule: Schedule) -> bool:
    """Whether orders of these ops can be searched: whole micro-batches, one copy, with backwards, one op at a time."""
    one_copy = schedule.placement.shape[0] == 1
    return one_copy and schedule.slices == 1 and schedule.joined is None and not schedule.forward_only


class Instance:
    """Ops, ranks, durations, memory and engine of a step, without an order.

    Columns are made when they are first asked for.

    Args:
        placement: rank of each stage, int32[stages].
        microbatches: per step, m.
        costs: how long ops and transfers take.
        room: half activations of a chunk that each rank may hold, int64[ranks]; ``no_limit`` where memory does not
            count.
        split: whether each backward is an I and a W; else it is one B.
        release: when a split backward frees what its forward has kept.
        engine: how ranks communicate.
    """

    def __init__(
        self,
        placement: NDArray[np.int32],
        microbatches: int,
        costs: Costs,
        room: NDArray[np.int64],
        *,
        split: bool = True,
        release: Release = Release.W,
        engine: Engine = IDEAL,
    ) -> None:
        self.placement, self.microbatches, self.costs, self.room = placement, microbatches, costs, room
        self.split, self.release, self.engine = split, release, engine

    def but(self, **changes: Any) -> Instance:
        """The same with other arguments, by name."""
        names = ("placement", "microbatches", "costs", "room", "split", "release", "engine")
        return Instance(**{**{name: getattr(self, name) for name in names}, **changes})

    @property
    def ranks(self) -> int:
        """Positions in the pipeline."""
        return len(self.room)

    @property
    def stages(self) -> int:
        """Stages of the model."""
        return len(self.placement)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of ops: F, I, W or F, B."""
        if self.split:
            return SPLIT
        return FUSED

    @property
    def ops(self) -> int:
        """Ops of a step."""
        return len(self.kinds) * self.stages * self.microbatches

    @cached_property
    def chunk(self) -> NDArray[np.int32]:
        """Which of its rank's stages each stage is, in the order of the model, int32[stages]."""
        earlier = np.tril(self.placement[:, None] == self.placement[None, :], -1)
        chunk: NDArray[np.int32] = earlier.sum(axis=1).astype(np.int32)
        return chunk

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """Stages that each rank holds, int64[ranks]."""
        return np.bincount(self.placement, minlength=self.ranks)

    @cached_property
    def frees(self) -> NDArray[np.int64]:
        """Half activations that an op of each kind adds, int64[kinds]."""
        if not self.split:
            return np.array([2, -2], np.int64)
        return np.array([2, *FREED[self.release]], np.int64)

    @cached_property
    def spent(self) -> NDArray[np.int64]:
        """Duration of each op, int64[kinds, stages, microbatches], nanoseconds."""
        shape = (len(self.kinds), self.stages, self.microbatches)
        # A copy: numba compiles once more for arrays that may not be written, as those of costs are.
        return np.array(np.broadcast_to(self.costs.durations[list(self.kinds)], shape))

    @cached_property
    def hop(self) -> NDArray[np.int64]:
        """How long the input of an F and of a gradient of each stage is on its way, int64[2, stages, microbatches].

        0 between stages of one rank, at the first F and at the last gradient.
        """
        total = self.costs.hops() + self.costs.sender_side()
        found = np.zeros((2, self.stages, self.microbatches), np.int64)
        crosses = self.placement[1:] != self.placement[:-1]  # what stays on its rank is there at once
        found[0, 1:] = np.where(crosses[:, None], total[Kind.F, 1:], 0)
        found[1, :-1] = np.where(crosses[:, None], total[self.kinds[1], :-1], 0)
        return found

    @cached_property
    def alike(self) -> bool:
        """Whether all micro-batches take the same time."""
        return bool((self.spent == self.spent[:, :, :1]).all() and (self.hop == self.hop[:, :, :1]).all())


def instance_of(
    schedule: Schedule,
    costs: Costs,
    *,
    room: NDArray[np.int64] | None = None,
    release: Release = Release.W,
    engine: Engine = IDEAL,
) -> Instance:
    """The instance that a schedule answers: its placement, its micro-batches, its kinds of backward.

    Args:
        schedule: of one copy of the weights and whole sequences.
        costs: of its ops.
        room: as in ``Instance``; None for no limit.
        release: as in ``Instance``.
        engine: as in ``Instance``.
    """
    if room is None:
        room = no_limit(schedule.placement[0], schedule.microbatches)
    home, m = schedule.placement[0], schedule.microbatches
    return Instance(home, m, costs, room, split=schedule.splits, release=release, engine=engine)


def no_limit(placement: NDArray[np.int32], microbatches: int) -> NDArray[np.int64]:
    """Room for everything at once, int64[ranks]."""
    return 2 * microbatches * np.bincount(placement)
