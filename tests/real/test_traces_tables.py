"""Real runs through op tables, Primus timings and Nsight exports: the bubble that others worked out, and the order."""

import json
from dataclasses import replace

import numpy as np
import pytest

from debubble.core.account import account
from debubble.core.errors import Refusal
from debubble.core.laws import needs_of
from debubble.core.schedule import Shape
from debubble.readers.nsight import read_nsight
from debubble.readers.primus import read_primus
from debubble.readers.table import read_table
from debubble.reconstruct.observe import observe
from debubble.schedules.catalog import build


@pytest.fixture(scope="module")
def truth(shared):
    return json.loads((shared / "traces" / "ground_truth.json").read_text())


def idle(windows):
    """Mean idle share, and whether every window has this order."""
    return np.mean([account(window.timeline).idle_share for window in windows])


def orders(windows):
    return [window.timeline.program.schedule for window in windows]


@pytest.fixture(scope="module")
def bytedance(shared):
    return observe(read_table(shared / "traces" / "bytedance-st" / "trace.parquet"))


def test_bytedance_idles_51_43_percent_in_64_windows(bytedance, truth):
    assert len(bytedance.windows) == truth["bytedance-st"]["n"] == 64
    assert idle(bytedance.windows) == pytest.approx(truth["bytedance-st"]["bubble_mean"], abs=1e-5)
    assert bytedance.gpus == 8


def test_bytedance_is_1f1b_in_every_window(bytedance):
    assert all(order.same_order(build("1f1b", Shape(4, 4))) for order in orders(bytedance.windows))


def test_bytedance_step_259_takes_2211_ms_and_its_window_2010(bytedance):
    window = next(w for w in bytedance.windows if (w.step, w.replica) == (259, 0))
    assert window.step_ns == pytest.approx(2211e6, rel=5e-4)
    assert window.timeline.makespan == pytest.approx(2010e6, rel=5e-4)
    assert account(window.timeline).idle_share == pytest.approx(0.5127, abs=1e-4)


def test_bytedance_step_23_has_the_window_that_was_worked_out_by_hand(bytedance, truth):
    window = next(w for w in bytedance.windows if (w.step, w.replica) == (23, 0))
    assert window.timeline.makespan == pytest.approx(1e9 * truth["bytedance-st"]["first"]["window"], abs=1000)
    busy = account(window.timeline).compute / 1e9
    assert busy == pytest.approx([0.8127, 0.8068, 0.8082, 1.3282], abs=1e-4)


def test_bytedance_clocks_agree_within_0_9_ms_by_cause_and_0_25_ms_by_ends_of_transfers(shared, bytedance):
    reading = read_table(shared / "traces" / "bytedance-st" / "trace.parquet")
    silent = replace(reading, devices=tuple(replace(device, transfers=None) for device in reading.devices))
    assert observe(silent).clock_uncertainty_ns == pytest.approx(0.92e6, rel=0.05)
    assert bytedance.clock_uncertainty_ns == pytest.approx(0.21e6, abs=0.04e6)
    assert bytedance.matched_share == 1
    assert not bytedance.remarks


@pytest.fixture(scope="module")
def primus(shared):
    folder = shared / "traces" / "primus-pp8"
    return observe(read_primus(sorted(folder.glob("pp_rank_*.json")), str(folder)))


def test_primus_idles_35_59_percent_over_iterations_3_to_20(primus, truth):
    kept = [window for window in primus.windows if window.step >= 3]
    assert len(kept) == truth["primus-pp8"]["n"]
    assert idle(kept) == pytest.approx(truth["primus-pp8"]["bubble_mean"], abs=0.001)


def test_primus_is_1f1b_without_a_label(primus):
    assert all(order.same_order(build("1f1b", Shape(8, 16))) for order in orders(primus.windows))


def test_primus_clocks_are_known_to_1_4_ms_a_hop(primus):
    assert 1.2e6 < primus.clock_uncertainty_ns <= 1.45e6
    assert any("aligned by cause and effect" in remark for remark in primus.remarks)


def test_primus_ops_never_start_before_what_they_need(primus):
    for window in primus.windows:
        timeline = window.timeline
        needs = needs_of(timeline.program.schedule)[0]
        rows = np.flatnonzero(needs >= 0)
        assert (timeline.start[rows] >= timeline.end[needs[rows]]).all()


def test_the_same_run_in_an_nsight_export_idles_51_58_percent(shared):
    path = shared / "traces" / "bytedance-st" / "st-nsys.sqlite"
    observation = observe(read_nsight([path], str(path)))
    assert len(observation.windows) == 16
    assert idle(observation.windows) == pytest.approx(0.5158, abs=1e-4)
    assert all(order.same_order(build("1f1b", Shape(4, 4))) for order in orders(observation.windows))


def test_the_nsight_export_has_the_same_windows_as_the_table_it_was_made_of(shared, bytedance):
    path = shared / "traces" / "bytedance-st" / "st-nsys.sqlite"
    spans = [window.timeline.makespan for window in observe(read_nsight([path], str(path))).windows]
    steps = (23, 25, 33, 34, 36, 259, 261, 263)
    known = [window.timeline.makespan for window in bytedance.windows if window.step in steps]
    assert spans == pytest.approx(known, abs=1000)


def test_two_h100s_that_share_no_pipeline_are_told_so(shared):
    path = shared / "traces" / "nsys" / "h100_2gpu_1s.sqlite"
    with pytest.raises(Refusal, match="no pipeline"):
        read_nsight([path], str(path))


@pytest.mark.parametrize(
    ("path", "key", "ranks"),
    [("bytedance-st/trace.parquet", "bytedance-st", 4), ("primus-pp8", "primus-pp8", 8)],
)
def test_diagnose_says_the_bubble_and_the_schedule(shared, truth, cli, path, key, ranks):
    ran = cli("diagnose", shared / "traces" / path, "--json")
    assert ran.status == 0
    assert ran.json["idle_share"] == pytest.approx(truth[key]["bubble_mean"], abs=0.005)
    assert (ran.json["schedule"], ran.json["ranks"]) == ("1f1b", ranks)
    assert ran.json["resim_ratio"] == pytest.approx(truth[key]["resim_zero_comm_over_window"], abs=0.005)


def test_diagnose_takes_a_table_with_columns_of_other_names(cli, tmp_path):
    (tmp_path / "t.csv").write_text("who,what,mb,t0,t1\n0,fwd,0,0,1\n1,fwd,0,1,2\n1,bwd,0,2,4\n0,bwd,0,4,6\n")
    ran = cli("diagnose", tmp_path / "t.csv", "--columns", "rank=who,op=what,start_us=t0,end_us=t1", "--json")
    assert ran.json["idle_share"] == 0.5
    assert ran.json["makespan_ms"] == pytest.approx(0.006)


def test_diagnose_of_a_log_says_what_reads_it(cli, tmp_path):
    (tmp_path / "log").write_text("elapsed time per iteration (ms): 5 | global batch size: 8 |\n")
    ran = cli("diagnose", tmp_path / "log")
    assert ran.status == 1
    assert "debubble fit" in ran.err
