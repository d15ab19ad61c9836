"""What-ifs against closed forms, and against a production run whose answer is known."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble import Kind, Rates, Shape, build, costs_of
from debubble.diagnosis.causes import causes, fitted
from debubble.diagnosis.remedies import OWN_ORDER, enough_microbatches, heaviest, remedies
from debubble.diagnosis.replay import (
    Launcher,
    Replay,
    answers,
    balanced_stages,
    cured_rank,
    fewer_stages,
    finer_microbatches,
    more_microbatches,
    other_schedule,
    without_transfer,
)
from debubble.schedules.catalog import CATALOG

SIZES = st.tuples(st.integers(2, 8), st.integers(1, 16))


def replay(p, m, name="1f1b", chunks=1, **rates):
    schedule = build(name, Shape(p, m, chunks))
    return Replay(schedule, costs_of(Rates(**({"forward": 1e6, "backward": 2e6} | rates)), schedule), name)


def speedup(run, changed):
    (answer,) = answers(run, [changed])
    return answer.speedup


def busy(p, m):
    return m / (m + p - 1)


@given(SIZES, st.integers(2, 40))
def test_finer_and_more_microbatches_gain_what_the_formula_says(size, then):
    run, expected = replay(*size), busy(size[0], then) / busy(*size)
    assert speedup(run, finer_microbatches(run, then)) == pytest.approx(expected, rel=1e-4)
    assert speedup(run, more_microbatches(run, then)) == pytest.approx(expected, rel=1e-4)


def test_cut_finer_a_hop_stays_as_long_as_it_was():
    run = replay(4, 4, transfer=1e6)
    fine = finer_microbatches(run, 8)
    assert fine.costs.transfers.max() == run.costs.transfers.max()
    assert speedup(run, fine) < speedup(run, more_microbatches(run, 8))


def test_a_microbatch_of_known_size_is_cut_into_whole_samples():
    run = Replay(*(getattr(replay(4, 4), name) for name in ("schedule", "costs", "name")), micro_batch=2)
    assert finer_microbatches(run, 8) is not None
    assert finer_microbatches(run, 16) is None


@given(st.integers(1, 4), st.integers(1, 8))
def test_half_the_stages_with_twice_the_replicas_gain_what_the_formula_says(half, half_m):
    run = replay(2 * half, 2 * half_m)
    changed = fewer_stages(run)
    assert speedup(run, changed) == pytest.approx(busy(half, half_m) / busy(2 * half, 2 * half_m), rel=1e-6)
    assert changed.schedule.ranks == half


def test_interleaved_and_zb_h1_shorten_the_bubble_as_published():
    """(p-1)/(v m) of https://arxiv.org/abs/2104.04473; ZB-H1 leaves (p-1)(F+I-W), https://arxiv.org/abs/2401.10241."""
    run = replay(4, 8, forward=1e6, backward=2e6)
    assert speedup(run, other_schedule(run, "interleaved", 2)) == pytest.approx(33 / (24 + 9 / 2))
    assert speedup(run, other_schedule(run, "zb-h1", 1)) == pytest.approx(33 / (24 + 3))


def test_there_and_back_again_a_split_backward_weighs_the_same():
    run = replay(4, 8)
    there = other_schedule(run, "zb-h1", 1)
    back = other_schedule(there, "1f1b", 1)
    assert back.tables[0].tolist() == run.tables[0].tolist()


def test_balanced_stages_move_work_and_a_cured_rank_loses_it():
    run = replay(4, 8, stage_scale=(1, 1, 1, 1.6))
    assert heaviest(run) == (3, pytest.approx(1.6))
    assert balanced_stages(run).tables[0].sum() == pytest.approx(run.tables[0].sum(), rel=1e-6)
    assert answers(run, [cured_rank(run, 3)])[0].step_ns == 33_000_000


def test_free_transfers_give_back_what_hops_cost():
    run = replay(4, 8, transfer=2e6)
    assert answers(run, [without_transfer(run)])[0].step_ns == 33_000_000


def test_27_microbatches_are_enough_for_a_tenth_of_idle_time_at_p4():
    assert enough_microbatches(4, replay(4, 4).again().bubble_ratio) == 27
    assert [enough_microbatches(m, (p - 1) / m) for p, m in ((2, 3), (8, 1))] == [9, 63]


def test_remedies_that_can_be_launched_hold_the_batch_and_are_sorted_by_gain():
    found = remedies(replay(4, 4))
    gains = [(bool(each.open), -each.speedup) for each in found.launchable]
    assert gains == sorted(gains)  # what rests on a size that nobody said comes last
    assert {each.open for each in found.launchable if "1/8 the size" in each.change} == {
        ("a micro-batch holds 8 samples or more",)
    }
    assert all(each.speedup > 1 for each in found.launchable)
    changes = {each.change for each in found.launchable}
    assert {"micro-batches 1/2 the size", "interleaved with 2 chunks", "interleaved-zb with 2 chunks"} <= changes
    assert found.first is found.launchable[0]
    assert {each.demands for each in found.beyond if each.change in ("8 micro-batches", "16 micro-batches")} == {
        ("the batch is 2 x as large",),
        ("the batch is 4 x as large",),
    }


