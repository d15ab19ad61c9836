"""Collectives against the closed forms of rings and trees, with latencies switched off and on."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import CONSTANTS, Group, Setting
from debubble.estimate.times import TREE, exchange_time, gather_time, hop_time, reduce_time
from debubble.planning.idle import columns

BARE = replace(CONSTANTS, link=1.0, nic=1.0, hop_latency=0.0, far_latency=0.0, call=0.0)
ONE = np.ones(1)


def network(cluster, constants=BARE):
    return Setting(read_model("llama3-8b"), cluster, columns([Layout()], 32), constants)


H100 = network(cluster_of(read_hardware("H100"), 64))
MI300X = network(cluster_of(read_hardware("MI300X"), 8))


def ring(members, near):
    return Group(members * ONE, near * ONE)


def test_an_all_reduce_moves_2_n_minus_1_over_n_and_a_gather_half_of_it():
    assert reduce_time(H100, ring(8, 8), 450e9 * ONE)[0] == pytest.approx(2 * 7 / 8)
    assert gather_time(H100, ring(8, 8), 450e9 * ONE)[0] == pytest.approx(7 / 8)


def test_one_device_has_nobody_to_talk_to():
    assert reduce_time(H100, ring(1, 1), 1e9 * ONE)[0] == 0
    assert exchange_time(H100, ring(1, 1), 1e9 * ONE)[0] == 0


def test_a_ring_that_leaves_the_node_is_carried_by_the_cards_of_all_members_in_it():
    assert gather_time(H100, ring(16, 8), 400e9 * ONE)[0] == pytest.approx(15 / 16)
    assert gather_time(H100, ring(16, 1), 400e9 * ONE)[0] == pytest.approx(8 * 15 / 16)


def test_small_groups_without_a_switch_use_their_peers_links_alone():
    """MI300X: 64 GB/s to one peer, 448 to seven."""
    assert gather_time(MI300X, ring(2, 2), 64e9 * ONE)[0] == pytest.approx(1 / 2)
    assert gather_time(MI300X, ring(8, 8), 448e9 * ONE)[0] == pytest.approx(7 / 8)


def test_a_ring_waits_for_every_step_and_a_tree_for_the_logarithm():
    slow = network(H100.cluster, replace(BARE, far_latency=1.0))
    assert gather_time(slow, ring(64, 1), 0 * ONE)[0] == pytest.approx(63, abs=1.1)
    assert reduce_time(slow, ring(64, 1), 0 * ONE)[0] == pytest.approx(2 * 6 * TREE)


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
    eight, volume = network(cluster_of(read_hardware("B200"), 32), CONSTANTS), mebibytes * 2**20
    seconds = reduce_time(eight, ring(32, 8), volume * ONE)[0]
    assert 2 * 31 / 32 * volume / seconds / 1e9 == pytest.approx(published, rel=0.2)
