"""One layer: seconds of its forward, backward and recomputed forward on one device, by what takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..plan import PRECISIONS, Layouts
from .constants import CONSTANTS, Constants
from .count import (
    Product,
    attention_products,
    core_flops,
    dense_products,
    expert_products,
    layer_flops,
    layer_parameters,
    routed_parameters,
)
from .factors import GENERIC, Calibration
from .hardware import Cluster
from .model import Model
from .network import Network, Ring, exchange_time, hop_time, ring_time
from .products import ALIGNED, product_time, stream_time

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Seconds of the forward, the backward and the forward that is run again, float64[n] each."""

    forward: Column
    backward: Column
    again: Column

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def scaled(self, factor: Column | float) -> Pass:
        """All three times a factor."""
        return Pass(self.forward * factor, self.backward * factor, self.again * factor)

    @property
    def both(self) -> Column:
        """Forward and backward, without what is run again."""
        return self.forward + self.backward


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


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What every function of this room needs: the model, where it runs, how it lies there, and the constants."""

    model: Model
    cluster: Cluster
    layouts: Layouts
    constants: Constants = CONSTANTS
    factors: Calibration = GENERIC

    @property
    def tokens(self) -> Column:
        """Tokens of a micro-batch on one tensor group."""
        return self.layouts.micro_batch * self.layouts.sequence / self.layouts.context

    @property
    def rate(self) -> Column:
        """Peak FLOP/s of the precision of each layout."""
        peaks = np.array([self.cluster.device.peak(name) for name in PRECISIONS])
        found: Column = peaks[self.layouts.precision.astype(np.int64)]
        return found

    @property
    def rate16(self) -> Column:
        """Peak FLOP/s at 16 bits: attention and the head stay there."""
        return np.full(len(self.layouts), self.cluster.device.peak("bf16"))

    @property
    def spread(self) -> Column:
        """Devices among which norms and dropout are split: the tensor group with sequence parallelism, else 1."""
        return np.where(self.layouts.sequence_parallel > 0, self.layouts.tensor, 1.0)

    @property
    def blocking(self) -> NDArray[np.bool_]:
        """Where a hop takes up both of its ranks and passes no other."""
        return self.layouts.blocking_sends > 0

    @property
    def network(self) -> Network:
        """Links and cards."""
        return Network(self.cluster, self.constants)

    def ring(self, members: Column, stride: Column | float = 1.0) -> Ring:
        """A group whose members are ``stride`` devices apart."""
        return Ring(members, np.clip(np.floor(self.cluster.gpus_per_node / stride), 1, members))


def layer_time(at: Setting, *, experts: bool = False) -> LayerTime:
    """Seconds of one micro-batch in one layer, for each layout."""
    every = attention_products(at.model) + _feed_forward(at.model, experts)
    forward, inputs, weight = _products(at, every)
    core = _core(at)
    streams = _streams(at, experts)
    again = _recomputed(at, whole=forward + core.forward + streams.forward, core=core.again)
    kernels = Pass(
        forward + core.forward + streams.forward, inputs + weight + core.backward + streams.backward, again
    ).scaled(at.factors.kernels.value)
    group = at.factors.tensor.value
    tensor, expert = _tensor(at, every, _reduced(at, experts) * group), _expert(at, experts).scaled(group)
    context = _context(at, core).scaled(group)
    data = _gathered(at, kernels, experts).scaled(at.factors.data.value)
    total = _with_host(at, kernels + tensor + context + expert + data)
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


def _products(at: Setting, products: tuple[Product, ...]) -> list[Column]:
    """Seconds of F, I and W in the matrix products.

    An expert on et devices of a tensor group of t sees the tokens of et / t of that group at a time.
    """
    device, constants, tensor = at.cluster.device, at.constants, at.layouts.tensor
    sums = [np.zeros(len(at.layouts)) for _ in range(3)]
    for p in products:
        shards = at.layouts.expert_tensor if p.held > 1 else tensor
        inner = p.inner / (shards if p.split == "inner" else 1.0) + 0 * tensor
        outer = p.outer / (shards if p.split == "outer" else 1.0) + 0 * tensor
        held = np.maximum(p.held / at.layouts.expert, 1.0) if p.held > 1 else np.ones_like(tensor)
        rows = at.tokens * p.copies / held * (shards / tensor)
        for position, sides in enumerate(((rows, inner, outer), (rows, outer, inner), (inner, rows, outer))):
            sums[position] = sums[position] + product_time(device, constants, sides, at.rate, held)
    return sums


def _core(at: Setting) -> Pass:
    fused, plain = _fused_core(at), _plain_core(at)
    pick = at.layouts.fused_attention > 0
    return Pass(*(np.where(pick, getattr(fused, n), getattr(plain, n)) for n in ("forward", "backward", "again")))


def _fused_core(at: Setting) -> Pass:
    """Flash attention: scores stay on the chip, half of them skipped where causal; the backward makes them again."""
    flops = core_flops(at.model, 1.0) * at.layouts.sequence * at.tokens / at.layouts.tensor
    width = at.model.head_width
    published = np.where(at.layouts.fused_kernels > 0, at.cluster.device.native, at.cluster.device.flash)
    reached = at.constants.core * published * width / (width + 32) * 1.25  # published at a head of 128
    forward = flops / (at.rate16 * reached) + at.constants.launch
    return Pass(forward, 2.5 * forward / at.constants.core_back, forward)


def _plain_core(at: Setting) -> Pass:
    """Batched products with all scores written to memory; odd head widths leave the matrix units idle."""
    model, device, constants = at.model, at.cluster.device, at.constants
    heads = at.layouts.micro_batch * model.heads / at.layouts.tensor
    rows, length = at.layouts.sequence / at.layouts.context, at.layouts.sequence
    width = np.full_like(rows, model.head_width)
    rate = at.rate16 if model.head_width % ALIGNED == 0 else np.full_like(rows, device.vector)
    scores = product_time(device, constants, (rows, width, length), rate, heads)
    values = product_time(device, constants, (rows, length, width), rate, heads)
    element = heads * rows * length
    forward = scores + values + stream_time(device, constants, element * (9 if model.dropout else 4), 2)
    backward = 2 * (scores + values) + stream_time(device, constants, element * (11 if model.dropout else 6), 2)
    return Pass(forward, backward, forward)


def _streams(at: Setting, experts: bool) -> Pass:
    """Norms, residuals and dropout (read and write 20 bytes an element forward, 24 backward), rotary, activation."""
    model, device, constants = at.model, at.cluster.device, at.constants
    residual = at.tokens * model.hidden / at.spread
    grouped = at.tokens * (model.heads + 2 * model.kv_heads) * model.head_width / at.layouts.tensor
    e = model.experts
    width = e.shared + e.width * e.active if experts and e else model.ffn
    inner = at.tokens * width / at.layouts.tensor
    routed = at.tokens * model.hidden * e.active / at.layouts.tensor if experts and e else 0 * inner
    own = parameters_on_device(at, experts)
    narrow = np.where(at.rate > at.rate16, 4.0, 0.0) * (residual + grouped + inner)  # cast to 8 bits, both ways round
    forward = 20 * residual + 4 * grouped + (6 if model.gated else 4) * inner + 24 * routed
    backward = 24 * residual + 4 * grouped + (10 if model.gated else 6) * inner + 24 * routed
    times = np.where(at.layouts.fused_kernels > 0, 1.0, at.constants.eager)
    forward = forward * times + narrow
    backward = backward * times + 2 * narrow + accumulated_bytes(at, own)
    kernels = 20 if experts else 10
    streamed = stream_time(device, constants, forward, kernels)
    return Pass(streamed, stream_time(device, constants, backward, 2 * kernels), streamed)


def accumulated_bytes(at: Setting, own: Column) -> Column:
    """Traffic of adding one micro-batch's gradients: 12 bytes a parameter into fp32, 8 into 16 bits."""
    return np.where(at.layouts.precision == PRECISIONS.index("fp16"), 8.0, 12.0) * own


