"""Who talks to whom: neighbours in a pipeline, by the peers that transfers name or by transfers that end together.

Transfers of two ranks that have nothing to do with each other end together only by chance. Neighbours make chains (or
rings, where chunks loop): the pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.op import Kind
from .device_ops import RankOps, Transfers
from .matching import TOGETHER, match, only
from .pairs_in_order import Side, in_order, rate_of, sides

_MOST = 512  # transfers of a device that are compared
_STEPS = 4  # likewise steps


def chains(devices: Sequence[RankOps]) -> list[list[int]]:
    """Pipelines as lists of indices into ``devices``, each from its first rank to its last; [] where none shows.

    All are equally long. Devices of a pipeline that lacks a rank are in none.

    Raises:
        InputError: no pipeline is whole, and it shows whose neighbours are missing.
    """
    torn: list[list[int]] = []
    for tell in (_named, _in_order, _by_ends):
        links = tell(devices)
        parts = _parts(links, devices)
        if found := _whole(parts, devices):
            return sorted(found, key=lambda chain: devices[chain[0]].rank)
        torn = torn or (parts if links and any(len(part) == 1 for part in parts) else [])
    if torn:
        lonely = ", ".join(str(devices[part[0]].rank) for part in torn if len(part) == 1)
        rule = f"rank {lonely} sends to or receives from ranks whose traces are not here; no pipeline is whole"
        remedy = "add the traces of the other ranks, or say with --ranks how many of one pipeline are here"
        raise InputError(Fault(devices[0].source, rule, remedy))
    return []


def _parts(links: set[tuple[int, int]], devices: Sequence[RankOps]) -> list[list[int]]:
    """Devices that hang together, each part in order; nothing where a device has too many neighbours."""
    neighbours: list[set[int]] = [set() for _ in devices]
    for one, other in links:
        neighbours[one].add(other)
        neighbours[other].add(one)
    if any(len(near) > 2 for near in neighbours):
        return []
    begun = [int(device.start[device.kind == Kind.F].min(initial=np.iinfo(np.int64).max)) for device in devices]
    parts: list[list[int]] = []
    left = set(range(len(devices)))
    while left:
        parts.append(_walk(neighbours, begun, left))
        left -= set(parts[-1])
    return parts


def _whole(parts: list[list[int]], devices: Sequence[RankOps]) -> list[list[int]]:
    """The parts that are whole pipelines; all of them where directions are not known and they are equally long."""
    closed = [_closed([devices[i] for i in part]) if len(part) > 1 else False for part in parts]
    found = [part for part, whole in zip(parts, closed, strict=True) if whole]
    if not found and all(whole is None for whole in closed):
        found = parts
    return found if len({len(part) for part in found}) == 1 else []


def _closed(chain: Sequence[RankOps]) -> bool | None:
    """Whether what a chain sends forward stays inside, and some of its forwards need nothing; None if unknown.

    A pipeline of p ranks and v chunks has at most p v - 1 transfers for its p v forwards of a micro-batch. A piece cut
    out of a longer one sends more than it receives (its end is missing), or the reverse, or needs as many as it runs.
    Most steps decide: a cut step, or a transfer that was set aside, spoils its own.
    """
    moves = [device.transfers for device in chain if device.transfers is not None]
    steps = np.array(sorted(set.intersection(*(set(device.step.tolist()) for device in chain))))
    known = [move.forward[np.isin(move.step, steps)] >= 0 for move in moves]
    if len(moves) < len(chain) or not len(steps) or not all(rows.all() for rows in known):
        return None
    forwards = sum(_by_step(device.step[device.kind == Kind.F], steps) for device in chain)
    sent, received = (
        sum(_by_step(move.step[(move.send == way) & (move.forward == 1)], steps) for move in moves) for way in (1, 0)
    )
    return bool(np.mean((sent == received) & (received < forwards)) > 0.5)


def _by_step(numbers: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many rows each step has, int64[steps]."""
    at = np.searchsorted(steps, numbers[np.isin(numbers, steps)])
    return np.bincount(at, minlength=len(steps))


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
    ends = [sides(move, steps) for move in moves]
    within = reach(devices)
    return {(i, j) for i, j in _near(ends, within) if _follows(ends[i], ends[j], within)}


def _near(ends: Sequence[dict[tuple[bool, int], Side]], within: int) -> Iterator[tuple[int, int]]:
    """Pairs whose first, middle or last activations end close to each other: of a thousand ranks few need more."""
    sent, received = (np.array([_three(side[send, 1][1]) for side in ends]) for send in (True, False))
    close = np.zeros((len(ends), len(ends)), np.bool_)
    for mine, theirs in zip(sent.T, received.T, strict=True):
        close |= np.abs(theirs[None] - mine[:, None]) < within + TOGETHER
    np.fill_diagonal(close, False)
    return zip(*(index.tolist() for index in np.nonzero(close)), strict=True)


def _three(ends: NDArray[np.int64]) -> list[float]:
    """The least, the middle and the largest of some times; no numbers where there are none."""
    return [float(ends.min()), float(np.median(ends)), float(ends.max())] if len(ends) else [float("nan")] * 3


def _follows(one: dict[tuple[bool, int], Side], other: dict[tuple[bool, int], Side], within: int) -> bool:
    """Whether the second takes all that the first sends forward, and sends it all that comes back."""
    pairs = in_order(one, other)
    if pairs is None:
        return False
    mine, theirs, _ = pairs
    lag = theirs - mine - rate_of(*pairs).rate * (mine - mine.min())
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
    return only(moves, rows)
