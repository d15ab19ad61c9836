"""Real traces in Kineto and Chrome form, held against what their sources and their neighbours in other formats say."""

import gzip
import json
import re
import sqlite3
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from debubble.core.account import account
from debubble.core.errors import InputError, Refusal
from debubble.core.schedule import Kind
from debubble.readers.kineto import read_traces
from debubble.readers.source import read

TORCH = {  # ops a step and rank, by kind: torch 2.13, p=4, m=8
    "gpipe": {"F": 8, "B": 8},
    "1f1b": {"F": 8, "B": 8},
    "1f1b_runtime": {"F": 8, "B": 8},
    "interleaved1f1b": {"F": 16, "B": 16},
    "zbv": {"F": 16, "I": 16, "W": 16},
}


def devices_of(shared, name):
    return read_traces(sorted((shared / "traces" / "torch-cpu" / name).iterdir())).devices


def idle(observation):
    return [account(window.timeline).idle_share for window in observation.windows]


@pytest.mark.parametrize("name", [*TORCH, "dualpipev"])
def test_every_op_of_torch_is_found_exactly_once_a_step(shared, name):
    for device in devices_of(shared, name):
        stage = device.stage if device.stage is not None else np.zeros(len(device), int)
        rows = Counter(
            zip(device.step.tolist(), device.kind.tolist(), stage.tolist(), device.unit.tolist(), strict=True)
        )
        assert set(rows.values()) == {1}
        for step in (0, 1):
            kinds = Counter(Kind(kind).name for at, kind, *_ in rows if at == step)
            if name == "dualpipev":  # B where both copies overlap, I and W elsewhere: together 16 backwards
                assert kinds["F"] == kinds["B"] + kinds["I"] == kinds["B"] + kinds["W"] == 16
            else:
                assert kinds == TORCH[name]


def test_unlabelled_1f1b_all_64_forwards_and_64_backwards_pair_in_order(shared):
    devices = sorted(devices_of(shared, "1f1b"), key=lambda device: device.rank)
    labelled = sorted(devices_of(shared, "1f1b_runtime"), key=lambda device: device.rank)
    assert sum(int((device.kind == Kind.F).sum()) for device in devices) == 64
    assert sum(int((device.kind == Kind.B).sum()) for device in devices) == 64
    for one, other in zip(devices, labelled, strict=True):
        mine, theirs = (np.lexsort((device.start, device.step)) for device in (one, other))
        assert one.kind[mine].tolist() == other.kind[theirs].tolist()
        assert one.unit[mine].tolist() == other.unit[theirs].tolist()


@pytest.mark.parametrize("name", [*TORCH, "dualpipev"])
def test_torch_traces_become_two_windows_of_four_ranks_without_a_breach_of_causality(shared, name):
    observation = read([shared / "traces" / "torch-cpu" / name])
    assert len(observation.windows) == 2
    assert {window.timeline.program.schedule.ranks for window in observation.windows} == {4}
    assert not any("before what they need" in remark for remark in observation.remarks)


def test_a_wait_inside_a_range_is_no_work(shared):
    """PP:1F0 lasts 50.5 ms, 47.2 of them inside gloo:recv; read off the file by hand."""
    rank1 = next(device for device in devices_of(shared, "1f1b_runtime") if device.rank == 1)
    row = np.flatnonzero((rank1.kind == Kind.F) & (rank1.unit == 0) & (rank1.step == 0))[0]
    assert (rank1.end - rank1.start)[row] == pytest.approx(55_787_300 - 52_540_000, abs=2_000)


def test_st_kineto_bubble_0_5158_and_by_hand_0_5150_and_0_5179(shared):
    observation = read([shared / "traces" / "bytedance-st" / "st-kineto"])
    shares = idle(observation)
    assert observation.remarks == ()
    assert len(shares) == 16
    assert np.mean(shares) == pytest.approx(0.5158, abs=0.0005)
    assert shares[0] == pytest.approx(0.5150, abs=0.0002)  # step 23, replica 0
    assert shares[1] == pytest.approx(0.5179, abs=0.0002)


