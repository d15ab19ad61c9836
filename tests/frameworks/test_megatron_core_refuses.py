"""Megatron's rules of splits as we state them, against Megatron-Core itself, where it is installed."""

import ast
import warnings
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from debubble.config.config import Config, Layout
from debubble.core.errors import InputError
from debubble.frameworks.megatron_stages import read_layout, write_layout
from debubble.frameworks.wrappers import NEMO

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    core = pytest.importorskip("megatron.core.transformer.transformer_config", reason="megatron-core is not installed")
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # of its own deprecations
CORE = replace(NEMO, provided=False)  # the classes alone: Megatron-LM's own arguments ask more
NAMES = {
    "layers": "num_layers",
    "pipeline": "pipeline_model_parallel_size",
    "chunks": "virtual_pipeline_model_parallel_size",
    "first": "num_layers_in_first_pipeline_stage",
    "last": "num_layers_in_last_pipeline_stage",
    "embedding_layers": "account_for_embedding_in_pipeline_split",
    "loss_layers": "account_for_loss_in_pipeline_split",
    "layout": "pipeline_model_parallel_layout",
    "next_layers": "mtp_num_layers",
    "recompute": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_layers": "recompute_num_layers",
}


def built(**said) -> tuple[int, ...] | None:
    """Layers of each stage that Megatron-Core builds, chunk by chunk; None where it refuses."""
    fields = {NAMES[name]: value for name, value in said.items() if value is not None}
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "pipeline_dtype": torch.bfloat16}
    try:
        config = core.TransformerConfig(**sizes, **fields)
        ranks, chunks = said["pipeline"], config.virtual_pipeline_model_parallel_size or 1
        if said.get("layout"):
            stages = config.pipeline_model_parallel_layout.layout
            return tuple(stages[r][v].count(LayerType.decoder) for v in range(chunks) for r in range(ranks))
        at = [(None if chunks == 1 else v, r) for v in range(chunks) for r in range(ranks)]
        found = tuple(get_num_layers_to_build(config, vp_stage=v, pp_rank=r) for v, r in at)
        return found if min(found) >= 0 else None  # it lets -1 layers pass, which no model has
    except (ValueError, AssertionError):
        return None


def ours(**said) -> tuple[int, ...] | None:
    setup = Config(**said)
    return None if CORE.broken(setup).faults else CORE.filled(setup).split


maybe = st.none() | st.integers(0, 12)


@settings(max_examples=400, deadline=None)
@given(
    layers=st.integers(1, 48), pipeline=st.integers(2, 6), chunks=st.none() | st.integers(2, 3), first=maybe, last=maybe
)
@example(layers=10, pipeline=2, chunks=None, first=4, last=6)
@example(layers=61, pipeline=16, chunks=None, first=3, last=2)
def test_megatron_core_0_16_builds_or_refuses_uneven_ends_as_we_do(**said):
    assert ours(**said) == built(**said)


@settings(max_examples=200, deadline=None)
@given(
    layers=st.integers(6, 48),
    pipeline=st.integers(2, 6),
    chunks=st.none() | st.integers(2, 3),
    embedding_layers=st.sampled_from([None, 1]),
    loss_layers=st.sampled_from([None, 1]),
)
def test_megatron_core_0_16_counts_embedding_and_loss_as_layers_as_we_do(**said):
    assert ours(**said) == built(**said)


@pytest.mark.parametrize("recompute", [None, "full", "selective"])
@pytest.mark.parametrize("method", [None, "uniform", "block"])
@pytest.mark.parametrize("many", [None, 1])
def test_megatron_core_0_16_asks_the_same_of_a_recomputation(recompute, method, many):
    said = {"layers": 8, "pipeline": 2, "recompute": recompute, "recompute_method": method, "recompute_layers": many}
    assert ours(**said) == built(**said)


@st.composite
def splits(draw) -> tuple[int, tuple[int, ...], int]:
    ranks, chunks = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    layers = draw(st.lists(st.integers(0, 4), min_size=ranks * chunks, max_size=ranks * chunks))
    return ranks, tuple(layers), draw(st.integers(0, 2))


