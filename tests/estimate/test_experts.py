"""Experts spread over e groups of et devices: parameters, work, bytes and traffic against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.layer import layer_time
from debubble.estimate.memory import StageLayers, device_parameters, rank_bytes, stage_parameters
from debubble.estimate.model import feed_forward_products, layer_parameters, parameters, routed_parameters
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import Group, Setting
from debubble.estimate.times import exchange_time, gather_time, products_time
from debubble.planning.idle import columns
from debubble.planning.judge import judge

H100 = read_hardware("H100")
ONE, NONE = np.ones(1), np.zeros(1)


def setting(name, **given):
    model, layout = read_model(name), Layout(**given)
    return Setting(model, cluster_of(H100, layout.gpus), columns([layout], model.layers))


def routed_products(name):
    model = read_model(name)
    return feed_forward_products(model.hidden, model.last_kind.feed_forward)


def timed(at):
    return layer_time(at, at.model.last_kind)


@st.composite
def spreads(draw):
    """t, d, c, and e x et that divides their product."""
    t, d, c = (draw(st.sampled_from([1, 2, 4, 8])) for _ in range(3))
    shards = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= t]))
    most = t * d * c // shards
    expert = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= most]))
    return {"tensor": t, "data": d, "context": c, "expert": expert, "expert_tensor": shards}


def whole(at):
    """The only stage of a pipeline of one rank."""
    return StageLayers(tuple(count * ONE for count in at.model.counts), NONE, NONE, ONE, ONE)


@settings(max_examples=60, deadline=None)
@given(spreads(), st.sampled_from(["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"]))
def test_parameters_of_all_devices_are_the_models_as_often_as_they_are_held(given, name):
    at = setting(name, **given)
    model = replace(at.model, next_heads=0)
    own, routed = stage_parameters(replace(at, model=model), whole(at))
    devices, copies = at.layouts.gpus, at.layouts.expert_replicas
    held = own * at.layouts.tensor + routed * devices / copies
    norm = model.hidden  # after the last layer: counted in the model, next to nothing on a device
    assert held[0] == pytest.approx(parameters(model) - norm, rel=1e-12)
    assert copies[0] == given["tensor"] * given["data"] * given["context"] / (given["expert"] * given["expert_tensor"])


@settings(max_examples=60, deadline=None)
@given(spreads())
def test_the_distributed_optimizer_holds_12_bytes_of_each_parameter_once(given):
    at = setting("deepseek-v3", zero=1, **given)
    own, routed = stage_parameters(at, whole(at))
    every = own * at.layouts.tensor + routed * given["expert"] * given["expert_tensor"]
    assert (rank_bytes(at, own, routed)[2] * at.layouts.gpus)[0] == pytest.approx(12 * every[0], rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(spreads(), st.sampled_from(["mixtral-8x7b", "deepseek-v3"]))
def test_whole_experts_see_the_tokens_of_their_own_device(given, name):
    """et = 1 at tensor t and b samples is the work of b / t samples at tensor 1."""
    given = {**given, "expert_tensor": 1, "expert": min(given["expert"], 8)}
    routed = tuple(p for p in routed_products(name) if p.held > 1)
    shared = setting(name, micro_batch=given["tensor"], **given)
    alone = setting(name, micro_batch=1, **{**given, "tensor": 1})
    for one, other in zip(products_time(shared, routed), products_time(alone, routed), strict=True):
        assert one == pytest.approx(other, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(spreads(), st.integers(0, 3), st.sampled_from(["mixtral-8x7b", "deepseek-v3", "llama3-8b"]))
def test_experts_on_the_tensor_group_are_what_a_layout_means_that_says_nothing(given, zero, name):
    given = {**given, "expert": min(given["expert"], given["data"] * given["context"]), "zero": zero}
    model, said = read_model(name), Layout(**{**given, "expert_tensor": given["tensor"]})
    cluster = cluster_of(H100, said.gpus)
    silent = judge(model, cluster, replace(said, expert_tensor=0))
    assert replace(silent, layout=said) == judge(model, cluster, said)


def test_the_all_to_all_of_whole_experts_stays_in_the_node_that_the_tensor_group_left_it_no_room_in():
    both = {"tensor": 4, "data": 4, "expert": 4, "micro_batch": 1, "sequence": 4096}
    far, near = setting("mixtral-8x7b", **both), setting("mixtral-8x7b", expert_tensor=1, **both)
    sent = 2 * 4096 / 4 * 2 * 4096 * ONE  # bytes a number, tokens of a device, experts of a token, hidden
    for at, members in ((far, 2.0), (near, 4.0)):
        group = Group(4 * ONE, members * ONE)  # of 4, those who share a host of 8
        assert timed(at).expert.forward == 2 * exchange_time(at, group, sent)
    assert timed(near).expert.forward < timed(far).expert.forward / 3


@pytest.mark.parametrize(("name", "left"), [("mixtral-8x7b", 0.5), ("deepseek-v3", 1.0)])
def test_whole_experts_gather_nothing_of_the_residual_unless_shared_ones_do(name, left):
    both = {"tensor": 8, "data": 2, "expert": 2}
    gathered = (timed(setting(name, expert_tensor=et, **both)).tensor for et in (8, 1))
    of_group, alone = (one.forward[0] for one in gathered)
    assert alone == pytest.approx(left * of_group, rel=1e-12)


def test_experts_that_one_device_holds_alone_are_never_gathered_under_zero_3():
    at = setting("mixtral-8x7b", data=8, expert=8, zero=3, overlap=False)
    shared = layer_parameters(at.model, at.model.last_kind) - routed_parameters(at.model, at.model.last_kind)
    once = gather_time(at, at.group(8 * ONE), 2 * shared * ONE)
    found = timed(at).data
    assert (found.forward, found.backward) == (pytest.approx(once), pytest.approx(2 * once))


def test_a_device_works_on_its_share_of_attention_and_of_experts():
    at = setting("mixtral-8x7b", tensor=4, data=4, expert=8, expert_tensor=2)
    routed = 3 * 4096 * 14336 * 8
    rest = layer_parameters(at.model, at.model.last_kind) - routed
    assert device_parameters(at, at.model.last_kind) == pytest.approx(rest / 4 + routed / (8 * 2))
