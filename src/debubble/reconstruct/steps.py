"""Steps and soundness of ops: which step an op belongs to if its file does not say, and which ops cannot be.

Labels that repeat tell steps; else a pipeline that runs empty does: a flush leaves nothing in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from ..core.schedule import Kind
from .device_ops import Clock, Ints, Mask, RankOps, group_of, index_of, of_each_op, parted, place_within

_LONG = 10.0  # times the median of its kind: beyond this an op that also covers another one is a fault of the tracer
_MOST_SHIFT = 8  # steps by which files may begin apart
_ALIKE = 20_000  # nanoseconds; lags that wander by as little are alike
_CLEARLY = 3.0  # times as much must lags wander if files end together, for another shift to be taken
_FAR = 20.0  # times the median length of a step: an op that far from the rest of its step did not happen there


def plausible(devices: Sequence[RankOps]) -> tuple[tuple[RankOps, ...], list[str]]:
    """The devices without ops that end before they start, swallow others, or lie far from their step; and remarks."""
    kept: list[RankOps] = []
    remarks: list[str] = []
    for device in devices:
        bad = (device.end < device.start) | _swallows(device) | _strays(device)
        if bad.any():
            first = int(bad.argmax())
            length = (device.end[first] - device.start[first]) / 1e6
            remarks.append(
                f"{device.source}: rank {device.rank}: ops set aside: {int(bad.sum())}, the first "
                f"in step {device.step[first]}, {length:,.3f} ms long: no op of this run can be there"
            )
            device = device.only(~bad)
        kept.append(device)
    return tuple(kept), remarks


def _swallows(device: RankOps) -> Mask:
    """Far longer than its kind, and not over before another op that starts later has ended."""
    bad = np.zeros(len(device), np.bool_)
    order = np.lexsort((device.start, device.step))
    length, end, step = (device.end - device.start)[order], device.end[order], device.step[order]
    covers = np.concatenate([(end[:-1] > end[1:]) & (step[:-1] == step[1:]), [False]])
    # A real straggler is long, too, but what comes after it on the same device waits for it.
    for kind in np.unique(device.kind):
        mine = device.kind[order] == kind
        bad[order] |= mine & covers & (length > _LONG * np.median(length[mine]))
    return bad


def _strays(device: RankOps) -> Mask:
    """Further from the middle of its step than any step is long."""
    away = np.zeros(len(device))
    typical: list[float] = []
    groups = parted(np.argsort(device.step, kind="stable"), device.step)
    for rows in groups:
        away[rows] = np.abs(device.start[rows] - np.median(device.start[rows]))
        typical.append(float(np.median(away[rows])))
    if not typical or not np.median(typical):  # steps of one op have no length
        return np.zeros(len(device), np.bool_)
    # Ops lie a quarter of a step away from its middle, the median of all of them.
    far: Mask = away > _FAR * 4 * float(np.median(typical))
    return far


def with_steps(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The same devices, on one clock, with a step for every op.

    If other devices know their steps, the moment tells. Else, if micro-batches (and stages or chunks) are labelled, the
    k-th time that an op comes is its step k; if they are not, a step ends where, over all devices, every forward has
    had its backward.
    """
    known = [device for device in devices if (device.step >= 0).all()]
    if len(known) == len(devices):
        return tuple(devices)
    known = [device for device in known if len(device)]
    if known and all(device.clock is not Clock.STEP for device in devices):
        return _as_of(devices, known)
    if all(device.unit is not None and not device.counted for device in devices if len(device)):
        return tuple(replace(device, step=_occurrence(device), step_ns={}) for device in devices)
    return _by_flush(devices)


