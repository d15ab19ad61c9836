"""torchtitan, DeepSpeed and nanotron: rules, defaults, and how layers are dealt."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.config.config import Config
from debubble.frameworks.catalog import FRAMEWORKS
from debubble.frameworks.nanotron import NANOTRON, by_weight
from debubble.frameworks.torchtitan import TORCHTITAN
from debubble.planning.check import check


def laws(name: str, **said: object) -> set[str]:
    return set(FRAMEWORKS[name].broken(Config(**said)).laws)


@pytest.mark.parametrize(
    ("said", "law"),
    [
        # 30 layers and two ends in stages of 5 are 7 stages for 4 ranks
        ({"layers": 30, "pipeline": 4, "chunk_layers": 5}, "stages over ranks"),
        ({"layers": 30, "pipeline": 4, "chunk_layers": 8, "schedule": "Interleaved1F1B"}, "two stages a rank"),
        ({"layers": 30, "pipeline": 4, "chunk_layers": 4, "schedule": "1F1B"}, "stages a rank"),
        ({"layers": 2, "pipeline": 8}, "stages for layers"),
        ({"layers": 8, "pipeline": 4, "loss_layers": 4}, "weight of loss_layers"),
        ({"layers": 8, "pipeline": 4, "local_batch": 6, "micro_batch": 4}, "local batch"),
        ({"layers": 8, "pipeline": 4, "local_batch": 2}, "micro-batches for stages"),
        ({"layers": 8, "pipeline": 4, "schedule": "1F1"}, "schedule"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_torchtitan(said, law):
    assert law in laws("torchtitan", **said)


def test_torchtitan_deals_10_layers_and_its_two_ends_to_4_stages_as_2_3_3_2():
    assert TORCHTITAN.filled(Config(layers=10, pipeline=4)).split == (2, 3, 3, 2)


def test_torchtitan_gives_multi_stage_schedules_two_stages_a_rank():
    assert len(TORCHTITAN.filled(Config(layers=32, pipeline=4, schedule="Interleaved1F1B")).split) == 8


def test_deepspeed_refuses_zero_2_with_a_pipeline_alone():
    assert "zero" in laws("deepspeed", pipeline=2, zero=2)
    assert not laws("deepspeed", pipeline=1, zero=3)


def test_deepspeed_wants_batch_equal_micro_batch_x_accumulation_x_replicas():
    said = {"gpus": 8, "pipeline": 2, "micro_batch": 2}
    assert not laws("deepspeed", **said, microbatches=4, global_batch=32)
    assert "batch" in laws("deepspeed", **said, microbatches=4, global_batch=64)
    assert "batch" in laws("deepspeed", **said, global_batch=12)
    assert "a batch" in laws("deepspeed", gpus=8)


def test_nanotron_1f1b_takes_pp_minus_1_micro_batches_and_afab_takes_fewer():
    assert not laws("nanotron", pipeline=4, microbatches=3, schedule="1f1b")
    assert "micro-batches for ranks" in laws("nanotron", pipeline=4, microbatches=2, schedule="1f1b")
    assert not laws("nanotron", pipeline=4, microbatches=2, schedule="afab")


def test_nanotron_wants_a_key_value_head_for_each_device_of_a_tensor_group():
    assert "key-value heads" in laws("nanotron", tensor=8, heads=32, kv_heads=4)


def test_nemo_says_megatrons_rules_in_its_own_words():
    nemo, megatron = FRAMEWORKS["nemo"], FRAMEWORKS["megatron"]
    said = Config(layers=30, pipeline=4, chunks=2, microbatches=10)
    assert [b.law for b in nemo.broken(said).faults] == [b.law for b in megatron.broken(said).faults]
    texts = [str(fault) for fault in check(nemo, Config(layers=30, pipeline=4)).faults]
    assert texts
    assert all("num_layers_in_first_pipeline_stage" in text and "--" not in text for text in texts)


def test_every_backend_says_from_which_version_its_rules_were_read():
    assert all("@" in backend.version or "torch 2." in backend.version for backend in FRAMEWORKS.values())


@given(layers=st.integers(1, 100), ranks=st.integers(1, 16), layer=st.integers(1, 50), head=st.integers(0, 200))
def test_nanotron_fills_a_stage_once_the_running_weight_passes_its_share(layers, ranks, layer, head):
    """Layer i lies on as many stages as have shares below the weight of the i - 1 layers before it."""
    whole, share = layers * layer + head, Fraction(layers * layer + head, ranks)
    if share < layer:  # a stage cannot be skipped, however small its share
        return
    stage = [max(-(-Fraction(i * layer) // share) - 1, 0) for i in range(layers)]
    after = max(-(-Fraction(layers * layer) // share) - 1, 0)
    found = by_weight(layers, ranks, layer=layer, head=head)
    if any(whole * (s + 1) % ranks == 0 and whole * (s + 1) // ranks % layer == 0 for s in range(ranks)):
        return  # a share that a running weight meets exactly hangs on how a third is rounded
    assert found == (tuple(stage.count(n) for n in range(ranks)) if after == ranks - 1 else None)


def test_nanotron_leaves_a_heavy_head_fewer_layers_by_its_own_count():
    """Llama 3 8B: a head of 128,256 x 4,096 weighs as much as 2.16 layers of 4 h^2 + 3 h f."""
    sizes = Config(layers=32, sequence=8192, hidden=4096, ffn=14336, vocab=128256)
    assert NANOTRON.deals is not None
    assert NANOTRON.deals(sizes, 4) == ((9, 9, 8, 6),)


def test_nanotron_whose_head_outweighs_its_layers_would_leave_ranks_empty():
    setup = Config(pipeline=4, layers=8, hidden=512, ffn=1024, vocab=200_000)
    assert "full stages" in NANOTRON.broken(setup).laws


@pytest.mark.parametrize(
    ("name", "tensor_of_experts", "expert", "legal"),
    [
        ("megatron", None, 16, False),  # each expert on all 8 devices of the tensor group
        ("megatron", 1, 16, True),
        ("megatron", 1, 64, False),
        ("nemo", 2, 8, True),
        ("torchtitan", None, 16, True),  # borrowed from data, context and tensor groups
        ("nanotron", None, 16, True),
        ("nanotron", 8, 16, False),
    ],
)
def test_experts_spread_over_the_devices_of_a_stage_by_their_own_tensor_degree(name, tensor_of_experts, expert, legal):
    """128 devices, TP 8, PP 8, so DP 2: recipes of DeepSeek-V3's kind spread experts further than the replicas."""
    setup = Config(gpus=128, tensor=8, pipeline=8, experts=64, expert=expert, expert_tensor=tensor_of_experts)
    assert ("expert devices" not in FRAMEWORKS[name].broken(setup).laws) == legal
