"""1F1B (PipeDream-Flush, DAPPLE): each rank warms up just enough, then alternates one forward, one backward.

Sources: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, https://arxiv.org/abs/2006.09503,
section 3.2; Fan et al., DAPPLE, https://arxiv.org/abs/2007.01045, section 3.

Steps, on rank r of p with m micro-batches:
    (1) warm-up: w = min(p-1-r, m) forwards
    (2) steady: one forward, one backward, until the forwards are used up
    (3) cool-down: the w backwards that are left

p = 4, m = 6, B = 2F:

    rank 0  F0 F1 F2 F3  .  .  .  .  .  . B0--- F4 B1--- F5 B2---  . B3---  . B4---  . B5---
    rank 1   . F0 F1 F2  .  .  .  . B0--- F3 B1--- F4 B2--- F5 B3---  . B4---  . B5---  .  .
    rank 2   .  . F0 F1  .  . B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4---  . B5---  .  .  .  .
    rank 3   .  .  . F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---  .  .  .  .  .  .
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, linear
from .rules import check


def one_f_one_b(shape: Shape) -> Schedule:
    """1F1B for any p and m; rank r holds at most min(p - r, m) micro-batches in flight."""
    check("1f1b", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("1f1b", shape, [alternate(p - 1 - r, m) for r in range(p)])


ENTRY = Entry(
    name="1f1b",
    build=one_f_one_b,
    other_names=("DAPPLE", "PipeDream-Flush"),
    torch="1F1B",
    paper="arXiv:2006.09503",
    placement="linear",
    bubble="(p-1)(F+B)",
    activations="min(p-r, m)",
)
