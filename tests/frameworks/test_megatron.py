"""Megatron-LM's rules: uneven ends, chunks, groups of micro-batches, layout strings, batch growth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.config.config import Config
from debubble.core.errors import InputError
from debubble.core.schedule import Shape
from debubble.frameworks.megatron import MEGATRON
from debubble.frameworks.megatron_stages import LONGEST, layout_breaches, read_layout, write_layout
from debubble.schedules.catalog import build


def laws(**said: object) -> set[str]:
    return set(MEGATRON.broken(Config(**said)).laws)


@given(st.integers(2, 6), st.integers(1, 30), st.integers(2, 3), st.none() | st.integers(1, 30))
def test_interleaving_is_legal_exactly_where_the_schedule_can_be_built(p, m, v, group):
    try:
        build("interleaved", Shape(p, m, v, group=group))
        legal = True
    except InputError:
        legal = False
    assert (not laws(pipeline=p, chunks=v, microbatches=m, group=group)) == legal


@given(st.integers(1, 80), st.integers(1, 8), st.integers(1, 4), st.booleans(), st.booleans())
def test_a_legal_even_split_holds_every_layer_and_gives_all_units_alike(layers, p, v, embedding, loss):
    said = Config(layers=layers, pipeline=p, chunks=v, embedding_layers=int(embedding), loss_layers=int(loss))
    if MEGATRON.broken(said).faults:
        return
    stages = MEGATRON.filled(said).split
    units = list(stages)
    units[0] += embedding
    units[-1] += loss
    assert sum(stages) == layers
    assert len(set(units)) == 1


@given(st.integers(3, 80), st.integers(3, 8), st.integers(1, 3))
def test_the_uneven_ends_that_a_fault_offers_are_legal(layers, p, v):
    offered = [
        b.remedy for b in MEGATRON.broken(Config(layers=layers, pipeline=p, chunks=v)).faults if b.law == "even ranks"
    ]
    for text in (way for remedy in offered for way in remedy.split("; ") if way):
        if text.startswith("uneven ends"):
            first, last = (int(word) for word in text.split() if word.isdecimal())
            assert not laws(layers=layers, pipeline=p, chunks=v, first=first, last=last)
        elif text.startswith("<layout>"):
            assert not laws(layers=layers, pipeline=p, layout=text.split("'")[1])
        else:
            assert not laws(layers=layers, pipeline=p, chunks=v, embedding_layers=1, loss_layers=1)


@pytest.mark.parametrize(
    ("said", "law"),
    [
        ({"gpus": 30, "tensor": 4}, "devices"),
        ({"gpus": 16, "tensor": 4, "data": 3}, "devices"),
        ({"chunks": 2, "chunk_layers": 2, "pipeline": 2, "layers": 8}, "one way to chunk"),
        ({"first": 3, "layers": 12, "pipeline": 4, "embedding_layers": 1}, "first with embedding_layers"),
        ({"first": 3, "last": 3, "layers": 13, "pipeline": 4}, "middle over ranks"),
        ({"first": 3, "last": 3, "layers": 12, "pipeline": 4, "chunks": 2}, "first over chunks"),
        ({"layers": 24, "pipeline": 4, "chunks": 4}, "even chunks"),
        ({"layers": 24, "pipeline": 4, "chunk_layers": 4}, "even chunks"),
        ({"chunks": 2, "pipeline": 1}, "ranks of interleaving"),
        ({"heads": 12, "tensor": 8}, "heads"),
        ({"kv_heads": 6, "tensor": 4}, "key-value heads"),
        ({"experts": 60, "expert": 8}, "experts"),
        ({"gpus": 12, "expert": 8, "experts": 64}, "expert devices"),
        ({"gpus": 24, "tensor": 2, "expert_tensor": 5, "experts": 8}, "expert devices"),
        ({"tensor": 2, "experts": 8}, "experts with sequence parallelism"),
        ({"tensor": 2, "expert": 2}, "experts with sequence parallelism"),
        ({"sequence": 4100, "context": 4}, "context"),
        ({"data": 8, "micro_batch": 2, "rampup": (24, 16, 1000)}, "growth by whole micro-batches"),
        ({"data": 8, "micro_batch": 2, "rampup": (32, 32, 1000), "global_batch": 144}, "growth arrives"),
        ({"pipeline": 0}, "size of pipeline"),
        ({"pattern": "M-M-|M*M-|M-M-", "pipeline": 2}, "pattern stages"),
        ({"pattern": "M-M-|M*M-", "pipeline": 2, "chunks": 2}, "pattern alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule_is_found_by_its_name(said, law):
    assert law in laws(**said)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("ckpt_format", "torch_dcp"),
        ("use_torch_fsdp2", True),
        ("cpu_offloading", True),
        ("hybrid_context_parallel", True),
    ],
)
def test_what_does_not_go_with_a_pipeline_is_legal_without_one(flag, value):
    assert flag in laws(pipeline=2, own={flag: value})
    assert not laws(pipeline=1, own={flag: value})


def test_interleaving_without_overlap_needs_3_ranks():
    alone = {"overlap_p2p_comm": False}
    assert "ranks of interleaving" in laws(pipeline=2, chunks=2, own=alone)
    assert not laws(pipeline=3, chunks=2, own=alone)


def test_all_faults_come_at_once():
    found = laws(gpus=30, tensor=8, pipeline=3, layers=31, heads=12, global_batch=5)
    assert {"devices", "even ranks", "heads"} <= found


@given(st.lists(st.integers(0, 9), min_size=2, max_size=12).filter(any))
def test_a_written_layout_reads_back_as_the_same_split(split_):
    stages = read_layout(write_layout(tuple(split_)), 1)
    assert [stage.count("t") for stage in stages.stages] == split_
    assert not list(layout_breaches(stages, sum(split_), 0))


@pytest.mark.parametrize(
    ("text", "law"),
    [
        ("t|tL", "layout: one E"),
        ("Et|t", "layout: one L"),
        ("Et|tt|L", "layout: stages"),
        ("Et|tL", "layout: count of t"),
        ("Em|tttL", "layout: m behind t"),
        ("Ettt|mm|m|L", "layout: m together"),
        ("Et|ttm|t|L", "layout: m in the last chunk"),
    ],
)
def test_each_rule_of_layouts(text, law):
    assert law in laws(layout=text, pipeline=2, layers=3)


def test_a_layout_that_would_not_end_is_refused_by_its_length():
    with pytest.raises(InputError, match="letters"):
        read_layout("E(t*99999|)*99999L", 4)
    assert LONGEST < 10**6


def test_a_strange_letter_is_named():
    assert "no layout has x" in MEGATRON.broken(Config(layout="Ex|tL", pipeline=2)).faults[0].rule


@pytest.mark.parametrize("said", [{"tensor": 1, "experts": 8}, {"tensor": 2}, {"tensor": 2, "experts": 1}])
def test_a_tensor_group_or_experts_alone_need_no_sequence_parallelism(said):
    assert not laws(**said)


def test_experts_on_a_tensor_group_are_legal_once_its_sequence_parallelism_is_on():
    assert not laws(tensor=2, experts=8, expert=2, gpus=8, sequence_parallel=True)
