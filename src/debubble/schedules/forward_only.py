"""Forward only (inference): a schedule with its backwards left out.

1F1B  rank 0   0123..0 4 1 5 ..      forward only   012345..
      rank 1   .01 0 2 1 3 ..                       .01234..
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..op import Kind
from ..schedule import Schedule


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
