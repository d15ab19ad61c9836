"""1F1B-V: a V with full backwards, in two thirds of 1F1B's memory.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362 (its building
block "1F1B-V"); the offsets as in sail-sg/zero-bubble.

Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1). A slot is one F of a chunk, B takes two. Steps:
    (1) building block: the F of stage s in slot s; the j-th B (of stage 2p-1-j) from slot
        2p + 3 [p mod 3 = 0] + 2j + 3 ((j + c) div 3) on, with c = -(p+2) mod 3: three hops, then a pause of three
        slots, so that the blocks of all ranks fit together
    (2) repeat it every 6 slots
    (3) reorder: in the order of slots, move each op to the first free slot behind what it needs and behind the same op
        of the micro-batch before; an F only as far as the rank's memory stays within the peak of (2)
    (4) squeeze: run the ops in this order, each as soon as it can

p = 3, m = 4, B = 2F; small letters are chunk 1:

    rank 0  F0 F1 F2 F3  . f0 b0--- f1 b1--- f2 b2---  .  .  . f3 B0--- b3--- B1---  .  . B2---  .  . B3---
    rank 1   . F0 F1 F2 f0 F3 f1  . b0--- f2 b1---  . B0--- f3 b2---  . B1--- b3--- B2---  .  . B3---  .  .
    rank 2   .  . F0 f0 F1 f1 F2 f2  .  . b0--- B0--- F3 f3 b1--- B1--- b2--- B2--- b3--- B3---  .  .  .  .
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault
from ..core.schedule import Kind, Schedule, Shape, v_placement
from .entry import Entry, check
from .rows import Clocked, by_slot

_MOST_CELLS = 200_000  # about ten seconds
_MOST_RANKS = 1000  # a table has a row for each, and as many columns as a micro-batch takes to pass them: 6 p
_PERIOD = 6  # slots in which a rank works on each micro-batch: F and B, of one and two slots, of two chunks


def one_f_one_b_v(shape: Shape) -> Schedule:
    """1F1B-V for any p and m; the worst rank holds 2p div 3 + 1 micro-batches.

    Raises:
        InputError: p x m is beyond what step (3), which goes op by op, does in reasonable time.
    """
    cells = shape.ranks * shape.microbatches
    rule = f"1f1b-v is laid out op by op, for up to {_MOST_CELLS:,} of them on {_MOST_RANKS:,} ranks"
    many = Fault(
        f"ranks x microbatches = {cells:,}", rule, f"give {_MOST_CELLS // shape.ranks:,} micro-batches or less"
    )
    check("1f1b-v", shape, many if cells > _MOST_CELLS or shape.ranks > _MOST_RANKS else None, chunks=2)
    home = v_placement(shape.ranks)
    ops = _repeated(home[0], shape.microbatches)
    return by_slot("1f1b-v", shape, _reordered(ops, shape), home)


ENTRY = Entry(
    name="1f1b-v",
    build=one_f_one_b_v,
    other_names=("V1F1B",),
    paper="arXiv:2405.15362",
    placement="V",
    chunks=2,
    needs="v = 2",
    bubble="<= (p-1)(F+B)",
    bubble_holds="B = 2F",
    activations="min(2p div 3 + 1, m)",
)


def _repeated(home: NDArray[np.int32], m: int) -> Clocked:
    """(1) and (2): rows by kind, stage and micro-batch."""
    stages = len(home)
    p = stages // 2
    j = np.arange(stages, dtype=np.int32)
    back = stages + 3 * (p % 3 == 0) + 2 * j + 3 * ((j + -(p + 2) % 3) // 3)
    slot = np.stack([j, back[::-1]])[:, :, None] + _PERIOD * np.arange(m)
    kind = np.array([Kind.F, Kind.B], np.uint8)[:, None, None]
    columns = np.broadcast_arrays(home[:, None], kind, j[:, None], np.arange(m, dtype=np.int32), slot)
    rank, kinds, stage, unit = (column.ravel() for column in columns[:4])
    return Clocked(slot.ravel(), rank, kinds, stage, unit)


def _reordered(ops: Clocked, shape: Shape) -> Clocked:
    """(3)."""
    length = np.where(ops.kind == Kind.F, 1, 2)
    slot = ops.slot.tolist()
    needs = _needs(shape)
    rooms = _Rooms(ops, length, shape.ranks)
    ranks, lengths = ops.rank.tolist(), length.tolist()
    for row in np.argsort(ops.slot, kind="stable").tolist():
        ready = max((slot[need] + lengths[need] for need in needs[row] if need >= 0), default=0)
        slot[row] = rooms.move(ranks[row], slot[row], ready, lengths[row])
    return replace(ops, slot=np.array(slot))


def _needs(shape: Shape) -> list[list[int]]:
    """For each row of ``_repeated`` the row of its input and that of the micro-batch before; -1 where there is none."""
    stages, m = shape.stages, shape.microbatches
    row = np.arange(2 * stages * m).reshape(2, stages, m)
    earlier = np.where(np.arange(m) > 0, row - 1, -1)
    source = np.full_like(row, -1)
    source[0, 1:], source[1, :-1], source[1, -1] = row[0, :-1], row[1, 1:], row[0, -1]
    result: list[list[int]] = np.stack([earlier.ravel(), source.ravel()], axis=1).tolist()
    return result


class _Rooms:
    """Which slots of each rank are taken, and how many chunks it holds behind each slot."""

    def __init__(self, ops: Clocked, length: NDArray[np.int64], ranks: int) -> None:
        horizon = int(ops.slot.max()) + 3
        taken = np.zeros((ranks, horizon), np.uint8)
        taken[ops.rank, ops.slot] = taken[ops.rank, ops.slot + length - 1] = 1
        change = np.zeros((ranks, horizon), np.int64)
        change[ops.rank, ops.slot] = np.where(ops.kind == Kind.F, 1, -1)
        held = change.cumsum(axis=1)
        self._taken = [bytearray(row) for row in taken]
        self._held = held.tolist()
        self._peak = int(held.max())

    def move(self, rank: int, slot: int, ready: int, length: int) -> int:
        """Move an op to the first slot in which it may stand, at best ``ready``, and say which one that is."""
        taken, held = self._taken[rank], self._held[rank]
        taken[slot : slot + length] = bytes(length)
        change = 1 if length == 1 else -1
        first = ready
        if change > 0:  # not beyond a slot behind which the rank is full
            first = slot
            while first > ready and held[first - 1] < self._peak:
                first -= 1
        while any(taken[first : first + length]):
            first += 1
        taken[first : first + length] = b"\1" * length
        for between in range(first, slot):
            held[between] += change
        return first
