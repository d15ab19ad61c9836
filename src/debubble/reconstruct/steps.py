"""Steps and soundness of ops: which step an op belongs to if its file does not say, and which ops cannot be.

Labels that repeat tell steps; else a pipeline that runs empty does: a flush leaves nothing in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..core.op import Kind
from .device_ops import Clock, Ints, Mask, RankOps

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
    for kind in np.unique(device.kind):
        mine = device.kind[order] == kind
        bad[order] |= mine & covers & (length > _LONG * np.median(length[mine]))
    return bad


def _strays(device: RankOps) -> Mask:
    """Further from the middle of its step than any step is long."""
    bad = np.zeros(len(device), np.bool_)
    order = np.argsort(device.step, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(device.step[order])) + 1) if len(order) else []
    away = [np.abs(device.start[rows] - np.median(device.start[rows])) for rows in groups]
    typical = float(np.median([np.median(distances) for distances in away])) if away else 0.0
    for rows, distances in zip(groups, away, strict=True):
        bad[rows] = (distances > _FAR * 4 * typical) & (typical > 0)
    return bad


def with_steps(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The same devices, on one clock, with a step for every op.

    If other devices know their steps, the moment tells. Else, if micro-batches (and stages or chunks) are labelled, the
    k-th time that an op comes is its step k; if they are not, a step ends where, over all devices, every forward has
    had its backward.
    """
    known = [device for device in devices if len(device) and (device.step >= 0).all()]
    if all((device.step >= 0).all() for device in devices):
        return tuple(devices)
    if known and all(device.clock is not Clock.STEP for device in devices):
        steps, bounds = _between_steps(known)
        return tuple(device if (device.step >= 0).all() else _at_moments(device, steps, bounds) for device in devices)
    if all(device.unit is not None and not device.counted for device in devices if len(device)):
        return tuple(replace(device, step=_occurrence(device), step_ns={}) for device in devices)
    return _by_flush(devices)


def _between_steps(devices: Sequence[RankOps]) -> tuple[Ints, Ints]:
    """Numbers of steps in their order, and the moments halfway between the end of one and the start of the next."""
    step, start, end = (np.concatenate([getattr(d, name) for d in devices]) for name in ("step", "start", "end"))
    numbers, row = np.unique(step, return_inverse=True)
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(first, row, start)
    np.maximum.at(last, row, end)
    order = np.argsort(first)
    bounds: Ints = last[order][:-1] + (first[order][1:] - last[order][:-1]) // 2
    return numbers[order], bounds


def _at_moments(device: RankOps, steps: Ints, bounds: Ints) -> RankOps:
    return _cut(device, steps[np.searchsorted(bounds, device.start, side="right")])


def _occurrence(device: RankOps) -> Ints:
    """How many times each op of a device came before, int64[ops]."""
    columns = [device.kind.astype(np.int64), device.unit, device.stage, device.chunk]
    key = np.stack([column for column in columns if column is not None])
    same = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((device.start, same))
    fresh = np.flatnonzero(np.concatenate([[True], np.diff(same[order]) != 0]))
    count = np.arange(len(order)) - np.repeat(fresh, np.diff([*fresh, len(order)]))
    step = np.empty(len(order), np.int64)
    step[order] = count
    return step


def _by_flush(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """Cut where nothing is in flight on any device (their clocks agree well enough: a flush is milliseconds long)."""
    work = [np.flatnonzero(device.kind != Kind.W) for device in devices]
    begun = np.concatenate([device.start[rows] for device, rows in zip(devices, work, strict=True)])
    kind = np.concatenate([device.kind[rows] for device, rows in zip(devices, work, strict=True)])
    order = np.argsort(begun, kind="stable")
    flight = np.cumsum(np.where(kind[order] == Kind.F, 1, -1))
    bounds = begun[order][1:][(flight[:-1] == 0) & (kind[order][1:] == Kind.F)]  # the first forward of each new step
    return tuple(
        _cut(device, np.searchsorted(bounds, device.start, side="right").astype(np.int64)) for device in devices
    )


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
    index = {device.rank: i for i, device in enumerate(devices)}
    by: dict[int, int] = {}
    for first in range(len(devices)):
        if first in by:
            continue
        by[first] = 0
        part = [first]
        for here in part:  # grows as neighbours are found
            moves = devices[here].transfers
            peers = [] if moves is None else np.unique(moves.peer).tolist()
            for there in (index[peer] for peer in peers if peer in index and index[peer] not in by):
                by[there] = by[here] + _shift(devices[here], devices[there])
                part.append(there)
        least = min(by[i] for i in part)
        by |= {i: by[i] - least for i in part}
    return tuple(_shifted(device, by[i]) for i, device in enumerate(devices))


def _shift(one: RankOps, other: RankOps) -> int:
    """By how many steps the second device's count must be moved so that messages between the two belong together."""
    mine, theirs = _ends_by_step(one, other.rank), _ends_by_step(other, one.rank)
    wander: dict[int, float] = {}
    for by in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        lags = [theirs[step - by] - mine[step] for step in mine if len(theirs.get(step - by, ())) == len(mine[step])]
        if lags and 2 * len(lags) >= min(len(mine), len(theirs)):
            wander[by] = float(np.median([np.median(np.abs(lag - np.median(lag))) for lag in lags]))
    if not wander:
        return 0
    together = min(wander, key=lambda by: abs(max(theirs) + by - max(mine)))
    best = min(wander, key=wander.__getitem__)
    return best if _CLEARLY * wander[best] < wander[together] > _ALIKE else together


def _ends_by_step(device: RankOps, peer: int) -> dict[int, Ints]:
    """Ends of the messages with one peer, sends first, by step."""
    moves = device.transfers
    if moves is None:
        return {}
    rows = np.flatnonzero(moves.peer == peer)
    low = device.rank < peer  # what the lower sends first is what the other receives first
    rows = rows[np.lexsort((moves.send[rows] != low, moves.step[rows]))]
    steps, first = np.unique(moves.step[rows], return_index=True)
    return dict(zip(steps.tolist(), np.split(moves.end[rows], first[1:]), strict=True))


def _shifted(device: RankOps, by: int) -> RankOps:
    moves, joint = device.transfers, device.collectives
    return replace(
        device,
        step=np.where(device.step < 0, device.step, device.step + by),
        step_ns={step + by: length for step, length in device.step_ns.items()},
        transfers=None if moves is None else replace(moves, step=np.where(moves.step < 0, moves.step, moves.step + by)),
        collectives=None
        if joint is None
        else replace(joint, step=np.where(joint.step < 0, joint.step, joint.step + by)),
    )