def parameters_on_device(at: Setting, experts: bool) -> Column:
    """Parameters of one layer that a device of the tensor and expert groups works on."""
    own, routed = _own_and_routed(at, experts)
    return own + routed


def _own_and_routed(at: Setting, experts: bool) -> tuple[Column, Column]:
    """Of those, what all of data x context hold, and what is of experts: 1 / (e et) of all."""
    routed = routed_parameters(at.model) if experts else 0
    own = layer_parameters(at.model, experts=experts) - routed
    return own / at.layouts.tensor, routed / (at.layouts.expert * at.layouts.expert_tensor)


def _recomputed(at: Setting, whole: Column, core: Column) -> Column:
    by_mode = np.stack([np.zeros_like(whole), core, whole])
    found: Column = by_mode[at.layouts.recompute.astype(np.int64), np.arange(len(whole))]
    return found


def _reduced(at: Setting, experts: bool) -> Column:
    """Seconds of a layer's two all-reduces of the residual, forward.

    Routed experts alone need the second only among the devices that share one: what these gather is of et / t tokens.
    """
    tensor, shards = at.layouts.tensor, at.layouts.expert_tensor
    volume = 2 * at.tokens * at.model.hidden
    whole = ring_time(at.network, at.ring(tensor), volume, reduce=True)
    if not experts or at.model.experts is None or at.model.experts.shared:
        return 2 * whole
    return whole + ring_time(at.network, at.ring(shards), volume * (shards / tensor), reduce=True)


