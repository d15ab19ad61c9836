"""Layers and stages: seconds of one micro-batch in a layer, by what takes them; and what a step does outside."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..config.config import MODULES
from .memory import StageLayers, accumulated_bytes, layer_shares, zero_share
from .model import Kind, core_flops, layer_products, product_flops
from .setting import Column, Pass, Setting
from .times import (
    context_time,
    core_time,
    expert_time,
    gather_time,
    module_time,
    product_time,
    products_time,
    reduce_time,
    residual_time,
    stream_time,
    streams_time,
    tensor_time,
    zero3_time,
)

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

    def __getitem__(self, rows: slice) -> LayerTime:
        return LayerTime(**{each.name: getattr(self, each.name)[rows] for each in fields(LayerTime)})


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
    # Of a layer's own FLOPs each device of the tensor group does its share; I and W take as many again as F.
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
    issued = share * constants.host + calls
    if kind.experts:
        issued = issued + constants.host_experts
    host = np.where(layouts.graphs > 0, 0.0, issued) * slowest_host * setting.factors.floor.value * _stalled(setting)
    # A p-norm of 1 adds host and device up; one of 6 is the larger of both but where they are alike.
    power = np.where(layouts.blocking_launches > 0, 1.0, constants.blend)

    def slower(busy: Column, issued: Column) -> Column:
        longer, shorter = np.maximum(busy, issued), np.minimum(busy, issued)
        return longer * (1 + (shorter / np.maximum(longer, SHORTEST)) ** power) ** (1 / power)

    # Parts that run again by themselves are issued beside the backward, a whole layer like another forward.
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


# Bytes of each logit that the loss moves in fp32: cast, largest, difference, exponential, sum and quotient forward;
# copy, difference and cast back to 16 bits backward. And the kernels that move them.
LOSS, LOSS_KERNELS = 36, 8
LOSS_BACKWARD, LOSS_BACKWARD_KERNELS = 22, 4


@dataclass(frozen=True, slots=True, eq=False)
class ModelTime:
    """Seconds of one micro-batch in each kind of layer and at the ends of the pipeline.

    Args:
        layers: of each kind of the model.
        embedding: kernels and collectives of the first stage.
        head: kernels of the last stage.
        head_tensor: its collectives.
        head_ideal: its FLOPs at the peak.
    """

    layers: tuple[LayerTime, ...]
    embedding: Pass
    head: Pass
    head_tensor: Pass
    head_ideal: Column

    def of(self, layout: int) -> ModelTime:
        """One layout of them, by its number."""
        row = slice(layout, layout + 1)
        layers = tuple(layer[row] for layer in self.layers)
        return ModelTime(layers, self.embedding[row], self.head[row], self.head_tensor[row], self.head_ideal[row])


@dataclass(frozen=True, slots=True, eq=False)
class StageTime:
    """Seconds of one micro-batch on a stage, and where they go; recomputation is part of ``backward``.

    ``ideal + kernels + recompute + tensor + context + expert + data == forward + backward``.
    """

    forward: Column
    backward: Column
    weight: Column
    ideal: Column
    kernels: Column
    recompute: Column
    tensor: Column
    context: Column
    expert: Column
    data: Column


def model_time(setting: Setting) -> ModelTime:
    """Time of each kind of layer and of the ends, for each layout of a setting."""
    model, factors = setting.model, setting.factors
    kernels, collectives = head_time(setting)
    # 2 for F, I and W each, once for the model's own head and for each that predicts further tokens.
    head_flops = 6.0 * (1 + model.next_heads) * setting.tokens * model.hidden * model.vocab / setting.layouts.tensor
    return ModelTime(
        layers=tuple(layer_time(setting, kind) for kind in model.kinds),
        embedding=embedding_time(setting).scaled(factors.kernels.value),
        head=kernels.scaled(factors.kernels.value),
        head_tensor=collectives.scaled(factors.tensor.value),
        head_ideal=head_flops / setting.peak,
    )


def embedding_time(setting: Setting) -> Pass:
    """Rows gathered from a table that the tensor group shares, an all-reduce, and a scatter backward."""
    tensor = setting.layouts.tensor
    moved = 2 * setting.number_bytes * setting.tokens * setting.model.hidden
    gathered = stream_time(setting, moved, 3)
    reduced = reduce_time(setting, setting.group(tensor), moved / 2)
    table = accumulated_bytes(setting, setting.model.vocab * setting.model.hidden / tensor)
    scattered = 2 * gathered + stream_time(setting, table, 2)
    return Pass(gathered + reduced, scattered, np.zeros_like(gathered))


def head_time(setting: Setting) -> tuple[Pass, Pass]:
    """Kernels and collectives of the product with the vocabulary and of the loss over fp32 logits."""
    tensor = setting.layouts.tensor
    heads = 1 + setting.model.next_heads
    tokens, hidden, outer = setting.tokens, np.full_like(tensor, setting.model.hidden), setting.model.vocab / tensor
    peak, one = setting.peak_16bit, np.ones_like(tensor)
    forward = product_time(setting, (tokens, hidden, outer), peak, one)
    inputs = product_time(setting, (tokens, outer, hidden), peak, one)
    weight = product_time(setting, (hidden, tokens, outer), peak, one)
    logits = tokens * outer
    loss = stream_time(setting, LOSS * logits, LOSS_KERNELS)
    summed = accumulated_bytes(setting, hidden * outer)
    gradient = stream_time(setting, LOSS_BACKWARD * logits + summed, LOSS_BACKWARD_KERNELS)
    nothing = np.zeros_like(forward)
    reduced = reduce_time(setting, setting.group(tensor), setting.number_bytes * tokens * setting.model.hidden)
    kernels = Pass(heads * (forward + loss), heads * (inputs + weight + gradient), nothing)
    return kernels, Pass(nothing, heads * reduced, nothing)


def stage_time(setting: Setting, times: ModelTime, stage: StageLayers) -> StageTime:
    """Add up a stage; extra prediction heads bring a layer each, which runs on the last stage."""
    model = setting.model
    sums = {name: np.zeros_like(stage.layers * setting.tokens) for name in StageTime.__slots__}
    for kind, layer, held in zip(model.kinds, times.layers, stage.counts, strict=True):
        count = held
        if kind in model.next_kinds:
            count = held + stage.last * model.next_heads
        again = count * stage.recomputed_share * layer.total.again
        sums["forward"] += count * layer.total.forward
        sums["backward"] += count * layer.total.backward + again
        sums["weight"] += count * layer.weight
        sums["ideal"] += count * layer.ideal.both
        sums["recompute"] += again
        sums["tensor"] += count * layer.tensor.both
        sums["context"] += count * layer.context.both
        sums["expert"] += count * layer.expert.both
        sums["data"] += count * layer.data.both
    _add_ends(setting, times, stage, sums)
    named = sums["ideal"] + sums["recompute"] + sums["tensor"] + sums["context"] + sums["expert"] + sums["data"]
    sums["kernels"] = sums["forward"] + sums["backward"] - named
    return StageTime(**sums)


def _add_ends(setting: Setting, times: ModelTime, stage: StageLayers, sums: dict[str, Column]) -> None:
    host = setting.constants.microbatch * setting.factors.floor.value
    head = times.head + times.head_tensor
    sums["forward"] += stage.first * times.embedding.forward + host + stage.last * head.forward
    sums["backward"] += stage.first * times.embedding.backward + host + stage.last * head.backward
    sums["tensor"] += stage.last * times.head_tensor.both
    sums["ideal"] += stage.last * times.head_ideal
    sums["weight"] += stage.last * times.head.backward / 2  # of its products for inputs and weights, alike in size


TENSORS = 6  # of a layer: two products of attention, two of the feed-forward, two norms

# Gradients that Megatron-LM reduces in one call if nothing is said (ddp_config.bucket_size in megatron/training).
BUCKET, BUCKET_PER_REPLICA = 40e6, 1e6


def data_time(setting: Setting, shared: Column, routed: Column, beside: tuple[Column, Column]) -> Column:
    """Seconds of gradients reduced and weights gathered that neither the last backward nor the first forward hides.

    Args:
        setting: the setting.
        shared: parameters of a device that all of data x context reduce.
        routed: parameters of its experts, reduced by those of the stage that hold the same.
        beside: seconds of one forward and of one backward, beside which it may run.
    """
    layouts, most = setting.layouts, setting.constants.hidden_data
    everyone, holders = layouts.replicas, layouts.expert_replicas
    reduced = _reduced(setting, shared, everyone, layouts.tensor)
    reduced = reduced + _reduced(setting, routed, holders, layouts.expert * layouts.expert_tensor)
    gathered = _gathered(setting, shared, everyone, layouts.tensor)
    gathered = gathered + _gathered(setting, routed, holders, layouts.expert * layouts.expert_tensor)
    forward, backward = beside
    # Only the last micro-batch's backward has gradients that are done: at most it hides them, and at most a share.
    reduced = reduced - np.where(layouts.overlap > 0, np.minimum(most * reduced, backward), 0.0)
    gathered = gathered - np.where(layouts.overlap_gather > 0, np.minimum(most * gathered, forward), 0.0)
    return np.where(layouts.zero == 3, 0.0, reduced + gathered)


def _reduced(setting: Setting, parameters: Column, members: Column, stride: Column) -> Column:
    """Gradients: scattered to those who update them, or reduced for all."""
    group, volume = setting.group(members, stride), setting.layouts.reduced_bytes * parameters
    calls = _calls(setting, volume)
    # nanotron, which gathers by tensor, reduces all gradients for all, whatever it shares out.
    scattered = gather_time(setting, group, volume, calls=calls)
    whole = reduce_time(setting, group, volume, calls=calls)
    scatters = (setting.layouts.zero >= 1) & (setting.layouts.gather_by_tensor == 0)
    return np.where(scatters, scattered, whole)


def _gathered(setting: Setting, parameters: Column, members: Column, stride: Column) -> Column:
    """Weights from those who updated them, as wide as products take them in: in one call if nothing runs beside it."""
    layouts = setting.layouts
    weights = np.minimum(layouts.weight_bytes, setting.number_bytes)
    calls = _calls(setting, setting.layouts.reduced_bytes * parameters)
    calls = np.where(layouts.overlap_gather > 0, calls, 1.0)
    layer, _ = layer_shares(setting, setting.model.last_kind)
    calls = np.where(layouts.gather_by_tensor > 0, TENSORS * parameters / layer, calls)
    gathered = gather_time(setting, setting.group(members, stride), weights * parameters, calls=calls)
    return np.where(layouts.zero >= 1, gathered, 0.0)


def _calls(setting: Setting, volume: Column) -> Column:
    """Buckets of gradients."""
    layouts = setting.layouts
    usual = layouts.reduced_bytes * np.maximum(BUCKET, BUCKET_PER_REPLICA * layouts.replicas)
    calls: Column = np.ceil(volume / np.where(layouts.bucket > 0, layouts.bucket, usual))
    return calls


def optimizer_time(setting: Setting, shared: Column, routed: Column) -> Column:
    """Seconds of the update: bound by memory, shared out over data x context from ZeRO-1 on.

    Adam reads the gradient, reads and writes its state, and writes the weight: 30 bytes in bf16 with fp32 gradients.
    On the host, gradients go there and weights come back over the host's link, and the state moves at the host's rate.
    """
    layouts, device, constants = setting.layouts, setting.cluster.device, setting.constants
    updated = np.where(layouts.zero >= 1, zero_share(setting, shared, routed), shared + routed)
    # Read the gradient; read and write master weight and moments; write the weight that products use.
    moved = layouts.reduced_bytes + 2 * layouts.state_bytes + layouts.weight_bytes
    here = moved * updated / (device.memory_rate * constants.stream)
    crossing = (layouts.reduced_bytes + layouts.weight_bytes) * updated / device.host_link
    there = np.maximum(crossing, moved * updated / constants.host_memory)
    return np.where(layouts.offload_optimizer > 0, there, here)


def tied_time(setting: Setting) -> Column:
    """Seconds in which first and last stage add up the gradients of an embedding that they share."""
    layouts, model = setting.layouts, setting.model
    if not model.tied:
        return np.zeros(len(layouts))
    # The pipeline is outermost, so the two that share an embedding are nearly the whole job apart.
    between = np.maximum(layouts.gpus * (1 - 1 / layouts.pipeline), 1)  # devices from the first stage to the last
    pair = setting.group(np.where(layouts.pipeline > 1, 2.0, 1.0), between)
    table = model.vocab * model.hidden / layouts.tensor
    return reduce_time(setting, pair, layouts.reduced_bytes * table)
