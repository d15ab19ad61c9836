"""ZB-H1: 1F1B with the backward split; W waits until it fills what was a bubble, in the memory of 1F1B.

Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241, section 2.1 and figure 3.

Steps, on rank r of p with m micro-batches:
    (1) warm-up: w = min(p-1-r, m) forwards, as in 1F1B
    (2) steady: one forward, one I; and one W as soon as more than r of them are waiting
    (3) cool-down: the w I that are left, with W by the same rule
    (4) the min(r, m) W that are still waiting

Hence the j-th W follows the (j+r)-th I, and every rank holds p micro-batches from F to W.

p = 4, m = 6, F = I = W:

    rank 0  F0 F1 F2 F3  .  .  . I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
    rank 1   . F0 F1 F2  .  . I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
    rank 2   .  . F0 F1  . I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
    rank 3   .  .  . F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, linear
from .rules import check


def zb_h1(shape: Shape) -> Schedule:
    """ZB-H1 for any p and m; every rank holds at most min(p, m) micro-batches from F to W."""
    check("zb-h1", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("zb-h1", shape, [alternate(p - 1 - r, m, lag=r) for r in range(p)])


ENTRY = Entry(
    name="zb-h1",
    build=zb_h1,
    paper="arXiv:2401.10241",
    placement="linear",
    splits=True,
    bubble="(p-1)(F+I-W)",
    bubble_holds="W <= F <= I, m >= p",
    activations="min(p, m)",
)
