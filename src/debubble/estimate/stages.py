"""Stages: layers, embedding and head added up into the time and the parameters of each slice of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .count import embedding_parameters, layer_parameters, routed_parameters
from .ends import embedding_time, head_time
from .layer import LayerTime, layer_time
from .setting import Pass, Setting

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """What a model is made of: seconds of one micro-batch in each kind of layer and at the ends.

    Args:
        dense: a layer with a dense feed-forward.
        expert: a layer with a mixture of experts, or None where the model has none.
        embedding: kernels and collectives of the first stage.
        head: kernels of the last stage; ``head_tensor`` its collectives, ``head_ideal`` its FLOPs at the peak.
        head_tensor: see ``head``.
        head_ideal: see ``head``.
    """

    dense: LayerTime
    expert: LayerTime | None
    embedding: Pass
    head: Pass
    head_tensor: Pass
    head_ideal: Column


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """Which layers a stage holds: dense ones, ones with experts, those that are recomputed, and the ends.

    Each is float64[n] or float64[stages].
    """

    dense: Column
    expert: Column
    again: Column
    first: Column
    last: Column


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


def blocks(at: Setting) -> Blocks:
    """Time of each kind of layer and of the ends, for each layout of a setting."""
    kernels, reduced = head_time(at)
    heads = 1 + at.model.next_heads
    ideal = 6.0 * heads * at.tokens * at.model.hidden * at.model.vocab / at.layouts.tensor / at.rate
    scale = at.factors.kernels.value
    return Blocks(
        layer_time(at),
        layer_time(at, experts=True) if at.model.experts else None,
        embedding_time(at).scaled(scale),
        kernels.scaled(scale),
        reduced.scaled(at.factors.tensor.value),
        ideal,
    )


def stage_time(at: Setting, made_of: Blocks, held: Slice) -> StageTime:
    """Add up a stage; extra prediction heads bring a layer each, which runs on the last stage."""
    extra = held.last * at.model.next_heads
    moe = at.model.has_experts(at.model.layers - 1)
    counts = (
        (made_of.dense, held.dense + (0 if moe else extra)),
        (made_of.expert, held.expert + (extra if moe else 0)),
    )
    layers = held.dense + held.expert
    share = np.where(layers > 0, np.minimum(held.again, layers) / np.maximum(layers, 1), 0.0)
    sums = {name: np.zeros_like(held.dense * at.tokens) for name in StageTime.__slots__}
    for block, count in counts:
        if block is None:
            continue
        again = count * share
        sums["forward"] += count * block.total.forward
        sums["backward"] += count * block.total.backward + again * block.total.again
        sums["weight"] += count * block.weight
        sums["ideal"] += count * block.ideal.both
        sums["recompute"] += again * block.total.again
        for name in ("tensor", "context", "expert", "data"):
            sums[name] += count * getattr(block, name).both
    _add_ends(at, made_of, held, sums)
    told = sum(sums[n] for n in ("ideal", "recompute", "tensor", "context", "expert", "data"))
    sums["kernels"] = sums["forward"] + sums["backward"] - told
    return StageTime(**sums)


def _add_ends(at: Setting, made_of: Blocks, held: Slice, sums: dict[str, Column]) -> None:
    host = at.constants.microbatch * at.factors.floor.value
    for name in ("forward", "backward"):
        sums[name] += held.first * getattr(made_of.embedding, name) + host
        sums[name] += held.last * (getattr(made_of.head, name) + getattr(made_of.head_tensor, name))
    sums["tensor"] += held.last * made_of.head_tensor.both
    sums["ideal"] += held.last * made_of.head_ideal
    sums["weight"] += held.last * made_of.head.backward / 2


def stage_parameters(at: Setting, held: Slice) -> tuple[Column, Column]:
    """Parameters of a stage on one device, before ZeRO: what all replicas share, and its experts."""
    model, tensor = at.model, at.layouts.tensor
    routed = routed_parameters(model)
    extra = held.last * model.next_heads
    moe = model.has_experts(model.layers - 1)
    dense = held.dense + (0 if moe else extra)
    expert = held.expert + (extra if moe else 0)
    own = dense * layer_parameters(model, experts=False)
    if model.experts:
        own = own + expert * (layer_parameters(model, experts=True) - routed)
    ends = held.first * embedding_parameters(model)
    alone = (at.layouts.pipeline == 1) & model.tied  # one matrix serves both ends where one device has both
    ends = ends + held.last * np.where(alone, 0, model.vocab * model.hidden)
    return (own + ends) / tensor, expert * routed / (at.layouts.expert * at.layouts.expert_tensor)
