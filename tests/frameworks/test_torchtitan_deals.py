"""How torchtitan deals layers as we say it, and the fields that we emit, against torchtitan itself where installed."""

import ast
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.config.config import Config, Layout
from debubble.frameworks.torchtitan import TORCHTITAN

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel", reason="torchtitan is not installed")
    from torchtitan.config.configs import ParallelismConfig

NEWER = {"num_pp_microbatches"}  # fields of the commit whose rules we state that 0.3.0 does not have yet


def theirs(setup: Config) -> tuple[int, ...] | None:
    """Layers of each stage; None where torchtitan refuses."""
    stages = setup.ranks * (setup.chunks or 1)
    ends = (1 if end is None else end for end in (setup.embedding_layers, setup.loss_layers))
    try:
        named = pipeline._generate_llm_fqn_per_model_part(stages, setup.layers, *ends)
    except ValueError:
        return None
    return tuple(sum(name.startswith("layers.") for name in stage) for stage in named)


@settings(max_examples=300, deadline=None)
@given(
    layers=st.integers(1, 40),
    ranks=st.integers(2, 6),
    chunks=st.integers(2, 3),
    embedding=st.integers(0, 3),
    loss=st.integers(0, 3),
)
def test_torchtitan_0_3_deals_or_refuses_as_we_say(layers, ranks, chunks, embedding, loss):
    setup = Config(
        layers=layers,
        pipeline=ranks,
        chunks=chunks,
        embedding_layers=embedding,
        loss_layers=loss,
        schedule="Interleaved1F1B",
    )
    assert (None if TORCHTITAN.broken(setup).faults else TORCHTITAN.filled(setup).split) == theirs(setup)


def test_torchtitan_0_3_knows_the_fields_and_modules_that_are_emitted():
    layout = Layout(tensor=2, pipeline=2, chunks=2, microbatches=8, schedule="interleaved", layers=(2, 1, 1, 1))
    text = TORCHTITAN.emit(layout, Config(layers=5, sequence=4096))
    (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    said = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    known = {name: value for name, value in said.items() if name not in NEWER}
    config = ParallelismConfig(**known)
    assert (config.pipeline_parallel_degree, config.pipeline_parallel_schedule) == (2, "Interleaved1F1B")
    whole = pipeline._generate_llm_fqn_per_model_part(1, 5)
    assert [name for stage in config.module_fqns_per_model_part for name in stage] == whole[0]
    older = re.search(r"pipeline_parallel_microbatch_size=(\d+)", text)
    assert ParallelismConfig(pipeline_parallel_microbatch_size=int(older[1])).pipeline_parallel_microbatch_size == 1