@settings(max_examples=200, deadline=None)
@given(splits())
def test_megatron_core_0_16_reads_every_layout_that_we_write(given):
    ranks, layers, following = given
    said = {"layers": sum(layers), "pipeline": ranks, "layout": write_layout(layers, following)}
    if sum(layers):
        assert built(**said, next_layers=following or None) == layers


LETTERS = st.text("Ettttm|L", min_size=4, max_size=14).map(lambda text: "E" + text + "L")


@settings(max_examples=500, deadline=None)
@given(layout=LETTERS, ranks=st.integers(2, 3))
@example(layout="E|t|t|m|m|L", ranks=2)
@example(layout="Ett|m|tL|t", ranks=2)
def test_megatron_core_0_16_takes_and_refuses_the_same_layouts(layout, ranks):
    layers, following = layout.count("t"), layout.count("m")
    assume(not any("m" in stage for stage in layout.split("|")[::ranks]))  # 0.16 overlooks those of the first rank
    said = {"layers": layers or 1, "pipeline": ranks, "layout": layout, "next_layers": following or None}
    assert ours(**said) == built(**said)


@pytest.mark.parametrize("number", range(3))
def test_c27_megatron_core_writes_the_published_layouts_out_as_we_do(shared, number):
    import yaml

    cases = {c["id"]: c for c in yaml.safe_load((shared / "cases" / "user-cases.yaml").read_text())}
    said = cases["C27"]["inputs"][number]
    theirs = PipelineParallelLayerLayout.parse_str_to_list(said["layout"])
    letter = {LayerType.embedding: "E", LayerType.decoder: "t", LayerType.mtp: "m", LayerType.loss: "L"}
    assert tuple("".join(letter[one] for one in stage) for stage in theirs) == read_layout(said["layout"], 1).stages


@pytest.mark.parametrize("text", ["Et|X", "Et*|tL", "E(t|)tL"])
def test_what_megatron_core_cannot_read_we_refuse_too(text):
    with pytest.raises(AssertionError):
        PipelineParallelLayerLayout.parse_str_to_list(text)
    with pytest.raises(InputError):
        read_layout(text, 2)


@settings(max_examples=100, deadline=None)
@given(
    given=splits(),
    tensor=st.sampled_from([1, 2]),
    expert=st.sampled_from([1, 2]),
    again=st.sampled_from([("none", None), ("full", None), ("full", 1), ("selective", None)]),
)
def test_megatron_core_0_16_builds_what_is_emitted_for_megatron_bridge(given, tensor, expert, again):
    ranks, layers, following = given
    assume(sum(layers) and layers.count(0) < len(layers) // 2)
    layout = Layout(
        tensor=tensor,
        expert=expert,
        pipeline=ranks,
        data=2,
        chunks=len(layers) // ranks,
        microbatches=2 * ranks,
        recompute=again[0],
        recompute_layers=again[1],
        layers=layers,
    )
    tree = ast.parse(
        NEMO.emit(layout, Config(layers=sum(layers), sequence=4096, experts=8, next_layers=following or None))
    )
    said = {}
    for line in tree.body:
        owner, _, name = ast.unparse(line.targets[0]).removeprefix("cfg.").partition(".")
        if owner == "model" and name in core.TransformerConfig.__dataclass_fields__ and name != "pipeline_dtype":
            said[name] = ast.literal_eval(line.value)
    model = {"num_layers": sum(layers), "hidden_size": 8, "num_attention_heads": 2, "pipeline_dtype": torch.bfloat16}
    model |= {"num_moe_experts": 8 if expert > 1 else None, "add_bias_linear": False}
    config = core.TransformerConfig(**model, **said)
    chunks = config.virtual_pipeline_model_parallel_size or 1
    laid = config.pipeline_model_parallel_layout
    if laid is None:
        at = [(None if chunks == 1 else v, r) for v in range(chunks) for r in range(ranks)]
        assert tuple(get_num_layers_to_build(config, vp_stage=v, pp_rank=r) for v, r in at) == layers
    else:
        stages = [laid.layout[r][v] for v in range(chunks) for r in range(ranks)]
        assert tuple(stage.count(LayerType.decoder) for stage in stages) == layers
        assert stages[-1].count(LayerType.mtp) == following
