"""GPipe (fill and drain): every forward, then every backward; all micro-batches are in flight at once.

Source: Huang et al., GPipe, https://arxiv.org/abs/1811.06965, section 2.3 and figure 2(c); backwards here in
the order of the forwards.

Steps, on every rank:
    (1) m forwards
    (2) m backwards
"""

from __future__ import annotations

import numpy as np

from ..schedule import Schedule, Shape, loop_placement
from .alternate import alternate


def gpipe(shape: Shape) -> Schedule:
    """GPipe for any p and m; every rank holds m micro-batches at its peak."""
    p, m = shape.ranks, shape.microbatches
    kind, unit = alternate(np.full(p, m, np.int32), m)
    return Schedule(
        name="gpipe",
        source="generated",
        microbatches=m,
        placement=loop_placement(p, 1),
        offsets=np.arange(p + 1, dtype=np.int64) * (2 * m),
        kind=kind.ravel(),
        stage=np.repeat(np.arange(p, dtype=np.int32), 2 * m),
        unit=unit.ravel(),
    )
