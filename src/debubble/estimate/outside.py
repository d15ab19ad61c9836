"""Outside the pipeline: data-parallel traffic that nothing hides, and the update of the weights."""

from __future__ import annotations

import numpy as np

from .memory import gradient_bytes, zero_share
from .network import gather_time, reduce_time
from .setting import Column, Setting

UPDATE = 30  # bytes that Adam reads and writes a parameter: gradient, master weight and two moments in fp32, weight

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
    reduced = reduced - np.where(layouts.overlap > 0, np.minimum(most * reduced, backward), 0.0)
    gathered = gathered - np.where(layouts.overlap_gather > 0, np.minimum(most * gathered, forward), 0.0)
    return np.where(layouts.zero == 3, 0.0, reduced + gathered)


def _reduced(setting: Setting, parameters: Column, members: Column, stride: Column) -> Column:
    """Gradients: scattered to those who update them, or reduced for all."""
    group, volume = setting.group(members, stride), gradient_bytes(setting) * parameters
    calls = _calls(setting, volume)
    scattered = gather_time(setting, group, volume, calls=calls)
    whole = reduce_time(setting, group, volume, calls=calls)
    return np.where(setting.layouts.zero >= 1, scattered, whole)


def _gathered(setting: Setting, parameters: Column, members: Column, stride: Column) -> Column:
    """Weights from those who updated them: in one call if nothing runs beside it."""
    calls = _calls(setting, gradient_bytes(setting) * parameters)
    calls = np.where(setting.layouts.overlap_gather > 0, calls, 1.0)
    gathered = gather_time(setting, setting.group(members, stride), 2 * parameters, calls=calls)
    return np.where(setting.layouts.zero >= 1, gathered, 0.0)


def _calls(setting: Setting, volume: Column) -> Column:
    """Buckets of gradients."""
    layouts = setting.layouts
    usual = gradient_bytes(setting) * np.maximum(BUCKET, BUCKET_PER_REPLICA * layouts.replicas)
    calls: Column = np.ceil(volume / np.where(layouts.bucket > 0, layouts.bucket, usual))
    return calls


def optimizer_time(setting: Setting, shared: Column, routed: Column) -> Column:
    """Seconds of the update: bound by memory, shared out over data x context from ZeRO-1 on."""
    updated = np.where(setting.layouts.zero >= 1, zero_share(setting, shared, routed), shared + routed)
    seconds: Column = UPDATE * updated / (setting.cluster.device.memory_rate * setting.constants.stream)
    return seconds


def tied_time(setting: Setting) -> Column:
    """Seconds in which first and last stage add up the gradients of an embedding that they share."""
    layouts, model = setting.layouts, setting.model
    if not model.tied:
        return np.zeros(len(layouts))
    between = np.maximum(layouts.gpus * (1 - 1 / layouts.pipeline), 1)  # devices from the first stage to the last
    pair = setting.group(np.where(layouts.pipeline > 1, 2.0, 1.0), between)
    table = model.vocab * model.hidden / layouts.tensor
    return reduce_time(setting, pair, gradient_bytes(setting) * table)
