"""Looped breadth-first: all micro-batches pass a chunk before the rank turns to the next one.

Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, https://arxiv.org/abs/2211.05953; meant for few
micro-batches beside sharded data parallelism, because a chunk's weights are gathered once.

Steps, on every rank of p with v chunks:
    (1) for each chunk upward: m forwards
    (2) for each chunk downward: m backwards, in the order of the forwards

p = 3, m = 3, B = 2F, v = 2; small letters are chunk 1:

    rank 0  F0 F1 F2 f0 f1 f2  .  .  .  .  .  . b0--- b1--- b2--- B0--- B1--- B2---
    rank 1   . F0 F1 F2 f0 f1 f2  .  .  . b0--- b1--- b2--- B0--- B1--- B2---  .  .
    rank 2   .  . F0 F1 F2 f0 f1 f2 b0--- b1--- b2--- B0--- B1--- B2---  .  .  .  .
"""

from __future__ import annotations

from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import alternate, looped
from .rules import check


def looped_bfs(shape: Shape) -> Schedule:
    """Looped breadth-first for any p, m and v; every rank holds m micro-batches at its peak."""
    check("looped-bfs", shape, chunks=None)
    ops = shape.microbatches * shape.chunks
    return looped("looped-bfs", shape, [alternate(ops, ops)] * shape.ranks, shape.microbatches)


ENTRY = Entry(
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
