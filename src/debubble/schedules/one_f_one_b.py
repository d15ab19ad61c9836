"""1F1B and its kin on a line of ranks: 1F1B, eager 1F1B, Seq1F1B; ZB-H1 and ZB-H2, whose W fill what was a bubble.

Each rank warms up with some forwards and then alternates one forward, one backward; they differ in how many, in what a
unit is, and in whether the backward is split.
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


# ZB-H1: 1F1B with the backward split; W waits until it fills what was a bubble, in the memory of 1F1B.
#
# Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 2.1 and figure 3.
#
# Steps, on rank r of p with m micro-batches:
#     (1) warm-up: w = min(p-1-r, m) forwards, as in 1F1B
#     (2) steady: one forward, one I; and one W as soon as more than r of them are waiting
#     (3) cool-down: the w I that are left, with W by the same rule
#     (4) the min(r, m) W that are still waiting
#
# Hence the j-th W follows the (j+r)-th I, and every rank holds p micro-batches from F to W.
#
# p = 4, m = 6, F = I = W:
#
#     rank 0  F0 F1 F2 F3  .  .  . I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
#     rank 1   . F0 F1 F2  .  . I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
#     rank 2   .  . F0 F1  . I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
#     rank 3   .  .  . F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
def zb_h1(shape: Shape) -> Schedule:
    """ZB-H1 for any p and m; every rank holds at most min(p, m) micro-batches from F to W."""
    check("zb-h1", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("zb-h1", shape, [alternate(p - 1 - r, m, lag=r) for r in range(p)])


ZB_H1 = Entry(
    name="zb-h1",
    build=zb_h1,
    paper="arXiv:2401.10241",
    placement="linear",
    splits=True,
    bubble="(p-1)(F+I-W)",
    bubble_holds="W <= F <= I, m >= p",
    activations="min(p, m)",
)


# ZB-H2: more forwards in the warm-up and more W at the end, so that no rank idles between its first and last op.
#
# Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 2.2 and figure 3.
# There is no bubble where steps follow each other without a barrier; with one, fill and drain remain.
#
# Steps, on rank r of p with m micro-batches:
#     (1) warm-up: min(2(p-r)-1, m) forwards, the last of which stands before the first I
#     (2) steady: one I; one W as soon as more than 2r of them are waiting; one forward
#     (3) cool-down: the I that are left, with W by the same rule
#     (4) the min(2r, m) W that are still waiting
#
# p = 3, m = 6, F = I = W:
#
#     rank 0  F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5  .  .
#     rank 1   . F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5  .
#     rank 2   .  . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5
def zb_h2(shape: Shape) -> Schedule:
    """ZB-H2 for any p and m (its full effect from m = 2p-1); every rank holds at most min(2p - 1, m) micro-batches."""
    check("zb-h2", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("zb-h2", shape, [alternate(2 * (p - 1 - r), m, lag=2 * r) for r in range(p)])


ZB_H2 = Entry(
    name="zb-h2",
    build=zb_h2,
    paper="arXiv:2401.10241",
    placement="linear",
    splits=True,
    hides_hops=True,
    bubble="(p-1)max(F, F+I-2W)",
    bubble_holds="W <= F <= I, m >= 2p-1",
    activations="min(2p-1, m)",
)
