"""Bytes on a device: weights, gradients, optimizer, activations of a layer, logits.

Activations are counted tensor by tensor, as Korthikanti et al. do (https://arxiv.org/abs/2205.05198, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..config.plan import Layouts
from .model import (
    CHUNK,
    Kind,
    LatentAttention,
    Mixer,
    Recurrent,
    embedding_parameters,
    layer_parameters,
    routed_parameters,
)
from .setting import Column, Setting

# Bytes of a logit on the last stage. Fused, the loss turns 16-bit logits into their gradient in place, and the product
# keeps a copy of neither; else there are also an fp32 copy, which becomes the softmax, and its gradient. Unfused, the
# softmax is a tensor of its own (nanotron's sharded_cross_entropy beside PyTorch's).
LOGITS_FUSED, LOGITS, LOGITS_UNFUSED = 4, 10, 12

# What nvidia-smi shows beside what a framework allocates, read on A100: the context of a process with its kernels
# (1,573 MiB: bigscience-workshop/bigscience@053adaf, train/tr11-176B-ml/chronicles-prequel.md, line 144), and the
# buffers of each communicator of NCCL (688 MB among more than two devices, 544 MB of a pair: NVIDIA/nccl#964).
CONTEXT = 1573 * 2.0**20
COMMUNICATOR, COMMUNICATOR_OF_TWO = 688e6, 544e6
NEIGHBOURS = 2  # of a rank in a pipeline, each with a communicator


@dataclass(frozen=True, slots=True, eq=False)
class StageLayers:
    """What stages hold of a model, one entry for each stage or for each layout.

    Args:
        counts: layers of each kind of the model, float64[n] each.
        recomputed: layers at most that are recomputed; infinite for all.
        offloaded: layers at most whose activations wait on the host.
        first: 1 if the stage holds the embedding, else 0.
        last: 1 if the stage holds the head, else 0.
    """

    counts: tuple[Column, ...]
    recomputed: Column
    offloaded: Column
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

    @property
    def offloaded_share(self) -> Column:
        """Of its layers, the share whose activations wait on the host."""
        return np.minimum(self.offloaded, self.layers) / np.maximum(self.layers, 1)


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
        layers = count + extra if kind in model.next_kinds else count
        layer_shared, layer_routed = layer_shares(setting, kind)
        shared = shared + layers * layer_shared
        routed = routed + layers * layer_routed
    return shared, routed


def zero_share(setting: Setting, shared: Column, routed: Column) -> Column:
    """Parameters that a device keeps if all who hold the same share them out."""
    return shared / setting.layouts.replicas + routed / setting.layouts.expert_replicas


def accumulated_bytes(setting: Setting, parameters: Column) -> Column:
    """Traffic of adding up one micro-batch's gradients: the new ones written and read, the sum read and written."""
    return (4 + 2 * setting.layouts.reduced_bytes) * parameters


def rank_bytes(setting: Setting, shared: Column, routed: Column) -> tuple[Column, Column, Column]:
    """Weights, gradients and optimizer of a device, from the parameters that it holds before ZeRO shares them out.

    Args:
        setting: the setting.
        shared: parameters that all of data x context hold.
        routed: parameters of its experts.
    """
    layouts = setting.layouts
    # ZeRO (https://arxiv.org/abs/1910.02054): stage 1 shares out the state, 2 the gradients too, 3 the weights too.
    divided, whole = zero_share(setting, shared, routed), shared + routed
    weights = layouts.weight_bytes * np.where(layouts.zero >= 3, divided, whole)
    gradients = layouts.gradient_bytes * np.where(layouts.zero >= 2, divided, whole)
    state = layouts.state_bytes * np.where(layouts.zero >= 1, divided, whole)
    return weights, gradients, np.where(layouts.offload_optimizer > 0, 0.0, state)


def layer_bytes(setting: Setting, kind: Kind) -> Column:
    """Activations that one layer keeps for one micro-batch, bytes a device.

        plain feed-forward with dropout, tensor t:  s b h (10 + 24/t + 5 a s/(h t))
        with sequence parallelism:                  s b h/t (34 + 5 a s/h)

    Fused attention, or recomputing its core, keeps no scores; what else is recomputed by itself is not kept either.
    """
    model, layouts, number = setting.model, setting.layouts, setting.number_bytes
    shards = setting.residual_shards
    # For mixer and feed-forward each: the input of its norm, and the mask of its dropout (1 byte).
    norms = kind.parts * (number + (1 if model.dropout else 0)) * model.hidden / shards
    # Inputs of the two column-parallel products: gathered again in the backward unless they are kept whole.
    kept_whole = np.where(layouts.keep_gathered > 0, 1.0, shards)
    inputs = _unless(layouts, "layernorm", kind.parts * setting.operand_bytes * model.hidden / kept_whole)
    split = _core_bytes(setting, kind.mixer) + _feed_forward_bytes(setting, kind)
    kept = setting.tokens * (norms + inputs + split / layouts.tensor)
    if isinstance(kind.mixer, LatentAttention):
        kept = kept + setting.tokens * number * (kind.mixer.query + kind.mixer.kv + kind.mixer.rotary)
    return kept + _score_bytes(setting, kind)


def _unless(layouts: Layouts, module: str, kept: Column) -> Column:
    """What is kept unless a part of the layer is recomputed."""
    return np.where(layouts.recomputes(module), 0.0, kept)


