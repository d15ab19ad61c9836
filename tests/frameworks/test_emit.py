"""What ``plan --emit`` writes is read back by the reader of the same framework, says the same layout and is legal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from debubble.config.config import Config, Layout, even_split
from debubble.frameworks.catalog import FRAMEWORKS, read_file
from debubble.frameworks.framework import Framework
from debubble.frameworks.keys import Said, read_config
from debubble.planning.batch import unlaunchable, unsuited
from debubble.planning.check import check

SUFFIX = {"deepspeed": ".json", "nanotron": ".yaml", "primus": ".yaml", "accelerate": ".yaml"}
SUFFIX |= dict.fromkeys(("megatron", "swift", "slime", "verl", "maxtext"), ".sh")
OF_ALL = ("pipeline", "data", "chunks", "micro_batch", "microbatches", "schedule", "layers")
EXPERTS = ("expert", "expert_shards")
MEGATRONS = ("tensor", "context", *EXPERTS, "recompute", "recompute_layers", "zero", "overlap", "overlap_gather")
# What each framework has words for; the rest is the user's own code.
WORDS = {
    "megatron": (*MEGATRONS, "sequence", "tensor_overlap", "sequence_parallel"),
    "nemo": (*MEGATRONS, "sequence", "tensor_overlap", "sequence_parallel"),
    "torchtitan": ("tensor", "context", "zero", *EXPERTS, "recompute", "sequence", "sequence_parallel"),
    "torch": ("tensor", "context", *EXPERTS),
    "deepspeed": ("recompute", "zero"),
    "swift": ("tensor", "context", *EXPERTS, "recompute", "recompute_layers"),
    "slime": (*MEGATRONS, "sequence", "tensor_overlap", "sequence_parallel"),
    "verl": ("tensor", "context", *EXPERTS, "recompute", "recompute_layers"),
    "primus": ("tensor", "context", *EXPERTS, "recompute", "recompute_layers"),
    "accelerate": ("tensor", "context", *EXPERTS),
    "internevo": ("tensor", "sequence"),
    "maxtext": ("tensor", "context", "sequence"),
    "nanotron": ("tensor", "context", *EXPERTS, "recompute", "zero", "sequence"),
}
WHOLE_LAYERS = ("torch", "deepspeed", "nanotron", "internevo")  # recompute all of a layer or nothing
HIDDEN, FFN, VOCAB = 4096, 14336, 128256


@st.composite
def launches(draw, backend: Framework) -> tuple[Layout, Config]:
    """A layout of what the framework has words for, the rest as it is without a word, and its model."""
    schedule = draw(st.sampled_from(backend.schedules))
    pipeline = draw(st.sampled_from([2, 3, 4, 8]))
    chunks = {"zb-v": 2, "dualpipe-v": 2}.get(schedule, draw(st.sampled_from([1, 2, 3])))
    chunks = max(chunks, 2) if schedule in ("interleaved", "looped-bfs", "interleaved-zb") else chunks
    chunks = 1 if schedule in ("1f1b", "gpipe") else chunks
    layers = draw(st.integers(pipeline * chunks, 40))
    following = draw(st.sampled_from([None, None, 1]))
    sizes = Config(layers=layers, sequence=8192, experts=64, next_layers=following, hidden=HIDDEN, ffn=FFN, vocab=VOCAB)
    words = WORDS[backend.name]
    some = draw(st.sampled_from([None, None, 1, 2])) if "recompute_layers" in words else None
    kept = ["none", "full"] if backend.name in WHOLE_LAYERS else ["none", "selective", "full"]
    switches = {
        "tensor": [1, 2, 4],
        "context": [1, 1, 2],
        "expert": [1, 1, 2, 4],
        "recompute": ["full"] if some else kept,
        "zero": [0, 1],
        "overlap": [False, True],
        "overlap_gather": [False, True],
        "tensor_overlap": [False, True],
    }
    layout = Layout(
        **{name: draw(st.sampled_from(values)) for name, values in switches.items() if name in words},
        pipeline=pipeline,
        data=draw(st.sampled_from([1, 2, 4])),
        expert_tensor=draw(st.sampled_from([0, 1, 1, 2])) if "expert_shards" in words else 1,
        chunks=chunks,
        micro_batch=draw(st.integers(1, 3)),
        microbatches=draw(st.integers(1, 4 * pipeline)),
        sequence=8192,
        schedule=schedule,
        recompute_layers=some,
        layers=draw(st.sampled_from(splits(backend, sizes, pipeline * chunks))),
    )
    return layout, sizes


def splits(backend: Framework, sizes: Config, stages: int) -> list[tuple[int, ...]]:
    if backend.deals:
        return list(backend.deals(sizes, stages)) or [()]
    even = even_split(sizes.layers, stages)
    lighter = (*even_split(sizes.layers - even[-1] + 1, stages - 1), even[-1] - 1)
    return [even, lighter, tuple(reversed(even))]


def read_back(backend: Framework, layout: Layout, sizes: Config, folder: Path):
    """What is pasted, with what the command line of ``check`` brings: devices, and of the model its sizes."""
    path = folder / f"emitted{SUFFIX.get(backend.name, '.py')}"
    path.write_text(backend.emit(layout, sizes))
    model = {"layers": sizes.layers, "experts": sizes.experts, "hidden": HIDDEN, "ffn": FFN, "vocab": VOCAB}
    said = {"gpus": layout.gpus, "micro_batch": layout.micro_batch}
    said |= {name: getattr(layout, name) for name in ("tensor", "context") if name not in WORDS[backend.name]}
    given = [Said(name, value) for name, value in {**model, **said}.items()]
    return read_config(backend, [*given, *read_file(path)[0].pairs])


def comparable(backend: Framework, layout: Layout) -> dict:
    found = {name: getattr(layout, name) for name in (*OF_ALL, *WORDS[backend.name])}
    if "sequence_parallel" in found:
        found["sequence_parallel"] &= layout.tensor > 1
    if "tensor_overlap" in found:
        found["tensor_overlap"] &= layout.tensor > 1  # there is nothing to overlap
    if "overlap_gather" in found:
        found["overlap_gather"] &= layout.zero > 0
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
@settings(suppress_health_check=list(HealthCheck), max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_emitted_is_legal_and_read_back_as_the_same_layout(tmp_path, name, data):
    backend = FRAMEWORKS[name]
    layout, sizes = data.draw(launches(backend))
    shape = (layout.schedule, layout.pipeline, layout.microbatches, layout.chunks)
    assume(not backend.lacking(layout, sizes) and not unsuited(*shape))
    assume(not unlaunchable(name, *shape, zero=layout.zero))
    assume(layout.tensor * layout.data * layout.context % (layout.expert * layout.expert_shards) == 0)
    assume(name != "internevo" or layout.chunks == 1 or sizes.layers % layout.stages == 0)
    setup = read_back(backend, layout, sizes, tmp_path)
    assert [str(fault) for fault in check(backend, setup).faults] == []
    again = backend.layout(setup)
    assert comparable(backend, replace(again, layers=again.split(sizes.layers))) == comparable(backend, layout)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_replicas_share_out_without_a_pipeline_is_emitted_for_torchtitan_and_read_back(tmp_path, zero):
    layout, sizes = (
        Layout(data=8, micro_batch=1, microbatches=4, zero=zero, overlap_gather=True),
        Config(layers=32, sequence=8192),
    )
    told = FRAMEWORKS["torchtitan"].lacking(layout, sizes)
    again = FRAMEWORKS["torchtitan"].layout(read_back(FRAMEWORKS["torchtitan"], layout, sizes, tmp_path))
    if zero == 1:
        assert told == ("torchtitan shares a model out as ZeRO-3 or ZeRO-2 does, not as ZeRO-1",)
    else:
        assert (told, again.zero) == ((), zero)


@pytest.mark.parametrize("name", ["deepspeed", "nanotron"])
def test_an_uneven_split_that_a_framework_does_not_take_is_said_with_what_it_deals(name):
    layout = Layout(pipeline=4, microbatches=8, layers=(10, 8, 8, 4))
    (clause,) = FRAMEWORKS[name].lacking(layout, Config(layers=30, sequence=4096, hidden=HIDDEN, ffn=FFN, vocab=VOCAB))
    dealt = {"deepspeed": "8,8,7,7 or 7,8,8,7", "nanotron": "9,8,8,5"}[name]
    assert f"deals layers by itself ({dealt}), not 10,8,8,4" in clause


def test_everything_that_a_framework_has_no_words_for_is_said():
    layout = Layout(pipeline=4, context=2, expert=2, microbatches=8, schedule="zb-h1", recompute_layers=1, zero=3)
    said = " ".join(FRAMEWORKS["deepspeed"].lacking(layout, Config(layers=32, sequence=4096)))
    for words in (
        "no schedule zb-h1",
        "no context parallelism",
        "no expert parallelism",
        "every layer of a stage or none",
    ):
        assert words in said
    assert "not ZeRO-3" in " ".join(FRAMEWORKS["megatron"].lacking(layout, Config(layers=32, sequence=4096)))
    assert "each expert whole" in " ".join(
        FRAMEWORKS["torchtitan"].lacking(Layout(tensor=2), Config(layers=32, sequence=4096, experts=8))
    )
    assert (
        "a layer on each stage"
        in FRAMEWORKS["torch"].lacking(replace(layout, layers=(16, 8, 8, 0)), Config(layers=32, sequence=4))[-1]
    )


def test_layers_that_predict_further_tokens_stand_before_the_loss():
    layout = Layout(pipeline=2, microbatches=4, layers=(2, 1))
    text = FRAMEWORKS["megatron"].emit(layout, Config(layers=3, sequence=4096, next_layers=1))
    assert "--mtp-num-layers 1" in text
    assert "'Et*2|tmL'" in text


def test_torchtitan_names_every_layer_once_and_the_ends_where_they_belong():
    layout = Layout(pipeline=2, layers=(2, 1), microbatches=4)
    text = FRAMEWORKS["torchtitan"].emit(layout, Config(layers=3, sequence=4096))
    assert "['tok_embeddings', 'layers.0', 'layers.1']" in text
    assert "['layers.2', 'norm', 'lm_head']" in text


def test_a_schedule_that_torch_lacks_goes_through_its_csv():
    layout = Layout(pipeline=4, microbatches=8, schedule="zb-h1", layers=(1, 1, 1, 1))
    assert "_load_csv" in FRAMEWORKS["torch"].emit(layout, Config(layers=4, sequence=4096))
    assert "DualPipeV" in FRAMEWORKS["torch"].emit(
        Layout(pipeline=2, chunks=2, schedule="dualpipe-v"), Config(layers=4, sequence=4096)
    )


def test_deepspeed_without_a_pipeline_keeps_its_zero_stage():
    document = json.loads(FRAMEWORKS["deepspeed"].emit(Layout(data=4, zero=3), Config(layers=4, sequence=4096)))
    assert document["zero_optimization"] == {"stage": 3}
    assert "pipeline" not in document


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_every_text_names_its_release_its_batch_and_how_it_is_launched(name):
    layout = Layout(tensor=4, pipeline=4, data=2, micro_batch=2, microbatches=8, layers=(8,) * 4, recompute="full")
    text = FRAMEWORKS[name].emit(layout, Config(layers=32, sequence=8192, hidden=HIDDEN, ffn=FFN, vocab=VOCAB))
    assert "global batch 32: 8 micro-batches of 2 on each of 2 replicas" in text
    assert FRAMEWORKS[name].version.split(",")[0] in text
    # 32 devices: four nodes of eight, or, where a scheduler starts the program, their number.
    ways = ("--nnodes 4 --nproc-per-node 8", "--num_nodes 4 --num_gpus 8", "NPROC_PER_NODE=8 NNODES=4", "32 devices")
    ways += ("--actor-num-nodes 4", "trainer.nnodes=4", "num_processes: 32")
    assert any(way in text for way in ways)
