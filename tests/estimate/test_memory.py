"""Activation and state bytes against the formulas of Korthikanti et al. and of Megatron-LM's optimizer."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.memory import (
    StageLayers,
    accumulated_bytes,
    activation_bytes,
    beside_bytes,
    input_bytes,
    layer_bytes,
    logits_bytes,
    passing_bytes,
    rank_bytes,
    stage_parameters,
)
from debubble.estimate.model import Experts, transformer
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import Setting
from debubble.planning.idle import columns

# Korthikanti et al. 2022, Table 3: heads, hidden, layers, tensor size; sequence 2,048, their micro-batches.
MODELS = {
    "22B": (64, 6144, 48, 8, 4),
    "175B": (96, 12288, 96, 8, 1),
    "530B": (128, 20480, 105, 8, 1),
    "1T": (160, 25600, 128, 8, 1),
}


def setting(name, **given):
    heads, hidden, layers, tensor, batch = MODELS[name]
    sizes = {"layers": layers, "hidden": hidden, "ffn": 4 * hidden, "heads": heads, "kv_heads": heads, "vocab": 51200}
    model = replace(transformer(name, gated=False, **sizes), biases=True, dropout=True)
    layout = Layout(**{"tensor": tensor, "micro_batch": batch, "sequence": 2048, "fused_attention": False, **given})
    return Setting(model, cluster_of(read_hardware("A100-80GB"), layout.gpus), columns([layout], layers))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("given", "formula"),
    [
        ({"tensor": 1}, lambda s, b, h, a, t: s * b * h * (34 + 5 * a * s / h)),
        ({"sequence_parallel": False}, lambda s, b, h, a, t: s * b * h * (10 + 24 / t + 5 * a * s / (h * t))),
        ({}, lambda s, b, h, a, t: s * b * h / t * (34 + 5 * a * s / h)),
        ({"recompute": "selective"}, lambda s, b, h, a, t: 34 * s * b * h / t),
        ({"recompute": "selective", "sequence_parallel": False}, lambda s, b, h, a, t: s * b * h * (10 + 24 / t)),
        ({"fused_attention": True}, lambda s, b, h, a, t: 34 * s * b * h / t),
    ],
)
def test_activations_of_a_layer_are_table_2_of_korthikanti_2022(name, given, formula):
    heads, hidden, _, tensor, batch = MODELS[name]
    at = setting(name, **given)
    assert layer_bytes(at, at.model.last_kind)[0] == pytest.approx(
        formula(2048, batch, hidden, heads, given.get("tensor", tensor)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("sizes", "communicators"),
    [
        ({"tensor": 1}, 0),
        ({"tensor": 8}, 688e6),
        ({"tensor": 2, "data": 2}, 2 * 544e6),
        ({"tensor": 4, "pipeline": 12, "data": 8}, 2 * 688e6 + 2 * 544e6),
    ],
    ids=str,
)
def test_beside_tensors_nvidia_smi_shows_a_context_and_each_communicator(sizes, communicators):
    # 1,573 MiB, the chronicle of BigScience; 688 MB, 544 MB for two devices: NVIDIA/nccl#964.
    assert beside_bytes(setting("22B", **sizes))[0] == 1573 * 2**20 + communicators


def test_full_recomputation_keeps_the_input_alone():
    at = setting("175B", sequence_parallel=False)
    assert input_bytes(at)[0] == 2 * 2048 * 12288


def test_logits_of_the_last_stage_are_4_bytes_in_fp32_and_their_gradient():
    at = setting("175B")
    assert logits_bytes(at)[0] == 10 * 2048 * 51200 / 8


@pytest.mark.parametrize(
    ("precision", "zero", "bytes_each"),
    [
        ("bf16", 0, 18),
        ("bf16", 1, 6 + 12 / 16),
        ("bf16", 2, 2 + 16 / 16),
        ("bf16", 3, 18 / 16),
        ("fp16", 1, 4 + 16 / 16),
    ],
)
def test_bytes_a_parameter_are_those_of_megatrons_distributed_optimizer(precision, zero, bytes_each):
    """README of the distributed optimizer, with d = data x context = 8 x 2."""
    at = setting("175B", data=8, context=2, zero=zero, precision=precision)
    states = rank_bytes(at, np.array([1e9]), np.array([0.0]))
    assert sum(states)[0] / 1e9 == pytest.approx(bytes_each)


def test_a_tied_embedding_is_one_matrix_on_one_rank_and_a_copy_on_each_end_of_a_pipeline():
    """Vocabulary x hidden: once for a whole model, on the first and again on the last of two stages."""
    matrix = 51200 * 6144
    ends = {}
    for pipeline in (1, 2):
        at = setting("22B", tensor=1, pipeline=pipeline)
        tied = replace(at, model=replace(at.model, tied=True))
        stage = StageLayers((np.zeros(1),), np.zeros(1), np.zeros(1), first=np.ones(1), last=np.ones(1))
        ends[pipeline] = float(stage_parameters(tied, stage)[0][0])
    assert ends[2] - ends[1] == matrix


def test_each_further_expert_of_a_token_keeps_what_is_sent_to_it_and_back_and_its_own_width():
    """bf16, gated and fused: gate and up (2 x 2 bytes) and their product (2) of the width; the token there and back."""
    hidden, width = 1024, 512

    def kept(active):
        experts = Experts(count=8, active=active, width=width)
        sizes = {"layers": 2, "hidden": hidden, "ffn": width, "heads": 8, "kv_heads": 8, "vocab": 1000}
        model = transformer("experts", **sizes, experts=experts)
        layout = Layout(sequence=128, micro_batch=1, fused_kernels=True)
        cluster = cluster_of(read_hardware("h100"), 8)
        where = Setting(model, cluster, columns([layout], 2))
        return float(layer_bytes(where, model.last_kind)[0])

    assert kept(2) - kept(1) == 128 * (6 * width + 4 * hidden)
    assert kept(3) - kept(2) == 128 * (6 * width + 4 * hidden)


def stage(layers, recomputed=0.0, offloaded=0.0):
    """A stage in the middle of a pipeline."""
    nothing = np.zeros(1)
    return StageLayers((np.array([layers]),), np.array([recomputed]), np.array([offloaded]), nothing, nothing)


def test_layers_that_are_recomputed_keep_their_input_and_the_others_everything():
    """175B on 8 devices with sequence parallelism: 34 s b h/t a layer by flash attention, of which the input is 2."""
    at = setting("175B", recompute="full", fused_attention=True)
    one = 2048 * 12288 / 8
    assert activation_bytes(at, stage(12, recomputed=np.inf))[0] == pytest.approx(12 * 2 * one)
    assert activation_bytes(at, stage(12, recomputed=3))[0] == pytest.approx((9 * 34 + 3 * 2) * one)
    assert activation_bytes(at, stage(0, recomputed=3))[0] == 0
    assert passing_bytes(at)[0] == pytest.approx(34 * one)  # one comes to life again


def test_layers_whose_activations_wait_on_the_host_leave_nothing():
    at = setting("175B", fused_attention=True)
    one = 34 * 2048 * 12288 / 8
    assert activation_bytes(at, stage(12, offloaded=4))[0] == pytest.approx(8 * one)
    assert activation_bytes(at, stage(3, offloaded=4))[0] == 0
    assert passing_bytes(at)[0] == 0


def test_two_gathered_layers_pass_under_zero_3():
    """22B on one device: 12 h^2 + 13 h parameters a layer, in 2 bytes each, of which the next is under way."""
    at = setting("22B", tensor=1, data=8, zero=3)
    assert passing_bytes(at)[0] == 2 * 2 * (12 * 6144**2 + 13 * 6144)


@pytest.mark.parametrize(("switches", "each"), [({}, 10), ({"fused_kernels": False}, 12), ({"fused_loss": True}, 4)])
def test_bytes_of_a_logit_by_how_its_loss_is_computed(switches, each):
    at = setting("22B", **{"fused_kernels": True, **switches})
    assert logits_bytes(at)[0] == each * 4 * 2048 * 51200 / 8


def test_adding_up_a_micro_batchs_gradients_moves_12_bytes_a_parameter_in_fp32_and_8_in_bf16():
    """The new ones are written and read in 2 bytes, the sum is read and written in 4 or 2."""
    million = np.array([1e6])
    assert accumulated_bytes(setting("22B"), million)[0] == 12e6
    assert accumulated_bytes(setting("22B", gradient_precision="bf16"), million)[0] == 8e6


def test_an_optimizer_on_the_host_holds_nothing_on_the_device():
    """bf16 weights 2 and fp32 gradients 4, and the 12 of Adam elsewhere."""
    at = setting("22B", offload_optimizer=True)
    weights, gradients, state = rank_bytes(at, np.array([1e9]), np.zeros(1))
    assert (weights[0], gradients[0], state[0]) == (2e9, 4e9, 0)


# Llama 3 8B, 8,192 tokens on one device, bf16: hidden 4,096, 32 heads of 128, 8 of keys, feed-forward of 14,336.
def kept_by_llama(**given):
    model = read_model("llama3-8b")
    layout = Layout(**{"sequence": 8192, "fused_kernels": True, "fused_attention": True, **given})
    at = Setting(model, cluster_of(read_hardware("h100"), layout.gpus), columns([layout], model.layers))
    return float(layer_bytes(at, model.last_kind)[0]) / 8192


def test_a_layer_of_llama_3_8b_keeps_125_kb_a_token():
    """Of each norm its input and result, queries, keys and values, the core's result, gate, up and their product."""
    norms, core, between = 4 * 4096, 4096 + 2 * 1024 + 4096, 3 * 14336
    assert kept_by_llama() == 2 * (norms + core + between)


