"""Rows on a loop of chunks: which chunk and micro-batch the k-th forward and the k-th backward of a rank belong to.

Stage = chunk x p + rank. A rank passes a group of N micro-batches through its chunks upward, one chunk after the
other, and its gradients downward; a last, shorter group of n micro-batches has n in the place of N:

    k-th forward: group g = k div (N v), chunk (k mod N v) div N, micro-batch g N + (k mod N)
    k-th backward (and W): the same with the chunk mirrored, v-1-chunk
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.op import Kind
from ..core.schedule import Schedule, Shape, loop_placement
from .rows import numbered


def looped(name: str, shape: Shape, rows: Sequence[bytes], group: int) -> Schedule:
    """The schedule of rows of one lane whose ops go round the chunks in groups of micro-batches."""
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    k = np.arange(m * v, dtype=np.int32)
    g, inside = np.divmod(k, group * v)
    size = np.where(g < m // group, group, m % group or group)
    chunk, microbatch = inside // size, g * group + inside % size
    ops = numbered(rows)
    upward = chunk[ops.turn]
    from_first = np.where(ops.kind == Kind.F, upward, v - 1 - upward)
    return Schedule(
        name=name,
        source="generated",
        microbatches=m,
        placement=loop_placement(p, v),
        offsets=ops.offsets,
        kind=ops.kind,
        stage=(from_first * p + ops.rank).astype(np.int32),
        unit=microbatch[ops.turn].astype(np.int32),
    )