@pytest.fixture(scope="module")
def bare(shared, tmp_path_factory):
    """st-kineto with one name for all kernels of F and B: only its transfers tell a direction."""
    folder = tmp_path_factory.mktemp("bare")
    for path in (shared / "traces" / "bytedance-st" / "st-kineto").iterdir():
        text = gzip.decompress(path.read_bytes())
        (folder / path.name).write_bytes(gzip.compress(re.sub(rb"[fb]wd_gemm", b"gemm", text), 1))
    return folder


def test_st_kineto_without_telling_names_is_told_by_transfers_every_op_alike(shared, bare):
    """Ground truth .5158; every F and B of 16 windows at its place, to the nanosecond."""
    found, named = read([bare]), read([shared / "traces" / "bytedance-st" / "st-kineto"])
    assert np.mean(idle(found)) == pytest.approx(0.5158, abs=0.0005)
    assert len(found.windows) == len(named.windows) == 16
    for one, other in zip(found.windows, named.windows, strict=True):
        assert one.timeline.program.schedule.same_order(other.timeline.program.schedule)
        assert np.array_equal(
            one.timeline.start - one.timeline.start[0], other.timeline.start - other.timeline.start[0]
        )
        assert np.array_equal(one.timeline.end - one.timeline.start[0], other.timeline.end - other.timeline.start[0])
    assert found.matched_share == 1
    assert any("no name tells forward from backward" in remark for remark in found.remarks)


def test_st_kineto_merged_into_one_file_is_eight_ranks_again(shared, tmp_path):
    """TraceLens 581: ids collide; the bubble stays .5158."""
    rows = []
    for rank in range(8):
        path = shared / "traces" / "bytedance-st" / "st-kineto" / f"rank{rank}_trace.json.gz"
        document = json.loads(gzip.decompress(path.read_bytes()))
        rows += [{**event, "pid": rank * 10**8 + event["pid"]} for event in document["traceEvents"]]
    (tmp_path / "all.json").write_text(json.dumps({**document, "traceEvents": rows}))
    found = read([tmp_path / "all.json"])
    assert len(found.windows) == 16
    assert np.mean(idle(found)) == pytest.approx(0.5158, abs=0.0005)


def test_st_nsys_without_telling_names_is_told_by_transfers_too(shared, tmp_path):
    """The same run as an Nsight export without ranges and launches: ground truth .5158, and the orders as they are."""
    original, path = shared / "traces" / "bytedance-st" / "st-nsys.sqlite", tmp_path / "bare.sqlite"
    path.write_bytes(original.read_bytes())
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE StringIds SET value = 'sm90_gemm' WHERE value LIKE '%ward_compute'")
    found, named = read([path]), read([original])
    assert len(found.windows) == len(named.windows) == 16
    assert np.mean(idle(found)) == pytest.approx(0.5158, abs=0.0005)
    for one, other in zip(found.windows, named.windows, strict=True):
        assert one.timeline.program.schedule.same_order(other.timeline.program.schedule)
    assert found.matched_share == 1


@pytest.mark.parametrize(("lost", "replica"), [(0, 1), (3, 0), (4, 1), (7, 0)])
def test_st_kineto_without_names_and_a_rank_answers_by_the_other_replica(bare, lost, replica):
    paths = [path for path in sorted(bare.iterdir()) if f"rank{lost}_" not in path.name]
    found = read(paths)
    assert len(found.windows) == 8
    assert any(
        f"ranks {', '.join(str(r) for r in range(8) if r % 2 != replica and r != lost)}" in r for r in found.remarks
    )
    assert np.mean(idle(found)) == pytest.approx(0.5158, abs=0.005)


def test_st_kineto_is_exact_1f1b_in_all_windows_rank_is_2_x_stage_plus_replica(shared):
    order = ["F0F1F2F3B0B1B2B3", "F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3", "F0B0F1B1F2B2F3B3"]
    for window in read([shared / "traces" / "bytedance-st" / "st-kineto"]).windows:
        schedule = window.timeline.program.schedule
        rows = ["".join(f"{op.kind.name}{op.microbatch}" for op in schedule.row(rank)) for rank in range(4)]
        assert rows == order


