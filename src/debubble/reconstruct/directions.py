"""Forward or backward, where no name tells: by who sends to whom, along a pipeline from its first rank to its last.

    first    F s     F s     r B     only it begins with a send; all of its transfers are with the second rank
    second   r F s   r F s   r B s   what is left of its transfers is with the third, and so on to the last

Both sides of a transfer end within .2 ms of each other; those that have nothing to do with each other end milliseconds
apart. What goes to the next rank, or comes from the one before, is a forward's; the rest is a backward's. An op of a
middle rank is so told twice, by its receive and by its send; where the two differ nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.op import Kind
from .coincidence import Crowd, crowd_of, most_together
from .device_ops import UNKNOWN, Bare, RankOps, Transfers, Undirected
from .drift_by_steps import straight
from .matching import TOGETHER, match, only

_MOST = 0.9  # of a rank's transfers must have their other side: a few may be lost
_MOST_NAMED = 8  # ranks that are spelled out
_NEXT, _BEFORE, _NOBODY = 1, 0, -1
Mask = NDArray[np.bool_]
Crowds = tuple[Crowd, Crowd]  # of receives, of sends


def directed(ranks: Sequence[Bare]) -> tuple[list[RankOps], list[str]]:
    """The devices of every pipeline that transfers show whole, and a sentence on how, or why there is none."""
    devices: list[RankOps] = []
    remarks = [f"rank {one.rank}: {one.doubt}; it was left out" for one in ranks if one.doubt]
    ranks = [one for one in ranks if not one.doubt]
    crowds = _crowds(ranks)
    used: set[int] = set()
    for first in (i for i, one in enumerate(ranks) if _begins(one.runs)):
        chain, sides, fault = _chain(ranks, crowds, first, used)
        used |= set(chain)
        fault = fault or next(
            (why for i, side in zip(chain, sides, strict=True) if (why := _unclear(ranks[i], side))), ""
        )
        if fault:
            remarks.append(f"{fault}; the pipeline that begins at rank {ranks[first].rank} was left out")
            continue
        replica = len({device.replica for device in devices})
        for position, (i, side) in enumerate(zip(chain, sides, strict=True)):
            devices.append(replace(_device(ranks[i], side), position=position, replica=replica))
            if lost := int((~_voted(ranks[i].runs)).sum()):
                rule = "runs of work have no send and no receive of their own"
                remarks.append(f"{ranks[i].source}: {lost:,} {rule}, and were left out")
    if devices:
        how = "no name tells forward from backward: transfers matched between neighbours told them apart"
        remarks.insert(0, f"{how}, on ranks {_numbers(device.rank for device in devices)}")
        if left := {one.rank for one in ranks} - {device.rank for device in devices}:
            remarks.append(f"ranks {_numbers(left)} are in no whole pipeline, and were left out")
    elif not remarks:
        remarks.append("no rank begins its steps with a send, as the first of a pipeline does (is its trace missing?)")
    return devices, remarks


def _numbers(ranks: Iterable[int]) -> str:
    some = sorted(ranks)
    more = f" and {len(some) - _MOST_NAMED} more" if len(some) > _MOST_NAMED else ""
    return ", ".join(map(str, some[:_MOST_NAMED])) + more


def _begins(runs: Undirected) -> bool:
    """Whether most steps begin with a send, as only those of a first rank do."""
    _, first = np.unique(runs.transfers.step, return_index=True)
    return bool(len(first)) and float(runs.transfers.send[first].mean()) > 0.5


def _crowds(ranks: Sequence[Bare]) -> Crowds:
    """Ends of all receives and of all sends."""
    moves = [one.runs.transfers for one in ranks]
    receives, sends = (crowd_of([move.end[move.send == way] for move in moves]) for way in (False, True))
    return receives, sends


def _chain(
    ranks: Sequence[Bare], crowds: Crowds, first: int, used: set[int]
) -> tuple[list[int], list[NDArray[np.int8]], str]:
    """Ranks from a first one to the last, for each transfer which neighbour it is with, and why the chain is torn."""
    chain, sides = [first], [np.full(len(ranks[first].runs.transfers), _NEXT, np.int8)]
    free = np.ones(len(sides[0]), np.bool_)
    while free.mean() > 1 - _MOST:
        others = _possible(ranks, chain[-1], used | set(chain))
        found, share = _partners(only(ranks[chain[-1]].runs.transfers, free), others, crowds)
        if share[0] < _MOST:
            return chain, sides, _torn(ranks[chain[-1]])
        if share[1] >= (1 if share[0] == 1 else share[0] / 2):
            both = f"{ranks[found[0][0]].rank} and {ranks[found[1][0]].rank}"
            return (
                chain,
                sides,
                f"transfers of rank {ranks[chain[-1]].rank} end together with those of ranks {both} alike",
            )
        i, mine, theirs = found[0]
        lost = np.delete(np.flatnonzero(free), mine)
        sides[-1][lost] = _NEXT if len(chain) == 1 else _NOBODY
        chain.append(i)
        free = np.ones(len(ranks[i].runs.transfers), np.bool_)
        free[theirs] = False
        sides.append(np.where(free, _NEXT, _BEFORE).astype(np.int8))
    sides[-1][free] = _NOBODY
    return chain, sides, ""


def _partners(
    mine: Transfers, others: Sequence[tuple[int, Transfers]], crowds: Crowds
) -> tuple[list[tuple[int, NDArray[np.intp], NDArray[np.intp]]], list[float]]:
    """Rows that end together with each other rank's, the most first, and what share they are; clocks may drift."""
    reach = int(np.median(mine.end - mine.start)) // 4 + TOGETHER
    ways = [(mine.end[mine.send], crowds[0]), (mine.end[~mine.send], crowds[1])]
    most = most_together(ways, reach) / len(mine)
    found = [(i, *_pairs(mine, theirs, reach)) for i, theirs in others if most[i] >= _MOST]
    best = max((len(rows) for _, rows, _ in found), default=0) / len(mine)
    if best < _MOST:
        straightened = [(i, straight(mine, theirs, reach)) for i, theirs in others]
        found = [(i, *_pairs(mine, theirs, reach)) for i, theirs in straightened if theirs is not None]
    elif best < 1:  # then half of that at a second rank is doubt
        found += [(i, *_pairs(mine, theirs, reach)) for i, theirs in others if best / 2 <= most[i] < _MOST]
    found.sort(key=lambda one: -len(one[1]))
    return found, [len(rows) / len(mine) for _, rows, _ in found] + [0.0, 0.0]


