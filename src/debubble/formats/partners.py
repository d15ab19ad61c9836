"""Who talks to whom: neighbours in a pipeline, by the peers that transfers name or by transfers that end together.

A send and its receive end within a fraction of a millisecond; transfers of two ranks that have nothing to do with each
other end together only by chance. So the difference of ends between neighbours piles up at one value (the offset of
their clocks), and between strangers it does not. Neighbours make chains (or rings, where chunks loop): the pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..op import Kind
from .rank_ops import RankOps

_BIN = 200_000  # nanoseconds within which both sides of a transfer end
_SHARE = 0.3  # of the transfers of the quieter side; a middle rank shares half of its own with each neighbour
_MOST = 512  # transfers of a device that are compared


def chains(devices: Sequence[RankOps]) -> list[list[int]]:
    """Pipelines as lists of indices into ``devices``, each from its first rank to its last; [] where none shows.

    Every device must be in one, and all must be equally long.
    """
    links = _named(devices) or _by_ends(devices)
    neighbours: list[set[int]] = [set() for _ in devices]
    for one, other in links:
        neighbours[one].add(other)
        neighbours[other].add(one)
    if any(not 1 <= len(near) <= 2 for near in neighbours):
        return []
    begun = [int(device.start[device.kind == Kind.F].min(initial=np.iinfo(np.int64).max)) for device in devices]
    found: list[list[int]] = []
    left = set(range(len(devices)))
    while left:
        found.append(_walk(neighbours, begun, left))
        left -= set(found[-1])
    if len({len(chain) for chain in found}) > 1:
        return []
    return sorted(found, key=lambda chain: devices[chain[0]].rank)


def _walk(neighbours: list[set[int]], begun: list[int], left: set[int]) -> list[int]:
    """The chain of the device that began first of those left: down from it, to where nobody is left."""
    group, edge = set(), {min(left, key=begun.__getitem__)}
    while edge:
        group |= edge
        edge = {near for device in edge for near in neighbours[device]} - group
    ends = [device for device in group if len(neighbours[device]) == 1]
    chain = [min(ends or group, key=begun.__getitem__)]
    while ahead := neighbours[chain[-1]] - set(chain):
        chain.append(min(ahead, key=begun.__getitem__))  # a choice only at the first rank of a ring
    return chain


def _named(devices: Sequence[RankOps]) -> set[tuple[int, int]]:
    """Pairs by the peers that transfers name."""
    index = {device.rank: i for i, device in enumerate(devices)}
    return {
        (i, index[peer])
        for i, device in enumerate(devices)
        if device.transfers is not None
        for peer in np.unique(device.transfers.peer).tolist()
        if peer in index and index[peer] != i
    }


def _by_ends(devices: Sequence[RankOps]) -> set[tuple[int, int]]:
    """Pairs whose transfers end together more often than chance allows."""
    ends = [_ends(device) for device in devices]
    return {
        (i, j)
        for i, j in combinations(range(len(devices)), 2)
        if (least := min(len(ends[i]), len(ends[j]))) and _together(ends[i], ends[j], _reach(devices)) >= _SHARE * least
    }


def _ends(device: RankOps) -> NDArray[np.int64]:
    return np.empty(0, np.int64) if device.transfers is None else np.sort(device.transfers.end)[:_MOST]


def _reach(devices: Sequence[RankOps]) -> int:
    """How far clocks may differ: less than a quarter of an op, or the schedule's own period would match itself."""
    return int(np.median(np.concatenate([device.end - device.start for device in devices]))) // 4


def _together(mine: NDArray[np.int64], theirs: NDArray[np.int64], reach: int) -> int:
    """How many of the differences within reach fall into the fullest pair of adjacent bins."""
    first, behind = np.searchsorted(theirs, mine - reach), np.searchsorted(theirs, mine + reach, side="right")
    width = int((behind - first).max(initial=0))
    if not width:
        return 0
    at = first[:, None] + np.arange(width)
    differences = (theirs[np.minimum(at, len(theirs) - 1)] - mine[:, None])[at < behind[:, None]]
    counts = np.bincount((differences + reach) // _BIN)
    return int((counts[:-1] + counts[1:]).max(initial=int(counts.max())))
