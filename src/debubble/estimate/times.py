"""Times of one device and between devices: products by shape, attention by length, bytes over memory and links.

A ring of n moves ``2 (n-1)/n`` of an all-reduce's bytes and ``(n-1)/n`` of a gather's through every member. What a
layer's groups send is counted less what its kernels hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .hardware import Cluster
from .memory import accumulated_bytes, device_parameters, layer_shares
from .model import (
    Kind,
    LatentAttention,
    Mixer,
    Product,
    Recurrent,
    SelfAttention,
    core_flops,
    feed_forward_products,
    mixer_products,
)
from .setting import Column, Group, Pass, Setting

TILE = 128  # rows and columns of the result that one multiprocessor works on at a time
ALIGNED = 8  # elements of 2 bytes in 16: widths that are no multiple of it leave the matrix units idle (cuBLAS guide)

# FlashAttention skips half of the scores of a causal model and computes them anew in the backward: 5 products for 2.
FLASH_BACKWARD = 2.5
PUBLISHED_WIDTH = 128  # of a head, for which papers print what attention reaches
HALF_WIDTH = 32  # width at which it reaches half of its best rate: assumed from what papers print at 64, 128 and 256

# Bytes that unfused element-wise kernels read and write, counted with numbers of 2 bytes and masks of 1.
SCORES = (4, 6)  # of each score of attention, forward and backward: softmax; its gradient also reads the result
SCORES_DROPOUT = (9, 11)  # with dropout: read, write and mask more
NORMS = 8  # of each number of the residual in two norms: read and written
RESIDUAL = (20, 24)  # of each number of the residual: two norms (8), two dropouts and additions (12); gradients of both
ROTARY = 4  # of each query and key: read and written
GATED = (6, 10)  # of each number between the products: gate and up read, product written; backward both again
PLAIN = (4, 6)  # the same if there is no gate
RECURRENT = (
    12,
    20,
)  # of each number of a recurrent mixer: convolved (4), gated and normalised (8); both again
ROUTED = 24  # of each number sent to an expert: sorted, sent, put back and weighted
CAST = 4.0  # of each number cast to 8 bits and its transpose: read 2, write 1 twice
SCAN_KERNELS = 6  # of a recurrence: chunk states, their sums, and products inside chunks
LAYER_KERNELS = 10  # element-wise kernels of a dense layer, forward; those of experts are about twice as many
EXPERT_KERNELS = 20


def product_time(setting: Setting, sides: tuple[Column, Column, Column], peak: Column, count: Column) -> Column:
    """Seconds of ``count`` products of [rows, inner] by [inner, outer] that run as one batch, on one device.

    The device's achievable rate, less what the last wave of tiles and the ends of each tile's loop leave idle, or the
    traffic of operands and result if that takes longer; and one launch.

    Args:
        setting: the device, the constants, and the width of numbers.
        sides: rows, inner (summed over) and outer of each product.
        peak: FLOP/s of the precision.
        count: products in the batch.
    """
    device, constants = setting.cluster.device, setting.constants
    rows, inner, outer = sides
    # Tiles go to multiprocessors in waves; the last wave is seldom full.
    waves = np.ceil(rows / TILE) * np.ceil(outer / TILE) * count / device.units
    full = waves / (waves + constants.half_units)
    # A tile's loop fills and drains a pipeline of loads: the longer it is, the less that counts.
    deep = inner / (inner + constants.half_inner)
    arithmetic = 2 * rows * inner * outer / (peak * device.achievable * device.sustained * full * deep)
    elements = rows * inner + inner * outer + rows * outer
    moved = setting.number_bytes * elements / (device.memory_rate * constants.stream)
    # Whichever is slower, arithmetic or memory, hides the other: a roofline.
    busy: Column = count * np.maximum(arithmetic, moved) + constants.launch
    return busy


def stream_time(setting: Setting, moved: Column, kernels: int) -> Column:
    """Seconds of so many element-wise kernels that together move these bytes to and from memory, on one device."""
    device, constants = setting.cluster.device, setting.constants
    return moved / (device.memory_rate * constants.stream) + kernels * constants.launch


def products_time(setting: Setting, products: Iterable[Product]) -> tuple[Column, Column, Column]:
    """Seconds of F, I and W in the matrix products of a layer.

    An expert on et devices of a tensor group of t sees the tokens of et / t of that group at a time.
    """
    layouts = setting.layouts
    ones = np.ones(len(layouts))
    forward, inputs, weight = 0 * ones, 0 * ones, 0 * ones
    for product in products:
        routed = product.held > 1
        shards = layouts.expert_tensor if routed else layouts.tensor
        inner, outer = product.inner * ones, product.outer * ones
        if product.split == "inner":
            inner = product.inner / shards
        if product.split == "outer":
            outer = product.outer / shards
        held, peak = ones, setting.peak
        if routed:  # one batch of the device's own experts, between which the tokens are shared out
            held = np.maximum(product.held / layouts.expert, 1.0)
            peak = peak * setting.constants.grouped
        rows = setting.tokens * product.copies / held * (shards / layouts.tensor)
        forward = forward + product_time(setting, (rows, inner, outer), peak, held)
        inputs = inputs + product_time(setting, (rows, outer, inner), peak, held)
        weight = weight + product_time(setting, (inner, rows, outer), peak, held)
    return forward, inputs, weight


def core_time(setting: Setting, mixer: Mixer | None) -> Pass:
    """Seconds of scores, softmax and values, fused or in plain products as each layout has it; or of a recurrence."""
    if mixer is None:
        nothing = np.zeros(len(setting.layouts))
        return Pass(nothing, nothing, nothing)
    if isinstance(mixer, Recurrent):
        return _scan(setting, mixer)
    fused, plain = _fused_core(setting, mixer), _plain_core(setting, mixer)
    is_fused = setting.layouts.fused_attention > 0
    return Pass(
        np.where(is_fused, fused.forward, plain.forward),
        np.where(is_fused, fused.backward, plain.backward),
        np.where(is_fused, fused.again, plain.again),
    )


def _scan(setting: Setting, mixer: Recurrent) -> Pass:
    """A recurrence in chunks: its small products at the rate that portable attention reaches, backward twice as many.

    Assumed: no vendor prints what these kernels reach.
    """
    layouts, device, constants = setting.layouts, setting.cluster.device, setting.constants
    flops = core_flops(setting.model, mixer, layouts.sequence) * setting.tokens / layouts.tensor
    forward = flops / (setting.peak_16bit * constants.core * device.flash) + SCAN_KERNELS * constants.launch
    return Pass(forward, 2 * forward / constants.core_back, forward)


def _fused_core(setting: Setting, mixer: SelfAttention) -> Pass:
    """Flash attention: scores stay on the chip, half of them skipped if causal; the backward makes them again."""
    layouts, device, constants = setting.layouts, setting.cluster.device, setting.constants
    flops = core_flops(setting.model, mixer, layouts.sequence) * setting.tokens / layouts.tensor
    # Frameworks that fuse element-wise work (Transformer Engine) also bring the vendor's own attention.
    published = np.where(layouts.fused_kernels > 0, device.native, device.flash)
    by_width = mixer.head_width / (mixer.head_width + HALF_WIDTH) * (1 + HALF_WIDTH / PUBLISHED_WIDTH)
    forward = flops / (setting.peak_16bit * (constants.core * published * by_width)) + constants.launch
    return Pass(forward, FLASH_BACKWARD * forward / constants.core_back, forward)


def _plain_core(setting: Setting, mixer: SelfAttention) -> Pass:
    """Batched products with all scores written to memory; odd head widths leave the matrix units idle."""
    layouts, device = setting.layouts, setting.cluster.device
    heads = layouts.micro_batch * mixer.heads / layouts.tensor
    rows, length = layouts.sequence / layouts.context, layouts.sequence
    width = np.full_like(rows, mixer.head_width)
    # BigScience, 78 layers of 13,824: heads of 144 and 216 take 118 to 125 s a step, heads of 108 take 157 to 163.
    peak = setting.peak_16bit
    if mixer.head_width % ALIGNED:
        peak = np.full_like(rows, device.vector)
    scores = product_time(setting, (rows, width, length), peak, heads)
    values = product_time(setting, (rows, length, width), peak, heads)
    elements = heads * rows * length
    ahead, back = SCORES_DROPOUT if setting.model.dropout else SCORES
    forward = scores + values + stream_time(setting, elements * ahead, 2)
    backward = 2 * (scores + values) + stream_time(setting, elements * back, 2)
    return Pass(forward, backward, forward)


def streams_time(setting: Setting, kind: Kind) -> Pass:
    """Seconds of norms, residuals and dropout, rotary positions, activations, and of adding up gradients."""
    model, layouts = setting.model, setting.layouts
    residual = setting.tokens * model.hidden / setting.residual_shards * (kind.parts / 2)
    width, around = _mixer_numbers(kind.mixer)
    heads = setting.tokens * width / layouts.tensor
    inner = setting.tokens * feed_forward_width(kind) / layouts.tensor
    between = GATED if kind.is_gated else PLAIN
    forward = RESIDUAL[0] * residual + around[0] * heads + between[0] * inner
    backward = RESIDUAL[1] * residual + around[1] * heads + between[1] * inner
    kernels, routed = LAYER_KERNELS * kind.parts // 2, np.zeros(len(layouts))
    if kind.experts:
        routed = setting.tokens * model.hidden * kind.experts.active / layouts.tensor
        forward, backward = forward + ROUTED * routed, backward + ROUTED * routed
        kernels += EXPERT_KERNELS - LAYER_KERNELS
    wider = np.where(layouts.fused_kernels > 0, 1.0, setting.constants.eager) * setting.number_bytes / 2
    # In 8 bits each operand is cast once as it is and once transposed, since the backward sums over the other side.
    cast = np.where(setting.peak > setting.peak_16bit, CAST, 0.0) * (residual + heads + inner + routed)
    forward = forward * wider + cast
    backward = backward * wider + 2 * cast + accumulated_bytes(setting, device_parameters(setting, kind))
    streamed = stream_time(setting, forward, kernels)
    return Pass(streamed, stream_time(setting, backward, 2 * kernels), streamed)


def _mixer_numbers(mixer: Mixer | None) -> tuple[int, tuple[int, int]]:
    """Numbers of a token that element-wise kernels of a mixer work on, and bytes moved for each, both ways."""
    if mixer is None:
        return 0, (0, 0)
    if isinstance(mixer, Recurrent):
        return mixer.numbers, RECURRENT
    return (mixer.heads + 2 * mixer.kv_heads) * mixer.head_width, (ROTARY, ROTARY)


def module_time(setting: Setting, kind: Kind, module: str) -> Column:
    """Seconds of the forward of one part of a layer that is recomputed by itself; 0 if this kind of layer lacks it.

    Args:
        setting: the setting.
        kind: of the layer.
        module: of ``MODULES``, but for the attention core, which ``core_time`` has.
    """
    model, layouts, hidden = setting.model, setting.layouts, setting.model.hidden
    nothing = np.zeros(len(layouts))
    wider = np.where(layouts.fused_kernels > 0, 1.0, setting.constants.eager) * setting.number_bytes / 2
    between = (GATED if kind.is_gated else PLAIN)[0]
    if module == "layernorm":
        moved = NORMS * kind.parts / 2 * setting.tokens * hidden / setting.residual_shards
        return stream_time(setting, wider * moved, kind.parts)
    if module == "moe_act":
        inner = setting.tokens * feed_forward_width(kind) / layouts.tensor
        return stream_time(setting, wider * between * inner, 1)
    if module == "mla_up_proj" and isinstance(kind.mixer, LatentAttention):
        unpacked = [product for product in mixer_products(hidden, kind.mixer) if product.split == "outer"]
        return products_time(setting, unpacked)[0]
    if kind.feed_forward is None:
        return nothing
    products = feed_forward_products(hidden, kind.feed_forward)
    if module == "shared_experts" and kind.experts and kind.experts.shared:
        shared = [product for product in products if product.held == 1 and product.split != "none"]
        return products_time(setting, shared)[0]
    if (module == "mlp" and not kind.experts) or (module == "moe" and kind.experts):
        inner = setting.tokens * feed_forward_width(kind) / layouts.tensor
        active = kind.experts.active if kind.experts else 0
        routed = setting.tokens * model.hidden * active / layouts.tensor
        streams = stream_time(setting, wider * (between * inner + ROUTED * routed), LAYER_KERNELS)
        return products_time(setting, products)[0] + streams
    return nothing


def feed_forward_width(kind: Kind) -> int:
    """Numbers of a token between the products of its feed-forward, those of all its experts together."""
    experts = kind.experts
    if experts:
        return experts.shared + experts.width * experts.active
    return kind.feed_forward.width if kind.feed_forward else 0


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
