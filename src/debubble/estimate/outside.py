"""Outside the pipeline: data-parallel traffic that nothing hides, and the update of the weights."""

from __future__ import annotations

import numpy as np

from .memory import layer_shares, zero_share
from .setting import Column, Setting
from .traffic import gather_time, reduce_time

TENSORS = 6  # of a layer: two products of attention, two of the feed-forward, two norms

# Gradients that Megatron-LM reduces in one call if nothing is said (ddp_config.bucket_size in megatron/training).
BUCKET, BUCKET_PER_REPLICA = 40e6, 1e6


def data_time(setting: Setting, shared: Column, routed: Column, beside: tuple[Column, Column]) -> Column:
    """Seconds of gradients reduced and weights gathered that neither the last backward nor the first forward hides.

    Args:
        setting: the setting.
        shared: parameters of a device that all of data x context reduce.
        routed: parameters of its experts, reduced by those of the stage that hold the same.
        beside: seconds of one forward and of one backward, beside which it may run.
    """
    layouts, most = setting.layouts, setting.constants.hidden_data
    everyone, holders = layouts.replicas, layouts.expert_replicas
    reduced = _reduced(setting, shared, everyone, layouts.tensor)
    reduced = reduced + _reduced(setting, routed, holders, layouts.expert * layouts.expert_tensor)
    gathered = _gathered(setting, shared, everyone, layouts.tensor)
    gathered = gathered + _gathered(setting, routed, holders, layouts.expert * layouts.expert_tensor)
    forward, backward = beside
    # Only the last micro-batch's backward has gradients that are done: at most it hides them, and at most a share.
    reduced = reduced - np.where(layouts.overlap > 0, np.minimum(most * reduced, backward), 0.0)
    gathered = gathered - np.where(layouts.overlap_gather > 0, np.minimum(most * gathered, forward), 0.0)
    return np.where(layouts.zero == 3, 0.0, reduced + gathered)


def _reduced(setting: Setting, parameters: Column, members: Column, stride: Column) -> Column:
    """Gradients: scattered to those who update them, or reduced for all."""
    group, volume = setting.group(members, stride), setting.layouts.reduced_bytes * parameters
    calls = _calls(setting, volume)
    # nanotron, which gathers by tensor, reduces all gradients for all, whatever it shares out.
    scattered = gather_time(setting, group, volume, calls=calls)
    whole = reduce_time(setting, group, volume, calls=calls)
    scatters = (setting.layouts.zero >= 1) & (setting.layouts.gather_by_tensor == 0)
    return np.where(scatters, scattered, whole)


def _gathered(setting: Setting, parameters: Column, members: Column, stride: Column) -> Column:
    """Weights from those who updated them, as wide as products take them in: in one call if nothing runs beside it."""
    layouts = setting.layouts
    weights = np.minimum(layouts.weight_bytes, setting.number_bytes)
    calls = _calls(setting, setting.layouts.reduced_bytes * parameters)
    calls = np.where(layouts.overlap_gather > 0, calls, 1.0)
    layer, _ = layer_shares(setting, setting.model.last_kind)
    calls = np.where(layouts.gather_by_tensor > 0, TENSORS * parameters / layer, calls)
    gathered = gather_time(setting, setting.group(members, stride), weights * parameters, calls=calls)
    return np.where(layouts.zero >= 1, gathered, 0.0)


def _calls(setting: Setting, volume: Column) -> Column:
    """Buckets of gradients."""
    layouts = setting.layouts
    usual = layouts.reduced_bytes * np.maximum(BUCKET, BUCKET_PER_REPLICA * layouts.replicas)
    calls: Column = np.ceil(volume / np.where(layouts.bucket > 0, layouts.bucket, usual))
    return calls


def optimizer_time(setting: Setting, shared: Column, routed: Column) -> Column:
    """Seconds of the update: bound by memory, shared out over data x context from ZeRO-1 on.

    Adam reads the gradient, reads and writes its state, and writes the weight: 30 bytes in bf16 with fp32 gradients.
    On the host, gradients go there and weights come back over the host's link, and the state moves at the host's rate.
    """
    layouts, device, constants = setting.layouts, setting.cluster.device, setting.constants
    updated = np.where(layouts.zero >= 1, zero_share(setting, shared, routed), shared + routed)
    # Read the gradient; read and write master weight and moments; write the weight that products use.
    moved = layouts.reduced_bytes + 2 * layouts.state_bytes + layouts.weight_bytes
    here = moved * updated / (device.memory_rate * constants.stream)
    crossing = (layouts.reduced_bytes + layouts.weight_bytes) * updated / device.host_link
    there = np.maximum(crossing, moved * updated / constants.host_memory)
    return np.where(layouts.offload_optimizer > 0, there, here)


def tied_time(setting: Setting) -> Column:
    """Seconds in which first and last stage add up the gradients of an embedding that they share."""
    layouts, model = setting.layouts, setting.model
    if not model.tied:
        return np.zeros(len(layouts))
    # The pipeline is outermost, so the two that share an embedding are nearly the whole job apart.
    between = np.maximum(layouts.gpus * (1 - 1 / layouts.pipeline), 1)  # devices from the first stage to the last
    pair = setting.group(np.where(layouts.pipeline > 1, 2.0, 1.0), between)
    table = model.vocab * model.hidden / layouts.tensor
    return reduce_time(setting, pair, layouts.reduced_bytes * table)