def test_micro_batches_of_known_size_are_cut_into_whole_numbers_that_divide_and_reach_a_tenth():
    """6 samples each, 4 a step: 27 are wanted; 24 samples divide by 8, 12 and 24, so 4/6, 2/6 and 1/6 the size."""
    run = dataclasses.replace(replay(4, 4), micro_batch=6)
    cuts = {each.change: each.microbatches for each in remedies(run).every if "instead of" in each.change}
    assert {change: m for change, m in cuts.items() if "+" not in change} == {
        "8 micro-batches of 3 instead of 6": 8,
        "24 micro-batches of 1 instead of 6": 24,
    }
    assert not [each for each in remedies(dataclasses.replace(run, micro_batch=1)).launchable if "size" in each.change]


def test_a_schedule_that_the_framework_lacks_stands_apart():
    lacking = remedies(replay(4, 8), (), Launcher("Megatron-LM", frozenset({"1f1b", "interleaved"})))
    assert {each.change.split(" + ")[0] for each in lacking.launchable} >= {"interleaved with 2 chunks"}
    assert not [each for each in lacking.launchable if "zb" in each.change]
    assert ("another framework runs it: Megatron-LM has no zb-h1",) in {each.demands for each in lacking.beyond}
    refused = remedies(replay(4, 8), (), Launcher("X", frozenset(CATALOG), lambda _, __: "it is full"))
    assert refused.first is None
    assert all("it is full" in each.demands for each in refused.beyond)


def test_an_order_without_a_name_gets_no_other_microbatches():
    run = Replay(*(getattr(replay(4, 4), name) for name in ("schedule", "costs")), name=None)
    assert more_microbatches(run, 8) is finer_microbatches(run, 8) is fewer_stages(run) is None


def test_bytedance_st_last_stage_as_fast_as_the_others_2007_to_1475_ms_within_2_percent(st_windows):
    runs = [Replay(each.program.schedule, fitted(each), "1f1b") for each in st_windows]
    now, then = np.mean([[each.again().window, cured_rank(each, 3).again().window] for each in runs], axis=0) / 1e6
    assert {heaviest(each)[0] for each in runs} == {3}
    assert (now, then) == pytest.approx((2007, 1475), rel=0.02)


def test_no_what_if_where_the_replay_misses_the_window_by_more_than_a_tenth(st_windows):
    timeline = st_windows[0]
    run = Replay(timeline.program.schedule, fitted(timeline), "1f1b")
    found = causes(timeline)
    assert found.trusted
    assert remedies(run).every
    missed = type(found)(*(cost for name, cost in found if name != "unexplained"), unexplained=found.window // 8)
    assert not missed.trusted


def test_kinds_that_a_schedule_lacks_weigh_nothing():
    durations = replay(2, 2).tables[0]
    assert durations[Kind.I].max() == durations[Kind.W].max() == 0


def test_a_schedule_of_your_own_stands_at_the_bound_that_gpipe_meets_over_a_slow_link():
    """p = 2, m = 4, F = B = 1, a hop of 10: 1F1B waits for two round trips and takes 50, GPipe for one, and 30.

    No order is shorter than 30: the way to rank 1 is 11, its work 8, the way back 11.
    """
    durations = {"forward": 1e6, "backward": 1e6, "transfer": 10e6}
    (own,) = [each for each in remedies(replay(2, 4, **durations)).limits if each.change == OWN_ORDER]
    assert (own.makespan_ns, own.speedup) == (30_000_000, pytest.approx(50 / 30))
    assert own.idle_share == pytest.approx(1 - 16 / (2 * 30))
    gpipe = remedies(replay(2, 4, "gpipe", **durations))
    assert OWN_ORDER not in [each.change for each in gpipe.every]


def test_a_schedule_of_your_own_is_not_offered_where_no_search_knows_the_order():
    two_copies = remedies(replay(4, 8, "chimera", transfer=5e6))
    assert OWN_ORDER not in [each.change for each in two_copies.every]


def test_half_the_stages_hold_half_the_micro_batches_of_twice_the_layers():
    """1F1B holds p micro-batches on rank 0: 4 of one share of the layers, then 2 of two."""
    run = replay(4, 8)
    (answer,) = answers(run, [fewer_stages(run)])
    assert (answer.peak_activations, answer.activations_ratio) == (2, 1)
