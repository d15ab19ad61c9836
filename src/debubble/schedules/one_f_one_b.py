"""1F1B and its kin on a line of ranks: 1F1B, eager 1F1B, Seq1F1B.

Each rank warms up with some forwards and then alternates one forward, one backward; they differ in how many, and in
what a unit is.
"""

from __future__ import annotations

import numpy as np

from ..core.schedule import Kind, Schedule, Shape, loop_placement
from .entry import Entry, check
from .rows import alternate, linear, numbered


# 1F1B (PipeDream-Flush, DAPPLE): each rank warms up just enough, then alternates one forward, one backward.
#
# Sources: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, https://arxiv.org/abs/2006.09503,
# section 3.2; Fan et al., DAPPLE, https://arxiv.org/abs/2007.01045, section 3.
#
# Steps, on rank r of p with m micro-batches:
#     (1) warm-up: w = min(p-1-r, m) forwards
#     (2) steady: one forward, one backward, until the forwards are used up
#     (3) cool-down: the w backwards that are left
#
# p = 4, m = 6, B = 2F:
#
#     rank 0  F0 F1 F2 F3  .  .  .  .  .  . B0--- F4 B1--- F5 B2---  . B3---  . B4---  . B5---
#     rank 1   . F0 F1 F2  .  .  .  . B0--- F3 B1--- F4 B2--- F5 B3---  . B4---  . B5---  .  .
#     rank 2   .  . F0 F1  .  . B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4---  . B5---  .  .  .  .
#     rank 3   .  .  . F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---  .  .  .  .  .  .
def one_f_one_b(shape: Shape) -> Schedule:
    """1F1B for any p and m; rank r holds at most min(p - r, m) micro-batches in flight."""
    check("1f1b", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("1f1b", shape, [alternate(p - 1 - r, m) for r in range(p)])


ONE_F_ONE_B = Entry(
    name="1f1b",
    build=one_f_one_b,
    other_names=("DAPPLE", "PipeDream-Flush"),
    torch="1F1B",
    paper="arXiv:2006.09503",
    placement="linear",
    bubble="(p-1)(F+B)",
    activations="min(p-r, m)",
)


# Eager 1F1B: twice the warm-up of 1F1B, so that a hop between ranks hides behind the ops of other micro-batches.
#
# Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, https://arxiv.org/abs/2211.05322
# (overlapping-friendly 1F1B; Alpa's OverlapFriendlyPipeDreamSchedule).
#
# With a full backward each hop that takes any time costs a whole period, hence 2(p-r)-1 in flight instead of p-r.
#
# Steps, on rank r of p with m micro-batches:
#     (1) warm-up: w = min(2(p-1-r), m) forwards
#     (2) steady: one forward, one backward, until the forwards are used up
#     (3) cool-down: the w backwards that are left
#
# p = 4, m = 6, B = 2F:
#
#     rank 0  F0 F1 F2 F3 F4 F5  .  .  .  . B0---  . B1---  . B2---  . B3---  . B4---  . B5---
#     rank 1   . F0 F1 F2 F3 F4  .  . B0--- F5 B1---  . B2---  . B3---  . B4---  . B5---  .  .
#     rank 2   .  . F0 F1 F2  . B0--- F3 B1--- F4 B2--- F5 B3---  . B4---  . B5---  .  .  .  .
#     rank 3   .  .  . F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---  .  .  .  .  .  .
def eager_1f1b(shape: Shape) -> Schedule:
    """Eager 1F1B for any p and m; rank r holds at most min(2(p - r) - 1, m) micro-batches in flight."""
    check("eager-1f1b", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("eager-1f1b", shape, [alternate(2 * (p - 1 - r), m) for r in range(p)])


EAGER = Entry(
    name="eager-1f1b",
    build=eager_1f1b,
    other_names=("OverlapFriendlyPipeDream", "overlap-friendly 1F1B"),
    paper="arXiv:2211.05322",
    placement="linear",
    hides_hops=True,
    bubble="(p-1)(F+B)",
    activations="min(2(p-r)-1, m)",
)


# Seq1F1B: the sequence of a micro-batch is cut into slices, and 1F1B runs over slices: finer units, smaller bubble.
#
# Source: Sun et al., Seq1F1B, https://arxiv.org/abs/2406.03488. Attention is causal: the forward of a
# slice needs the slices before it, its backward those behind it, so backwards take the slices in reverse.
#
# A unit is one slice of one micro-batch. Steps, on rank r of p with m micro-batches of s slices:
#     (1) warm-up: w = min(p-2-r+s, m s) forwards, of units in order
#     (2) steady: one forward, one backward; the k-th backward takes micro-batch k div s, slice s-1 - (k mod s)
#     (3) cool-down: the w backwards that are left
#
# p = 3, m = 2, B = 2F, s = 2; slices a and b:
#
#     rank 0  F0a F0b F1a F1b  .   .   .   .  B0b----  .  B0a----  .  B1b---- B1a----
#     rank 1   .  F0a F0b F1a  .   .  B0b---- F1b B0a----  .  B1b---- B1a----  .   .
#     rank 2   .   .  F0a F0b B0b---- F1a B0a---- F1b B1b---- B1a----  .   .   .   .
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


SEQ1F1B = Entry(
    name="seq1f1b",
    build=seq1f1b,
    not_on_torch="it has no slices: a stage takes each micro-batch once",
    paper="arXiv:2406.03488",
    placement="linear",
    bubble="(p-1)(F+B)/s",
    activations="min(p-1-r+s, m s)/s",
)
