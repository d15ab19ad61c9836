"""torchtitan, DeepSpeed and nanotron: rules, defaults, and how layers are dealt."""

import pytest

from debubble.frameworks.backends import BACKENDS
from debubble.frameworks.setup import Setup
from debubble.frameworks.torchtitan import dealt
from debubble.planning.check import check


def laws(name: str, **said: object) -> set[str]:
    return {breach.law for breach in BACKENDS[name].rules(Setup(**said))}


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
    assert dealt(Setup(layers=10, pipeline=4)) == (2, 3, 3, 2)


def test_torchtitan_gives_multi_stage_schedules_two_stages_a_rank():
    assert len(dealt(Setup(layers=32, pipeline=4, schedule="Interleaved1F1B"))) == 8


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
    nemo, megatron = BACKENDS["nemo"], BACKENDS["megatron"]
    said = Setup(layers=30, pipeline=4, chunks=2, microbatches=10)
    assert [b.law for b in nemo.rules(said)] == [b.law for b in megatron.rules(said)]
    texts = [str(fault) for fault in check(nemo, Setup(layers=30, pipeline=4)).faults]
    assert texts
    assert all("num_layers_in_first_pipeline_stage" in text and "--" not in text for text in texts)


def test_every_backend_says_from_which_version_its_rules_were_read():
    assert all("@" in backend.version or "torch 2." in backend.version for backend in BACKENDS.values())
