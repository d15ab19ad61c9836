"""Traffic: rings and exchanges over links and network cards, and what a layer's groups send less what its kernels hide.

A ring of n moves ``2 (n-1)/n`` of an all-reduce's bytes and ``(n-1)/n`` of a gather's through every member.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .count import Product
from .hardware import Cluster
from .kernels import products_time
from .memory import layer_shares
from .model import Kind, LatentAttention, Recurrent
from .setting import Column, Group, Pass, Setting

TREE = 3  # steps of a ring that a level of a tree takes: up, reduced, and on


def gather_time(setting: Setting, group: Group, volume: Column, *, calls: Column | float = 1.0) -> Column:
    """Seconds of an all-gather or a reduce-scatter around a ring.

    Args:
        setting: the cluster's links and cards, and what collectives reach of them.
        group: who takes part.
        volume: bytes of the whole vector, over all calls.
        calls: how many parts it is sent in, each with the latency of the group.
    """
    return _collective_time(setting, group, volume, _ring_latency(setting, group), calls)


def reduce_time(setting: Setting, group: Group, volume: Column, *, calls: Column | float = 1.0) -> Column:
    """Seconds of an all-reduce: a scatter and a gather, or up and down a tree if its latency is the lower one.

    A ring waits for each of its steps twice; a tree goes up and down log2 of the nodes. Arguments as ``gather_time``.
    """
    constants = setting.constants
    # NCCL's double tree: inside a node a chain, between nodes log2 of them up and down again.
    levels = np.log2(np.maximum(group.members / group.near, 1))
    tree = 2 * (levels * TREE * constants.far_latency + group.near * constants.hop_latency)
    latency = np.minimum(2 * _ring_latency(setting, group), tree)
    return _collective_time(setting, group, 2 * volume, latency, calls)


def _ring_latency(setting: Setting, group: Group) -> Column:
    """Seconds of once around the ring without any bytes."""
    constants, crossings = setting.constants, group.crossings
    inside = (group.members - 1 - crossings).clip(0)
    latency: Column = inside * constants.hop_latency + crossings * constants.far_latency
    return latency


def _collective_time(setting: Setting, group: Group, volume: Column, latency: Column, calls: Column | float) -> Column:
    """Bytes over the slowest stretch of the ring, and the latency of each call."""
    cluster, constants, n = setting.cluster, setting.constants, group.members
    links = link_rate(cluster, group.near) * constants.link
    cards = cluster.nic * group.near * constants.nic
    # A ring that leaves the node passes all its bytes over the cards of the members that share a node.
    rate = np.where(group.crossings > 0, np.minimum(cards, links), links)
    moved = volume * (n - 1) / np.maximum(n, 1) / rate
    return np.where(n > 1, moved + calls * (latency + constants.call), 0.0)


def link_rate(cluster: Cluster, members: Column) -> Column:
    """Bytes per second that a device can send to a group inside its node: limited by peers if there is no switch."""
    device = cluster.device
    return np.minimum(device.link, device.peer * np.maximum(members - 1, 1))


def exchange_time(setting: Setting, group: Group, volume: Column, *, crossing: Column | float = 1.0) -> Column:
    """Seconds of an all-to-all in which each member sends ``volume`` bytes, 1/group of it to each.

    What stays in the node goes over the link, the rest over the device's own card.

    Args:
        setting: the cluster's links and cards, and what collectives reach of them.
        group: who takes part.
        volume: bytes that each member sends.
        crossing: of what is meant for other nodes, the share that crosses: the rest is copied from what has arrived.
    """
    cluster, constants, n, near = setting.cluster, setting.constants, group.members, group.near
    inside = volume * (near - 1) / np.maximum(n, 1) / (link_rate(cluster, near) * constants.link)
    outside = crossing * volume * (n - near) / np.maximum(n, 1) / (cluster.nic * constants.nic)
    latency = np.where(n > near, constants.far_latency, constants.hop_latency) + constants.call
    return np.where(n > 1, np.maximum(inside, outside) + latency, 0.0)


def hop_time(setting: Setting, crosses: Column, volume: Column) -> Column:
    """Seconds of a send of ``volume`` bytes to the next rank, which is in another node if ``crosses`` is not 0."""
    cluster, constants = setting.cluster, setting.constants
    rate = np.where(crosses > 0, cluster.nic * constants.nic, cluster.device.peer * constants.link)
    latency = np.where(crosses > 0, constants.far_latency, constants.hop_latency)
    seconds: Column = volume / rate + latency + constants.call
    return seconds


def stage_hop_time(setting: Setting, crosses: Column) -> Column:
    """Seconds of a hop between ranks: the residual of a micro-batch (over t with sequence parallelism).

    Scattered over the tensor group it crosses as 1/t of it on each member, and is gathered on arrival.

    Args:
        setting: the cluster and the layouts.
        crosses: 1 where the next rank is in another node, else 0.
    """
    layouts, shards = setting.layouts, setting.residual_shards
    residual = setting.number_bytes * setting.tokens * setting.model.hidden
    # With sequence parallelism the residual is cut already, and nothing is left to scatter.
    scattered = (layouts.scattered_sends > 0) & (shards == 1)
    sent = hop_time(setting, crosses, residual / np.where(scattered, layouts.tensor, shards))
    gathered = np.where(scattered, gather_time(setting, setting.group(layouts.tensor), residual), 0.0)
    return setting.factors.transfer.value * sent + setting.factors.tensor.value * gathered


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
    # Blocks of keys and values travel while the core works on the ones before; only what is longer shows.
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
    # Beside the other half of a pair of micro-batches (DualPipe, Megatron-LM's combined 1F1B) nearly all is hidden.
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
