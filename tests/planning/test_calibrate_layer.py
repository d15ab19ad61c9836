"""Calibration by one layer: kernels and floor are found again, and the layer then takes what it was timed to take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.config.config import Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import known_models, read_model
from debubble.estimate.setting import GENERIC, PRIOR, Factor
from debubble.planning.calibrate import TINY, LayerRun, calibrate_layer, ends_pass, layer_pass, tiny

ALONE = cluster_of(read_hardware("h100"), 1)
LAYER = Layout(tensor=2, micro_batch=2, sequence_parallel=False, fused_kernels=False)
NARROW = replace(LAYER, tensor=1, micro_batch=1, sequence=TINY)


def timed(model, spread=0.01, **factors):
    """The layer and a narrow one, as they would be timed where these factors hold."""
    truth = replace(GENERIC, **{name: Factor(value) for name, value in factors.items()})
    empty = (LayerRun(model, ALONE, LAYER, 0, 0, spread), LayerRun(tiny(model), ALONE, NARROW, 0, 0, spread))
    times = [layer_pass(run, truth) for run in empty]
    return tuple(replace(run, forward=f, backward=b) for run, (f, b) in zip(empty, times, strict=True))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 2), st.floats(0.4, 5))
def test_kernels_and_floor_are_told_apart(kernels, floor):
    found = calibrate_layer(timed(read_model("llama3-8b"), kernels=kernels, floor=floor))
    assert found.floor.value == pytest.approx(floor, rel=0.1)
    assert found.kernels.value == pytest.approx(kernels, rel=0.05)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.1, 50))
def test_a_layer_takes_what_it_was_timed_to_take_however_far_the_file_of_the_device_is_off(kernels):
    runs = timed(read_model("llama3-8b"), kernels=kernels)
    assert layer_pass(runs[0], calibrate_layer(runs)) == pytest.approx((runs[0].forward, runs[0].backward), rel=0.03)


def test_noise_of_the_clock_is_an_error_of_the_factor():
    sure, unsure = (calibrate_layer(timed(read_model("llama3-8b"), spread=s, kernels=1.5)) for s in (0.0, 0.2))
    assert sure.kernels.value == pytest.approx(1.5, rel=0.01)
    assert unsure.kernels.error > 5 * sure.kernels.error


def test_what_one_layer_does_not_tell_keeps_its_prior():
    found = calibrate_layer(timed(read_model("llama3-8b"), kernels=1.5), "one layer")
    assert found.silent() == ("tensor", "data", "transfer", "stall", "memory")
    assert found.tensor.error == PRIOR["tensor"]
    assert (found.source, found.band) == ("one layer", GENERIC.band)


def test_a_factor_far_from_1_was_told_however_uncertain():
    found = calibrate_layer(timed(read_model("llama3-8b"), spread=0.3, kernels=5.0))
    assert found.kernels.error / found.kernels.value > PRIOR["kernels"]
    assert "kernels" not in found.silent()


@pytest.mark.parametrize("name", known_models())
def test_a_narrow_layer_of_any_model_is_taken_up_by_its_host(name):
    run = LayerRun(tiny(read_model(name)), ALONE, NARROW, 0, 0)
    fast, slow = (layer_pass(run, replace(GENERIC, kernels=Factor(k))) for k in (0.5, 2.0))
    assert slow == pytest.approx(fast, rel=0.1)


def test_collectives_are_left_out_and_ends_scale_with_kernels():
    model = read_model("llama3-8b")
    alone, group = (layer_pass(LayerRun(model, ALONE, replace(LAYER, tensor=t), 0, 0), GENERIC) for t in (1, 2))
    assert np.array(alone) / np.array(group) == pytest.approx([1.9, 1.9], rel=0.1)
    run = LayerRun(model, ALONE, LAYER, 0, 0)
    half, whole = (ends_pass(run, replace(GENERIC, kernels=Factor(k)))["head"] for k in (0.5, 1.0))
    assert np.array(whole) == pytest.approx(2 * np.array(half))
