"""Stages: layers, embedding and head added up into the time of each slice of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .kernels import product_time, stream_time
from .layer import LayerTime, layer_time
from .memory import StageLayers, accumulated_bytes
from .network import reduce_time
from .setting import Column, Pass, Setting

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
