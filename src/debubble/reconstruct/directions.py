"""What each op is, if its own file does not say: forward or backward by whom it talks to, I and W by who waits for it.

    first    F s     F s     r B     what goes to the next rank, or comes from the one before, is a forward's;
    second   r F s   r F s   r B s   what comes back is a backward's, so an op of a middle rank is told twice

A run that a receive calls forward and its send backward is two ops: on the last rank a forward and its backward, on the
first one a backward and the next forward. On any other rank that is a contradiction, and nothing is claimed.

    I   r I s   W   W                a backward in two pieces: somebody waits for the gradient of the input, nobody for
                                     that of the weights, so no message belongs to it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Kind
from .device_ops import UNKNOWN, UNTOLD, Ints, Mask, RankOps, Transfers, index_of
from .positions import NOWHERE, Places, named, ranks_where

_FORTH = 1  # way of an activation
_ROUNDING = 2_000  # nanoseconds by which an op may seem to begin before its receive ended

Ways = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class _Votes:
    """What the messages of one device say of its runs of work.

    Args:
        ways: 1 for activations, 0 for gradients, -1 if it is not known with whom a transfer is, int8[transfers].
        before: what its receives say of each run, likewise, int8[runs].
        after: what its sends say.
        doubt: whether two receives, or two sends, of a run contradict each other, bool[runs].
    """

    ways: Ways
    before: Ways
    after: Ways
    doubt: Mask

    def two(self) -> Mask:
        """Which runs begin as one thing and end as another, bool[runs]."""
        found: Mask = (self.before >= 0) & (self.after >= 0) & (self.before != self.after)
        return found


def directed(devices: Sequence[RankOps], places: Places) -> tuple[tuple[RankOps, ...], list[str]]:
    """Tell forward from backward on the devices whose files do not, by the positions of their neighbours.

    Returns:
        The devices, those of which nothing tells what they did without ops; and how directions were told, and which
        devices were left out and why.
    """
    untold = np.array([(device.kind == UNTOLD).any() for device in devices], np.bool_)
    if not untold.any():
        return tuple(devices), []
    index = index_of(devices)
    found = list(devices)
    for i in np.flatnonzero(untold).tolist():
        found[i] = devices[i].only(np.zeros(len(devices[i]), np.bool_))
    told = np.zeros(len(devices), np.bool_)
    remarks: list[str] = []
    for q in np.unique(places.replica[untold]).tolist():
        mine = np.flatnonzero(untold & (places.replica == q)).tolist()
        votes = [_votes(devices[i], _ways(i, devices[i].transfers, index, places)) for i in mine]
        # Ranks of a pipeline must agree: if one contradicts itself, no other is believed.
        faults = [_fault(devices[i], vote, places, i) for i, vote in zip(mine, votes, strict=True)]
        fault = next(filter(None, faults), "")
        if fault:
            remarks.append(f"{fault}; rank {named(devices[i].rank for i in mine)} was left out")
            continue
        for i, vote in zip(mine, votes, strict=True):
            found[i], told[i] = _told(devices[i], vote), True
            if lone := int((~_talks(devices[i])).sum()):
                rule = "runs of work have no send and no receive of their own, and were left out"
                remarks.append(f"{devices[i].source}: {lone:,} {rule}")
    if told.any():
        how = "no name tells forward from backward: transfers matched between neighbours told them apart"
        remarks.insert(0, f"{how}, on ranks {named(ranks_where(devices, told))}")
        if left := ranks_where(devices, untold & ~told):
            remarks.append(f"ranks {named(left)} are in no whole pipeline, and were left out")
    return tuple(found), remarks


def _ways(i: int, moves: Transfers | None, index: Mapping[int, int], places: Places) -> Ways:
    """Whether each transfer of a device is of an activation, of a gradient, or with nobody known, int8[transfers]."""
    if moves is None:
        return np.empty(0, np.int8)
    follows = np.full(len(moves), UNKNOWN, np.int8)
    for peer in np.unique(moves.peer).tolist():
        j = index.get(peer)
        if j is None or not places.replica[i] == places.replica[j] != NOWHERE:
            continue
        hop = int(places.position[j] - places.position[i])
        if hop % places.ranks in (1, places.ranks - 1):
            # Chunks go round from the last rank to the first; of two ranks each comes right after the other, and only
            # the way of the first chunk tells.
            follows[moves.peer == peer] = hop == 1 if places.ranks == 2 else hop % places.ranks == 1
    known = follows != UNKNOWN
    ways = follows.copy()
    ways[known & ~moves.send] ^= 1  # what comes from the next rank is a gradient
    return ways


def _votes(device: RankOps, ways: Ways) -> _Votes:
    moves = device.transfers
    said = np.zeros((2, len(device), 2), np.bool_)  # by receives, by sends; of each run; a gradient, an activation
    if moves is not None and moves.op is not None:
        rows = (ways >= 0) & (moves.op >= 0)
        said[moves.send[rows].astype(int), moves.op[rows], ways[rows]] = True
    before, after = np.where(said.any(axis=2), said[:, :, _FORTH], UNKNOWN).astype(np.int8)
    both_ways: Mask = np.logical_and(said[:, :, 0], said[:, :, 1])
    return _Votes(ways, before, after, both_ways[0] | both_ways[1])


def _talks(device: RankOps) -> Mask:
    """Whether any message belongs to each op, bool[ops]."""
    found = np.zeros(len(device), np.bool_)
    moves = device.transfers
    if moves is not None and moves.op is not None:
        found[moves.op[moves.op >= 0]] = True
    return found


def _fault(device: RankOps, votes: _Votes, places: Places, i: int) -> str:
    """Why the directions of one rank's runs are not certain, or an empty string."""
    position = places.position[i]
    if position == NOWHERE or not (votes.ways >= 0).any():
        return (
            f"rank {device.rank}: its sends and receives do not end together with those of its neighbours "
            "(a rank is missing, or ranks hold several chunks)"
        )
    two = votes.two()
    wrong = votes.doubt | (two & (position not in (0, places.ranks - 1)))
    if wrong.any():
        runs = f"{int(wrong.sum()):,} of {len(device):,} runs of work"
        return f"rank {device.rank}: {runs} would be forward by one transfer and backward by another"
    uncut = two
    if device.first_end is not None:
        uncut = two & (device.first_end < 0)
    if device.first_end is None or uncut.any():
        runs = f"{int(uncut.sum()):,} of {len(device):,} runs of work hold a forward and a backward"
        rule = "and no transfer, thread or count of kernels tells where one ends"
        return f"rank {device.rank}: {runs}, {rule} (profile CPU activities too, or name the ranges)"
    return ""


