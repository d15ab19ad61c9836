"""``plan`` under the engine of the framework that is to launch: what a slow link costs depends on who waits for it."""

import pytest

import debubble

ASKED = {
    "model": "llama3-8b",
    "gpu": "h100",
    "gpus": 16,
    "global_batch": 32,
    "tensor": 4,
    "micro_batch": 1,
    "schedule": "1f1b,interleaved",
    "recompute": "none",
    "top": 50,
}
SLOW_LINK = "0.1ms,1-2=20ms"


def planned(transfer, framework=None):
    named = {} if framework is None else {"framework": framework}
    return debubble.plan(**ASKED, pipeline=4, transfer=transfer, **named).candidates


def steps(candidates):
    return {(one.schedule, one.chunks, one.layers): one.step_ms for one in candidates}


def test_one_slow_link_turns_the_ranking_where_sends_keep_their_ranks():
    """Interleaved meets the link once a chunk: hidden if hops keep nobody, waited for by Megatron-LM's own batches."""
    ideal, megatron = planned(SLOW_LINK), planned(SLOW_LINK, "megatron")
    assert (ideal[0].schedule, ideal[0].engine) == ("interleaved", "ideal")
    assert (megatron[0].schedule, megatron[0].engine) == ("1f1b", "megatron")
    before, under = steps(ideal), steps(megatron)
    both = before.keys() & under.keys()
    assert len(both) >= 4
    assert all(under[key] > before[key] for key in both)


def test_free_hops_keep_nobody_whatever_the_engine():
    free, under = steps(planned("0")), steps(planned("0", "megatron"))
    both = free.keys() & under.keys()
    assert len(both) >= 4
    assert {key: free[key] for key in both} == {key: under[key] for key in both}


def test_the_engine_is_that_of_the_framework_and_of_its_chunks():
    found = {(one.schedule, one.engine) for one in planned(None, "megatron")}
    assert found == {("1f1b", "megatron"), ("interleaved", "megatron-overlap")}


def test_links_are_named_by_the_ranks_of_one_pipeline():
    with pytest.raises(debubble.InputError, match="ranks of one pipeline; give --pipeline"):
        debubble.plan(**ASKED, transfer=SLOW_LINK)


def test_a_stated_hop_is_part_of_the_command_that_comes_next():
    found = debubble.plan(**ASKED, pipeline=4, transfer=SLOW_LINK)
    assert f"--transfer {SLOW_LINK}" in found.next


def test_an_even_pipeline_of_two_ranks_pays_a_hop_twice_a_micro_batch():
    """1F1B on two ranks with one micro-batch: F, hop, F, B, hop, B, under any engine."""
    asked = ASKED | {"gpus": 8, "global_batch": 1, "schedule": "1f1b"}
    free, hop = (
        debubble.plan(**asked, pipeline=2, transfer=each, framework="megatron").candidates[0] for each in ("0", "7ms")
    )
    assert hop.step_ms - free.step_ms == pytest.approx(14, abs=1e-5)
