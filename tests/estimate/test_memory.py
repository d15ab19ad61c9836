"""Activation and state bytes against the formulas of Korthikanti et al. and of Megatron-LM's optimizer."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.memory import (
    StageLayers,
    beside_bytes,
    input_bytes,
    layer_bytes,
    logits_bytes,
    rank_bytes,
    stage_parameters,
)
from debubble.estimate.model import Experts, transformer
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
