"""Which step an op belongs to, where its file does not say: labels that repeat, or a pipeline that runs empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.op import Kind
from .device_ops import RankOps


def with_steps(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The same devices with a step for every op.

    Where micro-batches (and stages or chunks) are known, the k-th time that an op comes is its step k; else a step
    ends where, over all devices, every forward has had its backward: a flush leaves nothing in flight.
    """
    if all((device.step >= 0).all() for device in devices):
        return tuple(devices)
    if all(device.unit is not None for device in devices):
        return tuple(replace(device, step=_occurrence(device), step_ns={}) for device in devices)
    return _by_flush(devices)


def _occurrence(device: RankOps) -> NDArray[np.int64]:
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
        replace(device, step=np.searchsorted(bounds, device.start, side="right").astype(np.int64), step_ns={})
        for device in devices
    )
