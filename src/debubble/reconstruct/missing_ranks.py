"""Pipelines of which no replica is whole: the ranks that are here close up, and who lacks a neighbour is told.

stages that ran        0 1 2 3        what the one before rank 2 hands on still reaches rank 3 some time later, so the
stages that are here   0 1   3        order of the ranks that are here stays a legal one: 0 1 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from .device_ops import UNKNOWN, Ints, Mask, RankOps
from .pairing import ABSENT, Pairs, Sides
from .positions import HALF, MOST_NAMED, NOWHERE, Places

_MATCHED = 0.9  # of a rank's messages: if none reaches it, ends do not tell who belongs together


def torn(
    devices: Sequence[RankOps], where: Places, sides: Sides, pairs: Pairs, counted: Mask, *, world: int | None
) -> tuple[int, ...]:
    """Global ranks of devices that lack a neighbour.

    They name one that is not here, or, if messages name nobody, the other sides of most of their messages are not here.

    Args:
        devices: as they were measured.
        where: their places.
        sides: of all messages.
        pairs: of which both sides are known.
        counted: which sides belong to windows that count, bool[sides].
        world: how many ranks the job has, if that is known: if no message tells, pipelines as long as those that are
            here must divide it.
    """
    placed = [i for i, at in enumerate(where.position) if at != NOWHERE and len(devices[i])]
    if max(where.position) == 0:
        return tuple(devices[i].rank for i in placed if devices[i].talks)
    lacking = np.unique(sides.device[counted & (sides.peer == ABSENT)]).tolist()
    if lacking:
        return tuple(devices[i].rank for i in lacking if i in placed)
    paired = np.zeros(len(sides), np.bool_)
    paired[pairs.send] = paired[pairs.receive] = True
    total = np.bincount(sides.device[counted], minlength=len(devices))
    share = np.bincount(sides.device[counted], paired[counted], minlength=len(devices)) / np.maximum(total, 1)
    if float(share[total > 0].max(initial=0.0)) < _MATCHED:
        ranks = max(where.position) + 1
        short = world is not None and world > len(placed) and world % ranks > 0
        return tuple(devices[i].rank for i in placed if short and devices[i].talks)
    return tuple(devices[i].rank for i in placed if total[i] and share[i] < HALF)


def closed_up(
    devices: Sequence[RankOps], where: Places, without: int | None = None
) -> tuple[tuple[RankOps, ...], Places, tuple[int, ...]]:
    """The devices of the fullest replica without gaps between them, if no replica is whole; else what was given.

    Args:
        devices: as they were measured.
        where: their places; positions and, if labels tell them, stages may be missing.
        without: index of a device that is to be left out, whatever it holds.

    Returns:
        Devices with stages counted anew, their places, and the global ranks of those beside a gap.
    """
    numbers = [_held(device, at) for device, at in zip(devices, where.position, strict=True)]
    placed = [i for i, at in enumerate(where.position) if at != NOWHERE]
    here: dict[int, set[int]] = {}
    for i in placed:
        if i != without:
            here.setdefault(where.replica[i], set()).update(numbers[i].tolist())
    last = max(max((int(numbers[i].max(initial=0)) for i in placed), default=0), _last(devices, where))
    fullest = max(here, key=lambda q: (len(here[q]), -q), default=0)
    if not here or len(here[fullest]) == last + 1:
        return tuple(devices), where, ()
    kept = {i for i in placed if i != without and where.replica[i] == fullest}
    places = sorted({where.position[i] for i in kept})
    position = tuple(places.index(at) if i in kept else NOWHERE for i, at in enumerate(where.position))
    replica = tuple(0 if i in kept else NOWHERE for i in range(len(devices)))
    order = np.array(sorted(here[fullest]))
    closer = tuple(_counted_anew(device, order) if i in kept else device for i, device in enumerate(devices))
    beside = tuple(devices[i].rank for i in sorted(kept) if _beside(numbers[i], here[fullest], last))
    said = _said([devices[i] for i in sorted(kept)], here[fullest], last, len(here))
    return closer, Places(position, replica, len(places), where.missing, (*where.remarks, said)), beside


def cut(devices: Sequence[RankOps]) -> list[int]:
    """Indices of devices that have fewer ops than the others, the fewest first: those whose files were cut."""
    most = max(map(len, devices), default=0)
    return sorted((i for i, device in enumerate(devices) if len(device) < most), key=lambda i: len(devices[i]))


def _held(device: RankOps, position: int) -> Ints:
    """The stages of a device, or its position if no label tells them."""
    return np.array([position]) if device.stage is None else np.unique(device.stage[device.stage >= 0]).astype(np.int64)


def _last(devices: Sequence[RankOps], where: Places) -> int:
    """The last position of a whole pipeline; 0 if stages are labelled, which tell more."""
    return 0 if any(device.stage is not None for device in devices) else where.ranks - 1


def _counted_anew(device: RankOps, order: Ints) -> RankOps:
    if device.stage is None:
        return device
    stage = np.where(device.stage < 0, UNKNOWN, np.searchsorted(order, device.stage))
    return replace(device, stage=stage.astype(np.int32))


def _beside(mine: Ints, here: set[int], last: int) -> bool:
    """Whether one of a device's stages lacks the stage before or after it."""
    near = {stage + way for stage in mine.tolist() for way in (-1, 1)}
    return any(0 <= stage <= last and stage not in here for stage in near)


def _said(kept: Sequence[RankOps], here: set[int], last: int, replicas: int) -> str:
    what = "stage" if kept[0].stage is not None else "position"
    gone = list(islice((str(stage) for stage in range(last + 1) if stage not in here), MOST_NAMED + 1))
    which = ", ".join(gone[:MOST_NAMED]) + (", .." if len(gone) > MOST_NAMED else "")
    ranks = ", ".join(str(device.rank) for device in kept[:MOST_NAMED]) + (", .." if len(kept) > MOST_NAMED else "")
    others = " of the fullest replica" if replicas > 1 else ""
    return (
        f"no whole trace of {what} {which} is here, so no pipeline is whole: windows are those of rank {ranks}{others} "
        "alone, and tell neither an order nor causes"
    )
