"""Samples of unequal length: what closed forms and hand arithmetic say of drawn, packed and balanced steps."""

import numpy as np
import pytest

from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.packing import (
    PACKINGS,
    Lengths,
    Packed,
    Rows,
    Samples,
    TimeByLength,
    alone,
    balanced,
    cut,
    unequal_samples,
    whole,
)
from debubble.core.schedule import Shape
from debubble.schedules.catalog import build
from debubble.verbs.pipeline_argument import EXAMPLE, lengths_of

MIXED = Lengths("mixed", np.array([200.0, 700.0, 1500.0, 4096.0, 9000.0]))
LINEAR = TimeByLength(np.array([0.0, 8.0]), np.ones((2, 1, 1, 1)))  # work in proportion to tokens


def of(lengths, packing="whole", *, ranks=4, microbatches=8, chunks=1, attention=0.2, name="1f1b", rows=None):
    order = build(name, Shape(ranks, microbatches, chunks))
    costs, samples = costs_of(Rates(), order), Samples(lengths, 4096, packing, attention)
    return unequal_samples(
        lower(order), costs, samples.times(costs.durations), rows or Rows(microbatches, replicas=2), samples
    )


@pytest.mark.parametrize("packing", ["whole", "none"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_equal_lengths_give_the_plain_bubble(packing, name):
    found, share = of(Lengths("4096", np.array([4096.0])), packing, name=name), 3 / 11
    assert found.even_idle_share == pytest.approx(share)
    for steps in (found.as_they_come, found.balanced):
        # 8 + 3 micro-batches of 1 + 2 ms.
        assert (steps.expected_makespan_ms, steps.p95_makespan_ms) == (33, 33)
        assert steps.expected_idle_share == pytest.approx(share)
        assert steps.p95_idle_share == pytest.approx(share)


def test_interleaved_with_equal_lengths_is_its_own_closed_form():
    found = of(Lengths("4096", np.array([4096.0])), name="interleaved", chunks=2)
    assert found.as_they_come.expected_idle_share == pytest.approx(3 / (2 * 8 + 3))


def test_full_rows_without_attention_are_alike_whatever_the_lengths():
    found = of(MIXED, "cut", attention=0.0)
    assert found.fill_share == pytest.approx(1)
    assert found.as_they_come.expected_idle_share == pytest.approx(3 / 11)
    assert found.as_they_come.p95_makespan_ms == pytest.approx(33)


def test_equal_short_samples_that_fill_rows_shorten_all_by_their_attention():
    # 4 samples of 1,024 in a row of 4,096: attention takes a quarter of 20 %, all else is as it was: 85 % of the time.
    found = of(Lengths("1024", np.array([1024.0])))
    assert found.as_they_come.expected_makespan_ms == pytest.approx(0.85 * 33)
    assert found.as_they_come.expected_idle_share == pytest.approx(3 / 11)
    assert found.samples == 4 * 16


def test_a_step_waits_for_the_slower_of_two_replicas():
    # One row each, half of the samples half as long: both short in 1 of 4 steps, so .25 x 1.5 + .75 x 3 ms.
    halves = Lengths("halves", np.array([2048.0, 4096.0]))
    found = of(halves, "none", ranks=1, microbatches=1, attention=0.0)
    steps = found.as_they_come
    spread = 1.5 * np.sqrt(0.25 * 0.75 / found.draws)
    assert steps.expected_makespan_ms == pytest.approx(2.625, abs=4 * spread)
    assert steps.p95_makespan_ms == 3
    # Idle is a quarter of the time of both, where one is half as long as the other: in half of the steps.
    assert steps.expected_idle_share == pytest.approx(0.125, abs=4 * 0.125 / np.sqrt(found.draws))


def test_longest_first_by_hand():
    # Graham's example of 1969 for LPT on two machines: 3, 3, 2, 2, 2 come to 7 and 5, though 6 and 6 could be.
    dealt = balanced(Packed(np.array([2.0, 3, 2, 3, 2]), np.zeros(5, np.int64), 2), LINEAR)
    assert sorted(dealt.total(dealt.tokens)) == [5, 7]


def test_rows_are_dealt_to_replicas_like_cards():
    # Six rows of 6, 5, .., 1 to two replicas in turn (rows 0, 2, 4 and 1, 3, 5): 6 5 | 3 4 | 2 1.
    dealt = balanced(Packed(np.array([6.0, 5, 4, 3, 2, 1]), np.arange(6), 6), LINEAR, replicas=2)
    assert dealt.total(dealt.tokens).tolist() == [6, 5, 3, 4, 2, 1]


@pytest.mark.parametrize("seed", range(5))
def test_whole_samples_fill_a_row_until_the_next_does_not_fit(seed):
    packed = whole(MIXED, 20, 4096, np.random.default_rng(seed))
    assert packed.row.tolist() == sorted(packed.row.tolist())
    assert set(packed.row.tolist()) == set(range(20))
    filled = packed.total(packed.tokens)
    firsts = [packed.tokens[packed.row == row][0] for row in range(20)]
    assert (filled <= 4096).all()
    assert all(filled[row] + firsts[row + 1] > 4096 for row in range(19))


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_is_cut_into_full_rows_and_nothing_of_it_is_lost(seed):
    packed = cut(MIXED, 20, 4096, np.random.default_rng(seed))
    assert packed.total(packed.tokens).tolist() == 20 * [4096]
    assert (packed.tokens > 0).all()


def test_a_row_of_one_sample_is_cut_to_its_room():
    packed = alone(MIXED, 50, 4096, np.random.default_rng(0))
    assert packed.tokens.max() == 4096
    assert np.bincount(packed.row).tolist() == 50 * [1]


@pytest.mark.parametrize("packing", PACKINGS)
def test_balancing_keeps_the_samples_and_their_work_and_shortens_the_step(packing):
    found = of(MIXED, packing, rows=Rows(8, replicas=4))
    assert found.balanced.expected_makespan_ms < found.as_they_come.expected_makespan_ms
    # The same samples: idle over all of it falls as the step does.
    busy = [
        (1 - steps.expected_idle_share) * steps.expected_makespan_ms for steps in (found.as_they_come, found.balanced)
    ]
    assert busy[0] == pytest.approx(busy[1], rel=0.02)


def test_two_figures_make_a_log_normal_that_has_them():
    # ln(6000/800) / 1.6449 = 1.2250; its mean is 800 exp(1.2250^2 / 2) = 1,694.
    for text in ("p50=800,p95=6000", "p95=6000,p50=800"):
        tokens = lengths_of(text).tokens
        assert np.percentile(tokens, [50, 95]) == pytest.approx([800, 6000], rel=0.01)
        assert tokens.mean() == pytest.approx(1694, rel=0.02)
    tokens = lengths_of("mean=1694,p95=6000").tokens
    assert tokens.mean() == pytest.approx(1694, rel=0.02)
    assert np.percentile(tokens, 95) == pytest.approx(6000, rel=0.01)


def test_every_example_that_a_refusal_gives_is_taken():
    for text in ("2048", "p50=800,p95=6000", "mean=1200,p95=4000"):
        assert text in EXAMPLE
        assert lengths_of(text).tokens.min() >= 1
