"""Ops that cannot be: set aside before they spoil a window, and said so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from .device_ops import RankOps

_LONG = 10.0  # times the median of its kind: beyond this an op that also covers another one is a fault of the tracer
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
            device = _rows(device, ~bad)
        kept.append(device)
    return tuple(kept), remarks


def _swallows(device: RankOps) -> NDArray[np.bool_]:
    """Far longer than its kind, and not over before another op that starts later has ended."""
    bad = np.zeros(len(device), bool)
    order = np.lexsort((device.start, device.step))
    length, end, step = (device.end - device.start)[order], device.end[order], device.step[order]
    covers = np.concatenate([(end[:-1] > end[1:]) & (step[:-1] == step[1:]), [False]])
    for kind in np.unique(device.kind):
        mine = device.kind[order] == kind
        bad[order] |= mine & covers & (length > _LONG * np.median(length[mine]))
    return bad


def _strays(device: RankOps) -> NDArray[np.bool_]:
    """Further from the middle of its step than any step is long."""
    bad = np.zeros(len(device), bool)
    order = np.argsort(device.step, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(device.step[order])) + 1) if len(order) else []
    middles = [np.median(device.start[rows]) for rows in groups]
    away = [np.abs(device.start[rows] - middle) for rows, middle in zip(groups, middles, strict=True)]
    typical = float(np.median([np.median(distances) for distances in away])) if away else 0.0
    for rows, distances in zip(groups, away, strict=True):
        bad[rows] = (distances > _FAR * 4 * typical) & (typical > 0)
    return bad


def _rows(device: RankOps, keep: NDArray[np.bool_]) -> RankOps:
    columns = ("step", "kind", "start", "end", "stage", "chunk", "unit")
    cut = {
        field.name: getattr(device, field.name)[keep]
        for field in fields(device)
        if field.name in columns and getattr(device, field.name) is not None
    }
    return replace(device, **cut)
