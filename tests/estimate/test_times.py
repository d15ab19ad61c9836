"""Collectives against the closed forms of rings and trees, with latencies switched off and on."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import CONSTANTS, Group, Setting
from debubble.estimate.times import (
    TREE,
    Pass,
    context_time,
    exchange_time,
    expert_time,
    gather_time,
    hop_time,
    module_time,
    reduce_time,
    residual_time,
    streams_time,
    tensor_time,
    zero3_time,
)
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


# What the parts of a layer cost by hand: bytes over the 450 GB/s of an H100's link, with no latency and nothing hidden.
IDLE = Pass(0 * ONE, 0 * ONE, 0 * ONE)
SHARED = ("overlap", "tensor_overlap", "expert_overlap")


def layer(name, constants=BARE, **given):
    model = read_model(name)
    quiet = dict.fromkeys(SHARED, False)
    layouts = columns([Layout(**{"sequence": 4096, **quiet, **given})], model.layers)
    return Setting(model, H100.cluster, layouts, constants), model.last_kind


def test_a_ring_of_8_passes_each_block_of_keys_and_values_7_times_and_twice_that_backward():
    """Llama 3 8B, 8,192 tokens over 8 devices: 1,024 tokens of 8 heads of 128 keys and values in 2 bytes, 4 MiB."""
    setting, kind = layer("llama3-8b", context=8, sequence=8192)
    found = context_time(setting, kind, IDLE)
    assert found.forward[0] == pytest.approx(7 * 2**22 / 450e9)
    assert found.backward[0] == pytest.approx(14 * 2**22 / 450e9)
    # The core hides what travels beside it, not more.
    longer = context_time(setting, kind, Pass(found.forward / 4, found.backward, 0 * ONE))
    assert longer.forward[0] == pytest.approx(3 / 4 * found.forward[0])
    assert longer.backward[0] == 0


def test_zero_3_gathers_the_weights_of_a_layer_twice_and_scatters_their_gradients():
    """Llama 3 8B: 2 x 4096 x (4096 + 1024) + 3 x 4096 x 14336 + 2 x 4096 = 218,112,000 parameters a layer, 2 bytes."""
    setting, kind = layer("llama3-8b", data=8, zero=3)
    gathered = 7 / 8 * 2 * 218_112_000 / 450e9
    found = zero3_time(setting, kind, IDLE)
    assert found.forward[0] == pytest.approx(gathered, rel=1e-3)
    assert found.backward[0] == pytest.approx(2 * gathered, rel=1e-3)
    setting, kind = layer("llama3-8b", data=8, zero=2)
    assert zero3_time(setting, kind, IDLE).backward[0] == 0


def test_a_share_of_zero_3_is_hidden_beside_a_long_layer_and_no_more_than_that_share_of_a_short_one():
    setting, kind = layer("llama3-8b", replace(BARE, hidden_data=0.25), data=8, zero=3, overlap=True)
    whole = 7 / 8 * 2 * 218_112_000 / 450e9
    long, short = (zero3_time(setting, kind, Pass(time * ONE, time * ONE, 0 * ONE)) for time in (1.0, whole / 2))
    assert long.forward[0] == pytest.approx(3 / 4 * whole, rel=1e-3)
    assert short.forward[0] == pytest.approx(7 / 8 * whole, rel=1e-3)


def test_tokens_are_sent_to_8_experts_and_back_each_way():
    """Qwen3 30B: 4,096 tokens of 2,048 numbers of 2 bytes to 8 experts, on 8 devices: 7/8 of them leave."""
    setting, kind = layer("qwen3-30b-a3b", data=8, expert=8)
    sent = 7 / 8 * 4096 * 8 * 2048 * 2 / 450e9
    found = expert_time(setting, kind, IDLE)
    assert (found.forward[0], found.backward[0]) == (pytest.approx(2 * sent), pytest.approx(2 * sent))
    assert found.again[0] == 0
    setting, kind = layer("qwen3-30b-a3b", data=8, expert=8, recompute="full")
    assert expert_time(setting, kind, IDLE).again[0] == pytest.approx(2 * sent)


def test_a_pair_of_micro_batches_hides_the_same_share_of_exchanges_beside_the_shorter_pass():
    setting, kind = layer("qwen3-30b-a3b", replace(BARE, hidden_tensor=0.5), data=8, expert=8, expert_overlap=True)
    whole = 2 * 7 / 8 * 4096 * 8 * 2048 * 2 / 450e9
    long, short = (expert_time(setting, kind, Pass(ONE, time * ONE, 0 * ONE)) for time in (2.0, whole / 4))
    assert long.forward[0] == pytest.approx(whole / 2)
    assert short.forward[0] == pytest.approx(whole * 7 / 8)


def test_a_dense_layer_all_reduces_its_residual_twice_and_routed_experts_alone_once():
    setting, kind = layer("llama3-8b", tensor=8)
    once = 2 * 7 / 8 * 4096 * 4096 * 2 / 450e9
    assert residual_time(setting, kind)[0] == pytest.approx(2 * once)
    # Of 2,048 numbers a token: half the bytes. Where a tensor group shares each expert they are reduced as well.
    for shared, reduced in ((1, 1), (8, 2)):
        setting, kind = layer("qwen3-30b-a3b", tensor=8, expert_tensor=shared)
        assert residual_time(setting, kind)[0] == pytest.approx(reduced * once / 2)


def test_tensor_collectives_beside_products_show_what_is_not_hidden_and_a_full_recomputation_repeats_the_forward():
    one = replace(BARE, hidden_tensor=0.75)
    plain, _ = layer("llama3-8b", one, tensor=8, pieces=1)
    beside, _ = layer("llama3-8b", one, tensor=8, pieces=1, tensor_overlap=True, recompute="full")
    whole, shown = tensor_time(plain, (), ONE), tensor_time(beside, (), ONE)
    assert (whole.forward[0], whole.backward[0], whole.again[0]) == (1, 1, 0)
    assert (shown.forward[0], shown.backward[0], shown.again[0]) == (0.25, 0.25, 0.25)


def test_two_norms_of_a_layer_read_and_write_each_number_of_2_bytes():
    """4,096 tokens of 4,096 numbers, 8 bytes of each, over 3.35 TB/s of which .5 is reached."""
    setting, kind = layer("llama3-8b", replace(BARE, stream=0.5, launch=0.0), fused_kernels=True)
    rate = 0.5 * setting.cluster.device.memory_rate
    assert module_time(setting, kind, "layernorm")[0] == pytest.approx(8 * 2**24 / rate)
    # Gate and up are read and their product is written: 6 bytes of each of 14,336 numbers.
    inner = 4096 * 14336
    assert module_time(setting, kind, "moe_act")[0] == pytest.approx(6 * inner / rate)
    assert module_time(setting, kind, "moe")[0] == 0
    assert module_time(setting, kind, "shared_experts")[0] == 0


def test_numbers_sent_to_an_expert_are_read_and_written_six_times_each_way():
    """Sorted, sent, put back and weighted: 24 bytes. 4 experts of half the width differ from 2 by these alone."""
    setting, kind = layer("qwen3-30b-a3b", replace(BARE, stream=1.0, launch=0.0), fused_kernels=True)
    few, many = (
        replace(kind, feed_forward=replace(kind.experts, active=active, width=1536 // active)) for active in (2, 4)
    )
    more = 2 * 24 * 4096 * 2048 / setting.cluster.device.memory_rate
    few_time, many_time = (streams_time(setting, each) for each in (few, many))
    assert many_time.forward[0] - few_time.forward[0] == pytest.approx(more)
