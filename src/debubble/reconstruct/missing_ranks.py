"""Torn pipelines: ranks that talk to ranks whose traces are not here, so that nobody can say what they waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.observation import Window
from .device_ops import RankOps
from .positions import Places

HALF = 0.75  # of a rank's transfers: a middle rank that lacks one neighbour shares half of them with the other
MATCHED = 0.9  # of a rank's transfers: where none reaches it, ends do not tell who belongs together


def torn(
    devices: Sequence[RankOps],
    where: Places,
    found: dict[int, NDArray[np.bool_]],
    windows: Sequence[Window],
    world: int | None = None,
) -> tuple[int, ...]:
    """Global ranks of devices that lack a neighbour.

    Args:
        devices: as they were measured.
        where: their places.
        found: by index of a device, whether the other side of each of its transfers is here.
        windows: that count; transfers of other steps do not.
        world: how many ranks the job has, if that is known: where no transfer tells, pipelines as long as those that
            are here must divide it.
    """
    if max(where.position) == 0:
        return tuple(device.rank for device in devices if device.talks)
    steps: dict[int, set[int]] = {}
    for window in windows:
        steps.setdefault(window.replica, set()).add(window.step)
    share = {i: _share(devices[i], flags, steps.get(where.replica[i], set())) for i, flags in found.items()}
    if max(share.values(), default=0.0) < MATCHED:
        short = world is not None and world > len(devices) and world % (max(where.position) + 1) > 0
        return tuple(device.rank for device in devices if short and device.talks)
    return tuple(devices[i].rank for i, matched in share.items() if matched < HALF)


def _share(device: RankOps, flags: NDArray[np.bool_], steps: set[int]) -> float:
    """Share of a device's transfers in some steps whose other side is here; 1 where it has none there."""
    if device.transfers is None:
        return 1.0
    mine = np.isin(device.transfers.step, list(steps))
    return float(flags[mine].mean()) if mine.any() else 1.0
