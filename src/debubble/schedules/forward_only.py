"""Forward only (inference): a schedule with its backwards left out.

For a schedule given, its forwards in their order; for a shape alone, each rank passes all micro-batches through a
chunk before it turns to the next.

p = 3, m = 4:

    rank 0  F0 F1 F2 F3  .  .
    rank 1   . F0 F1 F2 F3  .
    rank 2   .  . F0 F1 F2 F3
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.op import Kind
from ..core.schedule import Schedule, Shape
from .entry import Entry
from .rows import F, looped
from .rules import check


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


def inference(shape: Shape) -> Schedule:
    """Forwards alone for any p, m and v."""
    check("forward-only", shape, chunks=None)
    m = shape.microbatches
    return looped("forward-only", shape, [m * shape.chunks * F] * shape.ranks, m)


ENTRY = Entry(
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