def test_the_same_run_in_chrome_form_says_the_same(shared):
    """bytedance-st: 64 windows, .5143 by its ground truth; the 16 that Kineto has agree to a microsecond."""
    timeline = read([shared / "traces" / "bytedance-st" / "timeline.json.gz"])
    kineto = read([shared / "traces" / "bytedance-st" / "st-kineto"])
    truth = json.loads((shared / "traces" / "ground_truth.json").read_text())["bytedance-st"]
    assert len(timeline.windows) == truth["n"]
    assert np.mean(idle(timeline)) == pytest.approx(truth["bubble_mean"], abs=0.0005)
    spans = {(w.step, w.replica): w.timeline.makespan for w in timeline.windows}
    for window in kineto.windows:
        assert window.timeline.makespan == pytest.approx(spans[window.step, window.replica], abs=1_000)


def test_megatronapp_bubble_0_4377_without_its_two_leading_iterations(shared):
    observation = read([shared / "traces" / "megatronapp-pp"])
    truth = json.loads((shared / "traces" / "ground_truth.json").read_text())["megatronapp-pp"]
    shares = [share for window, share in zip(observation.windows, idle(observation), strict=True) if window.step >= 2]
    assert len(shares) == truth["n"]
    assert np.mean(shares) == pytest.approx(truth["bubble_mean"], abs=0.0005)
    schedule = observation.windows[0].timeline.program.schedule
    assert (schedule.ranks, schedule.stages, schedule.microbatches) == (4, 16, 8)


def test_megatronapp_warm_up_is_19_17_15_13_forwards(shared):
    schedule = read([shared / "traces" / "megatronapp-pp"]).windows[2].timeline.program.schedule
    kinds = [[op.kind for op in schedule.row(rank)] for rank in range(4)]
    assert [row.index(Kind.B) for row in kinds] == [19, 17, 15, 13]


def test_dlrm_all_to_all_is_no_pipeline(shared):
    with pytest.raises(Refusal, match="no pipeline here"):
        read([shared / "traces" / "dlrm8"])


BROKEN = {  # one fault in rank 2 of 8: windows left, and what must be said
    "truncgz": (12, "rank2_trace.json.gz: the gzip stream is cut off"),
    "norank": (16, "rank2_trace.json.gz: its header has no rank"),
    "duprank": (16, "rank2_trace.json.gz: its header says rank 1, which is rank1_trace.json.gz"),
    "ts0": (16, "rank2_trace.json.gz: 1 events with the time 0 were set aside"),
    "skew": (16, "clocks were aligned by cause"),
    "listroot": (16, "so for 8 files"),
}


@pytest.mark.parametrize(("fault", "windows", "said"), [(f, *row) for f, row in BROKEN.items()], ids=BROKEN)
def test_one_bad_rank_costs_at_most_its_windows_and_is_said(shared, fault, windows, said):
    observation = read([shared / "traces" / "broken" / fault])
    assert len(observation.windows) == windows
    assert any(said in remark for remark in observation.remarks)
    assert np.mean(idle(observation)) == pytest.approx(0.5158, abs=0.0007)


def test_skewed_clocks_are_put_right_within_their_uncertainty(shared):
    """3 ms a rank; cause and effect leave an interval of .9 ms."""
    skewed = read([shared / "traces" / "broken" / "skew"])
    straight = read([shared / "traces" / "bytedance-st" / "st-kineto"])
    assert skewed.clock_uncertainty_ns < 1_000_000
    for one, other in zip(skewed.windows, straight.windows, strict=True):
        assert abs(one.timeline.makespan - other.timeline.makespan) < skewed.clock_uncertainty_ns


@pytest.mark.parametrize("folder", ["torch-cpu", "broken", "bytedance-st", "nowhere"])
def test_a_folder_of_several_runs_or_of_none_asks_which(shared, folder):
    with pytest.raises(InputError):
        read([shared / "traces" / folder])
