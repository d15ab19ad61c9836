"""Waves: Chimera and Hanayo, in which each micro-batch runs down the stages and at once up again, two slots apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Kind, Schedule, Shape, two_way_placement
from .entry import TWO_COPIES, Entry, check, multiple
from .rows import Clocked, by_slot


def waves(placement: NDArray[np.int32], units: NDArray[np.int32], block: int) -> Clocked:
    """The clock of both, for F and B of one slot each.

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


# Chimera: two pipelines run against each other over two copies of the weights; the bubble of 1F1B halves.
#
# Source: Li and Hoefler, Chimera, https://arxiv.org/abs/2107.06925; blocks by its direct concatenation.
#
# Copy 0 has stage s on rank s, copy 1 on rank p-1-s. Of each block of p micro-batches the first half passes copy 0, the
# second copy 1; a last, shorter block is halved the same way. Steps: the clock of ``waves`` for each copy, in
# blocks of p/2. As p is even, one copy uses the even slots of a rank where the other uses the odd ones. The gradients
# of the two copies of a stage are summed after the step.
#
# p = 4, m = 4, B = F; copy 1 takes 2 and 3:
#
#     rank 0  F0 F1  . F2 B2 F3 B3 B0  . B1
#     rank 1   . F0 F2 F1 F3 B2 B0 B3 B1  .
#     rank 2   . F2 F0 F3 F1 B0 B2 B1 B3  .
#     rank 3  F2 F3  . F0 B0 F1 B1 B2  . B3
def chimera(shape: Shape) -> Schedule:
    """Chimera for any even p and any m (its full effect for multiples of p); it was made for F = B.

    Raises:
        InputError: p is odd.
    """
    p, m = shape.ranks, shape.microbatches
    check("chimera", shape, multiple("ranks", p, 2, "chimera joins ranks in pairs, one for each direction", least=2))
    unit = np.arange(m, dtype=np.int32)
    size = np.minimum(p, m - unit // p * p)  # of the block
    route = (unit % p >= (size + 1) // 2).astype(np.uint8)
    placement = two_way_placement(p)
    clocks = [waves(placement[copy], unit[route == copy], p // 2) for copy in (0, 1)]
    return by_slot("chimera", shape, merged(*clocks), placement, route)


CHIMERA = Entry(
    name="chimera",
    build=chimera,
    not_on_torch=TWO_COPIES,
    paper="arXiv:2107.06925",
    placement="two-way, 2 copies",
    needs="p % 2 = 0",
    bubble="(p/2-1)(F+B)",
    bubble_holds="F = B, m % p = 0",
    activations="min(p, m)",
)


# Hanayo: the wave of Chimera in one copy of the weights; chunks lie as a snake that passes all ranks up and down.
#
# Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, https://arxiv.org/abs/2308.15762.
# w waves are v = 2w chunks; w = 1 is a V.
#
# Chunk c of rank r is stage c p + r where c is even, c p + p-1-r where it is odd. Steps: the clock of
# ``waves`` in blocks of p micro-batches. On every rank the two parities of slots are then full from its first
# op to its last of the block, so that only 2(p-1) slots stay idle: (p-1)(F+B)/(2w) where F = B.
#
# p = 3, m = 3, B = F; small letters are chunk 1:
#
#     rank 0  F0 F1 F2  .  . f0 b0 f1 b1 f2 b2 B0  . B1  . B2
#     rank 1   . F0 F1  . f0 F2 f1 b0 f2 b1 B0 b2 B1  . B2  .
#     rank 2   .  . F0 f0 F1 f1 F2 f2 b0 B0 b1 B1 b2 B2  .  .
def hanayo(shape: Shape) -> Schedule:
    """Hanayo for any p and m, with v/2 waves.

    Raises:
        InputError: the number of chunks is odd.
    """
    p = shape.ranks
    odd = multiple("chunks", shape.chunks, 2, "hanayo has two on each rank for each wave", least=2)
    check("hanayo", shape, odd, chunks=None)
    up = np.arange(p, dtype=np.int32)
    snake = np.tile(np.concatenate([up, up[::-1]]), shape.chunks // 2)
    clock = waves(snake, np.arange(shape.microbatches, dtype=np.int32), p)
    return by_slot("hanayo", shape, clock, snake[None, :])


HANAYO = Entry(
    name="hanayo",
    build=hanayo,
    paper="arXiv:2308.15762",
    placement="snake",
    chunks=2,
    any_chunks=True,
    needs="v % 2 = 0",
    bubble="(p-1)(F+B)/v",
    bubble_holds="F = B, m % p = 0",
    activations="min(p, m)",
)
