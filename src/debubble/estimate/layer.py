"""One layer: seconds of its forward, backward and recomputed forward on one device, by what takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .count import Product, attention_products, core_flops, dense_products, expert_products, layer_flops
from .host import with_host
from .kernels import core_time, products_time, streams_time
from .model import Model
from .setting import Pass, Setting
from .traffic import context_time, expert_time, gathered_time, reduced_time, tensor_time

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LayerTime:
    """Where the time of one micro-batch in one layer goes.

    Args:
        ideal: FLOPs at the peak rate.
        kernels: matrix products, attention and element-wise work, ``ideal`` included.
        tensor: collectives of the tensor group; likewise ``context`` and ``expert``.
        data: weights gathered and gradients scattered for this layer alone (ZeRO-3), where nothing hides them.
        weight: part of ``kernels.backward`` that W takes in a split backward, float64[n].
        total: their sum, or the host's time where that is longer.
    """

    ideal: Pass
    kernels: Pass
    tensor: Pass
    context: Pass
    expert: Pass
    data: Pass
    weight: Column
    total: Pass


def layer_time(at: Setting, *, experts: bool = False) -> LayerTime:
    """Seconds of one micro-batch in one layer, for each layout."""
    every = attention_products(at.model) + _feed_forward(at.model, experts)
    forward, inputs, weight = products_time(at, every)
    core = core_time(at)
    streams = streams_time(at, experts)
    again = _recomputed(at, whole=forward + core.forward + streams.forward, core=core.again)
    kernels = Pass(
        forward + core.forward + streams.forward, inputs + weight + core.backward + streams.backward, again
    ).scaled(at.factors.kernels.value)
    group = at.factors.tensor.value
    tensor, expert = tensor_time(at, every, reduced_time(at, experts) * group), expert_time(at, experts).scaled(group)
    context = context_time(at, core).scaled(group)
    data = gathered_time(at, kernels, experts).scaled(at.factors.data.value)
    total = with_host(at, kernels + tensor + context + expert + data)
    weight = weight * at.factors.kernels.value
    return LayerTime(_ideal(at, experts), kernels, tensor, context, expert, data, weight, total)


def _feed_forward(model: Model, experts: bool) -> tuple[Product, ...]:
    return expert_products(model) if experts else dense_products(model)


def _ideal(at: Setting, experts: bool) -> Pass:
    once = layer_flops(at.model, 0, experts=experts) / at.rate
    # the core's FLOPs grow with the sequence, which differs from layout to layout
    core = core_flops(at.model, 1.0) * at.layouts.sequence / at.rate
    forward = (once + core) * at.tokens / at.layouts.tensor
    return Pass(forward, 2 * forward, np.zeros_like(forward))


def _recomputed(at: Setting, whole: Column, core: Column) -> Column:
    by_mode = np.stack([np.zeros_like(whole), core, whole])
    found: Column = by_mode[at.layouts.recompute.astype(np.int64), np.arange(len(whole))]
    return found
