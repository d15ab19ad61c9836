"""A diagnosis as a whole: on simulated runs with known faults, and on a production run."""

from dataclasses import replace
from statistics import median

import numpy as np
import pytest

import debubble
from debubble import Observation, Rates, Shape, Timeline, Window, build, costs_of, lower, simulate
from debubble.core.observation import DeviceClock, HeldMemory, Link
from debubble.diagnosis.diagnose import diagnose

MS = 1_000_000


def observed(name="1f1b", ranks=4, microbatches=8, steps=3, slow=None, **rates):
    """A run of some steps and two replicas; ``slow`` makes one rank of replica 1 half as fast again."""
    schedule = build(name, Shape(ranks, microbatches))
    program = lower(schedule)
    fair = Rates(**({"forward": 10 * MS, "backward": 20 * MS} | rates))
    windows = []
    for step in range(steps):
        for replica in range(2):
            scale = tuple(1.5 if (replica, rank) == (1, slow) else 1.0 for rank in range(ranks))
            exact = simulate(program, costs_of(replace(fair, rank_scale=scale), schedule))
            timeline = Timeline(program, exact.start, exact.end, "measured")
            windows.append(Window(step, replica, timeline, exact.makespan + 5 * MS))
    return Observation("run", tuple(windows), gpus=2 * ranks, samples=2 * microbatches)


def test_an_even_run_blames_its_schedule_and_what_lies_outside():
    found = diagnose(observed())
    assert [(each.cause, each.cost_ns) for each in found.findings] == [("schedule", 90 * MS), ("outside", 5 * MS)]
    assert str(found.order) == "1f1b"
    assert found.findings[0].gain_ratio == pytest.approx(2 * 335 / (570 + 5))
    assert found.verdict[0] == "Its GPUs compute for 72 % of a step (measured)."


def test_a_heavy_last_stage_is_named_with_its_longest_op():
    (found,) = [e for e in diagnose(observed(stage_scale=(1, 1, 1, 1.6))).findings if e.cause == "imbalance"]
    assert "rank 3 works 1.60 times as long as the mean of the others (an end of the model" in found.sentence
    assert (found.spans[0].rank, found.spans[0].op[:2]) == (3, "3B")
    assert found.gain_ratio > 1


def test_a_rank_that_is_slow_in_one_replica_only_is_a_slow_gpu():
    """Cured, its replica's step is as long as the other's."""
    run = observed(slow=2)
    (found,) = [e for e in diagnose(run).findings if e.cause == "slow rank"]
    fair, slow = (run.windows[replica].step_ns for replica in range(2))
    assert "rank 2 of replica 1 takes 1.50 times as long as the same stage in other replicas" in found.sentence
    assert found.remedy.startswith("look at the GPU of rank 2 of replica 1")
    assert found.gain_ratio == pytest.approx(slow / fair)
    assert "rank 2 of replica 1 cured, 1.50 times as fast" in {each.change for each in diagnose(run).what_ifs}


def test_the_stage_of_a_slow_rank_is_not_called_heavy():
    run = observed(slow=2)
    mostly_slow = tuple(window for window in run.windows if window.replica == 1 or window.step == 0)
    found = diagnose(replace(run, windows=mostly_slow))
    assert found.causes.imbalance > 0.1 * found.causes.window  # the median window is one of the slow rank's
    assert {each.cause for each in found.findings} == {"schedule", "slow rank", "tail", "outside"}


def test_a_heavy_stage_in_all_replicas_is_no_slow_rank():
    causes = {each.cause for each in diagnose(observed(stage_scale=(1, 1, 1.5, 1))).findings}
    assert "imbalance" in causes
    assert "slow rank" not in causes


def test_one_replica_alone_cannot_tell_a_slow_gpu_from_more_layers():
    run = observed(stage_scale=(1, 1, 1.5, 1))
    (found,) = [
        e
        for e in diagnose(replace(run, windows=tuple(w for w in run.windows if w.replica == 0))).findings
        if e.cause == "imbalance"
    ]
    assert "one replica cannot tell more layers from a slow GPU" in found.sentence


def test_exposed_transfers_are_found_and_none_is_claimed_below_the_clocks_uncertainty():
    run = observed(transfer=4 * MS)
    assert "transfer" in {each.cause for each in diagnose(run).findings}
    unsure = replace(run, clock_uncertainty_ns=80 * MS)
    assert {each.cause for each in diagnose(unsure).findings} == {"schedule"}


def test_a_prediction_is_held_against_what_was_measured():
    found = diagnose(replace(observed(), predicted_ns=300 * MS, paced=True))
    assert "The pipeline window took 10.0 % more than was simulated before the run." in found.verdict
    assert any(remark.startswith("paced") for remark in found.remarks)