@pytest.mark.parametrize(
    ("module", "freed"),
    [
        ("layernorm", 2 * 4096),  # their results
        ("mlp", 3 * 14336),
        ("core_attn", 0),  # flash attention keeps no scores anyway
        ("moe", 0),
        ("shared_experts", 0),
        ("mla_up_proj", 4096 + 2 * 1024),
        ("moe_act", 14336),  # the product of gate and up
    ],
)
def test_a_part_that_is_recomputed_by_itself_keeps_nothing(module, freed):
    kept = kept_by_llama(recompute="selective", recompute_modules=(module,))
    assert kept_by_llama() - kept == 2 * freed


def test_without_fused_kernels_the_activated_gate_is_kept_too():
    assert kept_by_llama(fused_kernels=False) - kept_by_llama() == 2 * 14336


def test_scores_without_dropout_are_the_softmax_alone():
    """32 heads of 8,192 scores of 2 bytes for each token; recomputing the core keeps none."""
    assert kept_by_llama(fused_attention=False) - kept_by_llama() == 2 * 32 * 8192
    again = {"recompute": "selective", "recompute_modules": ("core_attn",)}
    assert kept_by_llama(fused_attention=False, **again) == kept_by_llama()


def test_inputs_that_are_kept_gathered_are_whole_on_each_device_of_a_tensor_group():
    """Results of both norms, of which a device of 8 keeps an eighth otherwise."""
    cut, whole = (kept_by_llama(tensor=8, keep_gathered=kept) for kept in (False, True))
    assert whole - cut == pytest.approx(2 * 2 * 4096 * 7 / 8)


def test_latent_attention_keeps_what_it_compresses_on_each_device():
    """DeepSeek-V3: 1,536 of queries, 512 of keys and values, 64 of positions, not divided by 8 devices."""
    model = read_model("deepseek-v3")
    layouts = [Layout(sequence=4096, tensor=tensor) for tensor in (1, 8)]
    at = Setting(model, cluster_of(read_hardware("h100"), 8), columns(layouts, model.layers))
    one, eighth = layer_bytes(at, model.last_kind) / 4096
    compressed = 2 * (1536 + 512 + 64)
    assert eighth - compressed == pytest.approx((one - compressed) / 8)
