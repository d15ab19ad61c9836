"""Pipelines of which no replica is whole: the ranks that are here close up, and who lacks a neighbour is told.

stages that ran        0 1 2 3        what the one before rank 2 hands on still reaches rank 3 some time later, so the
stages that are here   0 1   3        order of the ranks that are here stays a legal one: 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .places import Places
from .rank_ops import RankOps

_NOWHERE = -1


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
    used = [i for i in placed if i != without]
    wanted = set(range(max((int(numbers[i].max(initial=0)) for i in placed), default=0) + 1))
    here: dict[int, set[int]] = {}
    for i in used:
        here.setdefault(where.replica[i], set()).update(numbers[i].tolist())
    fullest = max(here, key=lambda q: (len(here[q]), -q), default=0)
    missing = wanted - here.get(fullest, set())
    if not missing or not here:
        return tuple(devices), where, ()
    kept = [i for i in used if where.replica[i] == fullest]
    order = np.array(sorted(here[fullest]))
    places = sorted({where.position[i] for i in kept})
    position = tuple(places.index(at) if i in kept else _NOWHERE for i, at in enumerate(where.position))
    replica = tuple(0 if i in kept else _NOWHERE for i in range(len(devices)))
    beside = {near for stage in missing for near in (stage - 1, stage + 1)}
    torn = tuple(devices[i].rank for i in kept if beside & set(numbers[i].tolist()))
    closer = tuple(_counted_anew(device, order) if i in kept else device for i, device in enumerate(devices))
    return closer, Places(position, replica, (*where.remarks, _said(devices, missing, fullest, kept))), torn


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


def _said(devices: Sequence[RankOps], missing: set[int], fullest: int, kept: Sequence[int]) -> str:
    what = "stage" if devices[kept[0]].stage is not None else "position"
    which = ", ".join(map(str, sorted(missing)))
    ranks = ", ".join(str(devices[i].rank) for i in kept)
    others = f" of replica {fullest}, the fullest," if len(kept) < len(devices) else ""
    return (
        f"no whole trace of {what} {which} is here, so no pipeline is whole: windows are those of rank {ranks}{others} "
        "alone, and tell neither an order nor causes"
    )
