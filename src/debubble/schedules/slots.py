"""Schedules given as a clock: every op has a slot in unit time, and a rank runs its ops in the order of their slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.op import Kind
from ..core.schedule import Schedule, Shape


@dataclass(frozen=True, slots=True, eq=False)
class Clocked:
    """Ops in any order, each with its slot, as columns.

    Args:
        slot: int64[ops].
        rank: int32[ops].
        kind: uint8[ops].
        stage: int32[ops].
        unit: int32[ops].
    """

    slot: NDArray[np.int64]
    rank: NDArray[np.int32]
    kind: NDArray[np.uint8]
    stage: NDArray[np.int32]
    unit: NDArray[np.int32]


def by_slot(
    name: str, shape: Shape, ops: Clocked, placement: NDArray[np.int32], route: NDArray[np.uint8] | None = None
) -> Schedule:
    """The schedule of ops with slots; no two ops of a rank share one."""
    order = np.lexsort((ops.slot, ops.rank))
    return Schedule(
        name=name,
        source="generated",
        microbatches=shape.microbatches,
        placement=placement,
        offsets=np.searchsorted(ops.rank[order], np.arange(shape.ranks + 1)).astype(np.int64),
        kind=ops.kind[order],
        stage=ops.stage[order],
        unit=ops.unit[order],
        route=route,
    )


def waves(placement: NDArray[np.int32], units: NDArray[np.int32], block: int) -> Clocked:
    """The clock of Chimera and Hanayo, for F and B of one slot each.

    Micro-batches go in blocks. In a block that begins at slot t, the i-th one runs F of stage s in slot t + s + 2i and
    B in slot t + 2S-1-s + 2i; the next block begins 2S slots later, when the first has just filled them:

        stage 0   F . F . . . . B . B        S = 4, two in a block
        stage 1   . F . F . . B . B
        stage 2   . . F . F B . B
        stage 3   . . . F B F B

    Args:
        placement: rank of each stage, int32[stages].
        units: micro-batches that pass it, in order, int32[n].
        block: how many of them are in a block.
    """
    last = 2 * len(placement) - 1
    turn = np.arange(len(units))
    begins = turn // block * (last + 1) + 2 * (turn % block)
    stage = np.arange(len(placement), dtype=np.int32)
    slot = np.stack([begins + stage[:, None], begins + last - stage[:, None]])  # [F or B, stages, n]
    kind = np.array([Kind.F, Kind.B], np.uint8)[:, None, None]
    columns = np.broadcast_arrays(placement[:, None], kind, stage[:, None], units, slot)[:4]
    rank, kinds, stages, unit = (column.ravel() for column in columns)
    return Clocked(slot.ravel(), rank, kinds, stages, unit)


def merged(*clocks: Clocked) -> Clocked:
    """The ops of several clocks that run at the same time."""
    names = ("slot", "rank", "kind", "stage", "unit")
    return Clocked(*(np.concatenate([getattr(clock, name) for clock in clocks]) for name in names))
