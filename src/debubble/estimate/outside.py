"""Outside the pipeline: data-parallel traffic that nothing hides, and the update of the weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..config.layout import PRECISIONS
from .network import ring_time
from .setting import Setting

Column = NDArray[np.float64]
UPDATE = 30  # bytes that Adam reads and writes a parameter: gradient, master weight and two moments in fp32, weight


def gradient_bytes(at: Setting) -> Column:
    """Bytes of a gradient: 2 in fp16, else the 4 of fp32 accumulation (Megatron-LM's default for bf16)."""
    return np.where(at.layouts.precision == PRECISIONS.index("fp16"), 2.0, 4.0)


def data_time(at: Setting, shared: Column, routed: Column, beside: tuple[Column, Column]) -> Column:
    """Seconds of gradients reduced and weights gathered that neither the last backward nor the first forward hides.

    Args:
        at: the setting.
        shared: parameters of a device that all of data x context reduce.
        routed: parameters of its experts, reduced by those of the stage that hold the same.
        beside: seconds of one forward and of one backward, beside which it may run.
    """
    layouts = at.layouts
    group, apart = layouts.replicas, layouts.expert * layouts.expert_tensor
    reduced, gathered = np.zeros(len(layouts)), np.zeros(len(layouts))
    sharded, wide = layouts.zero >= 1, gradient_bytes(at)
    bucket = np.where(layouts.bucket > 0, layouts.bucket, wide * np.maximum(40e6, 1e6 * group))
    for own, members, stride in ((shared, group, layouts.tensor), (routed, layouts.expert_replicas, apart)):
        ring, volume = at.ring(members, stride), wide * own
        calls = np.ceil(volume / bucket)
        scattered = ring_time(at.network, ring, volume, calls=calls)
        whole = ring_time(at.network, ring, volume, reduce=True, calls=calls)
        reduced = reduced + np.where(sharded, scattered, whole)
        parts = np.where(layouts.overlap_gather > 0, calls, 1.0)  # all weights in one call, where nothing runs beside
        gathered = gathered + np.where(sharded, ring_time(at.network, ring, 2 * own, calls=parts), 0.0)
    most = at.constants.hidden_data
    seen = reduced - np.where(layouts.overlap > 0, np.minimum(most * reduced, beside[1]), 0.0)
    seen = seen + gathered - np.where(layouts.overlap_gather > 0, np.minimum(most * gathered, beside[0]), 0.0)
    return np.where(layouts.zero == 3, 0.0, seen)


def shared_out(at: Setting, shared: Column, routed: Column) -> Column:
    """Parameters that a device keeps where all who hold the same share them out."""
    return shared / at.layouts.replicas + routed / at.layouts.expert_replicas


def optimizer_time(at: Setting, shared: Column, routed: Column) -> Column:
    """Seconds of the update: bound by memory, shared out over data x context from ZeRO-1 on."""
    own = np.where(at.layouts.zero >= 1, shared_out(at, shared, routed), shared + routed)
    seconds: Column = UPDATE * own / (at.cluster.device.memory_rate * at.constants.stream)
    return seconds


def tied_time(at: Setting) -> Column:
    """Seconds in which first and last stage add up the gradients of an embedding that they share."""
    layouts = at.layouts
    pair = np.where(layouts.pipeline > 1, 2.0, 1.0) if at.model.tied else np.ones(len(layouts))
    ring = at.ring(pair, np.maximum(layouts.gpus * (1 - 1 / layouts.pipeline), 1))
    table = at.model.vocab * at.model.hidden / layouts.tensor
    return ring_time(at.network, ring, gradient_bytes(at) * table, reduce=True)
