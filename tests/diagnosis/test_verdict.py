"""Arguments of two launches: what changed is listed, and suspects that they refute are struck out."""

import pytest

from debubble.config.config import Config
from debubble.diagnosis.verdict import CHECKS, change_sentences, changed_arguments, still_suspect, times

LAUNCH = {
    "framework": "megatron", "gpus": 8, "pipeline": 4, "data": 2, "tensor": 1, "chunks": 1, "layers": 32,
    "micro_batch": 1, "microbatches": 8, "global_batch": 16, "sequence": 2048, "recompute": "none",
}  # fmt: skip


def launch(own=None, **changed):
    return Config(**(LAUNCH | changed), own=own or {})


def suspects(a, b):
    return {each.split(":")[0].split(" that")[0].split(",")[0] for each in still_suspect(list(CHECKS), a, b)}


def test_a_micro_batch_that_grew_at_the_same_batch_says_what_it_does_to_m():
    (said,) = change_sentences(launch(), launch(micro_batch=2, microbatches=4))
    assert said == "What changed: micro-batch 1 -> 2 at the same global batch: m 8 -> 4."
    (said,) = change_sentences(launch(), launch(pipeline=8, data=1, microbatches=16))
    assert said == "What changed: pipeline 4 -> 8; data-parallel replicas 2 -> 1 at the same global batch: m 8 -> 16."
    (said,) = change_sentences(launch(), launch(global_batch=32, microbatches=16))
    assert said == "What changed: global batch 16 -> 32: m 8 -> 16."


def test_words_of_the_framework_count_but_not_where_or_what_it_learnt():
    a = launch({"overlap_p2p_comm": False, "save": "/a", "lr": "1e-4", "adam_beta1": ".9", "allreduce_fp32": True})
    b = launch({"overlap_p2p_comm": True, "save": "/b", "lr": "2e-4", "hidden_dropout": "0.1"})
    assert [str(each) for each in changed_arguments(a, b)] == [
        "allreduce_fp32 on -> -",
        "hidden_dropout - -> 0.1",
        "overlap_p2p_comm off -> on",
    ]


def test_the_same_arguments_are_said_and_nothing_is_said_of_runs_that_do_not_tell():
    assert change_sentences(launch(), launch()) == ["Both were launched with the same arguments."]
    assert change_sentences(launch(), launch(framework=None)) == []
    assert changed_arguments(launch(), launch(framework=None, pipeline=8)) == ()


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, set()),
        ({"micro_batch": 2, "microbatches": 4}, set()),
        ({"tensor": 2, "data": 1}, {"smaller kernels"}),
        ({"sequence": 1024}, {"smaller kernels"}),
        ({"pipeline": 8, "data": 1}, {"exposed hops", "unequal stages"}),
        ({"recompute": "full"}, {"recomputation"}),
        ({"global_batch": 8, "microbatches": 4}, {"a smaller batch"}),
    ],
)
def test_what_is_the_same_in_both_is_no_cause(changed, left):
    always = {"a slow rank", "slower GPUs"}
    assert suspects(launch(), launch(**changed)) == always | left


def test_without_arguments_every_suspect_stays():
    assert still_suspect(list(CHECKS), Config(), Config()) == list(CHECKS)


@pytest.mark.parametrize(("ratio", "words"), [(0.8154, "0.82"), (9.994, "9.99"), (12.345, "12.3"), (19.99, "20")])
def test_a_ratio_has_three_digits(ratio, words):
    assert times(ratio) == words
