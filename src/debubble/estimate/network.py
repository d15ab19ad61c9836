"""Time of collectives and hops: rings over the links of a node, or over the network cards if a group leaves it.

A ring of n moves ``2 (n-1)/n`` of an all-reduce's bytes and ``(n-1)/n`` of a gather's through every member.
"""

from __future__ import annotations

import numpy as np

from .hardware import Cluster
from .setting import Column, Group, Setting

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
    scattered = (layouts.scattered_sends > 0) & (shards == 1)
    sent = hop_time(setting, crosses, residual / np.where(scattered, layouts.tensor, shards))
    gathered = np.where(scattered, gather_time(setting, setting.group(layouts.tensor), residual), 0.0)
    return setting.factors.transfer.value * sent + setting.factors.tensor.value * gathered
