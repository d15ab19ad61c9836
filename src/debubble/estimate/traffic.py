"""Traffic of one layer: collectives of its tensor, context, expert and data groups, less what its kernels hide."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .count import Product
from .held import own_and_routed
from .kernels import products_time
from .network import exchange_time, hop_time, ring_time
from .setting import Pass, Setting

Column = NDArray[np.float64]


def reduced_time(at: Setting, experts: bool) -> Column:
    """Seconds of a layer's two all-reduces of the residual, forward.

    Routed experts alone need the second only among the devices that share one: what these gather is of et / t tokens.
    """
    tensor, shards = at.layouts.tensor, at.layouts.expert_tensor
    volume = 2 * at.tokens * at.model.hidden
    whole = ring_time(at.network, at.ring(tensor), volume, reduce=True)
    if not experts or at.model.experts is None or at.model.experts.shared:
        return 2 * whole
    return whole + ring_time(at.network, at.ring(shards), volume * (shards / tensor), reduce=True)


def tensor_time(at: Setting, products: tuple[Product, ...], once: Column) -> Pass:
    """All-reduces of the residual, ``once`` forward and again backward; a full recomputation repeats the forward's.

    With sequence parallelism each is a gather and a scatter of half its time. Where products are cut in pieces, a
    gather runs beside the piece that needs none of it, 1/t, and a backward's scatter beside the product for W; no more
    than ``hidden_data`` of it is hidden, as of other traffic that shares the multiprocessors with products.
    """
    layouts = at.layouts
    seen = once * np.where(layouts.tensor_overlap > 0, 1 - at.constants.hidden_tensor, 1.0)
    forward, backward = seen, seen
    cut = layouts.pieces > 1
    if cut.any():  # else the products need not be timed once more
        forward, backward = (np.where(cut, left, seen) for left in _beside_pieces(at, products, once))
    return Pass(forward, backward, np.where(layouts.recompute == 2, forward, 0.0))


def _beside_pieces(at: Setting, products: tuple[Product, ...], once: Column) -> tuple[Column, Column]:
    """What the pieces of products leave unhidden, forward and backward."""
    tensor = at.layouts.tensor
    column, row = (products_time(at, tuple(p for p in products if p.split == split)) for split in ("outer", "inner"))
    half, scale, most = once / 2, at.factors.kernels.value, at.constants.hidden_data

    def beside(product: Column) -> Column:
        return half - np.minimum(most * half, scale * product)

    again = np.where(at.layouts.keep_gathered > 0, 0.0, beside(column[1]))  # gathered again for W
    return half + beside(column[0] / tensor), beside(row[1] / tensor) + beside(column[2]) + again


def context_time(at: Setting, core: Pass) -> Pass:
    """Keys and values passed around a ring beside the attention core; what the core does not hide counts."""
    model, context = at.model, at.layouts.context
    wide = model.latent.kv + model.latent.rotary if model.latent else 2 * model.kv_heads * model.head_width
    shared = np.ones_like(context) if model.latent else at.layouts.tensor
    block = 2 * at.tokens * wide / shared
    apart = (at.layouts.tensor * context > at.cluster.gpus_per_node).astype(np.float64)
    once = (context - 1) * hop_time(at.network, apart, block)
    forward = np.maximum(once - core.forward, 0)
    return Pass(forward, np.maximum(2 * once - core.backward, 0), np.where(at.layouts.recompute == 2, forward, 0.0))


def expert_time(at: Setting, experts: bool) -> Pass:
    """Tokens sent to their experts and back: two all-to-alls forward, two backward.

    Each device sends its 1/t of the tokens; those who share an expert are neighbours, so groups lie et devices apart.
    """
    if not experts or at.model.experts is None:
        nothing = np.zeros(len(at.layouts))
        return Pass(nothing, nothing, nothing)
    group, shards = at.layouts.expert, at.layouts.expert_tensor
    volume = 2 * at.tokens / at.layouts.tensor * at.model.experts.active * at.model.hidden
    once = 2 * exchange_time(at.network, at.ring(group, shards), volume)
    return Pass(once, once, np.where(at.layouts.recompute == 2, once, 0.0))


def gathered_time(at: Setting, kernels: Pass, experts: bool) -> Pass:
    """ZeRO-3: weights gathered in both passes, gradients scattered in the backward, beside the layer's own work."""
    layouts = at.layouts
    own, routed = own_and_routed(at, experts)
    whole, few = at.ring(layouts.replicas, layouts.tensor), layouts.expert_replicas
    once = ring_time(at.network, whole, 2 * (own + routed))
    if experts:  # where other devices hold the same experts than the same attention, they are gathered by themselves
        apart = at.ring(few, layouts.expert * layouts.expert_tensor)
        alone = ring_time(at.network, whole, 2 * own) + ring_time(at.network, apart, 2 * routed)
        once = np.where(few == layouts.replicas, once, alone)
    on = layouts.zero == 3
    hidden = np.where(layouts.overlap > 0, at.constants.hidden_data, 0.0)

    def seen(traffic: Column, work: Column) -> Column:
        return np.where(on, np.maximum(traffic * (1 - hidden), traffic - hidden * work), 0.0)

    again = np.zeros_like(once)
    return Pass(seen(once, kernels.forward), seen(2 * once, kernels.backward + kernels.again), again)
