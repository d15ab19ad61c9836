"""Devices merged into windows: what was simulated comes back to the nanosecond, whatever the file did not say."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.errors import InputError, Refusal
from debubble.reconstruct.device_ops import Clock
from debubble.reconstruct.observe import observe
from debubble.reconstruct.positions import MOST_NAMED, Said, by_rank_number, named
from devices import EPOCH, as_chunks, devices, forwards, only, reading, simulated, skewed, talking
from strategies import schedules

MILLISECOND = 1_000_000


def same(observation, timeline, *, windows=3):
    """Whether each window is the simulated timeline, shifted."""
    assert len(observation.windows) == windows
    for window in observation.windows:
        got, want = window.timeline, timeline
        assert got.program.schedule.same_order(want.program.schedule)
        assert np.array_equal(got.program.schedule.placement, want.program.schedule.placement)
        assert np.array_equal(got.start - got.start.min(), want.start)
        assert np.array_equal(got.end - got.start.min(), want.end)


ALL = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("looped-bfs", 2), ("hanayo", 2)]


@pytest.mark.parametrize(("name", "chunks"), ALL)
def test_every_step_comes_back(name, chunks):
    timeline = simulated(name, 4, 8, chunks)
    observation = observe(reading(devices(timeline)))
    same(observation, timeline)
    assert [window.step for window in observation.windows] == [10, 11, 12]
    assert [window.step_ns for window in observation.windows] == [1000, 1001, 1002]
    assert observation.gpus == 4
    assert not observation.remarks


@settings(max_examples=40, deadline=None)
@given(schedules(modes=("fused", "split", "mixed"), slices=False, copies=False, pairs=False))
def test_any_legal_order_comes_back(schedule):
    if (np.diff(schedule.offsets) > 0).all():
        timeline = simulated(schedule)
        same(observe(reading([replace(d, position=d.rank) for d in devices(timeline)])), timeline)


def test_micro_batches_are_counted_where_they_are_not_said():
    timeline = simulated("1f1b")
    same(observe(reading([replace(d, unit=None) for d in devices(timeline)])), timeline)


@pytest.mark.parametrize(("name", "chunks"), [("interleaved", 2), ("zb-v", 2), ("interleaved", 4)])
def test_stages_follow_from_chunks_whether_they_loop_or_turn_back(name, chunks):
    timeline = simulated(name, 4, 8, chunks)
    same(observe(reading([as_chunks(d, 4) for d in devices(timeline)])), timeline)


def test_chunks_follow_from_how_often_a_micro_batch_passes():
    timeline = simulated("interleaved", 4, 8, 2)
    found = [replace(as_chunks(d, 4), chunk=None) for d in devices(timeline)]
    same(observe(reading(found)), timeline)


def test_chunks_and_micro_batches_alternate_as_megatron_does_where_neither_is_said():
    timeline = simulated("interleaved", 4, 8, 2)
    found = [replace(as_chunks(d, 4), chunk=None, unit=None) for d in devices(timeline)]
    same(observe(reading(found), Said(chunks=2)), timeline)


@pytest.mark.parametrize("labels", ["unit", None])
def test_steps_are_found_where_they_are_not_said(labels):
    timeline = simulated("1f1b")
    found = [replace(d, step=np.full(len(d), -1)) for d in devices(timeline)]
    same(observe(reading(found if labels else [replace(d, unit=None) for d in found])), timeline)


def test_only_the_steps_that_were_asked_for():
    observation = observe(reading(devices(simulated("1f1b"))), Said(steps=(11, 12)))
    assert [window.step for window in observation.windows] == [11, 12]


@pytest.mark.parametrize("clock", [Clock.OWN, Clock.STEP])
def test_clocks_are_aligned_by_cause_and_effect_and_hops_are_halved_both_ways(clock):
    timeline = simulated("1f1b")  # every hop takes .4 ms in both directions, so the middle is the truth
    found = [replace(skewed(d, 7 * MILLISECOND * d.rank), clock=clock) for d in devices(timeline)]
    observation = observe(reading(found))
    same(observation, timeline)
    assert observation.clock_uncertainty_ns == 800_000
    assert "no common clock" in observation.remarks[-1]


@given(st.lists(st.integers(-50 * MILLISECOND, 50 * MILLISECOND), min_size=4, max_size=4))
@settings(max_examples=25, deadline=None)
def test_clocks_that_pretend_to_agree_are_aligned_once_an_op_starts_before_its_cause(skew):
    timeline = simulated("1f1b")
    observation = observe(reading([skewed(d, by) for d, by in zip(devices(timeline), skew, strict=True)]))
    window = observation.windows[0].timeline
    if any("aligned by cause and effect" in remark for remark in observation.remarks):
        same(observation, timeline)
    else:  # within what hops allow, clocks are left alone
        assert max(abs(a - b) for a, b in pairwise(skew)) <= 402_000
        assert window.makespan == timeline.makespan


def test_clocks_that_each_begin_anew_in_every_step():
    timeline = simulated("1f1b")
    found = []
    for device in devices(timeline):
        jump = np.random.default_rng(device.rank).integers(0, 10**9, 3)[device.step - 10]
        found.append(replace(device, start=device.start + jump, end=device.end + jump, clock=Clock.STEP))
    same(observe(reading(found)), timeline)


def test_devices_of_one_stage_become_one_rank_from_earliest_start_to_latest_end():
    timeline = simulated("1f1b")
    first = [replace(d, position=d.rank, replica=0) for d in devices(timeline)]
    later = [replace(skewed(d, 100_000), rank=d.rank + 4) for d in first]
    observation = observe(reading(first + later))
    assert len(observation.windows) == 3
    got = observation.windows[0].timeline
    assert np.array_equal(got.start - got.start.min(), timeline.start)
    assert np.array_equal(got.end - got.start.min(), timeline.end + 100_000)
    assert observation.gpus == 8
    assert "0.100 ms apart" in observation.remarks[-1]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("interleaved", 2)])
def test_pipelines_are_told_apart_by_who_talks_to_whom(name, chunks, named):
    timeline = simulated(name, 4, 8, chunks)
    one = talking(devices(timeline), timeline, named=named)
    two = talking(devices(timeline, apart=2_300_000, first=4), timeline, named=named)
    mixed = [replace(d, rank=d.rank % 4 * 2 + d.rank // 4, stage=None, chunk=None) for d in one + two]
    if named:
        mixed = [
            replace(d, transfers=replace(d.transfers, peer=d.transfers.peer % 4 * 2 + d.transfers.peer // 4))
            for d in mixed
        ]
    observation = observe(reading(mixed), Said(chunks=chunks))
    assert [window.replica for window in observation.windows] == [0, 1] * 3
    same(observation, timeline, windows=6)
    assert observation.matched_share == 1


def test_transfers_pin_clocks_closer_than_ops_do():
    timeline = simulated("1f1b")
    found = talking(devices(timeline), timeline, named=False)
    loose, close = observe(reading(devices(timeline))), observe(reading(found))
    assert loose.clock_uncertainty_ns == 800_000
    assert close.clock_uncertainty_ns == 40_000  # both sides of a transfer end within 20 us of each other
    skew = [0, 150_000, -150_000, 0]  # within what ops allow, but not within what transfers do
    aligned = observe(reading([skewed(d, by) for d, by in zip(found, skew, strict=True)]))
    assert "150" not in aligned.remarks
    starts = aligned.windows[0].timeline.start
    assert np.abs(starts - starts.min() - timeline.start).max() <= 60_000


def test_transfers_without_their_other_side_are_counted():
    timeline = simulated("1f1b")
    found = talking(devices(timeline), timeline, named=False)
    observation = observe(reading([*found[:3], replace(found[3], transfers=None)]))
    assert observation.matched_share == pytest.approx(4 / 5)  # ranks 0 to 2 have 1, 2 and 2 hops; one of them is lost


def test_positions_are_overridden_in_the_order_of_ranks():
    timeline = simulated("1f1b")
    found = [replace(d, rank=2 * d.rank + q, stage=None) for q in (0, 1) for d in devices(timeline, apart=q)]
    same(observe(reading(found), Said(ranks=4)), timeline, windows=6)
    tensor = observe(reading(found), Said(ranks=4, data=1))
    assert len(tensor.windows) == 3


@pytest.mark.parametrize("said", [Said(ranks=3), Said(ranks=2, data=3)])
def test_overrides_that_do_not_fit_are_refused(said):
    with pytest.raises(InputError, match="cannot be split"):
        observe(reading(devices(simulated("1f1b"))), said)


def test_without_labels_and_transfers_the_warm_up_tells_and_that_is_said():
    timeline = simulated("1f1b")
    found = [replace(d, stage=None, rank=3 - d.rank) for d in devices(timeline)]
    observation = observe(reading(found))
    same(observation, timeline)
    assert "warm-up" in observation.remarks[0]


def test_a_step_that_is_cut_off_is_left_out_and_said():
    found = devices(simulated("1f1b"))
    found[2] = only(found[2], ~((found[2].step == 12) & (found[2].unit == 5)))
    observation = observe(reading(found))
    assert [window.step for window in observation.windows] == [10, 11]
    assert "1 window left out" in observation.remarks[0]
    assert "2F5 is missing" in observation.remarks[0]


def test_a_rank_that_is_missing_costs_its_replica():
    timeline = simulated("1f1b")
    found = [
        replace(d, position=d.rank % 4, replica=d.rank // 4) for d in devices(timeline) + devices(timeline, first=4)
    ]
    observation = observe(reading([d for d in found if d.rank != 2]))
    same(observation, timeline)
    assert {window.replica for window in observation.windows} == {1}
    assert any("replica 0 rank 2" in remark for remark in observation.remarks)


def test_a_rank_that_is_missing_from_the_only_replica_is_named():
    found = [replace(d, position=d.rank, stage=None) for d in devices(simulated("1f1b")) if d.rank != 2]
    observation = observe(reading(found))
    assert observation.torn == (1, 3)
    assert any("no whole trace of position 2 is here" in remark for remark in observation.remarks)


def test_an_absurd_duration_costs_its_window_and_not_the_run():
    found = devices(simulated("1f1b"))
    end = found[1].end.copy()
    end[3] += 10**12
    found[1] = replace(found[1], end=end)
    observation = observe(reading(found))
    assert [window.step for window in observation.windows] == [11, 12]
    assert "ops set aside: 1" in observation.remarks[0]


@pytest.mark.parametrize("stamp", [0, EPOCH - 10**15, np.iinfo(np.int64).max // 4])
def test_an_op_at_an_absurd_time_costs_its_window_and_not_the_run(stamp):
    found = devices(simulated("1f1b"))
    start, end = found[1].start.copy(), found[1].end.copy()
    start[3] = end[3] = stamp
    found[1] = replace(found[1], start=start, end=end)
    observation = observe(reading(found))
    assert [window.step for window in observation.windows] == [11, 12]


def test_ops_that_overlap_by_a_few_nanoseconds_cost_nothing():  # kineto issue 136, roctracer issue 104
    timeline = simulated("gpipe")
    found = [replace(d, end=d.end + 27) for d in devices(timeline)]
    observation = observe(reading(found))
    same_order = observation.windows[0].timeline.program.schedule.same_order(timeline.program.schedule)
    assert same_order
    assert account(observation.windows[0].timeline).idle_share == pytest.approx(account(timeline).idle_share, abs=1e-4)
    assert not observation.remarks


def test_no_op_at_all_is_no_pipeline():
    with pytest.raises(Refusal, match="no pipeline"):
        observe(reading([only(d, forwards(d) & False) for d in devices(simulated("1f1b"))]))


def test_numbers_of_devices_run_through_tensor_then_data_then_pipeline():
    """Megatron-LM's order of groups: 12 devices of 2 x 2 x 3."""
    found = by_rank_number(12, 3, 2)
    assert found.position.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert found.replica.tolist() == [0, 0, 1, 1] * 3
    assert by_rank_number(6, 3, None).replica.tolist() == [0, 1] * 3  # if nothing is said of tensor groups, replicas
    for ranks, data in ((5, None), (3, 3)):
        with pytest.raises(InputError, match="12 devices cannot be split so"):
            by_rank_number(12, ranks, data)


def test_many_ranks_are_named_by_the_lowest_and_the_rest_counted():
    few, many = named([3, 1, 2]), named(range(100, 0, -1))
    assert few == "1, 2, 3"
    spelled, more = many.split(" and ")
    assert [int(rank) for rank in spelled.split(", ")] == list(range(1, MOST_NAMED + 1))
    assert more == f"{100 - MOST_NAMED} more"
    assert named(range(MOST_NAMED)) == ", ".join(str(rank) for rank in range(MOST_NAMED))
