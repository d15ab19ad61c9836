"""Pipelines without a whole replica: the ranks that are here close up, times untouched; a whole one stays as it is."""

from dataclasses import replace

import numpy as np
import pytest

from debubble.core.account import account
from debubble.reconstruct.observe import observe
from devices import devices, reading, simulated, talking


def by_groups(device):
    """As process groups tell a place: the position, and no stage or micro-batch."""
    return replace(device, stage=None, unit=None, position=device.rank, replica=0)


def labelled(device):
    return device


def replica(timeline, number, *lost):
    """One replica without some of its ranks."""
    found = devices(timeline, first=4 * number, apart=number * 500_000)
    return [replace(device, replica=number) for p, device in enumerate(found) if p not in lost]


@pytest.mark.parametrize("told", [by_groups, labelled])
@pytest.mark.parametrize(("lost", "beside"), [(0, (1,)), (1, (0, 2)), (2, (1, 3))])
def test_ranks_around_a_gap_are_accounted_for_to_the_nanosecond(told, lost, beside):
    timeline = simulated("1f1b", 4, 6)
    observation = observe(reading([told(device) for device in devices(timeline) if device.rank != lost]))
    assert observation.torn == beside
    assert len(observation.windows) == 3
    rank = timeline.program.schedule.rank_of()
    for window in observation.windows:
        np.testing.assert_array_equal(account(window.timeline).compute, np.delete(account(timeline).compute, lost))
        ops = window.timeline.start - window.timeline.start.min()
        left = timeline.start[rank != lost]
        np.testing.assert_array_equal(ops, left - left.min())
    assert any("is here, so no pipeline is whole" in remark for remark in observation.remarks)


@pytest.mark.parametrize("name", ["interleaved", "zb-v"])
def test_stages_of_several_chunks_close_up(name):
    timeline = simulated(name, 4, 8, 2)
    observation = observe(reading([device for device in devices(timeline) if device.rank != 2]))
    schedule = observation.windows[0].timeline.program.schedule
    assert (schedule.ranks, schedule.stages) == (3, 6)
    assert any("no whole trace of stage 2, " in remark for remark in observation.remarks)


def test_of_replicas_that_all_lack_a_rank_the_fullest_answers():
    timeline = simulated("1f1b", 4, 6)
    observation = observe(reading([*replica(timeline, 0, 1, 3), *replica(timeline, 1, 2)]))
    assert {window.replica for window in observation.windows} == {0}
    assert observation.windows[0].timeline.program.schedule.ranks == 3
    assert observation.torn == (5, 7)
    assert any("rank 4, 5, 7 of the fullest replica alone" in remark for remark in observation.remarks)


def test_beside_a_whole_replica_a_torn_one_is_left_out_as_ever():
    timeline = simulated("1f1b", 4, 6)
    observation = observe(reading([*replica(timeline, 0), *replica(timeline, 1, 2)]))
    assert observation.torn == ()
    assert len(observation.windows) == 3
    assert observation.windows[0].timeline.program.schedule.ranks == 4


def test_an_absurd_number_of_a_stage_takes_no_memory():
    found = devices(simulated("1f1b", 4, 6))
    found[3] = replace(found[3], stage=np.full(len(found[3]), 2_000_000_000, np.int32))
    observation = observe(reading(found))
    assert observation.windows[0].timeline.program.schedule.ranks == 4
    assert observation.torn == (2, 3)
    assert any("stage 3, 4, 5, 6, 7, 8, 9, 10, .. is here" in remark for remark in observation.remarks)


@pytest.mark.parametrize(("world", "torn"), [(None, (1,)), (8, (1,)), (4, ())])
def test_messages_without_another_side_mean_a_missing_rank_unless_all_of_the_job_are_here(world, torn):
    """Rank 0's file lost its messages, so that half of rank 1's have no other side and name nobody."""
    timeline = simulated("1f1b", 4, 6)
    found = talking(devices(timeline), timeline, named=True)
    moves = found[1].transfers
    found[1] = replace(found[1], transfers=replace(moves, peer=np.where(moves.peer == 0, -1, moves.peer)))
    found[0] = replace(found[0], transfers=None)
    observation = observe(replace(reading(found), world=world))
    assert observation.torn == torn
    assert len(observation.windows) == 3
