"""Judgement: parts that sum, the screen against exact simulation, replay of measured stage times, laws of layouts."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.core.costs import Costs
from debubble.core.lower import lower
from debubble.core.schedule import KINDS, Kind, Shape
from debubble.core.simulate import simulate
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import CONSTANTS, Setting
from debubble.estimate.times import hop_time
from debubble.planning.idle import columns
from debubble.planning.judge import judge, screen
from debubble.schedules.catalog import build

H100 = cluster_of(read_hardware("H100"), 64)
LAYOUTS = [
    Layout(tensor=8, data=8, microbatches=16),
    Layout(tensor=4, pipeline=4, data=4, microbatches=32),
    Layout(tensor=4, pipeline=4, data=4, microbatches=32, schedule="gpipe"),
    Layout(tensor=2, pipeline=8, data=4, microbatches=32, chunks=2, schedule="interleaved"),
    Layout(tensor=4, pipeline=4, data=4, microbatches=16, recompute="full", zero=2),
    Layout(tensor=4, pipeline=4, data=4, microbatches=16, schedule="zb-h1"),
    Layout(tensor=4, pipeline=8, data=2, microbatches=64, micro_batch=2),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda a: f"{a.schedule}-t{a.tensor}p{a.pipeline}v{a.chunks}")
def test_parts_sum_to_the_step_and_the_screen_is_near_the_simulation(layout):
    model = read_model("llama3-70b")
    plan = judge(model, H100, layout)
    assert plan.parts.step == pytest.approx(plan.step)
    assert all(getattr(plan.parts, name) > -1 for name in ("ideal", "kernels", "recompute", "tensor", "bubble", "data"))
    screened = screen(model, H100, columns([layout], model.layers))
    assert screened.step[0] == pytest.approx(plan.step, rel=0.06)
    assert screened.peak_bytes[0] == pytest.approx(max(plan.peak_bytes), rel=0.12)


def test_memory_of_the_fullest_rank_is_told_by_name():
    plan = judge(read_model("llama3-70b"), H100, LAYOUTS[1])
    assert sum(plan.memory.values()) == pytest.approx(max(plan.peak_bytes), abs=10)
    assert set(plan.memory) == {"weights", "gradients", "optimizer", "activations", "logits", "other"}


def test_zero_pipelines_need_no_bubble():
    plan = judge(read_model("llama3-8b"), H100, Layout(tensor=1, data=64, microbatches=4))
    assert plan.parts.bubble == plan.parts.imbalance == plan.parts.transfer == 0
    assert plan.idle_share == pytest.approx(0, abs=1e-6)


EXPERTS = Layout(pipeline=4, expert=8, data=16, microbatches=16, chunks=2, schedule="interleaved")


def test_tokens_travel_beside_pairs_alone_so_warm_up_and_cool_down_pay_for_them():
    model, cluster = read_model("qwen3-30b-a3b"), cluster_of(read_hardware("H100"), 64)
    seen = judge(model, cluster, EXPERTS)
    beside = judge(model, cluster, replace(EXPERTS, expert_overlap=True))
    assert beside.parts.step == pytest.approx(beside.step)
    assert beside.step < seen.step
    # Of 32 forwards on each rank 2 (3-r) + 5 have no partner: 8 of 32 on the mean rank. Of each all-to-all that has one
    # at most ``hidden_tensor`` is hidden, where the kernels beside it last as long.
    least = seen.parts.expert * (8 + 24 * (1 - CONSTANTS.hidden_tensor)) / 32
    assert beside.parts.expert == pytest.approx(least, rel=0.02)
    # One chunk more is kept in warm-up.
    assert beside.memory["activations"] > seen.memory["activations"]


def test_without_experts_on_other_devices_pairs_save_nothing():
    model, cluster = read_model("llama3-8b"), cluster_of(read_hardware("H100"), 64)
    layout = replace(EXPERTS, expert=1)
    seen, beside = judge(model, cluster, layout), judge(model, cluster, replace(layout, expert_overlap=True))
    assert beside.parts.expert == seen.parts.expert == 0
    assert beside.step >= seen.step - 1000  # nanoseconds: rounding of pairs


def test_the_bubble_of_even_1f1b_is_p_minus_1_over_m_of_the_work():
    model = read_model("llama3-70b")
    plan = judge(model, H100, Layout(tensor=8, pipeline=8, microbatches=32))
    parts = plan.parts
    work = parts.ideal + parts.kernels + parts.recompute + parts.tensor + parts.context + parts.expert
    assert parts.bubble / work == pytest.approx(7 / 32, rel=1e-3)


def test_more_overlap_never_costs_time_and_more_recomputation_never_costs_memory():
    model = read_model("llama3-70b")
    slow = judge(model, H100, Layout(tensor=4, pipeline=2, data=8, microbatches=4, overlap=False))
    fast = judge(model, H100, Layout(tensor=4, pipeline=2, data=8, microbatches=4))
    lean = judge(model, H100, Layout(tensor=4, pipeline=2, data=8, microbatches=4, recompute="full"))
    assert fast.step < slow.step
    assert max(lean.peak_bytes) < max(fast.peak_bytes)
    assert lean.step > fast.step


def test_fewer_layers_beside_the_head_balance_a_large_vocabulary():
    model = read_model("llama3-8b")
    even = judge(model, H100, Layout(tensor=1, pipeline=8, data=8, microbatches=64))
    uneven = judge(model, H100, Layout(tensor=1, pipeline=8, data=8, microbatches=64, layers=(4, 4, 5, 5, 4, 4, 4, 2)))
    assert "head" in " ".join(even.reasons)
    assert uneven.step < even.step


def _replayed(row):
    """Seconds of 1F1B with the measured F and B of each stage, S beside F and T beside B, and an estimated hop."""
    times = {
        name: np.array(row[f"{name}_us_per_stage"].split(), float) for name in ("fwd", "bwd", "vocab_s", "vocab_t")
    }
    stages, m = len(times["fwd"]), int(row["microbatches"])
    durations = np.zeros((KINDS, stages, 1), np.int64)
    durations[Kind.F, :, 0] = 1000 * (times["fwd"] + times["vocab_s"])
    durations[Kind.B, :, 0] = 1000 * (times["bwd"] + times["vocab_t"])
    model = read_model("gpt-3.6b")
    cluster = cluster_of(read_hardware("A100-80GB"), 8)
    at = Setting(model, cluster, columns([Layout(pipeline=8, sequence=int(row["seq_len"]))], model.layers))
    hop = hop_time(at, np.zeros(1), 2 * at.tokens * int(row["hidden"]))[0]
    transfers = np.zeros_like(durations)
    transfers[Kind.F, 1:] = transfers[Kind.B, :-1] = round(1e9 * hop)
    program = lower(build("1f1b", Shape(stages, m)))
    return simulate(program, Costs(durations, transfers, "measured")).window[1] / 1e9


def test_measured_stage_times_replay_within_1_6_percent_and_vocabulary_parallel_ones_within_3(shared):
    with (shared / "data/throughput/vocabpar_stage_times.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 21
    for row in rows:
        measured = float(row["iteration_ms"]) / 1000
        limit = 0.016 if row["method"] in ("base", "redis") else 0.03
        assert _replayed(row) == pytest.approx(measured, rel=limit), (row["name"], row["source"])


def test_a_layout_fits_if_its_fullest_rank_does_and_not_if_the_emptiest_alone_does():
    """1F1B of 4 ranks: the first holds the embedding and four micro-batches, the last ones fewer."""
    model = read_model("llama3-70b")
    peaks = judge(model, H100, LAYOUTS[1]).peak_bytes
    between = (min(peaks) + max(peaks)) / 2
    for memory, fits in ((0.9 * min(peaks), False), (between, False), (1.01 * max(peaks), True)):
        devices = replace(H100, device=replace(H100.device, usable=memory))
        assert judge(model, devices, LAYOUTS[1]).fits is fits
