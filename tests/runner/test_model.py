"""Every cut of the built-in model is the same model, and a user's function is told what is wrong with it."""

import numpy as np
import pytest
import torch

from debubble.core.errors import InputError
from debubble.runner.gradients import gradient_error
from debubble.runner.model import BLOCKS, SEQUENCE, Parts, build, load, read_text


def parameters(parts: Parts) -> list:
    return [p for stage in parts.stages for p in stage.parameters()]


@pytest.mark.parametrize("stages", [2, 3, 7, BLOCKS])
def test_every_cut_has_the_same_weights(stages):
    whole, cut = parameters(build(1)), parameters(build(stages))
    assert len(whole) == len(cut)
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


def test_more_stages_than_blocks_get_a_block_each():
    assert len(build(2 * BLOCKS).stages) == 2 * BLOCKS


def test_a_batch_is_the_same_in_every_process_and_targets_are_the_next_bytes():
    (inputs, targets), again = build(2).batch(3, 5), build(4).batch(3, 5)
    assert inputs.shape == targets.shape == (5, SEQUENCE)
    assert torch.equal(inputs, again[0])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert not torch.equal(inputs, build(2).batch(4, 5)[0])


def test_it_learns():
    parts = build(1)
    optimizer = torch.optim.SGD(parts.stages[0].parameters(), 0.1)
    inputs, targets = parts.batch(0, 8)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = parts.loss(parts.stages[0](inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1


def test_a_text_of_ones_own(tmp_path):
    (tmp_path / "t").write_bytes(b"ab" * SEQUENCE)
    assert set(build(1, text=str(tmp_path / "t")).batch(0, 2)[0].flatten().tolist()) == {97, 98}


@pytest.mark.parametrize(("content", "rule"), [(None, "cannot be read"), (b"short", "a sample has 33 bytes")])
def test_a_text_that_is_missing_or_short_is_refused(tmp_path, content, rule):
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    with pytest.raises(InputError, match=rule):
        read_text(str(tmp_path / "t"))


@pytest.mark.parametrize(
    "path",
    ["nowhere:f", "debubble.core.schedule:nothing", "debubble.core.schedule", ":f", "debubble.core.schedule:KINDS"],
)
def test_a_model_that_is_not_there_is_refused_in_one_line(path):
    with pytest.raises(InputError) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_function_that_makes_something_else_is_refused():
    with pytest.raises(InputError, match="it returned int, not stages, loss and batch"):
        build(2, model="builtins:int")


def test_gradient_error_is_relative_to_the_largest_element_of_its_parameter():
    reference = {0: [np.array([4.0, -8.0]), np.array([1e-3])]}
    found = {0: [np.array([4.0, -7.0]), np.array([1.5e-3])]}
    assert gradient_error(found, reference) == pytest.approx(0.5)
    assert gradient_error(reference, reference) == 0


@pytest.mark.parametrize("found", [None, np.array([np.nan])])
def test_a_gradient_that_is_missing_or_no_number_is_an_infinite_error(found):
    assert gradient_error({0: [found]}, {0: [np.array([1.0])]}) == float("inf")
