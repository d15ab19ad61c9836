"""Ops without a label: forward or backward by whom they talk to, stage and micro-batch by the messages between them.

Direction, and I and W by who waits for them:

    first    F s     F s     r B     what goes to the next rank, or comes from the one before, is a forward's;
    second   r F s   r F s   r B s   what comes back is a backward's, so an op of a middle rank is told twice

A run that a receive calls forward and its send backward is two ops: on the last rank a forward and its backward, on the
first one a backward and the next forward. On any other rank that is a contradiction, and nothing is claimed.

    I   r I s   W   W                a backward in two pieces: somebody waits for the gradient of the input, nobody for
                                     that of the weights, so no message belongs to it

Stage and micro-batch:

    rank 0   F s       r F s           each activation that is sent feeds the op that its receive belongs to, so the
    rank 1     r F s     r F           forwards of one micro-batch are a chain: how deep an op lies in it is its stage,
    rank 2       r F s     r F         and chains count micro-batches in the order in which they begin; gradients go up
                                       the same way

How many chunks a rank holds is told by forwards that need no message: only those of stage 0 need none. If receives
cannot be laid to ops (a runtime posts them early), the order of Megatron-LM's interleaving is taken
(https://arxiv.org/abs/2104.04473, section 2.2): of each chunk in turn as many micro-batches as there are ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.laws import FORWARD, GRADIENT, LINE
from ..core.schedule import Kind
from .device_ops import UNKNOWN, UNTOLD, Ints, Mask, RankOps, Transfers, group_of, index_of, of_each_op, place_within
from .pairing import Pairs, Sides
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


_GRADIENT = (Kind.B, Kind.I)


def with_chunks(
    devices: Sequence[RankOps], sides: Sides, pairs: Pairs, places: Places, chunks: int | None
) -> tuple[tuple[RankOps, ...], list[str]]:
    """The devices with stage or chunk and micro-batch of each op, if no label tells them and ranks hold several.

    Args:
        devices: their ops have directions.
        sides: of all messages.
        pairs: of which both sides are known.
        places: of the devices.
        chunks: stages a rank that the user or a configuration says; None if nobody does.

    Raises:
        InputError: labels or messages tell another number of chunks than was said, or ops do not divide by it.
    """
    devices = [_of_micro_batches(device) for device in devices]
    used = [i for i in places.placed() if len(devices[i])]
    labelled = _labelled(devices, used)
    told = labelled or _by_messages(devices, sides, places, used)
    if chunks is not None and told is not None and told != chunks:
        who = "labels" if labelled else "messages between ranks"
        rule = f"{who} tell {told} {'chunk' if told == 1 else 'chunks'} a rank"
        raise InputError(Fault(f"--chunks {chunks}", rule, f"leave it out, or give {told}"))
    count = chunks or told or 1
    if labelled is not None or count == 1:
        return tuple(devices), []
    traced = _traced(devices, sides, pairs, places, count)
    if traced is not None:
        return traced, []
    interleaved = [_in_megatrons_order(device, places.ranks, count) for device in devices]
    how = f"{count} chunks a rank, which take turns as Megatron-LM interleaves them: no label tells their order"
    return tuple(interleaved), [how]


def _of_micro_batches(device: RankOps) -> RankOps:
    """The device with its numbers of chunks as micro-batches, if that is what they count.

    "chunk" is a word for both: GPipe and torch split a batch into chunks. If each number comes once a step, either one
    micro-batch passes several chunks, last in, first out, or several micro-batches pass one.
    """
    if device.chunk is None or device.unit is not None or device.stage is not None or not device.chunk.any():
        return device
    line = LINE[device.kind]
    if place_within(group_of(device.step, line, device.chunk)).any():
        return device
    order = np.lexsort((device.start, device.step))
    step, line, chunk = device.step[order], line[order], device.chunk[order]
    same = np.diff(step) == 0
    forward_again = same & (line[:-1] == GRADIENT) & (line[1:] == FORWARD)
    gradient = line == GRADIENT
    upwards = (np.diff(step[gradient]) == 0) & (np.diff(chunk[gradient]) > 0)
    if not forward_again.any() and not upwards.any():
        return device
    return replace(device, chunk=None, unit=device.chunk)


def _labelled(devices: Sequence[RankOps], used: Sequence[int]) -> int | None:
    """Chunks a rank by labels; None if there are none."""
    found: set[int] = set()
    for i in used:
        device = devices[i]
        if device.stage is not None:
            found.add(len(np.unique(device.stage)))
        elif device.chunk is not None:
            found.add(int(device.chunk.max()) + 1)
        # A micro-batch that a rank takes forward several times in a step is at another of its stages each time.
        elif device.unit is not None and not device.counted:
            forward = device.kind == Kind.F
            passes = place_within(group_of(device.step[forward], device.unit[forward]))
            found.add(int(passes.max(initial=0)) + 1)
    return max(found, default=None)


def _by_messages(devices: Sequence[RankOps], sides: Sides, places: Places, used: Sequence[int]) -> int | None:
    """Chunks a rank by how many forwards of the first rank need no message, and of the last rank make none.

    None if neither rank is here or both do not say the same.
    """
    found: set[int | None] = set()
    for i in used:
        first, last = places.position[i] == 0, places.position[i] == places.ranks - 1
        if first == last or devices[i].transfers is None:  # ranks between the two send and receive every forward
            continue
        moves = (sides.device == i) & (sides.forward == 1) & (sides.send == last) & (sides.op >= 0)
        found.add(_ratio(devices[i], devices[i].step[sides.op[moves]]))
    return found.pop() if len(found) == 1 else None


def _ratio(device: RankOps, moved: Ints) -> int | None:
    """Forwards of a step over those of them without a message, the same in most steps; None if it is no whole number.

    Args:
        device: at an end of the pipeline.
        moved: step of each message of a forward, int64[messages].
    """
    steps, forwards = np.unique(device.step[device.kind == Kind.F], return_counts=True)
    ordered = np.sort(moved)
    messages = np.searchsorted(ordered, steps, side="right") - np.searchsorted(ordered, steps, side="left")
    alone = forwards - messages
    whole = (alone > 0) & (forwards % np.maximum(alone, 1) == 0)
    ratios, times = np.unique(forwards[whole] // alone[whole], return_counts=True)
    if 2 * times.max(initial=0) <= len(steps):
        return None
    return int(ratios[times.argmax()])


# By the messages of each micro-batch.


@dataclass(frozen=True, slots=True, eq=False)
class _Ops:
    """The ops of all devices in one table.

    Args:
        first: row of the first op of each device, int64[devices].
        device: index of the device of each op, int64[ops].
        position: int64[ops]; -1 on a device that is left out.
        group: number of the step and replica of each op, int64[ops].
        kind: uint8[ops].
        start: nanoseconds, int64[ops].
    """

    first: Ints
    device: Ints
    position: Ints
    group: Ints
    kind: NDArray[np.uint8]
    start: Ints


def _traced(
    devices: Sequence[RankOps], sides: Sides, pairs: Pairs, places: Places, chunks: int
) -> tuple[RankOps, ...] | None:
    """The devices with stages and micro-batches by following messages; None if no step forms whole chains.

    Ops of steps that do not get stage and micro-batch -1.
    """
    ops = _table(devices, places)
    stages = places.ranks * chunks
    used = ops.position >= 0
    forward, gradient = used & (ops.kind == Kind.F), used & np.isin(ops.kind, _GRADIENT)
    down = _chains(ops, forward, _feeds(ops, sides, pairs, forward), home=0)
    # Chunks that loop end at the last rank, those that turn back at the first; gradients begin where forwards end.
    ends = np.unique(ops.position[forward & (down.depth == stages - 1)])
    if len(ends) != 1:
        return None
    up = _chains(ops, gradient, _feeds(ops, sides, pairs, gradient), home=int(ends[0]))
    good = _whole(ops, forward, down.depth, stages) & _whole(ops, gradient, up.depth, stages)
    if not good.any() or not _one_place_each(ops, forward & good, down.depth):
        return None
    forward, gradient = forward & good, gradient & good
    stage, unit = np.full(len(good), UNKNOWN), np.full(len(good), UNKNOWN)
    stage[forward], stage[gradient] = down.depth[forward], stages - 1 - up.depth[gradient]
    # No label numbers micro-batches, so the order in which stage 0 takes them does.
    first = _in_order(ops, forward & (stage == 0))
    unit[first] = place_within(ops.group[first])
    unit[forward] = unit[down.head[forward]]
    # The k-th gradient that the last stage begins belongs to the k-th forward that it ended: first in, first out.
    unit[_in_order(ops, gradient & (stage == stages - 1))] = unit[_in_order(ops, forward & (stage == stages - 1))]
    unit[gradient] = unit[up.head[gradient]]
    weights, inputs = (_by_device(ops, used & good & (ops.kind == kind)) for kind in (Kind.W, Kind.I))
    if len(weights) == len(inputs):  # gradients of weights run in the order of those of inputs
        stage[weights], unit[weights] = stage[inputs], unit[inputs]
    stage, unit = stage.astype(np.int32), unit.astype(np.int32)
    told = []
    for i, device in enumerate(devices):
        rows = slice(int(ops.first[i]), int(ops.first[i + 1]))
        told.append(replace(device, stage=stage[rows], unit=unit[rows], counted=False))
    return tuple(told)


def _table(devices: Sequence[RankOps], places: Places) -> _Ops:
    lengths = list(map(len, devices))
    device = np.repeat(np.arange(len(devices)), lengths)
    return _Ops(
        first=np.cumsum([0, *lengths]),
        device=device,
        position=places.position[device],
        group=group_of(places.replica[device], of_each_op(devices, "step")),
        kind=of_each_op(devices, "kind"),
        start=of_each_op(devices, "start"),
    )


def _feeds(ops: _Ops, sides: Sides, pairs: Pairs, among: Mask) -> Ints:
    """The op whose output each op waits for, int64[ops]; -1 if no message brings one."""
    known = (sides.op[pairs.send] >= 0) & (sides.op[pairs.receive] >= 0)
    send, receive = pairs.send[known], pairs.receive[known]
    source = ops.first[sides.device[send]] + sides.op[send]
    target = ops.first[sides.device[receive]] + sides.op[receive]
    both = among[source] & among[target]
    before = np.full(len(ops.kind), UNKNOWN)
    before[target[both]] = source[both]
    return before


@dataclass(frozen=True, slots=True, eq=False)
class _Chains:
    """How deep each op lies in its chain, and the op that begins it, int64[ops] each; depth -1 in a circle."""

    depth: Ints
    head: Ints


def _chains(ops: _Ops, among: Mask, before: Ints, home: int) -> _Chains:
    """Follow what feeds each op to where its micro-batch began, which is at the position ``home``.

    At any other position an op that no message feeds goes on from one of the same device that feeds no message: stages
    that turn back. Which one, their order tells.
    """
    feeds = np.zeros(len(before), np.bool_)
    feeds[before[before >= 0]] = True
    elsewhere = among & (ops.position != home)
    on, off = _by_device(ops, elsewhere & (before < 0)), _by_device(ops, elsewhere & ~feeds)
    here = group_of(ops.device, ops.group)
    equal = np.bincount(here[on], minlength=len(here)) == np.bincount(here[off], minlength=len(here))
    # First in, first out: a device goes on with the micro-batches in the order in which it took them.
    before = before.copy()
    before[on[equal[here[on]]]] = off[equal[here[off]]]
    depth, back = (before >= 0).astype(np.int64), before
    head = np.where(before >= 0, before, np.arange(len(before)))
    for _ in range(int(np.log2(max(len(before), 2))) + 2):  # each round follows twice as far
        more = back >= 0
        depth = depth + np.where(more, depth[back], 0)
        head = np.where(more, head[back], head)
        back = np.where(more, back[back], UNKNOWN)
    return _Chains(np.where(back >= 0, UNKNOWN, depth), head)


def _whole(ops: _Ops, among: Mask, depth: Ints, stages: int) -> Mask:
    """Whether in the step and replica of each op every stage has as many of some ops, bool[ops]."""
    groups = int(ops.group.max(initial=0)) + 1
    inside = among & (depth >= 0) & (depth < stages)
    table = np.bincount(ops.group[inside] * stages + depth[inside], minlength=groups * stages).reshape(groups, stages)
    astray = np.bincount(ops.group[among & ~inside], minlength=groups) > 0  # deeper than any stage, or in a circle
    good = (table > 0).all(axis=1) & (table == table[:, :1]).all(axis=1) & ~astray
    found: Mask = good[ops.group]
    return found


def _one_place_each(ops: _Ops, among: Mask, stage: Ints) -> bool:
    """Whether each stage is at one position."""
    spots = np.unique(np.stack([stage[among], ops.position[among]]), axis=1)
    return len(np.unique(spots[0])) == len(spots[0])


def _in_order(ops: _Ops, mask: Mask) -> Ints:
    """Rows of some ops by step, replica and start."""
    rows = np.flatnonzero(mask)
    return rows[np.lexsort((ops.start[rows], ops.group[rows]))]


def _by_device(ops: _Ops, mask: Mask) -> Ints:
    """Rows of some ops by device, step and start."""
    rows = np.flatnonzero(mask)
    return rows[np.lexsort((ops.start[rows], ops.group[rows], ops.device[rows]))]


# By the order of Megatron-LM.


def _in_megatrons_order(device: RankOps, ranks: int, chunks: int) -> RankOps:
    """The k-th op of a kind is of chunk k / ranks, modulo chunks; gradients take the chunks backwards."""
    line = np.where(np.isin(device.kind, _GRADIENT), Kind.B, device.kind).astype(np.int64)
    order = np.lexsort((device.start, line, device.step))
    k = np.empty(len(order), np.int64)
    k[order] = place_within(group_of(device.step[order], line[order]))
    chunk = k // ranks % chunks
    unit = k // (ranks * chunks) * ranks + k % ranks
    return replace(
        device,
        chunk=np.where(line == Kind.F, chunk, chunks - 1 - chunk).astype(np.int32),
        unit=unit.astype(np.int32),
        counted=False,
    )
