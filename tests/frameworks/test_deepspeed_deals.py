"""How DeepSpeed deals layers as we say it, against DeepSpeed itself, where it is installed."""

import json
import warnings
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.config.config import Config, Layout
from debubble.frameworks.deepspeed import DEEPSPEED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    utils = pytest.importorskip("deepspeed.runtime.utils", reason="deepspeed is not installed")


def held(parts: list[int], weights: list[int]) -> tuple[int, ...]:
    """Transformer layers between the bounds of each stage."""
    return tuple(sum(weights[a:b]) for a, b in pairwise(parts))


@settings(max_examples=150, deadline=None)
@given(layers=st.integers(2, 40), stages=st.integers(2, 8))
def test_deepspeed_0_19_deals_embedding_layers_and_head_uniformly_as_we_say(layers, stages):
    if layers + 2 > stages:
        parts = utils.partition_uniform(layers + 2, stages)
        found = DEEPSPEED.filled(Config(pipeline=stages, layers=layers, own={"partition": "uniform"})).split
        assert found == held(parts, [0, *[1] * layers, 0])


@settings(max_examples=100, deadline=None)
@given(layers=st.integers(2, 30), stages=st.integers(2, 6), behind=st.integers(0, 2))
def test_deepspeed_0_19_deals_layers_of_a_type_evenly_as_we_say(layers, stages, behind):
    if layers >= stages:
        weights = [0, *[1] * layers, *[0] * behind]
        found = DEEPSPEED.filled(
            Config(pipeline=stages, layers=layers, own={"partition": "type:TransformerLayer"})
        ).split
        assert found == held(utils.partition_balanced(weights, stages), weights)


def test_what_the_planner_may_choose_are_these_two():
    assert DEEPSPEED.deals is not None
    assert DEEPSPEED.deals(Config(layers=30, sequence=4096), 4) == ((8, 8, 7, 7), (7, 8, 8, 7))
    assert DEEPSPEED.deals(Config(layers=32, sequence=4096), 4) == ((8, 8, 8, 8), (8, 9, 8, 7))


# Without processes DeepSpeed counts one replica.
@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 4), many=st.integers(1, 32), zero=st.sampled_from([0, 1]))
def test_deepspeed_0_19_takes_the_json_that_is_emitted(size, many, zero):
    from deepspeed.runtime.config import DeepSpeedConfig

    layout = Layout(pipeline=4, micro_batch=size, microbatches=many, zero=zero, recompute="full")
    config = DeepSpeedConfig(json.loads(DEEPSPEED.emit(layout, Config(layers=32, sequence=4096))))
    batch = (config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps)
    assert batch == (layout.global_batch, size, many)
    assert (config.zero_config.stage, config.pipeline["stages"]) == (zero, 4)
    assert config.pipeline["activation_checkpoint_interval"] == 1


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_deepspeed_0_19_and_our_rules_refuse_the_same_batches(steps, size):
    from deepspeed.runtime.config import DeepSpeedConfig

    said = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": size, "gradient_accumulation_steps": steps}
    try:
        DeepSpeedConfig(said)
    except AssertionError:
        refused = True
    else:
        refused = False
    setup = Config(data=1, pipeline=4, global_batch=12, micro_batch=size, microbatches=steps)
    assert bool(DEEPSPEED.broken(setup).faults) == refused
