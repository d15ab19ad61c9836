"""What each op is, if its own file does not say: forward or backward by whom it talks to, I and W by who waits for it.

    first    F s     F s     r B     what goes to the next rank, or comes from the one before, is a forward's;
    second   r F s   r F s   r B s   what comes back is a backward's, so an op of a middle rank is told twice

A run that a receive calls forward and its send backward is two ops: on the last rank a forward and its backward, on the
first one a backward and the next forward. On any other rank that is a contradiction, and nothing is claimed.

    I   r I s   W   W                a backward in two pieces: somebody waits for the gradient of the input, nobody for
                                     that of the weights, so no message belongs to it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.op import Kind
from .device_ops import UNKNOWN, UNTOLD, Ints, Mask, RankOps
from .positions import NOWHERE, Places, named

_BACK, _FORTH = 0, 1


def directed(devices: Sequence[RankOps], places: Places) -> tuple[tuple[RankOps, ...], list[str]]:
    """Tell forward from backward on the devices whose files do not, by the positions of their neighbours.

    Returns:
        The devices, those of which nothing tells what they did without ops; and how directions were told, and which
        devices were left out and why.
    """
    untold = [i for i, device in enumerate(devices) if (device.kind == UNTOLD).any()]
    if not untold:
        return tuple(devices), []
    at = {device.rank: (places.replica[i], places.position[i]) for i, device in enumerate(devices)}
    found: dict[int, RankOps] = {}
    remarks: list[str] = []
    for q in sorted({places.replica[i] for i in untold}):
        mine = [i for i in untold if places.replica[i] == q]
        ways = {i: _forward(devices[i], at, places.ranks) for i in mine}
        faults = [_fault(devices[i], ways[i], at, places.ranks) for i in mine]
        if fault := next(filter(None, faults), ""):
            remarks.append(f"{fault}; rank {named(devices[i].rank for i in mine)} was left out")
            continue
        for i in mine:
            found[i] = _told(devices[i], ways[i])
            if lone := int((~_talks(devices[i])).sum()):
                rule = "runs of work have no send and no receive of their own, and were left out"
                remarks.append(f"{devices[i].source}: {lone:,} {rule}")
    if found:
        how = "no name tells forward from backward: transfers matched between neighbours told them apart"
        remarks.insert(0, f"{how}, on ranks {named(devices[i].rank for i in found)}")
        if left := [devices[i].rank for i in untold if i not in found]:
            remarks.append(f"ranks {named(left)} are in no whole pipeline, and were left out")
    empty = {i: devices[i].only(np.zeros(len(devices[i]), np.bool_)) for i in untold}
    return tuple((empty | found).get(i, device) for i, device in enumerate(devices)), remarks


def _forward(device: RankOps, at: dict[int, tuple[int, int]], ranks: int) -> NDArray[np.int8]:
    """1 for activations, 0 for gradients, -1 if it is not known with whom a transfer is, int8[transfers]."""
    moves = device.transfers
    if moves is None:
        return np.empty(0, np.int8)
    q, here = at[device.rank]
    ways = np.full(len(moves), UNKNOWN, np.int8)
    for peer in np.unique(moves.peer).tolist():
        replica, there = at.get(peer, (NOWHERE, NOWHERE))
        if replica == q != NOWHERE and (there - here) % ranks in (1, ranks - 1):
            follows = there == here + 1 if ranks == 2 else (there - here) % ranks == 1
            ways[moves.peer == peer] = _FORTH if follows else _BACK
    return np.where(moves.send, ways, np.where(ways == UNKNOWN, UNKNOWN, 1 - ways)).astype(np.int8)


def _votes(device: RankOps, ways: NDArray[np.int8], *, send: bool) -> tuple[NDArray[np.int8], Mask]:
    """What its receives, or its sends, say of each run, -1 for nothing; and whether they contradict each other."""
    votes = np.zeros((len(device), 2), np.bool_)
    moves = device.transfers
    if moves is not None and moves.op is not None:
        rows = (moves.send == send) & (ways >= 0) & (moves.op >= 0)
        votes[moves.op[rows], ways[rows]] = True
    said = np.where(votes.any(1), votes[:, _FORTH], UNKNOWN).astype(np.int8)
    return said, votes[:, _BACK] & votes[:, _FORTH]


def _talks(device: RankOps) -> Mask:
    """Whether any message belongs to each op, bool[ops]."""
    found = np.zeros(len(device), np.bool_)
    moves = device.transfers
    if moves is not None and moves.op is not None:
        found[moves.op[moves.op >= 0]] = True
    return found


def _fault(device: RankOps, ways: NDArray[np.int8], at: dict[int, tuple[int, int]], ranks: int) -> str:
    """Why the directions of one rank's runs are not certain, or an empty string."""
    position = at[device.rank][1]
    if position == NOWHERE or not (ways >= 0).any():
        return (
            f"rank {device.rank}: its sends and receives do not end together with those of its neighbours "
            "(a rank is missing, or ranks hold several chunks)"
        )
    (before, doubt), (after, other) = (_votes(device, ways, send=send) for send in (False, True))
    two = (before >= 0) & (after >= 0) & (before != after)
    wrong = doubt | other | (two & (position not in (0, ranks - 1)))
    if wrong.any():
        runs = f"{int(wrong.sum()):,} of {len(device):,} runs of work"
        return f"rank {device.rank}: {runs} would be forward by one transfer and backward by another"
    if device.first_end is None or (two & (device.first_end < 0)).any():
        uncut = two if device.first_end is None else two & (device.first_end < 0)
        runs = f"{int(uncut.sum()):,} of {len(device):,} runs of work hold a forward and a backward"
        rule = "and no transfer, thread or count of kernels tells where one ends"
        return f"rank {device.rank}: {runs}, {rule} (profile CPU activities too, or name the ranges)"
    return ""


