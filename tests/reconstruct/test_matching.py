"""Pairs of transfers that end together: which they are, and that neither many ends nor a far reach fills memory."""

import tracemalloc

import numpy as np
import pytest

from debubble.reconstruct import matching
from debubble.reconstruct.device_ops import Transfers
from debubble.reconstruct.matching import match

MS = 1_000_000
FAR = 1 << 58  # nanoseconds, nine years


def transfers(end, *, send):
    """Of one step, each of 1 ms."""
    many = len(end)
    return Transfers(
        step=np.zeros(many, np.int64),
        send=np.full(many, send),
        forward=np.ones(many, np.int8),
        peer=np.full(many, -1, np.int32),
        start=np.array(end, np.int64) - MS,
        end=np.array(end, np.int64),
    )


def pair_of(many, offset):
    """As many sends, irregular, and their receives on a clock that is ahead."""
    end = np.cumsum(np.random.default_rng(5).integers(MS, 5 * MS, many))
    return transfers(end, send=True), transfers(end + offset, send=False)


@pytest.mark.parametrize("offset", [0, -7 * MS, 7 * MS])
def test_each_send_finds_its_receive_and_the_clocks_their_offset(offset):
    found = match(*pair_of(200, offset), 10 * MS)
    assert found.offset == offset
    assert {(i, i) for i in range(200)} <= set(zip(*found.pairs.tolist(), strict=True))
    assert found.sure


def test_a_reach_of_years_over_many_ends_is_bounded_in_memory_and_finds_the_same(monkeypatch):
    monkeypatch.setattr(matching, "_MOST_PAIRS", 40_000)  # of 4 million
    first, second = pair_of(2_000, 7 * MS)
    tracemalloc.start()
    found = match(first, second, FAR)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000 * 200
    assert found.offset == 7 * MS
    assert found.mine.all()


def test_ends_at_one_moment_are_bounded_too(monkeypatch):
    monkeypatch.setattr(matching, "_MOST_PAIRS", 1_000)
    found = match(transfers([MS] * 500, send=True), transfers([MS] * 500, send=False), 0)
    assert found.pairs.shape[1] <= 1_000
    assert found.mine.all()


def test_a_few_ends_that_are_years_apart_take_no_memory_for_the_years_between():
    found = match(transfers([MS, 3 * MS, FAR], send=True), transfers([2 * MS, 4 * MS], send=False), FAR)
    assert (found.offset, found.mine.tolist()) == (MS, [True, True, False])
