"""What ``plan --emit`` writes is read back by the reader of the same framework, says the same layout and is legal."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from debubble.frameworks.backends import BACKENDS
from debubble.frameworks.files import read_pairs
from debubble.frameworks.read import read_setup
from debubble.frameworks.setup import Sizes
from debubble.plan import Layout, even_split

SUFFIX = {
    "megatron": ".sh",
    "nemo": ".py",
    "deepspeed": ".json",
    "nanotron": ".yaml",
    "torchtitan": ".py",
    "torch": ".py",
}


@st.composite
def layouts(draw) -> Layout:
    pipeline, chunks = draw(st.sampled_from([2, 3, 4, 8])), draw(st.sampled_from([1, 1, 2]))
    layers = draw(st.integers(pipeline * chunks, 40))
    many = pipeline * draw(st.integers(1, 4))
    return Layout(
        tensor=draw(st.sampled_from([1, 2, 4])),
        pipeline=pipeline,
        data=draw(st.sampled_from([1, 2, 3])),
        chunks=chunks,
        micro_batch=draw(st.integers(1, 3)),
        microbatches=many,
        schedule="interleaved" if chunks > 1 else "1f1b",
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        layers=even_split(layers, pipeline * chunks),
    )


def written(name: str, layout: Layout, folder: Path):
    backend = BACKENDS[name]
    layers = sum(layout.layers)
    path = folder / f"emitted{SUFFIX[name]}"
    path.write_text(backend.emit(layout, Sizes(layers, layout.sequence)))
    pairs = read_pairs(path)
    known = [("layers", layers), ("data", layout.data)]
    return backend, read_setup(backend, known + pairs).setup


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(layout=layouts())
@pytest.mark.parametrize("name", ["megatron", "nemo"])
def test_megatron_flags_and_nemo_assignments_say_the_layout_and_are_legal(tmp_path, name, layout):
    backend, setup = written(name, layout, tmp_path)
    assert not list(backend.rules(setup))
    assert (setup.tensor, setup.pipeline, setup.flush) == (layout.tensor, layout.pipeline, layout.microbatches)
    assert backend.split(setup) == layout.layers
    assert backend.schedule(backend.settled(setup)) == layout.schedule


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(layout=layouts())
def test_nanotron_yaml_says_the_layout_and_is_legal(tmp_path, layout):
    backend, setup = written("nanotron", layout, tmp_path)
    assert not list(backend.rules(setup))
    degrees = (setup.tensor, setup.pipeline, setup.data, setup.microbatches, setup.micro_batch)
    assert degrees == (layout.tensor, layout.pipeline, layout.data, layout.microbatches, layout.micro_batch)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(layout=layouts())
def test_deepspeed_json_says_the_layout_and_is_legal(tmp_path, layout):
    backend, setup = written("deepspeed", layout, tmp_path)
    assert not list(backend.rules(setup))
    assert (setup.pipeline, setup.global_batch) == (layout.pipeline, layout.global_batch)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(layout=layouts())
def test_torchtitan_configuration_says_the_layout(tmp_path, layout):
    _, setup = written("torchtitan", layout, tmp_path)
    assert (setup.pipeline, setup.tensor, setup.microbatches) == (layout.pipeline, layout.tensor, layout.microbatches)
    assert setup.schedule == ("Interleaved1F1B" if layout.chunks > 1 else "1F1B")


def test_torchtitan_names_every_layer_once_and_the_ends_where_they_belong():
    layout = Layout(pipeline=2, layers=(2, 1), microbatches=4)
    text = BACKENDS["torchtitan"].emit(layout, Sizes(3, 4096))
    assert "['tok_embeddings', 'layers.0', 'layers.1']" in text
    assert "['layers.2', 'norm', 'lm_head']" in text


def test_a_schedule_that_torch_lacks_goes_through_its_csv():
    layout = Layout(pipeline=4, microbatches=8, schedule="zb-h1", layers=(1, 1, 1, 1))
    assert "_load_csv" in BACKENDS["torch"].emit(layout, Sizes(4, 4096))
    assert "DualPipeV" in BACKENDS["torch"].emit(Layout(pipeline=2, chunks=2, schedule="dualpipe-v"), Sizes(4, 4096))


def test_deepspeed_without_a_pipeline_keeps_its_zero_stage():
    document = json.loads(BACKENDS["deepspeed"].emit(Layout(data=4, zero=3), Sizes(4, 4096)))
    assert document["zero_optimization"] == {"stage": 3}
    assert "pipeline" not in document
