"""Time of kernels: matrix products by their shape, attention by its length, element-wise work by its bytes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .count import Product, core_flops, feed_forward_products, mixer_products
from .memory import accumulated_bytes, device_parameters
from .model import Kind, LatentAttention, Mixer, Recurrent, SelfAttention
from .setting import Column, Pass, Setting

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
