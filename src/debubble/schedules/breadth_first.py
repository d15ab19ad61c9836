"""Breadth first: all micro-batches pass a chunk before a rank turns to the next one.

GPipe (one chunk), looped breadth-first (several), and inference, forwards alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.schedule import Kind, Schedule, Shape
from .entry import Entry, check
from .rows import F, alternate, linear, looped


# GPipe (fill and drain): every forward, then every backward; all micro-batches are in flight at once.
#
# Source: Huang et al., GPipe, https://arxiv.org/abs/1811.06965, section 2.3 and figure 2(c); backwards here in
# the order of the forwards.
#
# Steps, on every rank:
#     (1) m forwards
#     (2) m backwards
#
# p = 4, m = 4, B = 2F:
#
#     rank 0  F0 F1 F2 F3  .  .  .  .  .  .  .  .  . B0--- B1--- B2--- B3---
#     rank 1   . F0 F1 F2 F3  .  .  .  .  .  . B0--- B1--- B2--- B3---  .  .
#     rank 2   .  . F0 F1 F2 F3  .  .  . B0--- B1--- B2--- B3---  .  .  .  .
#     rank 3   .  .  . F0 F1 F2 F3 B0--- B1--- B2--- B3---  .  .  .  .  .  .
def gpipe(shape: Shape) -> Schedule:
    """GPipe for any p and m; every rank holds m micro-batches at its peak."""
    check("gpipe", shape)
    m = shape.microbatches
    return linear("gpipe", shape, [alternate(m, m)] * shape.ranks)


GPIPE = Entry(
    name="gpipe",
    build=gpipe,
    other_names=("AFAB", "F-then-B", "fill-drain"),
    torch="GPipe",
    paper="arXiv:1811.06965",
    placement="linear",
    hides_hops=True,
    bubble="(p-1)(F+B)",
    activations="m",
)


# Looped breadth-first: all micro-batches pass a chunk before the rank turns to the next one.
#
# Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, https://arxiv.org/abs/2211.05953; meant for few
# micro-batches beside sharded data parallelism, because a chunk's weights are gathered once.
#
# Steps, on every rank of p with v chunks:
#     (1) for each chunk upward: m forwards
#     (2) for each chunk downward: m backwards, in the order of the forwards
#
# p = 3, m = 3, B = 2F, v = 2; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 f0 f1 f2  .  .  .  .  .  . b0--- b1--- b2--- B0--- B1--- B2---
#     rank 1   . F0 F1 F2 f0 f1 f2  .  .  . b0--- b1--- b2--- B0--- B1--- B2---  .  .
#     rank 2   .  . F0 F1 F2 f0 f1 f2 b0--- b1--- b2--- B0--- B1--- B2---  .  .  .  .
def looped_bfs(shape: Shape) -> Schedule:
    """Looped breadth-first for any p, m and v; every rank holds m micro-batches at its peak."""
    check("looped-bfs", shape, chunks=None)
    ops = shape.microbatches * shape.chunks
    return looped("looped-bfs", shape, [alternate(ops, ops)] * shape.ranks, shape.microbatches)


LOOPED_BFS = Entry(
    name="looped-bfs",
    build=looped_bfs,
    other_names=("breadth-first", "BFS"),
    torch="LoopedBFS",
    paper="arXiv:2211.05953",
    placement="loop",
    chunks=2,
    any_chunks=True,
    hides_hops=True,
    bubble="(p-1)(F+B)/v",
    bubble_holds="m >= p",
    activations="m",
)


def forward_only(schedule: Schedule) -> Schedule:
    """The forwards of a schedule in their order; idle share (p-1)/(m+p-1) where the stages are even."""
    keep = schedule.kind == Kind.F
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    joined = schedule.joined
    if joined is not None:
        pairs = joined & keep & np.concatenate([[False], keep[:-1]])
        joined = pairs[keep] if pairs.any() else None
    return replace(
        schedule,
        name=f"{schedule.name} forward only",
        offsets=kept_before[schedule.offsets],
        kind=schedule.kind[keep],
        stage=schedule.stage[keep],
        unit=schedule.unit[keep],
        joined=joined,
    )


# Inference: forwards alone. Each rank passes all micro-batches through a chunk before it turns to the next one.
#
# p = 3, m = 4:
#
#     rank 0  F0 F1 F2 F3  .  .
#     rank 1   . F0 F1 F2 F3  .
#     rank 2   .  . F0 F1 F2 F3
def inference(shape: Shape) -> Schedule:
    """Forwards alone for any p, m and v."""
    check("forward-only", shape, chunks=None)
    m = shape.microbatches
    return looped("forward-only", shape, [m * shape.chunks * F] * shape.ranks, m)


FORWARD_ONLY = Entry(
    name="forward-only",
    build=inference,
    other_names=("inference",),
    placement="loop",
    any_chunks=True,
    trains=False,
    hides_hops=True,
    bubble="(p-1)F/v",
    bubble_holds="m >= p or v = 1",
    activations="0",
)
