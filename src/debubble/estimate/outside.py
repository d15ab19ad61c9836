"""Outside the pipeline: data-parallel traffic that nothing hides, and the update of the weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..plan import PRECISIONS
from .layer import Setting
from .network import ring_time

Column = NDArray[np.float64]
UPDATE = 30  # bytes that Adam reads and writes a parameter: gradient, master weight and two moments in fp32, weight


def gradient_bytes(at: Setting) -> Column:
    """Bytes of a gradient: 2 in fp16, else the 4 of fp32 accumulation (Megatron-LM's default for bf16)."""
    return np.where(at.layouts.precision == PRECISIONS.index("fp16"), 2.0, 4.0)


def data_time(at: Setting, shared: Column, routed: Column, hidden_under: Column) -> Column:
    """Seconds of gradients reduced and weights gathered that neither the last backward nor the first forward hides.

    Args:
        at: the setting.
        shared: parameters of a device that all of data x context reduce.
        routed: parameters of its experts, reduced by the 1/expert of them that hold the same.
        hidden_under: seconds of work that it can run beside.
    """
    layouts = at.layouts
    group = layouts.data * layouts.context
    few = np.maximum(group / layouts.expert, 1)
    traffic = np.zeros(len(layouts))
    sharded = layouts.zero >= 1
    volume = gradient_bytes(at)
    for own, members, stride in ((shared, group, layouts.tensor), (routed, few, layouts.tensor * layouts.expert)):
        near = at.near(stride, members)
        reduced = ring_time(at.cluster, at.constants, members, near, volume * own)
        gathered = ring_time(at.cluster, at.constants, members, near, np.where(sharded, 2.0, volume) * own)
        traffic = traffic + reduced + gathered
    traffic = np.where(layouts.zero == 3, 0.0, traffic)
    most = np.where(layouts.overlap > 0, at.constants.hidden_data, 0.0)
    seen: Column = traffic - np.minimum(most * traffic, hidden_under)
    return seen


def optimizer_time(at: Setting, shared: Column, routed: Column) -> Column:
    """Seconds of the update: bound by memory, shared out over data x context from ZeRO-1 on."""
    group = at.layouts.data * at.layouts.context
    few = np.maximum(group / at.layouts.expert, 1)
    own = np.where(at.layouts.zero >= 1, shared / group + routed / few, shared + routed)
    seconds: Column = UPDATE * own / (at.cluster.device.memory_rate * at.constants.stream)
    return seconds


def tied_time(at: Setting) -> Column:
    """Seconds in which first and last stage add up the gradients of an embedding that they share."""
    layouts = at.layouts
    pair = np.where(layouts.pipeline > 1, 2.0, 1.0) if at.model.tied else np.ones(len(layouts))
    apart = layouts.gpus / layouts.pipeline >= at.cluster.gpus_per_node
    near = np.where(apart, 1.0, pair)
    volume = gradient_bytes(at) * at.model.vocab * at.model.hidden / layouts.tensor
    return ring_time(at.cluster, at.constants, pair, near, volume, halves=2)