def _tensor(at: Setting, products: tuple[Product, ...], once: Column) -> Pass:
    """All-reduces of the residual, ``once`` forward and again backward; a full recomputation repeats the forward's.

    With sequence parallelism each is a gather and a scatter of half its time. Where products are cut in pieces, a
    gather runs beside the piece that needs none of it, 1/t, and a backward's scatter beside the product for W; no more
    than ``hidden_data`` of it is hidden, as of other traffic that shares the multiprocessors with products.
    """
    layouts, tensor = at.layouts, at.layouts.tensor
    seen = once * np.where(layouts.tensor_overlap > 0, 1 - at.constants.hidden_tensor, 1.0)
    column, row = (_products(at, tuple(p for p in products if p.split == split)) for split in ("outer", "inner"))
    half, scale, most = once / 2, at.factors.kernels.value, at.constants.hidden_data

    def beside(product: Column) -> Column:
        return half - np.minimum(most * half, scale * product)

    first = half + beside(column[0] / tensor)
    second = beside(row[1] / tensor) + beside(column[2])
    second = second + np.where(layouts.keep_gathered > 0, 0.0, beside(column[1]))  # gathered again for W
    cut = layouts.pieces > 1
    forward = np.where(cut, first, seen)
    return Pass(forward, np.where(cut, second, seen), np.where(layouts.recompute == 2, forward, 0.0))


def _context(at: Setting, core: Pass) -> Pass:
    """Keys and values passed around a ring beside the attention core; what the core does not hide counts."""
    model, context = at.model, at.layouts.context
    wide = model.latent.kv + model.latent.rotary if model.latent else 2 * model.kv_heads * model.head_width
    shared = np.ones_like(context) if model.latent else at.layouts.tensor
    block = 2 * at.tokens * wide / shared
    apart = (at.layouts.tensor * context > at.cluster.gpus_per_node).astype(np.float64)
    once = (context - 1) * hop_time(at.network, apart, block)
    forward = np.maximum(once - core.forward, 0)
    return Pass(forward, np.maximum(2 * once - core.backward, 0), np.where(at.layouts.recompute == 2, forward, 0.0))


def _expert(at: Setting, experts: bool) -> Pass:
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


def _gathered(at: Setting, kernels: Pass, experts: bool) -> Pass:
    """ZeRO-3: weights gathered in both passes, gradients scattered in the backward, beside the layer's own work."""
    layouts = at.layouts
    own, routed = _own_and_routed(at, experts)
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


def _stalled(at: Setting) -> Column:
    """How many times longer the host takes where tensor groups wait for a pipeline that spans nodes.

    1 unless measured rows say otherwise: some clusters lose milliseconds a layer for each member of the group, whatever
    the micro-batch. The factor is that of a group of 8.
    """
    layouts = at.layouts
    waits = (layouts.pipeline > 1) & (layouts.tensor > 1) & (layouts.gpus > at.cluster.gpus_per_node)
    more = (at.factors.stall.value - 1) * layouts.tensor / 8
    found: Column = np.where(waits, np.maximum(1 + more, 0.0), 1.0)
    return found


def _with_host(at: Setting, device: Pass) -> Pass:
    """A layer takes about as long as the slower of its device and the host that issues it, whatever its size.

    Where the host waits for each kernel, the two add up.
    """
    constants, layouts = at.constants, at.layouts
    tensor = layouts.tensor
    calls = np.where(tensor > 1, np.where(layouts.sequence_parallel > 0, 4, 2), 0) * layouts.pieces * constants.issue
    host = (constants.host + calls) * (1 + constants.jitter * (tensor - 1)) * at.factors.floor.value * _stalled(at)
    power = np.where(layouts.blocking_launches > 0, 1.0, constants.blend)

    def slower(busy: Column) -> Column:
        return np.maximum(busy, host) * (1 + (np.minimum(busy, host) / np.maximum(busy, host)) ** power) ** (1 / power)

    again = np.where(layouts.recompute == 2, slower(device.again), device.again)
    return Pass(slower(device.forward), slower(device.backward), again)
