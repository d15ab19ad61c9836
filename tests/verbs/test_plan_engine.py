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


def planned(transfer, framework=None, **more):
    named = {} if framework is None else {"framework": framework}
    return debubble.plan(**ASKED, pipeline=4, transfer=transfer, **named, **more).candidates


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


def test_an_engine_that_is_named_counts_and_not_that_of_the_framework():
    found = planned(SLOW_LINK, "torchtitan", engine="megatron")
    assert {one.engine for one in found if one.schedule == "1f1b"} == {"megatron"}
    ideal, own = planned(SLOW_LINK, "megatron", engine="ideal"), planned(SLOW_LINK, "megatron")
    assert {one.engine for one in ideal} == {"ideal"}
    before, under = steps(ideal), steps(own)
    assert all(under[key] > before[key] for key in before.keys() & under.keys())


def test_an_even_pipeline_of_two_ranks_pays_a_hop_as_the_named_engine_makes_it():
    """F, hop, F, B, hop, B: with one micro-batch no engine can hide a hop, and none adds to it."""
    asked = ASKED | {"gpus": 8, "global_batch": 1, "schedule": "1f1b"}
    for engine in ("torch-1f1b", "deepspeed", "zero-bubble"):
        free, hop = (
            debubble.plan(**asked, pipeline=2, transfer=each, engine=engine).candidates[0] for each in ("0", "7ms")
        )
        assert hop.engine == engine
        assert hop.step_ms - free.step_ms == pytest.approx(14, abs=1e-5)


def test_what_an_engine_cannot_run_is_simulated_under_what_would_be_used_and_that_is_said():
    found = debubble.plan(**ASKED | {"schedule": "1f1b"}, pipeline=4, transfer=SLOW_LINK, engine="megatron-overlap")
    assert found.candidates[0].engine == "megatron"
    assert "The engine megatron-overlap cannot run 1f1b: megatron would be used instead." in str(found)


def test_an_unknown_engine_and_one_without_a_model_are_refused():
    with pytest.raises(debubble.InputError, match="did you mean megatron"):
        debubble.plan(**ASKED, engine="megatrom")
    with pytest.raises(debubble.InputError, match="engine: it needs --model"):
        debubble.plan(gpus=16, pipeline=4, global_batch=32, engine="megatron")


def test_one_hop_for_each_boundary_says_how_many_chunks_are_tried():
    """p v - 1 values: three for four stages, seven for eight; as text and as a list they are the same."""
    asked = ASKED | {"schedule": "1f1b,zb-h1,interleaved,zb-v"}
    one = debubble.plan(**asked, pipeline=4, transfer=[1, 20, 1])
    assert {each.chunks for each in one.candidates} == {1}
    assert [each.step_ms for each in one.candidates] == [
        each.step_ms for each in debubble.plan(**asked, pipeline=4, transfer="1,20,1").candidates
    ]
    two = debubble.plan(**asked, pipeline=4, transfer=[1, 1, 1, 20, 1, 1, 1])
    assert {each.chunks for each in two.candidates} == {2}
    with pytest.raises(debubble.InputError, match="2 values: 4 ranks have 3 boundaries with one chunk each, 7 with"):
        debubble.plan(**asked, pipeline=4, transfer=[1, 2])
    with pytest.raises(debubble.InputError, match="chunks = 2: transfer has 3 values"):
        debubble.plan(**asked, pipeline=4, chunks=2, transfer=[1, 2, 3])


def test_a_link_is_named_by_numbers():
    with pytest.raises(debubble.InputError, match="a-b=4: a link is two ranks, by their numbers; write it as in 6-7"):
        debubble.show("1f1b", ranks=4, microbatches=8, transfer="a-b=4")


def test_show_takes_hops_as_a_list():
    listed, text = (
        debubble.show("1f1b", ranks=4, microbatches=8, transfer=each).makespan_ms for each in ([1, 2, 3], "1,2,3")
    )
    assert listed == text
