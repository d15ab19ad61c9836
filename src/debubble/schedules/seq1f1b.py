"""Seq1F1B: the sequence of a micro-batch is cut into slices, and 1F1B runs over slices: finer units, smaller bubble.

Source: Sun et al., Seq1F1B, https://arxiv.org/abs/2406.03488. Attention is causal: the forward of a
slice needs the slices before it, its backward those behind it, so backwards take the slices in reverse.

A unit is one slice of one micro-batch. Steps, on rank r of p with m micro-batches of s slices:
    (1) warm-up: w = min(p-2-r+s, m s) forwards, of units in order
    (2) steady: one forward, one backward; the k-th backward takes micro-batch k div s, slice s-1 - (k mod s)
    (3) cool-down: the w backwards that are left

p = 3, m = 2, B = 2F, s = 2; slices a and b:

    rank 0  F0a F0b F1a F1b  .   .   .   .  B0b----  .  B0a----  .  B1b---- B1a----
    rank 1   .  F0a F0b F1a  .   .  B0b---- F1b B0a----  .  B1b---- B1a----  .   .
    rank 2   .   .  F0a F0b B0b---- F1a B0a---- F1b B1b---- B1a----  .   .   .   .
"""

from __future__ import annotations

import numpy as np

from ..core.op import Kind
from ..core.schedule import Schedule, Shape, loop_placement
from .entry import Entry
from .rows import alternate, numbered
from .rules import check


def seq1f1b(shape: Shape) -> Schedule:
    """Seq1F1B for any p, m and s; rank r holds at most (p - r - 1 + s)/s micro-batches."""
    check("seq1f1b", shape, takes=frozenset({"slices"}))
    p, s = shape.ranks, shape.slices
    ops = numbered([alternate(p - 2 - r + s, shape.units) for r in range(p)])
    mirrored = ops.turn + (s - 1) - 2 * (ops.turn % s)
    return Schedule(
        name="seq1f1b",
        source="generated",
        microbatches=shape.microbatches,
        placement=loop_placement(p, 1),
        offsets=ops.offsets,
        kind=ops.kind,
        stage=ops.rank,
        unit=np.where(ops.kind == Kind.F, ops.turn, mirrored).astype(np.int32),
        slices=s,
    )


ENTRY = Entry(
    name="seq1f1b",
    build=seq1f1b,
    not_on_torch="it has no slices: a stage takes each micro-batch once",
    paper="arXiv:2406.03488",
    placement="linear",
    bubble="(p-1)(F+B)/s",
    activations="min(p-1-r+s, m s)/s",
)
