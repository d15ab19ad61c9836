"""Bytes on a device: weights, gradients, optimizer, activations of a layer, logits.

Activations are counted tensor by tensor, as Korthikanti et al. do (https://arxiv.org/abs/2205.05198, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .count import embedding_parameters, layer_parameters, routed_parameters
from .model import Kind, LatentAttention
from .setting import Column, Setting

MASTER = 12  # bytes of a parameter's fp32 weight and two moments

# Bytes of a token's logits on the last stage: 16 bits, an fp32 copy and its gradient; unfused, the softmax and the
# gradient in fp32 too.
LOGITS, LOGITS_UNFUSED = 10, 16


@dataclass(frozen=True, slots=True, eq=False)
class StageLayers:
    """What stages hold of a model, one entry for each stage or for each layout.

    Args:
        counts: layers of each kind of the model, float64[n] each.
        recomputed: layers at most that are recomputed; infinite for all.
        first: 1 if the stage holds the embedding, else 0.
        last: 1 if the stage holds the head, else 0.
    """

    counts: tuple[Column, ...]
    recomputed: Column
    first: Column
    last: Column

    @property
    def layers(self) -> Column:
        """Layers of all kinds."""
        total: Column = np.sum(self.counts, axis=0)
        return total

    @property
    def recomputed_share(self) -> Column:
        """Of its layers, the share that is recomputed if anything is."""
        layers = self.layers
        return np.where(layers > 0, np.minimum(self.recomputed, layers) / np.maximum(layers, 1), 0.0)


def layer_shares(setting: Setting, kind: Kind) -> tuple[Column, Column]:
    """Parameters of one layer on a device before ZeRO: what all of data x context hold, and what is of experts."""
    layouts = setting.layouts
    routed = routed_parameters(setting.model, kind)
    shared = layer_parameters(setting.model, kind) - routed
    return shared / layouts.tensor, routed / (layouts.expert * layouts.expert_tensor)


def device_parameters(setting: Setting, kind: Kind) -> Column:
    """Parameters of one layer that a device of the tensor and expert groups works on."""
    shared, routed = layer_shares(setting, kind)
    return shared + routed


def stage_parameters(setting: Setting, stage: StageLayers) -> tuple[Column, Column]:
    """Parameters of a stage on one device before ZeRO: what all of data x context hold, and its experts.

    Extra prediction heads are a layer each on the last stage.
    """
    model, layouts = setting.model, setting.layouts
    extra = stage.last * model.next_heads
    # On one rank a tied embedding is one matrix; first and last rank of a pipeline hold a copy each.
    same_matrix = (layouts.pipeline == 1) & model.tied
    ends = stage.first * embedding_parameters(model)
    ends = ends + stage.last * np.where(same_matrix, 0, model.vocab * model.hidden)
    shared, routed = ends / layouts.tensor, np.zeros_like(ends)
    for kind, count in zip(model.kinds, stage.counts, strict=True):
        layers = count + extra if kind is model.last_kind else count
        layer_shared, layer_routed = layer_shares(setting, kind)
        shared = shared + layers * layer_shared
        routed = routed + layers * layer_routed
    return shared, routed


def zero_share(setting: Setting, shared: Column, routed: Column) -> Column:
    """Parameters that a device keeps if all who hold the same share them out."""
    return shared / setting.layouts.replicas + routed / setting.layouts.expert_replicas


def gradient_bytes(setting: Setting) -> Column:
    """Bytes of a gradient: 2 in fp16, else the 4 of fp32 accumulation (Megatron-LM's default for bf16)."""
    return np.where(setting.is_fp16, 2.0, 4.0)


def accumulated_bytes(setting: Setting, parameters: Column) -> Column:
    """Traffic of adding one micro-batch's gradients: read 2 + 4, write 4 and 2 of the new ones; 8 if all have 2."""
    return np.where(setting.is_fp16, 8.0, 12.0) * parameters


def state_bytes(setting: Setting, shared: Column, routed: Column) -> tuple[Column, Column, Column]:
    """Weights, gradients and optimizer of a device, from the parameters that it holds before ZeRO shares them out.

    Args:
        setting: the setting.
        shared: parameters that all of data x context hold.
        routed: parameters of its experts.
    """
    zero = setting.layouts.zero
    divided, whole = zero_share(setting, shared, routed), shared + routed
    weights = 2 * np.where(zero >= 3, divided, whole)
    gradients = gradient_bytes(setting) * np.where(zero >= 2, divided, whole)
    return weights, gradients, MASTER * np.where(zero >= 1, divided, whole)


def layer_bytes(setting: Setting, kind: Kind) -> Column:
    """Activations that one layer keeps for one micro-batch without recomputation, bytes a device.

        plain feed-forward with dropout, tensor t:  s b h (10 + 24/t + 5 a s/(h t))
        with sequence parallelism:                  s b h/t (34 + 5 a s/h)

    Fused attention, or ``selective`` recomputation, keeps no scores.
    """
    model, layouts, mixer = setting.model, setting.layouts, kind.mixer
    shards = setting.residual_shards
    # Inputs of two norms (2 bytes each, 4 together) and the masks of two dropouts (1 byte each).
    norms = (6 if model.dropout else 4) * model.hidden / shards
    # Inputs of the two column-parallel products: gathered again in the backward unless they are kept whole.
    inputs = 4 * model.hidden / np.where(layouts.keep_gathered > 0, 1.0, shards)
    # Queries, keys and values go into the core, its result into the projection.
    core = (2 * mixer.heads + 4 * mixer.kv_heads) * mixer.head_width + 2 * mixer.heads * mixer.value_width
    kept = setting.tokens * (norms + inputs + (core + _feed_forward_bytes(setting, kind)) / layouts.tensor)
    if isinstance(mixer, LatentAttention):
        kept = kept + setting.tokens * 2 * (mixer.query + mixer.kv + mixer.rotary)
    return kept + _score_bytes(setting, kind)


def _feed_forward_bytes(setting: Setting, kind: Kind) -> Column:
    """Bytes of one token between the products of a feed-forward, on all devices of a tensor group together.

    Gate, up and their product have 2 bytes each; unfused, the activated gate is kept too. Without a gate, the input and
    the result of the activation. Experts also keep the token that each is sent, and what it sends back.
    """
    if kind.feed_forward.gated:
        each = np.where(setting.layouts.fused_kernels > 0, 6, 8)
    else:
        each = np.full(len(setting.layouts), 4)
    experts = kind.experts
    if experts is None:
        return kind.feed_forward.width * each
    return (experts.shared + experts.width * experts.active) * each + 4 * setting.model.hidden * experts.active


def _score_bytes(setting: Setting, kind: Kind) -> Column:
    """Softmax, its dropout and the mask: 5 bytes a score; 2 without dropout; none if they are not kept."""
    layouts = setting.layouts
    kept = (layouts.fused_attention == 0) & (layouts.recompute != 1)
    heads = layouts.micro_batch * kind.mixer.heads / layouts.tensor
    scores = heads * layouts.sequence**2 / layouts.context
    return np.where(kept, (5 if setting.model.dropout else 2) * scores, 0.0)


def input_bytes(setting: Setting) -> Column:
    """What a fully recomputed layer keeps: its input alone, 2 s b h (over t with sequence parallelism)."""
    return 2 * setting.tokens * setting.model.hidden / setting.residual_shards


def logits_bytes(setting: Setting) -> Column:
    """Logits of one micro-batch on the last stage and what their loss keeps."""
    each = np.where(setting.layouts.fused_kernels > 0, LOGITS, LOGITS_UNFUSED)
    return each * setting.tokens * setting.model.vocab / setting.layouts.tensor


def activation_bytes(setting: Setting, stage: StageLayers) -> Column:
    """What one micro-batch leaves on a stage until its backward, by the layers that are recomputed and those not."""
    again = np.where(setting.layouts.recompute == 2, stage.recomputed_share, 0.0)
    whole = np.zeros_like(stage.layers)
    for kind, count in zip(setting.model.kinds, stage.counts, strict=True):
        whole = whole + count * layer_bytes(setting, kind)
    return (1 - again) * whole + again * stage.layers * input_bytes(setting)


def passing_bytes(setting: Setting) -> Column:
    """What is there for a moment: the layer that is recomputed, and two gathered layers under ZeRO-3."""
    layouts, kinds = setting.layouts, setting.model.kinds
    largest = np.max([layer_bytes(setting, kind) for kind in kinds], axis=0)
    weights = np.max([2 * device_parameters(setting, kind) for kind in kinds], axis=0)
    recomputed = np.where(layouts.recompute == 2, largest, 0.0)
    return recomputed + np.where(layouts.zero == 3, 2 * weights, 0.0)
