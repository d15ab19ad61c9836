"""The host: how long it takes to issue a layer, which no device can undercut."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .setting import Pass, Setting

Column = NDArray[np.float64]


def with_host(at: Setting, device: Pass) -> Pass:
    """A layer takes about as long as the slower of its device and the host that issues it, whatever its size.

    Where the host waits for each kernel, the two add up.
    """
    constants, layouts = at.constants, at.layouts
    tensor = layouts.tensor
    calls = np.where(tensor > 1, np.where(layouts.sequence_parallel > 0, 4, 2), 0) * layouts.pieces * constants.issue
    host = (constants.host + calls) * (1 + constants.jitter * (tensor - 1)) * at.factors.floor.value * _stalled(at)
    power = np.where(layouts.blocking_launches > 0, 1.0, constants.blend)

    def slower(busy: Column) -> Column:
        return np.maximum(busy, host) * (1 + (np.minimum(busy, host) / np.maximum(busy, host)) ** power) ** (1 / power)

    again = np.where(layouts.recompute == 2, slower(device.again), device.again)
    return Pass(slower(device.forward), slower(device.backward), again)


def _stalled(at: Setting) -> Column:
    """How many times longer the host takes where tensor groups wait for a pipeline that spans nodes.

    1 unless measured rows say otherwise: some clusters lose milliseconds a layer for each member of the group, whatever
    the micro-batch. The factor is that of a group of 8.
    """
    layouts = at.layouts
    waits = (layouts.pipeline > 1) & (layouts.tensor > 1) & (layouts.gpus > at.cluster.gpus_per_node)
    more = (at.factors.stall.value - 1) * layouts.tensor / 8
    found: Column = np.where(waits, np.maximum(1 + more, 0.0), 1.0)
    return found
