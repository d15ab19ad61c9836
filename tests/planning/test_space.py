"""The space of layouts: each is legal by the framework's own rules, holds every layer, and uses every device once."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.config.config import Config, Layout, even_split
from debubble.config.plan import Question
from debubble.core.errors import InputError
from debubble.core.schedule import Shape
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.frameworks.catalog import FRAMEWORKS
from debubble.frameworks.torch_pipelining import SCHEDULES
from debubble.planning.batch import chunks_of, sizes_of, unlaunchable, unsuited
from debubble.planning.search import space
from debubble.planning.splits import candidate_splits, head_in_layers, lighter_end, lighter_start
from debubble.schedules.catalog import CATALOG, build

pytestmark = pytest.mark.slow

H100 = read_hardware("h100")


def asked_of(gpus: int, batch: int, *, schedules=(), framework=None, base=None, **tries) -> Question:
    fixed = Config(gpus=gpus, global_batch=batch, framework=framework)
    return Question(fixed, tries, schedules, base or Layout())


def layouts_of(model: str, gpus: int, batch: int, **asked) -> list[Layout]:
    found = space(read_model(model), cluster_of(H100, gpus), asked_of(gpus, batch, **asked))
    return [found.layout(row) for row in range(len(found))]


def setup_of(layout: Layout, model) -> Config:
    return Config(
        gpus=layout.gpus,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        context=layout.context,
        expert=layout.expert,
        expert_tensor=layout.expert_shards,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        experts=model.experts.count if model.experts else None,
        sequence=layout.sequence,
        micro_batch=layout.micro_batch,
        global_batch=layout.global_batch,
        sequence_parallel=layout.sequence_parallel,
    )


@pytest.mark.parametrize(
    ("model", "gpus", "batch"), [("llama3-8b", 16, 48), ("mixtral-8x7b", 32, 64), ("gpt3-175b", 64, 60)]
)
def test_every_layout_is_legal_uses_every_device_and_trains_the_batch(model, gpus, batch):
    shape = read_model(model)
    for layout in layouts_of(model, gpus, batch, base=Layout(sequence=8192)):
        assert (layout.gpus, layout.global_batch, sum(layout.layers)) == (gpus, batch, shape.layers)
        assert len(layout.layers) == layout.pipeline * layout.chunks
        said = setup_of(layout, shape)
        even = len(set(layout.layers)) == 1
        if layout.schedule in ("1f1b", "interleaved") and even:
            chunked = said.changed(chunks=layout.chunks if layout.chunks > 1 else None)
            assert not FRAMEWORKS["megatron"].broken(chunked).faults, layout


def test_layouts_of_torchs_schedules_are_ones_that_torch_takes():
    names = ("zb-v", "interleaved", "dualpipe-v")
    for layout in layouts_of("llama3-8b", 8, 48, schedules=names):
        if layout.pipeline > 1:
            said = Config(
                pipeline=layout.pipeline,
                chunks=layout.chunks,
                microbatches=layout.microbatches,
                schedule=SCHEDULES[layout.schedule][0],
            )
            assert not FRAMEWORKS["torch"].broken(said).faults, layout


def test_no_layout_comes_twice():
    found = layouts_of("llama3-8b", 16, 32)
    assert len(set(found)) == len(found)


def test_what_is_fixed_stays_fixed():
    found = layouts_of(
        "llama3-70b", 64, 64, tensor=(8,), pipeline=(4,), data=(2,), micro_batch=(1, 2), schedules=("1f1b",)
    )
    assert {(f.tensor, f.pipeline, f.data, f.schedule) for f in found} == {(8, 4, 2, "1f1b")}
    assert {f.micro_batch for f in found} == {1, 2}


def test_each_family_lists_recomputation_from_none_to_all():
    found = space(
        read_model("llama3-8b"),
        cluster_of(H100, 8),
        Question(Config(gpus=8, global_batch=16), {"tensor": (1,), "pipeline": (2,), "micro_batch": (1,)}),
    )
    rows = [found.layout(row) for row in range(len(found)) if found.family[row] == 0]
    assert [(r.recompute, r.recompute_layers) for r in rows] == [
        ("none", None),
        ("full", 4),
        ("full", 8),
        ("full", 12),
        ("full", None),
    ]


def test_what_falls_out_is_counted_by_reason():
    found = space(read_model("llama3-8b"), cluster_of(H100, 24), Question(Config(gpus=24, global_batch=24)))
    reasons = {one.reason for one in found.rejected}
    assert "tensor 3 does not share 32 heads without rest" in reasons
    assert any("interleaved takes micro-batches in groups" in reason for reason in reasons)


def test_a_batch_that_does_not_divide_names_the_nearest_that_does():
    found = space(
        read_model("llama3-8b"),
        cluster_of(H100, 16),
        Question(Config(gpus=16, global_batch=30), {"tensor": (1,), "pipeline": (1,)}),
    )
    assert len(found) == 0
    assert found.rejected[0].reason == "a global batch of 30 does not divide over 16 replicas; nearest 16 or 32"


@given(st.integers(1, 100), st.integers(1, 16), st.floats(0, 6))
def test_the_lighter_end_is_the_best_of_all_ends(layers, stages, head):
    if stages > layers:
        return
    split = lighter_end(layers, stages, head)
    assert (sum(split), len(split)) == (layers, stages)
    loads = (
        [max([*even_split(layers - last, stages - 1), last + head]) for last in range(layers // stages + 1)]
        if stages > 1
        else [layers]
    )
    assert max([*split[:-1], split[-1] + (head if stages > 1 else 0)]) == pytest.approx(min(loads))


@pytest.mark.parametrize(
    ("model", "layers"), [("llama3-8b", 2.1), ("llama3-70b", 1.1), ("llama3-405b", 0.6), ("gpt3-175b", 0.3)]
)
def test_published_head_cost_in_layers_at_8192_tokens(model, layers):
    assert head_in_layers(read_model(model), 8192) == pytest.approx(layers, abs=0.06)


def test_a_space_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("debubble.planning.search.MOST_LAYOUTS", 10)
    with pytest.raises(InputError, match="more than 10 layouts"):
        layouts_of("llama3-8b", 8, 16)


def test_experts_of_60_spread_over_every_divisor_that_the_devices_share():
    model = read_model("qwen3-30b-a3b")
    sixty = replace(model.last_kind, feed_forward=replace(model.experts, count=60))
    model = replace(model, kinds=(sixty,))
    found = space(
        model, cluster_of(H100, 48), Question(Config(gpus=48, global_batch=48), {"tensor": (1,), "pipeline": (1,)})
    )
    assert {found.layout(row).expert for row in range(len(found))} == {1, 2, 3, 4, 6, 12}


def test_experts_lie_on_the_tensor_group_or_whole_on_each_device():
    choice = {"tensor": (4,), "pipeline": (2,), "micro_batch": (1,), "schedules": ("1f1b",)}
    found = {(f.expert, f.expert_shards) for f in layouts_of("mixtral-8x7b", 32, 64, **choice)}
    assert found == {(1, 4), (2, 4), (4, 4), (1, 1), (2, 1), (4, 1), (8, 1)}
    asked = layouts_of("mixtral-8x7b", 32, 64, expert_tensor=(2,), **choice)
    assert {(f.expert, f.expert_shards) for f in asked} == {(1, 2), (2, 2), (4, 2), (8, 2)}


def test_what_torchtitan_is_given_leaves_each_expert_whole():
    found = layouts_of("mixtral-8x7b", 16, 32, tensor=(4,), framework="torchtitan")
    assert {layout.expert_shards for layout in found} == {1}
    asked = Question(Config(gpus=16, global_batch=32, framework="torchtitan"), {"tensor": (4,), "expert_tensor": (4,)})
    refused = space(read_model("mixtral-8x7b"), cluster_of(H100, 16), asked)
    assert (len(refused), refused.rejected[0].reason) == (0, "torchtitan leaves each expert whole, on one device")


def test_layers_that_do_not_divide_are_interleaved_in_unequal_chunks():
    splits = {f.layers for f in layouts_of("deepseek-v3", 64, 64, pipeline=(8,), schedules=("interleaved",))}
    assert even_split(61, 16) in splits
    assert all(sum(split) == 61 for split in splits)


@pytest.mark.parametrize("name", sorted(set(CATALOG) - {"forward-only"}))
def test_a_shape_suits_a_schedule_exactly_where_its_builder_takes_it(name):
    for ranks, microbatches, chunks in product((2, 3, 4), (1, 2, 3, 4, 5, 6, 8, 9, 12), (1, 2, 3)):
        if (fixed := chunks_of(name, (chunks,))) != (chunks,):
            assert fixed == ()
            continue
        try:
            build(name, Shape(ranks, microbatches, chunks))
        except InputError:
            assert unsuited(name, ranks, microbatches, chunks), (ranks, microbatches, chunks)
        else:
            assert not unsuited(name, ranks, microbatches, chunks), (ranks, microbatches, chunks)


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_every_layout_of_a_search_for_a_framework_is_one_that_it_can_be_told(name):
    backend, model = FRAMEWORKS[name], read_model("mixtral-8x7b")
    base = Layout(sequence=8192)
    for layout in layouts_of("mixtral-8x7b", 16, 24, schedules=backend.schedules, framework=backend.name, base=base):
        assert backend.lacking(layout, sizes_of(model, 8192)) == ()
        assert not unlaunchable(name, layout.schedule, layout.pipeline, layout.microbatches, layout.chunks, zero=1)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"data": (3,)}, "3 replicas do not divide 16 GPUs; nearest 2 or 4"),
        ({"tensor": (3,)}, "tensor 3 does not divide 16 GPUs; nearest 2 or 4"),
        ({"tensor": (1,), "context": (1,), "pipeline": (32,)}, "pipeline 32 does not divide the 16 GPUs"),
        ({"context": (2,), "framework": "deepspeed"}, "DeepSpeed has no context parallelism"),
        (
            {"pipeline": (8,), "data": (2,), "tensor": (2,)},
            "tensor 2 x context 1 x pipeline 8 leaves 1 replicas, not 2",
        ),
    ],
)
def test_what_cannot_be_is_said_with_its_neighbours(choice, words):
    found = space(read_model("llama3-8b"), cluster_of(H100, 16), asked_of(16, 16, **choice))
    assert len(found) == 0
    assert any(words in one.reason for one in found.rejected), found.rejected


def test_published_split_of_llama_3_405b_with_a_layer_less_on_both_ends_is_tried():
    """arXiv:2407.21783, 3.3.2: 126 layers on 16 ranks, one layer less on the first and on the last of them."""
    assert (7, *[8] * 14, 7) in candidate_splits(read_model("llama3-405b"), 16, 1, 8192)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple))
def test_a_lighter_start_holds_the_same_stages_and_none_in_between_is_smaller_than_the_first(split):
    found = lighter_start(split)
    assert sorted(found) == sorted(split)
    assert found[-1] == split[-1]
    assert found[0] <= min(split[:-1], default=split[0])


def test_experts_that_do_not_spread_name_the_neighbours_that_do():
    one = Question(Config(gpus=16, global_batch=16), {"tensor": (1,), "pipeline": (1,), "expert": (3,)})
    found = space(read_model("mixtral-8x7b"), cluster_of(H100, 16), one)
    assert [each.reason for each in found.rejected] == [
        "expert 3 does not divide data x context 16 and 8 experts; nearest 2 or 4"
    ]


def test_experts_on_fewer_devices_than_a_tensor_group_name_the_devices_that_they_share():
    one = Question(
        Config(gpus=16, global_batch=16), {"tensor": (4,), "pipeline": (1,), "expert": (3,), "expert_tensor": (2, 3)}
    )
    found = space(read_model("mixtral-8x7b"), cluster_of(H100, 16), one)
    assert [each.reason for each in found.rejected] == [
        "expert 3 does not divide tensor x data x context / expert tensor 2 = 8 and 8 experts; nearest 2 or 4",
        "expert tensor 3 does not divide the 16 devices of a stage; nearest 2 or 4",
    ]
