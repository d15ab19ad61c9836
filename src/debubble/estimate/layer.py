"""One layer: seconds of its forward, backward and recomputed forward on one device, by what takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config.layout import MODULES
from .count import core_flops, layer_products, product_flops
from .kernels import core_time, module_time, products_time, streams_time
from .model import Kind
from .setting import Column, Pass, Setting
from .traffic import context_time, expert_time, residual_time, tensor_time, zero3_time

# Collectives that the host issues for the tensor group in one pass of a layer: two all-reduces, or with sequence
# parallelism a gather and a scatter for each.
REDUCES, GATHERS_AND_SCATTERS = 2, 4
SHORTEST = 1e-12  # seconds: so that nothing over nothing is nothing
STALLING_GROUP = 8  # members of the tensor group for which the factor ``stall`` is counted


@dataclass(frozen=True, slots=True, eq=False)
class LayerTime:
    """Where the time of one micro-batch in one layer goes.

    Args:
        ideal: FLOPs at the peak rate.
        kernels: matrix products, attention and element-wise work, ``ideal`` included.
        tensor: collectives of the tensor group; likewise ``context`` and ``expert``.
        data: weights gathered and gradients scattered for this layer alone (ZeRO-3), as far as nothing hides them.
        weight: part of ``kernels.backward`` that W takes in a split backward, float64[n].
        total: their sum, or the host's time if that is longer.
    """

    ideal: Pass
    kernels: Pass
    tensor: Pass
    context: Pass
    expert: Pass
    data: Pass
    weight: Column
    total: Pass


def layer_time(setting: Setting, kind: Kind) -> LayerTime:
    """Seconds of one micro-batch in one layer of a kind, for each layout."""
    factors = setting.factors
    products = layer_products(setting.model.hidden, kind)
    forward, inputs, weight = products_time(setting, products)
    core, streams = core_time(setting, kind.mixer), streams_time(setting, kind)
    whole = forward + core.forward + streams.forward
    backward = inputs + weight + core.backward + streams.backward
    kernels = Pass(whole, backward, _recomputed(setting, kind, core.again, whole)).scaled(factors.kernels.value)
    tensor = tensor_time(setting, products, residual_time(setting, kind) * factors.tensor.value)
    context = context_time(setting, kind, core).scaled(factors.tensor.value)
    expert = expert_time(setting, kind, kernels).scaled(factors.tensor.value)
    data = zero3_time(setting, kind, kernels).scaled(factors.data.value)
    return LayerTime(
        ideal=_ideal(setting, kind),
        kernels=kernels,
        tensor=tensor,
        context=context,
        expert=expert,
        data=data,
        weight=weight * factors.kernels.value,
        total=with_host(setting, kind, kernels + tensor + context + expert + data),
    )


def _ideal(setting: Setting, kind: Kind) -> Pass:
    """FLOPs over the peak, 1 : 2 forward and backward; those of the core grow with each layout's sequence."""
    once = product_flops(setting.model, kind) / setting.peak
    core = core_flops(setting.model, kind.mixer, setting.layouts.sequence) / setting.peak
    forward = (once + core) * setting.tokens / setting.layouts.tensor
    return Pass(forward, 2 * forward, np.zeros_like(forward))


def _recomputed(setting: Setting, kind: Kind, core: Column, whole: Column) -> Column:
    """Kernels that run again: none, those of some parts of the layer, or all."""
    layouts = setting.layouts
    again = np.where(layouts.recompute == 2, whole, 0.0)
    again = again + np.where(layouts.recomputes("core_attn"), core, 0.0)
    for module in MODULES[1:]:
        chosen = layouts.recomputes(module)
        if chosen.any():  # else its kernels need not be timed
            again = again + np.where(chosen, module_time(setting, kind, module), 0.0)
    return again


def with_host(setting: Setting, kind: Kind, device: Pass) -> Pass:
    """A layer takes about as long as the slower of its device and the host that issues it, whatever its size.

    If the host waits for each kernel, the two add up; a recorded graph of kernels needs no host.
    """
    constants, layouts, tensor = setting.constants, setting.layouts, setting.layouts.tensor
    collectives = np.where(layouts.sequence_parallel > 0, GATHERS_AND_SCATTERS, REDUCES)
    share = kind.parts / 2  # of what a layer of mixer and feed-forward takes to issue
    calls = share * np.where(tensor > 1, collectives, 0) * layouts.pieces * constants.issue
    slowest_host = 1 + constants.jitter * (tensor - 1)
    issued = share * constants.host + (constants.host_experts if kind.experts else 0.0) + calls
    host = np.where(layouts.graphs > 0, 0.0, issued) * slowest_host * setting.factors.floor.value * _stalled(setting)
    power = np.where(layouts.blocking_launches > 0, 1.0, constants.blend)

    def slower(busy: Column, issued: Column) -> Column:
        longer, shorter = np.maximum(busy, issued), np.minimum(busy, issued)
        return longer * (1 + (shorter / np.maximum(longer, SHORTEST)) ** power) ** (1 / power)

    again = np.where(layouts.recompute == 2, slower(device.again, host), device.again)
    # A backward has twice the kernels to wait for; issued ahead, autograd does so in the time of the forward.
    behind = host * np.where(layouts.blocking_launches > 0, 2.0, 1.0)
    return Pass(slower(device.forward, host), slower(device.backward, behind), again)


def _stalled(setting: Setting) -> Column:
    """How many times longer the host takes if tensor groups wait for a pipeline that spans nodes.

    1 unless measured rows say otherwise: some clusters lose milliseconds a layer for each member of the group, whatever
    the micro-batch.
    """
    layouts = setting.layouts
    waits = (layouts.pipeline > 1) & (layouts.tensor > 1) & (layouts.gpus > setting.cluster.gpus_per_node)
    more = (setting.factors.stall.value - 1) * layouts.tensor / STALLING_GROUP
    times: Column = np.where(waits, np.maximum(1 + more, 0.0), 1.0)
    return times
