"""Bytes on a device: weights, gradients, optimizer, activations of a layer, logits.

Activations are counted tensor by tensor, as Korthikanti et al. do (https://arxiv.org/abs/2205.05198, section 4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .held import parameters_on_device
from .outside import gradient_bytes, shared_out
from .setting import Setting
from .stages import Slice

Column = NDArray[np.float64]
MASTER = 12  # bytes of fp32 weight and two moments


def state_bytes(at: Setting, shared: Column, routed: Column) -> tuple[Column, Column, Column]:
    """Weights, gradients and optimizer of a device, from the parameters that it holds before ZeRO shares them out.

    Args:
        at: the setting.
        shared: parameters that all of data x context hold.
        routed: parameters of its experts.
    """
    divided = shared_out(at, shared, routed)
    whole = shared + routed
    weights = 2 * np.where(at.layouts.zero >= 3, divided, whole)
    gradients = gradient_bytes(at) * np.where(at.layouts.zero >= 2, divided, whole)
    return weights, gradients, MASTER * np.where(at.layouts.zero >= 1, divided, whole)


def layer_bytes(at: Setting, *, experts: bool = False) -> Column:
    """Activations that one layer keeps for one micro-batch without recomputation, bytes a device.

        plain MLP with dropout, tensor t:        s b h (10 + 24/t + 5 a s/(h t))
        with sequence parallelism:               s b h/t (34 + 5 a s/h)

    Fused attention, or ``selective`` recomputation, keeps no scores.
    """
    model, layouts = at.model, at.layouts
    e = model.experts
    tensor, spread = layouts.tensor, at.spread
    mask = 1 if model.dropout else 0
    inputs = np.where(layouts.keep_gathered > 0, 1.0, spread)  # of both column-parallel products
    whole = (4 + 2 * mask) * model.hidden / spread + 4 * model.hidden / inputs  # norms' inputs, dropout masks
    gate = np.where(layouts.fused_kernels > 0, 6, 8) if model.gated else 4  # unfused, the activated gate is kept too
    attention = (2 * model.heads + 4 * model.kv_heads) * model.head_width + 2 * model.heads * _value_width(at)
    width = e.shared + e.width * e.active if experts and e else model.ffn
    inner = width * gate + (4 * model.hidden * e.active if experts and e else 0)
    kept = at.tokens * (whole + (attention + inner) / tensor)
    if model.latent:
        kept = kept + at.tokens * 2 * (model.latent.query + model.latent.kv + model.latent.rotary)
    return kept + _scores(at)


def _value_width(at: Setting) -> int:
    return at.model.latent.value if at.model.latent else at.model.head_width


def _scores(at: Setting) -> Column:
    """Softmax, its dropout and the mask: 5 bytes a score; 2 without dropout; none where they are not kept."""
    model, layouts = at.model, at.layouts
    kept = (layouts.fused_attention == 0) & (layouts.recompute != 1)
    scores = layouts.micro_batch * model.heads / layouts.tensor * layouts.sequence**2 / layouts.context
    return np.where(kept, (5 if model.dropout else 2) * scores, 0.0)


def input_bytes(at: Setting) -> Column:
    """What a fully recomputed layer keeps: its input alone, 2 s b h (over t with sequence parallelism)."""
    return 2 * at.tokens * at.model.hidden / at.spread


def logits_bytes(at: Setting) -> Column:
    """Logits of one micro-batch on the last stage: 16 bits, an fp32 copy, its gradient; unfused, the softmax too."""
    return np.where(at.layouts.fused_kernels > 0, 10, 16) * at.tokens * at.model.vocab / at.layouts.tensor


def activation_bytes(at: Setting, held: Slice) -> Column:
    """What one micro-batch leaves on a stage until its backward, by the layers that are recomputed and those not."""
    layers = np.maximum(held.dense + held.expert, 1e-9)
    again = np.where(at.layouts.recompute == 2, np.minimum(held.again, layers) / layers, 0.0)
    whole = held.dense * layer_bytes(at)
    if at.model.experts:
        whole = whole + held.expert * layer_bytes(at, experts=True)
    return (1 - again) * whole + again * layers * input_bytes(at)


def passing_bytes(at: Setting) -> Column:
    """What is there for a moment: the layer that is recomputed, and two gathered layers under ZeRO-3."""
    experts = at.model.experts is not None
    layer = np.where(at.layouts.recompute == 2, layer_bytes(at, experts=experts), 0.0)
    gathered = np.where(at.layouts.zero == 3, 2 * 2 * parameters_on_device(at, experts), 0.0)
    return layer + gathered
