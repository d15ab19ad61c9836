"""Windows: what is left out, which one stands in front; and causes: what was put in comes out under its name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble import (
    InputError,
    Kind,
    Observation,
    Rates,
    Shape,
    Timeline,
    Window,
    account,
    build,
    costs_of,
    lower,
    simulate,
)
from debubble.core.costs import Costs
from debubble.diagnosis.causes import Causes, causes, fitted, hops, median_window, spent, stage_costs, summarise

SCHEDULE = build("1f1b", Shape(2, 4))
PROGRAM = lower(SCHEDULE)


def window(step, length=1.0, replica=0, scale=(1.0, 1.0), step_ns=None):
    """A measured window of 15 ms x length; a scale makes one stage heavier."""
    rates = Rates(forward=1e6 * length, backward=2e6 * length, stage_scale=scale)
    exact = simulate(PROGRAM, costs_of(rates, SCHEDULE))
    shift = 1_000_000 * step  # any clock
    return Window(step, replica, Timeline(PROGRAM, exact.start + shift, exact.end + shift, "measured"), step_ns)


def observed(*windows):
    return summarise(Observation("run", windows))


def test_leading_steps_longer_than_one_and_a_half_medians_are_left_out():
    found = observed(window(0, 3), window(1, 1.6), *(window(step) for step in range(2, 7)), window(7, 3))
    assert found.left_out == (0, 1)  # the slow last step is part of the run
    assert found.steps == 6


def test_the_median_window_is_one_that_was_measured():
    found = observed(*(window(step, length) for step, length in enumerate((1.0, 1.2, 1.1, 1.3))))
    assert found.makespan_ns == 16_500_000
    assert found.window.step == 2


def test_of_some_windows_the_shorter_of_two_in_the_middle_is_the_median_one():
    found = observed(*(window(step, length) for step, length in enumerate((1.2, 1.0, 1.3, 1.1))))
    assert median_window(found, [0, 1]) == 1
    assert median_window(found, [0, 2, 3]) == 0
    assert median_window(found, [2, 3, 0, 1]) == 3


def test_a_first_step_of_exactly_one_and_a_half_medians_counts():
    assert observed(window(0, 1.5), *(window(step) for step in range(1, 6))).left_out == ()


def test_clocks_that_end_a_step_before_its_window_leave_nothing_outside_and_never_less():
    assert observed(*(window(step, step_ns=14_999_000) for step in range(3))).outside_ns == 0


def test_shares_are_means_and_the_pooled_share_weighs_by_length():
    found = observed(window(0), window(1, 1.4, scale=(1.0, 2.0)))
    assert found.idle_share == pytest.approx(np.mean(found.idle_shares))
    weights = [each.window for each in found.accounts]
    assert found.pooled_idle_share == pytest.approx(np.average(found.idle_shares, weights=weights))


def test_outside_is_what_a_step_holds_beside_its_window():
    found = observed(*(window(step, step_ns=15_000_000 + extra) for step, extra in enumerate((1, 2, 9))))
    assert (found.outside_ns, found.step_ns) == (2, 15_000_002)
    assert observed(window(0)).outside_ns is None


def test_replicas_are_counted_and_a_slow_replica_makes_its_step_slow():
    found = observed(window(0), window(0, 2, replica=1), *(window(1 + s // 2, replica=s % 2) for s in range(8)))
    assert (found.replicas, found.left_out) == (2, (0,))


def test_ops_that_take_no_time_are_no_measurement():
    nothing = np.zeros(len(SCHEDULE), np.int64)
    with pytest.raises(InputError, match="take no time"):
        observed(Window(0, 0, Timeline(PROGRAM, nothing, nothing.copy(), "measured")))


def test_no_complete_step_is_an_error():
    with pytest.raises(InputError, match="holds no complete step"):
        observed()


def test_what_lies_outside_is_never_less_than_nothing():
    """Steps that begin before the last one has ended are shorter than their windows of 15 ms."""
    assert observed(*(window(step, step_ns=14_000_000) for step in range(3))).outside_ns == 0


MS = 1_000_000
SHAPES = st.tuples(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(1, 9))


def run(name="1f1b", ranks=4, microbatches=8, **rates):
    schedule = build(name, Shape(ranks, microbatches))
    return simulate(lower(schedule), costs_of(Rates(**rates), schedule))


def random_run(name, ranks, microbatches, seed, host=0):
    """Random durations and hops; ``host`` adds late starts that nothing explains."""
    schedule = build(name, Shape(ranks, microbatches))
    draw = np.random.default_rng(seed)
    costs = Costs(
        draw.integers(1, 50, (4, ranks, microbatches)) * 997, draw.integers(0, 30, (4, ranks, microbatches)) * 991
    )
    exact = simulate(lower(schedule), costs)
    late = np.cumsum(draw.integers(0, host + 1, len(schedule))) if host else 0  # monotone on each rank
    return Timeline(exact.program, exact.start + late, exact.end + late, "measured")


@given(SHAPES, st.integers(0, 2**32), st.integers(0, 5000))
def test_causes_sum_to_the_measured_window(shape, seed, host):
    timeline = random_run(*shape, seed, host)
    assert causes(timeline).window == timeline.makespan


@given(SHAPES, st.integers(0, 2**32), st.integers(0, 5000))
def test_own_times_sum_to_the_compute_of_the_account(shape, seed, host):
    timeline = random_run(*shape, seed, host)
    offsets = timeline.program.schedule.offsets
    assert np.add.reduceat(spent(timeline), offsets[:-1]).tolist() == account(timeline).compute.tolist()


@given(SHAPES, st.integers(0, 2**32))
def test_a_run_fitted_and_simulated_again_starts_no_op_later(shape, seed):
    timeline = random_run(*shape, seed)
    again = simulate(timeline.program, fitted(timeline))
    assert (again.start <= timeline.start).all()


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 4), (8, 32)])
def test_an_even_run_has_nothing_but_its_schedule(p, m):
    found = causes(run(ranks=p, microbatches=m, forward=1 * MS))
    assert dict(found) == {
        "ideal": m * 3 * MS,
        "schedule": (p - 1) * 3 * MS,
        **dict.fromkeys(("imbalance", "variation", "transfer", "unexplained"), 0),
    }


def test_ideal_is_the_mean_work_of_a_rank_whatever_stages_it_holds():
    """Two chunks a rank: 8 micro-batches x 3 ms of work on each of 4 ranks, on 8 stages."""
    schedule = build("interleaved", Shape(4, 8, 2))
    found = causes(simulate(lower(schedule), costs_of(Rates(forward=1 * MS), schedule)))
    assert (found.ideal, found.schedule) == (24 * MS, 9 * MS // 2)


def test_a_hop_that_hides_behind_work_is_the_lower_one_of_two_that_show():
    """Rank 1 waits for its first input and for the second (3 and 1 ms), and has the third before it is free."""
    schedule = build("gpipe", Shape(2, 3))
    rows = {(str(schedule.op(row))): row for row in range(len(schedule))}
    start, end = np.zeros(12, np.int64), np.zeros(12, np.int64)
    spans = {"0F0": (0, 1), "0F1": (4, 5), "0F2": (5, 6), "1F0": (4, 5), "1F1": (6, 9), "1F2": (9, 10), "1B0": (10, 11)}
    spans |= {"1B1": (11, 12), "1B2": (12, 13), "0B0": (11, 12), "0B1": (12, 13), "0B2": (13, 14)}
    for op, (a, b) in spans.items():
        start[rows[op]], end[rows[op]] = a * MS, b * MS
    found = hops(Timeline(lower(schedule), start, end, "measured"))
    assert [found[rows[op]] // MS for op in ("1F0", "1F1", "1F2")] == [3, 1, 1]


def test_a_heavy_last_stage_is_imbalance_and_nothing_else():
    found = causes(run(forward=10 * MS, stage_scale=(1, 1, 1, 1.6)))
    assert found.imbalance == causes_of_scale((1, 1, 1, 1.6)) > 0
    assert (found.variation, found.transfer, found.unexplained) == (0, 0, 0)


def causes_of_scale(scale):
    """Window beyond that of the even run of the same total work."""
    even = sum(scale) / len(scale)
    uneven, levelled = (run(forward=10 * MS, stage_scale=s).makespan for s in (scale, (even,) * 4))
    return uneven - levelled


@pytest.mark.parametrize("hop", [1 * MS, 7 * MS, 100 * MS])
def test_constant_hops_are_transfer_and_nothing_else(hop):
    found = causes(run(forward=10 * MS, transfer=hop))
    assert found.transfer == run(forward=10 * MS, transfer=hop).makespan - run(forward=10 * MS).makespan
    assert (found.imbalance, found.variation, found.unexplained) == (0, 0, 0)


def test_long_and_short_microbatches_are_variation_and_nothing_else():
    scale = (0.5, 1.5, 0.5, 1.5, 0.5, 1.5, 0.5, 1.5)
    found = causes(run(forward=10 * MS, microbatch_scale=scale))
    even = run(forward=10 * MS).makespan
    assert found.variation == run(forward=10 * MS, microbatch_scale=scale).makespan - even > 0
    assert (found.imbalance, found.transfer, found.unexplained) == (0, 0, 0)


def test_a_late_host_before_the_first_op_of_a_stage_stays_unexplained():
    """GPipe with one rank: no hop could explain that the third forward starts 5 ms late."""
    exact = run("gpipe", 1, 4, forward=1 * MS)
    late = np.where(np.arange(8) >= 2, 5 * MS, 0)
    found = causes(Timeline(exact.program, exact.start + late, exact.end + late, "measured"))
    assert (found.unexplained, found.transfer, found.schedule) == (5 * MS, 0, 0)


def test_bytedance_st_schedule_364_imbalance_149_variation_minus_001_rest_0025_of_the_window(st_windows):
    found = [causes(timeline) for timeline in st_windows]
    shares = np.mean([[cost / each.window for _, cost in each] for each in found], axis=0)
    ideal, schedule, imbalance, variation, transfer, unexplained = shares
    assert [schedule, imbalance, variation] == pytest.approx([0.3643, 0.1488, -0.0014], abs=0.001)
    assert transfer + unexplained == pytest.approx(0.0025, abs=0.0005)
    assert 1 - ideal == pytest.approx(0.5143, abs=0.0005)


def test_bytedance_st_simulated_again_is_within_half_a_percent_of_measured(st_windows):
    found = [causes(timeline) for timeline in st_windows]
    assert np.mean([each.resim_ratio for each in found]) == pytest.approx(1, abs=0.005)
    assert np.mean([each.resim_without_transfer_ratio for each in found]) == pytest.approx(0.9975, abs=0.0005)


def test_what_a_step_holds_beside_its_window_is_the_median_over_steps_of_their_own_differences():
    """Windows of 15, 18 and 16.5 ms in steps of 17, 19 and 21: 2, 1 and 4.5 ms outside, and a median step of 19."""
    found = observed(
        window(0, step_ns=17_000_000), window(1, 1.2, step_ns=19_000_000), window(2, 1.1, step_ns=21_000_000)
    )
    assert (found.outside_ns, found.step_ns, found.median_ns) == (2_000_000, 19_000_000, 16_500_000)
    unknown = observed(window(0), window(1))
    assert (unknown.outside_ns, unknown.step_ns) == (None, None)


def test_the_median_of_two_windows_lies_between_them_and_the_makespan_is_the_shorter():
    found = observed(window(0), window(1, 1.2))
    assert (found.median_ns, found.makespan_ns) == (16_500_000, 15_000_000)


def test_bubble_and_idle_of_1f1b_at_p2_m4_are_a_fourth_and_a_fifth():
    """(p - 1)/m of the work, (p - 1)/(m + p - 1) of the window."""
    found = observed(window(0), window(1, 1.4))
    assert (found.bubble_ratio, found.idle_share) == (pytest.approx(1 / 4), pytest.approx(1 / 5))
    assert found.pooled_idle_share == pytest.approx(1 / 5)


def test_warm_up_is_judged_by_whole_steps_if_they_were_measured():
    """All windows are alike; the first step took 31 ms of which a window is 15, the others 20."""
    found = observed(window(0, step_ns=31_000_000), *(window(step, step_ns=20_000_000) for step in range(1, 4)))
    assert found.left_out == (0,)
    found = observed(window(0, step_ns=30_000_000), *(window(step, step_ns=20_000_000) for step in range(1, 4)))
    assert found.left_out == ()


def test_costs_of_stages_are_medians_over_micro_batches_and_windows():
    found = stage_costs(observed(window(0), window(1, 1.2, scale=(1.0, 2.0)), window(2, 1.1)))
    assert found.evidence == "measured"
    assert found.durations[[Kind.F, Kind.B], :, 0].tolist() == [[1_100_000, 1_100_000], [2_200_000, 2_200_000]]
    assert not found.durations[[Kind.I, Kind.W]].any()
    assert not found.transfers.any()


def test_causes_are_said_in_their_order_and_a_tenth_off_is_still_trusted():
    found = Causes(ideal=60, schedule=20, imbalance=6, variation=4, transfer=0, unexplained=10)
    assert (found.window, found.resimulated) == (100, 90)
    assert found.resim_ratio == pytest.approx(0.9)
    assert found.trusted
    assert found.most_busy == pytest.approx(60 / 80)
    assert [name for name, _ in found] == ["ideal", "schedule", "imbalance", "variation", "transfer", "unexplained"]
    assert not replace(found, unexplained=12).trusted
    assert not replace(found, unexplained=-12).trusted


def test_transfers_and_what_an_engine_adds_are_not_there_if_transfers_are_free():
    found = Causes(ideal=50, schedule=10, imbalance=0, variation=0, transfer=15, unexplained=20, engine=5)
    assert found.resim_without_transfer_ratio == pytest.approx(0.6)
    assert [name for name, _ in found][-2:] == ["engine", "unexplained"]
    assert found.window == 100


def test_a_window_without_time_is_explained():
    nothing = Causes(0, 0, 0, 0, 0, 0)
    assert (nothing.resim_ratio, nothing.resim_without_transfer_ratio, nothing.most_busy) == (1, 1, 1)
