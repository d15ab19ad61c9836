"""Who talks to whom: neighbours in a pipeline, by the peers that transfers name or by transfers that end together.

Transfers of two ranks that have nothing to do with each other end together only by chance. Neighbours make chains (or
rings, where chunks loop): the pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from ..op import Kind
from .matching import TOGETHER, match
from .rank_ops import RankOps, Transfers

_MOST = 512  # transfers of a device that are compared
_STEPS = 4  # likewise steps
_Side = tuple[NDArray[np.int64], NDArray[np.int64]]


def chains(devices: Sequence[RankOps]) -> list[list[int]]:
    """Pipelines as lists of indices into ``devices``, each from its first rank to its last; [] where none shows.

    Every device must be in one, and all must be equally long.
    """
    for tell in (_named, _in_order, _by_ends):
        found = _chains_of(tell(devices), devices)
        if found:
            return found
    return []


def _chains_of(links: set[tuple[int, int]], devices: Sequence[RankOps]) -> list[list[int]]:
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


def _in_order(devices: Sequence[RankOps]) -> set[tuple[int, int]]:
    """Pairs of which the k-th send of one and the k-th receive of the other end together, in every step and direction.

    Even stages run in lockstep, so ends alone would also match ranks that lie two apart.
    """
    moves = [device.transfers for device in devices if device.transfers is not None]
    if len(moves) < len(devices):
        return set()
    steps = np.array(sorted(set.intersection(*(set(move.step.tolist()) for move in moves)))[:_STEPS])
    sides = [_sides(move, steps) for move in moves]
    within = reach(devices)
    return {(i, j) for i, j in permutations(range(len(devices)), 2) if _follows(sides[i], sides[j], within)}


def _sides(moves: Transfers, steps: NDArray[np.int64]) -> dict[tuple[bool, int], _Side]:
    """Step and end of every transfer of some steps in order, by whether it sends and whether forward."""
    sides = {}
    for send in (False, True):
        for forward in (0, 1):
            rows = np.flatnonzero((moves.send == send) & (moves.forward == forward) & np.isin(moves.step, steps))
            rows = rows[np.lexsort((moves.end[rows], moves.step[rows]))]
            sides[send, forward] = moves.step[rows], moves.end[rows]
    return sides


def _follows(one: dict[tuple[bool, int], _Side], other: dict[tuple[bool, int], _Side], within: int) -> bool:
    """Whether the second takes all that the first sends forward, and sends it all that comes back."""
    lags = []
    for (sent, end), (received, arrived) in (
        (one[True, 1], other[False, 1]),
        (other[True, 0], one[False, 0]),
    ):
        if not np.array_equal(sent, received):
            return False
        lags.append(arrived - end)
    down, up = lags
    if not len(down):
        return False
    lag = np.concatenate([down, -up])
    offset = float(np.median(lag))
    return abs(offset) < within and float(np.median(np.abs(lag - offset))) < TOGETHER


def _by_ends(devices: Sequence[RankOps]) -> set[tuple[int, int]]:
    """Pairs whose transfers end together more often than chance allows."""
    moves = [None if device.transfers is None else _first(device.transfers) for device in devices]
    within = reach(devices)
    return {
        (i, j)
        for i, j in combinations(range(len(devices)), 2)
        if (one := moves[i]) is not None and (other := moves[j]) is not None and match(one, other, within).sure
    }


def reach(devices: Sequence[RankOps]) -> int:
    """How far clocks may differ: less than a quarter of an op, or the schedule's own period would match itself."""
    return int(np.median(np.concatenate([device.end - device.start for device in devices]))) // 4


def _first(moves: Transfers) -> Transfers:
    """The first few hundred transfers: enough to tell, whatever the length of a trace."""
    rows = np.argsort(moves.end, kind="stable")[:_MOST]
    return Transfers(**{field.name: getattr(moves, field.name)[rows] for field in fields(Transfers)})