def _possible(ranks: Sequence[Bare], mine: int, taken: set[int]) -> list[tuple[int, Transfers]]:
    """Transfers of the ranks that peers and replicas, where they are named, leave as neighbours of one, by index."""
    peers = set(np.unique(ranks[mine].runs.transfers.peer).tolist()) - {UNKNOWN}
    replica = ranks[mine].replica
    return [
        (i, other.runs.transfers)
        for i, other in enumerate(ranks)
        if i not in taken
        and (not peers or other.rank in peers)
        and (replica is None or other.replica in (None, replica))
    ]


def _torn(one: Bare) -> str:
    return (
        f"rank {one.rank}: its sends and receives do not end together with those of one other rank "
        "(a rank is missing, ranks hold several chunks, or clocks differ)"
    )


def _pairs(mine: Transfers, theirs: Transfers, reach: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of both whose sends and receives end together, each once; on clocks that differ by one offset."""
    ways = [(np.flatnonzero(mine.send == send), np.flatnonzero(theirs.send != send)) for send in (True, False)]
    # Twice: what goes one way and what comes back end apart by the same offset, or the two are no neighbours.
    found = [match(only(mine, a), only(theirs, b), reach) for a, b in ways]
    none = np.empty(0, np.intp)
    if not all(one.pairs.size for one in found) or abs(found[0].offset - found[1].offset) > TOGETHER:
        return none, none
    rows = [_nearest(mine.end[a] + one.offset, theirs.end[b]) for (a, b), one in zip(ways, found, strict=True)]
    one = np.concatenate([a[i] for (a, _), (i, _) in zip(ways, rows, strict=True)])
    other = np.concatenate([b[j] for (_, b), (_, j) in zip(ways, rows, strict=True)])
    return one, other


def _nearest(mine: NDArray[np.int64], theirs: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows that are each other's nearest, within ``TOGETHER``."""
    there, back = _closest(mine, theirs), _closest(theirs, mine)
    rows = np.arange(len(mine))
    good = (back[there] == rows) & (np.abs(theirs[there] - mine) <= TOGETHER)
    return rows[good], there[good]


def _closest(of: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.intp]:
    order = np.argsort(among, kind="stable")
    at = np.clip(np.searchsorted(among[order], of), 1, len(among) - 1) if len(among) > 1 else np.zeros(len(of), np.intp)
    left = np.maximum(at - 1, 0)
    nearer = np.abs(among[order[left]] - of) <= np.abs(among[order[at]] - of)
    closest: NDArray[np.intp] = order[np.where(nearer, left, at)]
    return closest


def _forward(one: Undirected, side: NDArray[np.int8]) -> NDArray[np.int8]:
    """1 for activations, 0 for gradients, -1 where it is not known with whom a transfer is, int8[transfers]."""
    return np.where(side == _NOBODY, UNKNOWN, one.transfers.send == (side == _NEXT)).astype(np.int8)


def _votes(one: Undirected, side: NDArray[np.int8], *, send: bool) -> tuple[NDArray[np.int8], Mask]:
    """What its receives, or its sends, say of each run, -1 where nothing; and whether they contradict each other."""
    forward = _forward(one, side)
    votes = np.zeros((len(one), 2), np.bool_)
    rows = (one.transfers.send == send) & (forward >= 0) & (one.run >= 0)
    votes[one.run[rows], forward[rows]] = True
    said = np.where(votes.any(1), votes[:, 1], UNKNOWN).astype(np.int8)
    return said, votes[:, 0] & votes[:, 1]


def _voted(one: Undirected) -> Mask:
    return one.side(True) | one.side(False)


def _unclear(bare: Bare, side: NDArray[np.int8]) -> str:
    """Why the directions of one rank's runs are not certain, or an empty string."""
    one = bare.runs
    (before, doubt), (behind, other) = (_votes(one, side, send=send) for send in (False, True))
    ends = len(np.unique(side[side != _NOBODY])) < 2
    two = (before >= 0) & (behind >= 0) & (before != behind)
    wrong = doubt | other | (two & (not ends))
    if wrong.any():
        runs = f"{int(wrong.sum()):,} of {len(one):,} runs of work"
        return f"rank {bare.rank}: {runs} would be forward by one transfer and backward by another"
    if (uncut := two & (one.first_end < 0)).any():
        runs = f"{int(uncut.sum()):,} of {len(one):,} runs of work hold a forward and a backward"
        rule = "and no transfer, thread or count of kernels tells where one ends"
        return f"rank {bare.rank}: {runs}, {rule} (profile CPU activities too, or name the ranges)"
    return ""


def _device(bare: Bare, side: NDArray[np.int8]) -> RankOps:
    """The ops of one rank: each run is one, or, where its receive and its send differ, two."""
    one = bare.runs
    (before, _), (behind, _) = (_votes(one, side, send=send) for send in (False, True))
    two = (before >= 0) & (behind >= 0) & (before != behind)
    whole = ((before >= 0) | (behind >= 0)) & ~two
    way = np.concatenate([np.where(before >= 0, before, behind)[whole], before[two], behind[two]])
    peer = replace(one.transfers, forward=_forward(one, side))
    return RankOps(
        rank=bare.rank,
        source=bare.source,
        step=np.concatenate([one.step[whole], one.step[two], one.step[two]]),
        kind=np.where(way == 1, Kind.F, Kind.B).astype(np.uint8),
        start=np.concatenate([one.start[whole], one.start[two], one.second_start[two]]),
        end=np.concatenate([one.end[whole], one.first_end[two], one.end[two]]),
        step_ns=one.lengths,
        transfers=peer,
        talks=True,
    )