def _told(device: RankOps, ways: NDArray[np.int8]) -> RankOps:
    """The ops of one rank: each run is one, or, if its receive and its send differ, two."""
    moves = device.transfers
    if moves is None or moves.op is None or device.first_end is None or device.second_start is None:
        return device
    (before, _), (after, _) = (_votes(device, ways, send=send) for send in (False, True))
    two = (before >= 0) & (after >= 0) & (before != after)
    whole = ((before >= 0) | (after >= 0)) & ~two
    way = np.concatenate([np.where(before >= 0, before, after)[whole], before[two], after[two]])
    row = np.full((2, len(device) + 1), UNKNOWN)  # of each run: the op that its receives, and its sends, belong to
    row[:, :-1][:, whole] = np.arange(int(whole.sum()))
    row[0, :-1][two] = int(whole.sum()) + np.arange(int(two.sum()))
    row[1, :-1][two] = row[0, :-1][two] + int(two.sum())
    return replace(
        device,
        step=np.concatenate([device.step[whole], device.step[two], device.step[two]]),
        kind=np.where(way == _FORTH, Kind.F, Kind.B).astype(np.uint8),
        start=np.concatenate([device.start[whole], device.start[two], device.second_start[two]]),
        end=np.concatenate([device.end[whole], device.first_end[two], device.end[two]]),
        transfers=replace(moves, forward=ways, op=row[moves.send.astype(int), moves.op]),
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
    forward, inputs, weight, backward = (device.kind == kind for kind in (Kind.F, Kind.I, Kind.W, Kind.B))
    if inputs.any() or not backward.any():
        return device
    if weight.any() and int(backward.sum()) == int(weight.sum()):
        return replace(device, kind=np.where(backward, Kind.I, device.kind).astype(np.uint8))
    lone = ~_talks(linked(device))
    if weight.any() or not lone.any() or lone.all():
        return device
    steps, number = np.unique(device.step, return_inverse=True)
    counts = [np.bincount(number[rows], minlength=len(steps)) for rows in (lone, forward & ~lone, backward & ~lone)]
    split = (counts[0] == counts[1]) & (counts[0] == counts[2]) & (counts[0] > 0)
    if 2 * int(split.sum()) <= len(steps):
        return device
    kind = np.where(lone, Kind.W, np.where(backward, Kind.I, device.kind)).astype(np.uint8)
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


_ROUNDING = 2_000  # nanoseconds by which an op may seem to begin before its receive ended