def _told(device: RankOps, votes: _Votes) -> RankOps:
    """The ops of one rank: each run is one, or, if its receive and its send differ, two."""
    moves = device.transfers
    if moves is None or moves.op is None or device.first_end is None or device.second_start is None:
        return device
    before, after, two = votes.before, votes.after, votes.two()
    whole = ((before >= 0) | (after >= 0)) & ~two
    way = np.concatenate([np.where(before >= 0, before, after)[whole], before[two], after[two]])
    # Of each run the op that its receives, and its sends, belong to; one element more, so that no run has no op.
    row = np.full((2, len(device) + 1), UNKNOWN)
    row[:, :-1][:, whole] = np.arange(int(whole.sum()))
    row[0, :-1][two] = int(whole.sum()) + np.arange(int(two.sum()))
    row[1, :-1][two] = row[0, :-1][two] + int(two.sum())
    return replace(
        device,
        step=np.concatenate([device.step[whole], device.step[two], device.step[two]]),
        kind=np.where(way == _FORTH, Kind.F, Kind.B).astype(np.uint8),
        start=np.concatenate([device.start[whole], device.start[two], device.second_start[two]]),
        end=np.concatenate([device.end[whole], device.first_end[two], device.end[two]]),
        transfers=replace(moves, forward=votes.ways, op=row[moves.send.astype(int), moves.op]),
        talks=True,
        first_end=None,
        second_start=None,
        untold="",
    )


# I and W.


def split_backward(device: RankOps) -> RankOps:
    """The device with I and W for backwards in two pieces that are both called B.

    A B whose micro-batches have a W as well is what zero-bubble papers call B: an I. And if as many ops as there are
    forwards have no message, while all others have one, those are W, however the launches of a runtime look.
    """
    forward, inputs = device.kind == Kind.F, device.kind == Kind.I
    weight, backward = device.kind == Kind.W, device.kind == Kind.B
    if inputs.any() or not backward.any():
        return device
    if weight.any() and int(backward.sum()) == int(weight.sum()):
        return replace(device, kind=np.where(backward, Kind.I, device.kind).astype(np.uint8))
    lone = ~_talks(linked(device))
    if weight.any() or not lone.any() or lone.all():
        return device
    steps, number = np.unique(device.step, return_inverse=True)

    def count(rows: Mask) -> Ints:
        return np.bincount(number[rows], minlength=len(steps))

    pieces = count(lone)
    split = (pieces == count(forward & ~lone)) & (pieces == count(backward & ~lone)) & (pieces > 0)
    if 2 * int(split.sum()) <= len(steps):
        return device
    kind = np.where(lone, Kind.W, np.where(backward, Kind.I, device.kind)).astype(np.uint8)
    # Indices among all ops of a kind do not hold for two kinds: each takes its own, first in, first out.
    return replace(device, kind=kind, unit=None if device.counted else device.unit)


def linked(device: RankOps) -> RankOps:
    """The device with an op for each transfer: the last one that began before a send, the first one after a receive."""
    moves = device.transfers
    if moves is None or moves.op is not None or not len(device):
        return device
    order = np.argsort(device.start, kind="stable")
    start = device.start[order]
    sent = np.searchsorted(start, moves.start, side="right") - 1
    received = np.searchsorted(start, moves.end - _ROUNDING, side="left")
    at: Ints = np.where(moves.send, sent, received)
    inside = (at >= 0) & (at < len(order))
    op = np.where(inside, order[np.clip(at, 0, len(order) - 1)], UNKNOWN)
    kind = device.kind[op]
    by_op = np.where(op < 0, UNKNOWN, kind == Kind.F).astype(np.int8)
    forward = np.where(moves.forward < 0, by_op, moves.forward).astype(np.int8)
    return replace(device, transfers=replace(moves, op=op, forward=forward))
