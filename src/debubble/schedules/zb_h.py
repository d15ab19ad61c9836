"""ZB-H1 and ZB-H2: 1F1B with the backward split, whose W fill what was a bubble.

Both keep 1F1B's order of forwards and gradients; they differ in the warm-up and in how many W may wait.
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .entry import Entry, check
from .rows import alternate, linear


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
