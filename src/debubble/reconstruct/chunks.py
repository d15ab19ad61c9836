"""Stages and micro-batches of ops that carry no label: by the messages that a micro-batch travels with.

    rank 0   F s       r F s           each activation that is sent feeds the op that its receive belongs to, so the
    rank 1     r F s     r F           forwards of one micro-batch are a chain: how deep an op lies in it is its stage,
    rank 2       r F s     r F         and chains count micro-batches in the order in which they begin; gradients go up
                                       the same way

How many chunks a rank holds is told by forwards that need no message: only those of stage 0 need none. If receives
cannot be laid to ops (a runtime posts them early), the order of Megatron-LM's interleaving is taken
(https://arxiv.org/abs/2104.04473, section 2.2): of each chunk in turn as many micro-batches as there are ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.laws import FORWARD, GRADIENT, LINE
from ..core.schedule import Kind
from .device_ops import UNKNOWN, Ints, Mask, RankOps, of_each_op
from .groups import group_of, place_within
from .pairing import Pairs, Sides
from .positions import Places

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
