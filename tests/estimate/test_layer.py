"""Time of a layer: laws that hold for any sizes, the floor of small ones, and what odd heads cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.layer import data_time, layer_time, optimizer_time, tied_time
from debubble.estimate.model import transformer
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import CONSTANTS, GENERIC, Factor, Setting
from debubble.estimate.times import product_time, stage_hop_time
from debubble.planning.idle import columns

A100 = cluster_of(read_hardware("A100-80GB"), 64)


def gpt(name, **sizes):
    """GPT as Megatron-DeepSpeed trains it: no gate, biases, dropout."""
    return replace(transformer(name, gated=False, **sizes), biases=True, dropout=True)


def timed(model, **given):
    return layer_time(Setting(model, A100, columns([Layout(**given)], model.layers)), model.last_kind)


layouts = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 2, 4, 8, 16]),
        "data": st.sampled_from([1, 4]),
        "micro_batch": st.integers(1, 32),
        "sequence": st.sampled_from([512, 2048, 8192]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "fused_attention": st.booleans(),
        "zero": st.integers(0, 3),
    }
)


@settings(max_examples=60, deadline=None)
@given(layouts, st.sampled_from(["llama3-8b", "gpt3-175b", "deepseek-v3", "qwen3-30b-a3b"]))
def test_no_layer_is_faster_than_its_flops_at_the_peak(given, name):
    model = read_model(name)
    found = timed(model, **given)
    assert (found.total.forward >= found.ideal.forward).all()
    assert (found.total.backward >= found.ideal.backward).all()
    assert (found.kernels.backward >= found.weight).all()
    assert np.isfinite(found.total.both + found.total.again).all()


@settings(max_examples=40, deadline=None)
@given(layouts)
def test_more_samples_never_take_less_time_nor_less_time_each(given):
    model = read_model("llama3-8b")
    one, two = (
        timed(model, **{**given, "micro_batch": b}).total.both[0]
        for b in (given["micro_batch"], 2 * given["micro_batch"])
    )
    assert one <= two <= 2.35 * one


def test_a_small_layer_takes_what_the_host_needs_to_issue_it():
    """vTrain single node: hidden 1,024, micro-batch 1, full recomputation: 3.5 to 3.9 ms a layer at tensor 1 to 4."""
    model = gpt("small", layers=24, hidden=1024, ffn=4096, heads=16, kv_heads=16, vocab=51200)
    for tensor in (1, 2, 4):
        total = timed(
            model,
            tensor=tensor,
            sequence=1024,
            recompute="full",
            precision="fp16",
            fused_attention=False,
            sequence_parallel=False,
        ).total
        assert 2.5e-3 < (total.both + total.again)[0] < 3.9e-3


def test_heads_of_108_cost_a_third_more_where_scores_are_products():
    """BigScience: 78 layers of 13,824 at tensor 8: 64 heads (216) 121 s, 128 heads (108) 157 to 163 s."""
    sizes = {"layers": 78, "hidden": 13824, "ffn": 55296, "vocab": 250880}
    common = {
        "tensor": 8,
        "micro_batch": 4,
        "sequence": 2048,
        "recompute": "full",
        "fused_attention": False,
        "precision": "fp16",
    }
    wide, odd = (timed(gpt("m", heads=a, kv_heads=a, **sizes), **common).total for a in (64, 128))
    ratio = ((odd.both + odd.again) / (wide.both + wide.again))[0]
    assert ratio == pytest.approx(160 / 121, rel=0.15)


def test_a_large_product_nears_the_achievable_rate_and_a_small_one_does_not():
    device, one = read_hardware("A100-80GB"), np.ones(1)
    setting = Setting(read_model("llama3-8b"), A100, columns([Layout()], 32))

    def reached(n):
        return 2 * n**3 / product_time(setting, (n * one,) * 3, device.peak("bf16") * one, one)[0]

    best = device.peak("bf16") * device.achievable * device.sustained
    assert 0.95 * best < reached(16384) <= best
    assert reached(256) < 0.1 * best


PLAIN = {"tensor": 8, "micro_batch": 2, "sequence": 2048, "recompute": "full", "sequence_parallel": False}


def test_a_host_that_waits_for_each_kernel_adds_its_time():
    """BigScience: .93 ms and two calls of 50 us a forward, a third more at tensor 8, and twice that a backward."""
    model = read_model("gpt3-175b")
    ahead, waits = (timed(model, **PLAIN, blocking_launches=waits).total for waits in (False, True))
    host = (CONSTANTS.host + 2 * CONSTANTS.issue) * (1 + 7 * CONSTANTS.jitter)
    assert (waits.forward - ahead.forward)[0] == pytest.approx(host, rel=0.02)
    assert (waits.both + waits.again - ahead.both - ahead.again)[0] == pytest.approx(4 * host, rel=0.02)


def test_products_cut_in_three_hide_a_part_of_their_collectives_and_take_three_calls_each():
    large, small = {"tensor": 8, "micro_batch": 16}, {"tensor": 8, "micro_batch": 1, "sequence": 512}
    model = read_model("llama3-8b")
    whole, cut = (timed(model, **large, pieces=pieces) for pieces in (1, 3))
    assert whole.tensor.forward / 2 < cut.tensor.forward < whole.tensor.forward  # the scatter cannot be hidden
    again = timed(model, **large, pieces=3, keep_gathered=True)
    assert again.tensor.backward < cut.tensor.backward
    slow, slower = (timed(model, **small, pieces=pieces).total.forward for pieces in (1, 3))
    assert slower - slow == pytest.approx(8 * CONSTANTS.issue * (1 + 7 * CONSTANTS.jitter), rel=0.1)


def test_a_stalling_cluster_costs_pipelines_across_nodes_alone_by_the_members_of_their_tensor_groups():
    model, factors = read_model("llama3-8b"), replace(GENERIC, stall=Factor(5.0))

    def longer(**given):
        layout = columns([Layout(sequence=512, **given)], model.layers)
        settings = (Setting(model, A100, layout, factors=f) for f in (GENERIC, factors))
        plain, stalled = (layer_time(setting, model.last_kind).total.forward[0] for setting in settings)
        return stalled / plain

    assert longer(tensor=8, pipeline=4) == pytest.approx(5, rel=0.02)
    assert longer(tensor=4, pipeline=4) == pytest.approx(3, rel=0.02)
    assert [longer(tensor=8, data=4), longer(pipeline=4, data=4), longer(tensor=2, pipeline=4)] == [1, 1, 1]


# Gradients and weights of 100 million parameters, over the 300 GB/s of an A100's link: no latency, nothing lost.
BARE = replace(CONSTANTS, link=1.0, nic=1.0, hop_latency=0.0, far_latency=0.0, call=0.0, stream=1.0)
ONE, NONE = np.ones(1), np.zeros(1)
MILLION = 1e6 * ONE


def setting_of(name="llama3-8b", constants=BARE, **given):
    model = read_model(name)
    return Setting(model, A100, columns([Layout(**given)], model.layers), constants)


@pytest.mark.parametrize(
    ("zero", "moved"),
    [
        (0, 2 * 4),  # an all-reduce of fp32 gradients: scattered and gathered
        (1, 4 + 2),  # gradients scattered to those who update them, bf16 weights gathered from them
        (2, 4 + 2),
        (3, 0),  # inside the layers
    ],
)
def test_bytes_of_a_parameter_that_cross_the_link_by_what_zero_shares_out(zero, moved):
    apart = setting_of(data=8, zero=zero, overlap=False, overlap_gather=False)
    found = data_time(apart, 100 * MILLION, NONE, (NONE, NONE))
    assert found[0] == pytest.approx(7 / 8 * moved * 100e6 / 300e9)


def test_gradients_hide_beside_the_last_backward_and_weights_beside_the_first_forward_at_most_by_a_share():
    scattered, gathered = 7 / 8 * 4 * 100e6 / 300e9, 7 / 8 * 2 * 100e6 / 300e9
    beside = setting_of(constants=replace(BARE, hidden_data=0.25), data=8, zero=1, overlap=True, overlap_gather=True)
    long = data_time(beside, 100 * MILLION, NONE, (ONE, ONE))
    assert long[0] == pytest.approx(3 / 4 * (scattered + gathered))
    short = data_time(beside, 100 * MILLION, NONE, (gathered / 8 * ONE, scattered / 5 * ONE))
    assert short[0] == pytest.approx(4 / 5 * scattered + 7 / 8 * gathered)


def test_adam_moves_30_bytes_of_each_parameter_that_a_device_updates():
    """Gradient 4, fp32 weight and two moments read and written 24, bf16 weight 2."""
    rate = A100.device.memory_rate
    whole = optimizer_time(setting_of(data=8, zero=0), 100 * MILLION, NONE)
    assert whole[0] == pytest.approx(30 * 100e6 / rate)
    shared = optimizer_time(setting_of(data=8, zero=1), 100 * MILLION, NONE)
    assert shared[0] == pytest.approx(30 * 100e6 / 8 / rate)


def test_a_tied_embedding_is_added_up_between_the_ends_of_a_pipeline_alone():
    tied, table = replace(read_model("llama3-8b"), tied=True), 128256 * 4096 * 4

    def time(model, **given):
        return tied_time(Setting(model, A100, columns([Layout(**given)], model.layers), BARE))[0]

    # Two members that lie half of 64 devices apart, each by the card of its own node: 25 GB/s. 2 x 1/2 of the table.
    assert time(tied, pipeline=2, tensor=8, data=4) == pytest.approx(table / 8 / A100.nic)
    assert time(tied, pipeline=1, tensor=8, data=4) == 0
    assert time(replace(tied, tied=False), pipeline=2, tensor=8, data=4) == 0


def test_a_hop_carries_the_residual_of_a_micro_batch_whole_or_cut_by_the_tensor_group():
    """2 x 4,096 tokens of 4,096 numbers of 2 bytes: 64 MiB, at 300 GB/s inside a node."""
    sizes = {"micro_batch": 2, "sequence": 4096, "pipeline": 2}
    whole = 2**26 / 300e9
    plain = stage_hop_time(setting_of(tensor=4, sequence_parallel=False, scattered_sends=False, **sizes), NONE)
    cut = stage_hop_time(setting_of(tensor=4, sequence_parallel=True, **sizes), NONE)
    scattered = stage_hop_time(setting_of(tensor=4, sequence_parallel=False, scattered_sends=True, **sizes), NONE)
    assert (plain[0], cut[0]) == (pytest.approx(whole), pytest.approx(whole / 4))
    assert scattered[0] == pytest.approx(whole / 4 + 3 / 4 * whole)  # gathered again where it arrives


def test_a_product_of_one_row_takes_as_long_as_its_weights_are_read():
    """One token: 8,192 x 8,192 numbers of 2 bytes are 134 MB, read at the memory's rate; the arithmetic is nothing."""
    setting = setting_of(constants=replace(CONSTANTS, stream=1.0, launch=0.0))
    side = 8192
    found = product_time(setting, (ONE, side * ONE, side * ONE), setting.peak, 3 * ONE)
    assert found[0] == pytest.approx(3 * 2 * (side**2 + 2 * side) / A100.device.memory_rate)
