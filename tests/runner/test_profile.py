"""Timing a layer: forward and backward are told apart, logits that are too many are left out, a full device is said."""

import time

import pytest
import torch
from torch import nn

from debubble.core.errors import Refusal
from debubble.runner import profile
from debubble.runner.profile import LayerSizes, Shape, name_of, time_ends, time_layer

SIZES = LayerSizes(16, 2, 1, 8, 32, 50)


class Slow(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(sizes.hidden))

    def forward(self, x):
        time.sleep(0.004)
        return x * self.scale


def test_a_slow_forward_is_no_slow_backward(monkeypatch):
    monkeypatch.setattr(profile, "Layer", Slow)
    timed = time_layer(SIZES, Shape(1, 4, 9), "cpu")
    assert timed.forward > 0.004
    assert timed.backward < timed.forward
    assert 0 <= timed.spread < 1


def test_embedding_and_head_are_timed_where_there_is_room():
    table, head = time_ends(SIZES, Shape(1, 8, 3), "cpu")
    assert min(table.forward, table.backward, head.forward, head.backward) > 0
    assert time_ends(LayerSizes(16, 2, 1, 8, 32, 10**12), Shape(1, 8, 3), "cpu") is None


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("CUDA out of memory", Refusal),
        ("DefaultCPUAllocator: can't allocate memory", Refusal),
        ("CUDA error: an illegal memory access was encountered", RuntimeError),
        ("shapes differ", RuntimeError),
    ],
)
def test_a_device_without_room_is_an_answer_and_a_bug_is_a_bug(monkeypatch, says, error):
    def fail(sizes):
        raise RuntimeError(says)

    monkeypatch.setattr(profile, "Layer", fail)
    with pytest.raises(error, match="no room" if error is Refusal else says):
        time_layer(SIZES, Shape(1, 4, 1), "cpu")


def test_a_cpu_calls_itself_so():
    assert name_of("cpu") == "CPU"