def _as_of(devices: Sequence[RankOps], known: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The devices with steps by those of some of them: an op is of the step within which it began."""
    steps, bounds = _between_steps(known)
    told = list(devices)
    for i, device in enumerate(devices):
        if (device.step < 0).any():
            told[i] = _cut(device, steps[np.searchsorted(bounds, device.start, side="right")])
    return tuple(told)


def _between_steps(devices: Sequence[RankOps]) -> tuple[Ints, Ints]:
    """Numbers of steps in their order, and the moments halfway between the end of one and the start of the next."""
    numbers, row = np.unique(of_each_op(devices, "step"), return_inverse=True)
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(first, row, of_each_op(devices, "start"))
    np.maximum.at(last, row, of_each_op(devices, "end"))
    order = np.argsort(first)
    bounds: Ints = last[order][:-1] + (first[order][1:] - last[order][:-1]) // 2
    return numbers[order], bounds


def _occurrence(device: RankOps) -> Ints:
    """How many times each op of a device came before, int64[ops]."""
    order = np.argsort(device.start, kind="stable")
    labels = [device.kind[order].astype(np.int64)]
    for column in (device.unit, device.stage, device.chunk):
        if column is not None:
            labels.append(column[order].astype(np.int64))
    step = np.empty(len(order), np.int64)
    step[order] = place_within(group_of(*labels))
    return step


def _by_flush(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """Cut where nothing is in flight on any device (their clocks agree well enough: a flush is milliseconds long)."""
    kind, begun = of_each_op(devices, "kind"), of_each_op(devices, "start")
    # A W comes after its I, at any time: only F and I, or F and B, count what is in flight.
    rows = np.flatnonzero(kind != Kind.W)
    rows = rows[np.argsort(begun[rows], kind="stable")]
    forward, begun = kind[rows] == Kind.F, begun[rows]
    flight = np.cumsum(np.where(forward, 1, -1))
    bounds = begun[1:][(flight[:-1] == 0) & forward[1:]]  # the first forward of each new step
    told = []
    for device in devices:
        told.append(_cut(device, np.searchsorted(bounds, device.start, side="right").astype(np.int64)))
    return tuple(told)


def _cut(device: RankOps, step: Ints) -> RankOps:
    """The device with these steps, in each of which micro-batches count from 0."""
    unit = device.unit
    if unit is not None and device.counted and len(unit):
        steps, number = np.unique(step, return_inverse=True)
        first = np.full(len(steps), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(first, number, unit)
        unit = unit - first[number]
    return replace(device, step=step, unit=unit, step_ns={})


# Steps that each file counts from where it begins.


def in_one_count(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The devices with the same number for the same step, if each file counts its steps from where it begins.

    Within a step the ends of the k-th messages at both sides differ by one offset of clocks. If a file began a step
    later, that holds only if its count is shifted; if all steps are exactly alike, files are taken to end together.
    """
    if not any(device.steps_counted for device in devices):
        return tuple(devices)
    found = list(devices)
    left = set(range(len(devices)))
    while left:
        by = _shifts(devices, min(left), left)
        left -= by.keys()
        least = min(by.values())
        for i, shift in by.items():
            found[i] = _shifted(devices[i], shift - least)
    return tuple(found)


def ending_together(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The devices with one number for the last step of each, if each file counts its steps from where it begins."""
    last = [int(device.step.max(initial=0)) for device in devices]
    found = list(devices)
    for i, device in enumerate(devices):
        if device.steps_counted:
            found[i] = _shifted(device, max(last) - last[i])
    return tuple(found)


def _shifts(devices: Sequence[RankOps], first: int, left: Set[int]) -> dict[int, int]:
    """By how many steps each device that messages join to one must be moved against it, by index.

    Args:
        devices: of which each counts its steps from where its file begins.
        first: index of the one.
        left: indices of the devices that may be moved.
    """
    index = index_of(devices)
    by = {first: 0}
    part = [first]
    for here in part:  # grows as neighbours are found
        for there in _neighbours(devices[here], index):
            if there in left and there not in by:
                by[there] = by[here] + _shift(devices[here], devices[there])
                part.append(there)
    return by


def _neighbours(device: RankOps, index: Mapping[int, int]) -> list[int]:
    """Indices of the devices here that a device's messages name."""
    if device.transfers is None:
        return []
    return [index[peer] for peer in np.unique(device.transfers.peer).tolist() if peer in index]


def _shift(one: RankOps, other: RankOps) -> int:
    """By how many steps the second device's count must be moved so that messages between the two belong together."""
    mine, theirs = _ends_by_step(one, other.rank), _ends_by_step(other, one.rank)
    wander: dict[int, float] = {}
    for by in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        wanders = [_wander(mine[step], theirs[step - by]) for step in mine if step - by in theirs]
        known = [each for each in wanders if each is not None]
        # Any shift fits the last few steps of one file to the first few of the other: half of them at least must meet.
        if known and 2 * len(known) >= min(len(mine), len(theirs)):
            wander[by] = float(np.median(known))
    if not wander:
        return 0
    together = min(wander, key=lambda by: abs(max(theirs) + by - max(mine)))
    best = min(wander, key=wander.__getitem__)
    if _CLEARLY * wander[best] < wander[together] > _ALIKE:
        return best
    return together


def _wander(mine: Ints, theirs: Ints) -> float | None:
    """By how much differences of ends deviate from their median, the median; None if one side has more ends."""
    if len(mine) != len(theirs):
        return None
    lag = theirs - mine
    return float(np.median(np.abs(lag - np.median(lag))))


def _ends_by_step(device: RankOps, peer: int) -> dict[int, Ints]:
    """Ends of the messages with one peer, sends first, by step."""
    moves = device.transfers
    if moves is None:
        return {}
    rows = np.flatnonzero(moves.peer == peer)
    low = device.rank < peer  # what the lower sends first is what the other receives first
    found: dict[int, Ints] = {}
    for some in parted(rows[np.lexsort((moves.send[rows] != low, moves.step[rows]))], moves.step):
        found[int(moves.step[some[0]])] = moves.end[some]
    return found


def _shifted(device: RankOps, by: int) -> RankOps:
    def later(step: Ints) -> Ints:
        return np.where(step < 0, step, step + by)

    if not by:
        return device
    moves, joint = device.transfers, device.collectives
    if moves is not None:
        moves = replace(moves, step=later(moves.step))
    if joint is not None:
        joint = replace(joint, step=later(joint.step))
    step_ns = dict(zip((step + by for step in device.step_ns), device.step_ns.values(), strict=True))
    return replace(device, step=later(device.step), step_ns=step_ns, transfers=moves, collectives=joint)
