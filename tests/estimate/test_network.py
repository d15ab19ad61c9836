"""Collectives against the closed forms of rings and trees, with latencies switched off and on."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.estimate.constants import CONSTANTS
from debubble.estimate.hardware import cluster_of
from debubble.estimate.network import TREE, Network, Ring, exchange_time, hop_time, ring_time
from debubble.estimate.read_hardware import read_hardware

BARE = replace(CONSTANTS, link=1.0, nic=1.0, hop_latency=0.0, far_latency=0.0, call=0.0)
H100 = Network(cluster_of(read_hardware("H100"), 64), BARE)
MI300X = Network(cluster_of(read_hardware("MI300X"), 8), BARE)
ONE = np.ones(1)


def ring(members, near):
    return Ring(members * ONE, near * ONE)


def test_an_all_reduce_moves_2_n_minus_1_over_n_and_a_gather_half_of_it():
    assert ring_time(H100, ring(8, 8), 450e9 * ONE, reduce=True)[0] == pytest.approx(2 * 7 / 8)
    assert ring_time(H100, ring(8, 8), 450e9 * ONE)[0] == pytest.approx(7 / 8)


def test_one_device_has_nobody_to_talk_to():
    assert ring_time(H100, ring(1, 1), 1e9 * ONE, reduce=True)[0] == 0
    assert exchange_time(H100, ring(1, 1), 1e9 * ONE)[0] == 0


def test_a_ring_that_leaves_the_node_is_carried_by_the_cards_of_all_members_in_it():
    assert ring_time(H100, ring(16, 8), 400e9 * ONE)[0] == pytest.approx(15 / 16)
    assert ring_time(H100, ring(16, 1), 400e9 * ONE)[0] == pytest.approx(8 * 15 / 16)


def test_small_groups_without_a_switch_use_their_peers_links_alone():
    """MI300X: 64 GB/s to one peer, 448 to seven."""
    assert ring_time(MI300X, ring(2, 2), 64e9 * ONE)[0] == pytest.approx(1 / 2)
    assert ring_time(MI300X, ring(8, 8), 448e9 * ONE)[0] == pytest.approx(7 / 8)


def test_a_ring_waits_for_every_step_and_a_tree_for_the_logarithm():
    slow = Network(H100.cluster, replace(BARE, far_latency=1.0))
    assert ring_time(slow, ring(64, 1), 0 * ONE)[0] == pytest.approx(63, abs=1.1)
    assert ring_time(slow, ring(64, 1), 0 * ONE, reduce=True)[0] == pytest.approx(2 * 6 * TREE)


def test_an_exchange_sends_each_member_its_share():
    assert exchange_time(H100, ring(8, 8), 450e9 * ONE)[0] == pytest.approx(7 / 8)
    assert exchange_time(H100, ring(64, 8), 50e9 * ONE)[0] == pytest.approx(56 / 64)


def test_a_hop_takes_the_link_inside_a_node_and_the_card_between():
    assert hop_time(H100, 0 * ONE, 450e9 * ONE)[0] == pytest.approx(1)
    assert hop_time(H100, ONE, 50e9 * ONE)[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("mebibytes", "published"), [(8, 50.61), (32, 142.90), (128, 260.50), (512, 309.91), (4096, 374.66)]
)
def test_all_reduces_over_4_nodes_of_8_b200_reach_51_to_375_gb_s_by_their_size(mebibytes, published):
    """stas00/ml-engineering@0cc3de50 network/benchmarks/README.md, bus bandwidth: 2 (n-1)/n bytes over time."""
    network, volume = Network(cluster_of(read_hardware("B200"), 32), CONSTANTS), mebibytes * 2**20
    seconds = ring_time(network, ring(32, 8), volume * ONE, reduce=True)[0]
    assert 2 * 31 / 32 * volume / seconds / 1e9 == pytest.approx(published, rel=0.2)
