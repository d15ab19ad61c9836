"""1F1B (PipeDream-Flush, DAPPLE): each rank warms up just enough, then alternates one forward, one backward.

Sources: Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, https://arxiv.org/abs/2006.09503,
section 3.2; Fan et al., DAPPLE, https://arxiv.org/abs/2007.01045, section 3.

Steps, on rank r of p with m micro-batches:
    (1) warm-up: w = min(p-1-r, m) forwards
    (2) steady: one forward, one backward, until the forwards are used up
    (3) cool-down: the w backwards that are left
"""

from __future__ import annotations

import numpy as np

from ..schedule import Schedule, Shape, loop_placement
from .alternate import alternate


def one_f_one_b(shape: Shape) -> Schedule:
    """1F1B for any p and m; rank r holds at most min(p - r, m) micro-batches in flight."""
    p, m = shape.ranks, shape.microbatches
    ranks = np.arange(p, dtype=np.int32)
    kind, unit = alternate(np.minimum(p - 1 - ranks, m), m)
    return Schedule(
        name="1f1b",
        source="generated",
        microbatches=m,
        placement=loop_placement(p, 1),
        offsets=np.arange(p + 1, dtype=np.int64) * (2 * m),
        kind=kind.ravel(),
        stage=np.repeat(ranks, 2 * m),
        unit=unit.ravel(),
    )