def test_ranks_that_messages_name_are_missing_by_name_and_fail_a_strict_gate():
    run = replace(observed(), torn=(1, 3), missing=(2,))
    found = debubble.diagnose(run, strict=True)
    assert found.verdict[0].startswith("Ranks are missing: 2, to which rank 1, 3 talks;")
    assert (found.missing_ranks, found.gate.passed, found.exit_status) == ((2,), False, 1)
    assert found.gate.reasons == ("Ranks are missing: 2.",)
    assert debubble.diagnose(observed(), strict=True).exit_status == 0


def test_least_most_and_median_of_all_windows_stand_in_the_result():
    """Even windows of 330 ms, and those of a replica with a rank that is half as fast again, which are longer."""
    run = observed(slow=2)
    found = debubble.diagnose(run)
    lengths = sorted(window.timeline.makespan / MS for window in run.windows)
    assert (found.makespan_min_ms, found.makespan_max_ms) == (330, lengths[-1])
    assert lengths[-1] > 400
    assert (found.makespan_median_ms, found.makespan_ms) == (median(lengths), lengths[len(lengths) // 2 - 1])
    assert sum(cause.cost_ms for cause in found.causes) == pytest.approx(found.makespan_ms)
    assert found.idle_share_min < found.idle_share < found.idle_share_max
    assert found.bubble_ratio_min < found.bubble_ratio < found.bubble_ratio_max


def test_clocks_and_memory_over_time_stand_in_the_result():
    held = np.arange(1000) % 7 * 10**9
    memory = HeldMemory(3, 1, 1, np.arange(1000) * MS, held)
    clocks = (DeviceClock(0, 0, 0.0, 0), DeviceClock(1, -5 * MS, 40.0, 20_000), DeviceClock(2, None, 0.0, None))
    found = debubble.diagnose(replace(observed(), memory=(memory,), clocks=clocks))
    assert [(each.offset_ms, each.rate_ppm) for each in found.clocks] == [(0, 0), (-5, 40), (None, 0)]
    (row,) = found.memory
    assert (row.device, row.rank, row.replica, row.peak_bytes) == (3, 1, 1, 6 * 10**9)
    assert len(row.time_ms) == len(row.held_bytes) == 256
    assert max(row.held_bytes) == row.peak_bytes
    assert "device 3" in found.text()


def test_an_unknown_order_is_said_to_be_one():
    run = observed("gpipe", 1, 4)
    schedule = run.windows[0].timeline.program.schedule
    unit = schedule.unit.copy()
    unit[:2] = unit[1], unit[0]
    odd = lower(replace(schedule, unit=unit))
    seen = run.windows[0].timeline
    found = diagnose(replace(run, windows=(Window(0, 0, Timeline(odd, seen.start, seen.end, "measured")),)))
    assert found.order.name is None
    assert any(remark.startswith("no known schedule; nearest") for remark in found.remarks)


def test_bytedance_st_first_finding_after_the_schedule_is_the_last_stage(st_windows):
    windows = tuple(Window(i // 2, i % 2, each) for i, each in enumerate(st_windows))
    found = diagnose(Observation("st", windows))
    assert [each.cause for each in found.findings[:2]] == ["schedule", "imbalance"]
    assert "rank 3" in found.findings[1].sentence
    assert found.summary.idle_share == pytest.approx(0.5143, abs=0.005)
    assert np.isclose(found.summary.pooled_idle_share, 0.51429, atol=0.0005)
    assert (str(found.order), found.summary.replicas) == ("1f1b", 2)


def test_waiting_is_a_share_of_all_time_in_receives_link_by_link_and_of_all_together():
    """30 + 10 ms of rank 0 to 1, 0 + 20 of rank 1 to 2: 30 of 60 were waiting."""
    links = (Link(0, 1, 8, 30 * MS, 10 * MS, MS), Link(1, 2, 8, 0, 20 * MS, 2 * MS))
    found = debubble.diagnose(replace(observed(), links=links))
    assert [link.waiting_share for link in found.transfers] == [0.75, 0.0]
    assert found.receive_waiting_share == 0.5
    assert debubble.diagnose(observed()).receive_waiting_share is None


def test_the_least_and_the_most_bubble_are_those_of_its_windows():
    even, uneven = observed(steps=1), observed(steps=1, stage_scale=(1.0, 1.0, 1.0, 2.0))
    later = tuple(replace(window, step=1) for window in uneven.windows)
    found = debubble.diagnose(replace(even, windows=(*even.windows, *later)))
    alone = [debubble.diagnose(run).bubble_ratio for run in (even, uneven)]
    assert (found.bubble_ratio_min, found.bubble_ratio_max) == pytest.approx(tuple(alone))
