"""Traffic of one layer: collectives of its tensor, context, expert and data groups, less what its kernels hide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .count import Product
from .kernels import products_time
from .memory import layer_shares
from .model import Kind, LatentAttention, Recurrent
from .network import exchange_time, gather_time, hop_time, reduce_time
from .setting import Column, Group, Pass, Setting


def residual_time(setting: Setting, kind: Kind) -> Column:
    """Seconds of the all-reduces of the residual, forward: one after the mixer, one after the feed-forward.

    Routed experts alone need the second only among the devices that share one: what these gather is of et / t tokens.
    """
    tensor, shards = setting.layouts.tensor, setting.layouts.expert_tensor
    volume = setting.number_bytes * setting.tokens * setting.model.hidden
    whole = reduce_time(setting, setting.group(tensor), volume)
    if kind.experts is None or kind.experts.shared:
        return kind.parts * whole
    return (kind.parts - 1) * whole + reduce_time(setting, setting.group(shards), volume * (shards / tensor))


def tensor_time(setting: Setting, products: Sequence[Product], once: Column) -> Pass:
    """All-reduces of the residual, ``once`` forward and again backward; a full recomputation repeats the forward's.

    With sequence parallelism each is a gather and a scatter of half its time. If products are cut in pieces, a gather
    runs beside the piece that needs none of it, 1/t, and a backward's scatter beside the product for W; no more than
    ``hidden_data`` of it is hidden, as of other traffic that shares the multiprocessors with products.
    """
    layouts = setting.layouts
    seen = once * np.where(layouts.tensor_overlap > 0, 1 - setting.constants.hidden_tensor, 1.0)
    forward, backward = seen, seen
    in_pieces = layouts.pieces > 1
    if in_pieces.any():  # else the products need not be timed once more
        cut_forward, cut_backward = _beside_pieces(setting, products, once)
        forward, backward = np.where(in_pieces, cut_forward, seen), np.where(in_pieces, cut_backward, seen)
    return Pass(forward, backward, np.where(layouts.recompute == 2, forward, 0.0))


def _beside_pieces(setting: Setting, products: Sequence[Product], once: Column) -> tuple[Column, Column]:
    """What the pieces of products leave unhidden, forward and backward."""
    column = products_time(setting, [product for product in products if product.split == "outer"])
    row = products_time(setting, [product for product in products if product.split == "inner"])
    half, scale = once / 2, setting.factors.kernels.value

    def beside(product: Column) -> Column:
        return half - np.minimum(setting.constants.hidden_data * half, scale * product)

    gathered_for_weights = np.where(setting.layouts.keep_gathered > 0, 0.0, beside(column[1]))
    forward = half + beside(column[0] / setting.layouts.tensor)
    return forward, beside(row[1] / setting.layouts.tensor) + beside(column[2]) + gathered_for_weights


def context_time(setting: Setting, kind: Kind, core: Pass) -> Pass:
    """Keys and values passed around a ring beside the attention core; what the core does not hide counts.

    Within a window only the neighbour's are needed; of a recurrence the state alone goes from one to the next.
    """
    layouts, mixer = setting.layouts, kind.mixer
    tokens, times = setting.tokens, layouts.context - 1
    if mixer is None:
        nothing = np.zeros(len(layouts))
        return Pass(nothing, nothing, nothing)
    if isinstance(mixer, Recurrent):
        block = 4.0 * layouts.micro_batch * mixer.inner * mixer.key / layouts.tensor
    elif isinstance(mixer, LatentAttention):  # compressed, every device of the tensor group has them whole
        block = setting.number_bytes * setting.tokens * (mixer.kv + mixer.rotary)
    else:
        if mixer.window:
            tokens, times = np.minimum(tokens, layouts.micro_batch * mixer.window), np.minimum(times, 1)
        block = setting.number_bytes * tokens * (2 * mixer.kv_heads * mixer.head_width) / layouts.tensor
    crosses = (layouts.tensor * layouts.context > setting.cluster.gpus_per_node).astype(np.float64)
    once = times * hop_time(setting, crosses, block)
    forward = np.maximum(once - core.forward, 0)
    backward = np.maximum(2 * once - core.backward, 0)  # keys and values, and their gradients
    return Pass(forward, backward, np.where(layouts.recompute == 2, forward, 0.0))


def expert_time(setting: Setting, kind: Kind, kernels: Pass) -> Pass:
    """Tokens sent to their experts and back: two all-to-alls forward, two backward; what nothing hides counts.

    Each device sends its 1/t of the tokens; those who share an expert are neighbours, so groups lie et devices apart.
    """
    layouts = setting.layouts
    if kind.experts is None:
        nothing = np.zeros(len(layouts))
        return Pass(nothing, nothing, nothing)
    group = setting.group(layouts.expert, layouts.expert_tensor)
    volume = setting.number_bytes * setting.tokens / layouts.tensor * kind.experts.active * setting.model.hidden
    crossing = np.where(layouts.flex_dispatch > 0, _nodes_met(group, kind.experts.active), 1.0)
    whole = 2 * exchange_time(setting, group, volume, crossing=crossing)
    most = np.where(layouts.expert_overlap > 0, setting.constants.hidden_tensor, 0.0)
    once = whole - np.minimum(most * whole, most * np.minimum(kernels.forward, kernels.backward))
    return Pass(once, once, np.where((layouts.recompute == 2) | layouts.recomputes("moe"), once, 0.0))


def _nodes_met(group: Group, active: int) -> Column:
    """Nodes that the experts of a token lie on, over the experts: 1 - (1 - 1/N)^k of N nodes for k experts anywhere."""
    nodes = np.maximum(group.members / group.near, 1.0)
    return nodes * (1 - (1 - 1 / nodes) ** active) / active


def zero3_time(setting: Setting, kind: Kind, kernels: Pass) -> Pass:
    """ZeRO-3: weights gathered in both passes, gradients scattered in the backward, beside the layer's own work.

    If fewer devices hold the same experts than the same attention, experts are gathered by themselves.
    """
    layouts = setting.layouts
    shared, routed = layer_shares(setting, kind)
    everyone, holders = layouts.replicas, layouts.expert_replicas
    group = setting.group(everyone, layouts.tensor)
    wide = np.minimum(layouts.weight_bytes, setting.number_bytes)  # cast before they are sent, if weights are fp32
    once = gather_time(setting, group, wide * (shared + routed))
    if kind.experts:
        expert_group = setting.group(holders, layouts.expert * layouts.expert_tensor)
        apart = gather_time(setting, group, wide * shared) + gather_time(setting, expert_group, wide * routed)
        once = np.where(holders == everyone, once, apart)
    sharded = layouts.zero == 3
    most = np.where(layouts.overlap > 0, setting.constants.hidden_data, 0.0)

    def seen(traffic: Column, work: Column) -> Column:
        return np.where(sharded, np.maximum(traffic * (1 - most), traffic - most * work), 0.0)

    backward = seen(2 * once, kernels.backward + kernels.again)
    return Pass(seen(once, kernels.forward), backward, np.zeros_like(once))