def _core_bytes(setting: Setting, mixer: Mixer | None) -> Column:
    """Bytes of one token around the attention core, on all devices of a tensor group together.

    Queries, keys and values go into the core, its result into the projection, which keeps its own copy if its operands
    are narrower.
    """
    number, operand = setting.number_bytes, setting.operand_bytes
    if mixer is None:
        return 0 * number
    if isinstance(mixer, Recurrent):
        # What is projected, convolved, and read from the state, its norm for the projection, and a state a chunk.
        kept = mixer.numbers + mixer.convolved + mixer.inner
        states = 4.0 * mixer.inner * mixer.key / CHUNK
        return number * kept + operand * mixer.inner + states
    result = mixer.heads * mixer.value_width
    into = mixer.heads * mixer.head_width + mixer.kv_heads * (mixer.head_width + mixer.value_width)
    narrower = np.where(operand < number, operand, 0.0)
    return _unless(setting.layouts, "mla_up_proj", number * into) + (number + narrower) * result


def _feed_forward_bytes(setting: Setting, kind: Kind) -> Column:
    """Bytes of one token between the products of a feed-forward, on all devices of a tensor group together.

    With a gate: gate and up, and their product; unfused, the activated gate is kept too. Without one: the input and the
    result of the activation. Experts also keep the token that each is sent, and what it sends back.
    """
    layouts, number, operand = setting.layouts, setting.number_bytes, setting.operand_bytes
    if kind.feed_forward is None:
        return 0 * number
    before = number
    if kind.feed_forward.gated:
        before = np.where(layouts.fused_kernels > 0, 2 * number, 3 * number)
    each = before + _unless(layouts, "moe_act", operand)
    experts = kind.experts
    if experts is None:
        return _unless(layouts, "mlp", kind.feed_forward.width * each)
    sent = (operand + number) * setting.model.hidden * experts.active
    routed = _unless(layouts, "moe", experts.width * experts.active * each + sent)
    shared = np.where(layouts.recomputes("moe"), 0.0, _unless(layouts, "shared_experts", experts.shared * each))
    return routed + shared


def _score_bytes(setting: Setting, kind: Kind) -> Column:
    """Softmax, its dropout and the mask: 5 bytes a score of 16 bits; 2 without dropout; none if they are not kept."""
    layouts, number = setting.layouts, setting.number_bytes
    if kind.attention is None:
        return 0 * number
    kept = (layouts.fused_attention == 0) & ~layouts.recomputes("core_attn")
    heads = layouts.micro_batch * kind.attention.heads / layouts.tensor
    scores = heads * layouts.sequence**2 / layouts.context
    return np.where(kept, (2 * number + 1 if setting.model.dropout else number) * scores, 0.0)


def input_bytes(setting: Setting) -> Column:
    """What a fully recomputed layer keeps: its input alone, 2 s b h (over t with sequence parallelism)."""
    return setting.number_bytes * setting.tokens * setting.model.hidden / setting.residual_shards


def logits_bytes(setting: Setting) -> Column:
    """Logits of one micro-batch on the last stage and what their loss keeps."""
    layouts = setting.layouts
    each = np.where(layouts.fused_kernels > 0, LOGITS, LOGITS_UNFUSED)
    each = np.where(layouts.fused_loss > 0, LOGITS_FUSED, each) * setting.number_bytes / 2
    return each * setting.tokens * setting.model.vocab / layouts.tensor


def activation_bytes(setting: Setting, stage: StageLayers) -> Column:
    """What one micro-batch leaves on a stage until its backward, by the layers that are recomputed and those not.

    Layers whose activations wait on the host leave nothing.
    """
    again = np.where(setting.layouts.recompute == 2, stage.recomputed_share, 0.0)
    whole = np.zeros_like(stage.layers)
    for kind, count in zip(setting.model.kinds, stage.counts, strict=True):
        whole = whole + count * layer_bytes(setting, kind)
    # A layer that is run again keeps its input alone; which layers of a stage these are makes no difference.
    kept = (1 - again) * whole + again * stage.layers * input_bytes(setting)
    return kept * (1 - stage.offloaded_share)


def passing_bytes(setting: Setting) -> Column:
    """What is there for a moment: the layer that is recomputed or comes back, and two gathered layers under ZeRO-3."""
    layouts, kinds = setting.layouts, setting.model.kinds
    largest = np.max([layer_bytes(setting, kind) for kind in kinds], axis=0)
    weights = np.max([2 * device_parameters(setting, kind) for kind in kinds], axis=0)
    # One layer's activations come to life again for its backward; of gathered weights the next's are under way.
    for_a_moment = (layouts.recompute == 2) | (layouts.offload_layers > 0)
    return np.where(for_a_moment, largest, 0.0) + np.where(layouts.zero == 3, 2 * weights, 0.0)


def beside_bytes(setting: Setting) -> Column:
    """What a device's own tool (nvidia-smi) shows beside what the framework allocates: context and communicators."""
    layouts = setting.layouts
    held = np.full(len(layouts), CONTEXT)
    for members in (layouts.tensor, layouts.data, layouts.context, layouts.expert):
        held = held + np.where(members > 2, COMMUNICATOR, np.where(members > 1, COMMUNICATOR_OF_TWO, 0.0))
    return held + np.where(layouts.pipeline > 1, NEIGHBOURS * COMMUNICATOR_OF_TWO, 0.0)
