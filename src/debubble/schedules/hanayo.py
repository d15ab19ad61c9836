"""Hanayo: the wave of Chimera in one copy of the weights; chunks lie as a snake that passes all ranks up and down.

Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, https://arxiv.org/abs/2308.15762.
w waves are v = 2w chunks; w = 1 is a V.

Chunk c of rank r is stage c p + r where c is even, c p + p-1-r where it is odd. Steps: the clock of
``slots.py::waves`` in blocks of p micro-batches. On every rank the two parities of slots are then full from its first
op to its last of the block, so that only 2(p-1) slots stay idle: (p-1)(F+B)/(2w) where F = B.

p = 3, m = 3, B = F; small letters are chunk 1:

    rank 0  F0 F1 F2  .  . f0 b0 f1 b1 f2 b2 B0  . B1  . B2
    rank 1   . F0 F1  . f0 F2 f1 b0 f2 b1 B0 b2 B1  . B2  .
    rank 2   .  . F0 f0 F1 f1 F2 f2 b0 B0 b1 B1 b2 B2  .  .
"""

from __future__ import annotations

import numpy as np

from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rules import check, multiple
from .slots import by_slot, waves


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


ENTRY = Entry(
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
