"""Time of collectives and hops: rings over the links of a node, or over the network cards where a group leaves it.

A ring of n moves ``2 (n-1)/n`` of an all-reduce's bytes and ``(n-1)/n`` of a gather's through every member.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .constants import Constants
from .hardware import Cluster

Column = NDArray[np.float64]
TREE = 3  # steps of a ring that a level of a tree takes: up, reduced, and on


@dataclass(frozen=True, slots=True)
class Network:
    """The links and cards of a cluster, and what collectives reach of them."""

    cluster: Cluster
    constants: Constants


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """A group that reduces or gathers together.

    Args:
        members: devices in it, float64[n].
        near: of them, how many share a node: their cards carry the ring together.
    """

    members: Column
    near: Column

    @property
    def crossings(self) -> Column:
        """Steps of the ring that leave a node."""
        return np.where(self.members > self.near, self.members / self.near, 0.0)


def ring_time(at: Network, ring: Ring, volume: Column, *, reduce: bool = False, calls: Column | float = 1.0) -> Column:
    """Seconds of a reduce-scatter or all-gather of ``volume`` bytes, or (``reduce``) of an all-reduce.

    A ring waits for each of its steps, an all-reduce may go up and down a tree instead: log2 of the nodes.

    Args:
        at: the cluster's links and cards, and the constants.
        ring: who takes part.
        volume: bytes of the whole vector, on each member, over all calls.
        reduce: whether the result of each member comes back to all.
        calls: how many parts it is sent in, each with the latency of the group.
    """
    n, cluster, constants = ring.members, at.cluster, at.constants
    outside = cluster.nic * ring.near * constants.nic
    inside = link_rate(cluster, ring.near) * constants.link
    rate = np.where(ring.crossings > 0, np.minimum(outside, inside), inside)
    steps = (n - 1 - ring.crossings).clip(0) * constants.hop_latency + ring.crossings * constants.far_latency
    if reduce:
        levels = np.log2(np.maximum(n / ring.near, 1))
        deep = 2 * (levels * TREE * constants.far_latency + ring.near * constants.hop_latency)
        steps = np.minimum(2 * steps, deep)
    moved = (2 if reduce else 1) * volume * (n - 1) / np.maximum(n, 1) / rate
    return np.where(n > 1, moved + calls * (steps + constants.call), 0.0)


def link_rate(cluster: Cluster, group: Column) -> Column:
    """Bytes per second that a device can send to a group inside its node: limited by peers where there is no switch."""
    device = cluster.device
    return np.minimum(device.link, device.peer * np.maximum(group - 1, 1))


def exchange_time(at: Network, ring: Ring, volume: Column) -> Column:
    """Seconds of an all-to-all in which each member sends ``volume`` bytes, 1/group of it to each.

    What stays in the node goes over the link, the rest over the device's own card.
    """
    cluster, constants, group, near = at.cluster, at.constants, ring.members, ring.near
    inside = volume * (near - 1) / np.maximum(group, 1) / (link_rate(cluster, near) * constants.link)
    outside = volume * (group - near) / np.maximum(group, 1) / (cluster.nic * constants.nic)
    latency = np.where(group > near, constants.far_latency, constants.hop_latency) + constants.call
    return np.where(group > 1, np.maximum(inside, outside) + latency, 0.0)


def hop_time(at: Network, apart: Column, volume: Column) -> Column:
    """Seconds of a send of ``volume`` bytes to the next rank, which is in another node where ``apart``."""
    cluster, constants = at.cluster, at.constants
    rate = np.where(apart > 0, cluster.nic * constants.nic, cluster.device.peer * constants.link)
    latency = np.where(apart > 0, constants.far_latency, constants.hop_latency)
    seconds: Column = volume / rate + latency + constants.call
    return seconds
