"""Pipelines of which no replica is whole: the ranks that are here close up, and who lacks a neighbour is told.

stages that ran        0 1 2 3        what the one before rank 2 hands on still reaches rank 3 some time later, so the
stages that are here   0 1   3        order of the ranks that are here stays a legal one: 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from .device_ops import RankOps
from .positions import Places

_NOWHERE = -1
_MOST_NAMED = 8  # stages and ranks that are spelled out


def closed_up(
    devices: Sequence[RankOps], where: Places, without: int | None = None
) -> tuple[tuple[RankOps, ...], Places, tuple[int, ...]]:
    """The devices of the fullest replica without gaps between them, where no replica is whole; else what was given.

    Args:
        devices: as they were measured.
        where: their places; positions and, where labels tell them, stages may be missing.
        without: index of a device that is to be left out, whatever it holds.

    Returns:
        Devices with stages counted anew, their places, and the global ranks of those beside a gap.
    """
    numbers = [_held(device, at) for device, at in zip(devices, where.position, strict=True)]
    placed = [i for i, at in enumerate(where.position) if at != _NOWHERE]
    here: dict[int, set[int]] = {}
    for i in placed:
        if i != without:
            here.setdefault(where.replica[i], set()).update(numbers[i].tolist())
    last = max((int(numbers[i].max(initial=0)) for i in placed), default=0)
    fullest = max(here, key=lambda q: (len(here[q]), -q), default=0)
    if not here or len(here[fullest]) == last + 1:
        return tuple(devices), where, ()
    kept = {i for i in placed if i != without and where.replica[i] == fullest}
    places = sorted({where.position[i] for i in kept})
    position = tuple(places.index(at) if i in kept else _NOWHERE for i, at in enumerate(where.position))
    replica = tuple(0 if i in kept else _NOWHERE for i in range(len(devices)))
    order = np.array(sorted(here[fullest]))
    closer = tuple(_counted_anew(device, order) if i in kept else device for i, device in enumerate(devices))
    torn = tuple(devices[i].rank for i in sorted(kept) if _beside(numbers[i], here[fullest], last))
    said = _said([devices[i] for i in sorted(kept)], here[fullest], last, len(here))
    return closer, Places(position, replica, (*where.remarks, said)), torn


def cut(devices: Sequence[RankOps]) -> list[int]:
    """Indices of devices that have fewer ops than the others, the fewest first: those whose files were cut."""
    most = max(map(len, devices), default=0)
    return sorted((i for i, device in enumerate(devices) if len(device) < most), key=lambda i: len(devices[i]))


def _held(device: RankOps, position: int) -> NDArray[np.int64]:
    """The stages of a device, or its position where no label tells them."""
    return np.array([position]) if device.stage is None else np.unique(device.stage).astype(np.int64)


def _counted_anew(device: RankOps, order: NDArray[np.int64]) -> RankOps:
    if device.stage is None:
        return device
    return replace(device, stage=np.searchsorted(order, device.stage).astype(np.int32))


def _beside(mine: NDArray[np.int64], here: set[int], last: int) -> bool:
    """Whether one of a device's stages lacks the stage before or behind it."""
    near = {stage + way for stage in mine.tolist() for way in (-1, 1)}
    return any(0 <= stage <= last and stage not in here for stage in near)


def _said(kept: Sequence[RankOps], here: set[int], last: int, replicas: int) -> str:
    what = "stage" if kept[0].stage is not None else "position"
    gone = list(islice((str(stage) for stage in range(last + 1) if stage not in here), _MOST_NAMED + 1))
    which = ", ".join(gone[:_MOST_NAMED]) + (", .." if len(gone) > _MOST_NAMED else "")
    ranks = ", ".join(str(device.rank) for device in kept[:_MOST_NAMED]) + (", .." if len(kept) > _MOST_NAMED else "")
    others = " of the fullest replica" if replicas > 1 else ""
    return (
        f"no whole trace of {what} {which} is here, so no pipeline is whole: windows are those of rank {ranks}{others} "
        "alone, and tell neither an order nor causes"
    )
