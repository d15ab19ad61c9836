"""Eager 1F1B: twice the warm-up of 1F1B, so that a hop between ranks hides behind the ops of other micro-batches.

Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, https://arxiv.org/abs/2211.05322
(overlapping-friendly 1F1B; Alpa's OverlapFriendlyPipeDreamSchedule).

With a full backward each hop that takes any time costs a whole period, hence 2(p-r)-1 in flight instead of p-r.

Steps, on rank r of p with m micro-batches:
    (1) warm-up: w = min(2(p-1-r), m) forwards
    (2) steady: one forward, one backward, until the forwards are used up
    (3) cool-down: the w backwards that are left

p = 4, m = 6, B = 2F:

    rank 0  F0 F1 F2 F3 F4 F5  .  .  .  . B0---  . B1---  . B2---  . B3---  . B4---  . B5---
    rank 1   . F0 F1 F2 F3 F4  .  . B0--- F5 B1---  . B2---  . B3---  . B4---  . B5---  .  .
    rank 2   .  . F0 F1 F2  . B0--- F3 B1--- F4 B2--- F5 B3---  . B4---  . B5---  .  .  .  .
    rank 3   .  .  . F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---  .  .  .  .  .  .
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, linear
from .rules import check


def eager_1f1b(shape: Shape) -> Schedule:
    """Eager 1F1B for any p and m; rank r holds at most min(2(p - r) - 1, m) micro-batches in flight."""
    check("eager-1f1b", shape)
    p, m = shape.ranks, shape.microbatches
    return linear("eager-1f1b", shape, [alternate(2 * (p - 1 - r), m) for r in range(p)])


ENTRY = Entry(
    name="eager-1f1b",
    build=eager_1f1b,
    other_names=("OverlapFriendlyPipeDream", "overlap-friendly 1F1B"),
    paper="arXiv:2211.05322",
    placement="linear",
    hides_hops=True,
    bubble="(p-1)(F+B)",
    activations="min(2(p-r)-1, m)",
)
