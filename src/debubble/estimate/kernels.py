"""Kernels of one layer: its matrix products, its attention core, and what moves bytes alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .count import Product, core_flops
from .held import accumulated_bytes, parameters_on_device
from .products import ALIGNED, product_time, stream_time
from .setting import Pass, Setting

Column = NDArray[np.float64]


def products_time(at: Setting, products: tuple[Product, ...]) -> list[Column]:
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


def core_time(at: Setting) -> Pass:
    """Seconds of scores, softmax and values, fused or in plain products as each layout has it."""
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


def streams_time(at: Setting, experts: bool) -> Pass:
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
