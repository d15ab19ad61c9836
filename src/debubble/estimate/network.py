"""Time of collectives and hops: rings over the links of a node, or over the network cards where a group leaves it.

A ring of n moves ``2 (n-1)/n`` of an all-reduce's bytes and ``(n-1)/n`` of a gather's through every member.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .constants import Constants
from .hardware import Cluster

Column = NDArray[np.float64]


def ring_time(
    cluster: Cluster, constants: Constants, group: Column, near: Column, volume: Column, *, halves: float = 1.0
) -> Column:
    """Seconds of a reduce-scatter or all-gather (``halves`` = 1) or an all-reduce (2) of ``volume`` bytes.

    Args:
        cluster: its links and network cards.
        constants: of the generic model.
        group: members.
        near: members that share a node: their cards carry the ring together.
        volume: bytes of the whole vector, on each member.
        halves: see above.
    """
    near = np.minimum(near, group)
    inside = group <= near
    rate = np.where(inside, link_rate(cluster, near) * constants.link, cluster.nic * near * constants.nic)
    rate = np.minimum(rate, cluster.device.link * constants.link)
    latency = np.where(inside, constants.hop_latency, constants.far_latency)
    steps = halves * (group - 1)
    per_step = volume / np.maximum(group, 1) / rate + latency
    return np.where(group > 1, steps * per_step + constants.call, 0.0)


def link_rate(cluster: Cluster, group: Column) -> Column:
    """Bytes per second that a device can send to a group inside its node: limited by peers where there is no switch."""
    device = cluster.device
    return np.minimum(device.link, device.peer * np.maximum(group - 1, 1))


def exchange_time(cluster: Cluster, constants: Constants, group: Column, near: Column, volume: Column) -> Column:
    """Seconds of an all-to-all in which each member sends ``volume`` bytes, 1/group of it to each.

    What stays in the node goes over the link, the rest over the device's own card.
    """
    near = np.minimum(near, group)
    inside = volume * (near - 1) / np.maximum(group, 1) / (link_rate(cluster, near) * constants.link)
    outside = volume * (group - near) / np.maximum(group, 1) / (cluster.nic * constants.nic)
    latency = np.where(group > near, constants.far_latency, constants.hop_latency) + constants.call
    return np.where(group > 1, np.maximum(inside, outside) + latency, 0.0)


def hop_time(cluster: Cluster, constants: Constants, apart: Column, volume: Column) -> Column:
    """Seconds of a send of ``volume`` bytes to the next rank, which is in another node where ``apart``."""
    rate = np.where(apart > 0, cluster.nic * constants.nic, cluster.device.peer * constants.link)
    latency = np.where(apart > 0, constants.far_latency, constants.hop_latency)
    seconds: Column = volume / rate + latency + constants.call
    return seconds
