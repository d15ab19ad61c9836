"""The search: what it picks against judging everything, what it says of ties and of more devices, calibration files."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.config.config import Config, Layout
from debubble.config.plan import Question
from debubble.core.errors import InputError
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import GENERIC, Factor
from debubble.planning.batch import LEGAL
from debubble.planning.calibrate import calibrate, read_calibration, written
from debubble.planning.idle import enough, idle_share
from debubble.planning.judge import judge
from debubble.planning.runs import Planned, read_runs
from debubble.planning.search import search, space
from debubble.planning.verdict import (
    CHANCE,
    about,
    by_rank,
    chance_of_stalling,
    expected,
    expected_regret,
    if_stalled,
    more_devices,
    scaled,
)

MODEL, H100 = read_model("llama3-8b"), read_hardware("h100")
EIGHT = cluster_of(H100, 8)
SMALL = Question(Config(gpus=8, global_batch=32), {"tensor": (1, 2), "micro_batch": (1, 2)}, base=Layout(sequence=8192))


@pytest.fixture(scope="module")
def found():
    return search(MODEL, EIGHT, SMALL)


@pytest.mark.slow
def test_the_first_is_the_fastest_with_memory_to_spare_of_all_layouts_judged_one_by_one(found):
    legal = space(MODEL, EIGHT, SMALL)
    every = [judge(MODEL, EIGHT, legal.layout(row)) for row in range(len(legal))]
    fastest = min((plan for plan in every if max(plan.peak_bytes) <= 0.9 * H100.usable), key=lambda plan: plan.step)
    assert found.plans[0].step == pytest.approx(fastest.step, rel=0.002)


def test_plans_are_ranked_fit_and_their_parts_sum_to_the_step(found):
    ranks = [by_rank(plan, found.memory) for plan in found.plans]
    assert ranks == sorted(ranks)
    for plan in found.plans:
        assert max(plan.peak_bytes) <= H100.usable
        assert plan.parts.step == pytest.approx(plan.step)
        assert sum(plan.memory.values()) == pytest.approx(max(plan.peak_bytes), rel=1e-6)


def test_few_simulations_find_nearly_the_same_layout(found):
    few = search(MODEL, EIGHT, SMALL, simulated=20)
    assert few.simulated == 20
    assert few.plans[0].step <= 1.02 * found.plans[0].step


def test_no_two_plans_are_twins(found):
    keys = [
        (replace(p.layout, context=1, data=1, micro_batch=1), p.layout.micro_batch / p.layout.context)
        for p in found.plans
    ]
    assert len(set(keys)) == len(keys)


def test_a_model_that_is_too_large_leaves_no_plan_and_says_what_it_needs():
    none = search(read_model("llama3-405b"), EIGHT, Question(Config(gpus=8, global_batch=8)))
    assert none.plans == ()
    assert none.closest > H100.memory
    assert none.rejected[0].cause == "memory"


def test_a_calibration_moves_every_step(found):
    slower = replace(GENERIC, kernels=Factor(2.0))
    assert search(MODEL, EIGHT, SMALL, slower).plans[0].step > 1.5 * found.plans[0].step


def test_layouts_inside_the_band_are_no_winners(found):
    assert any("no winner among them" in sentence for sentence in about(MODEL, found))
    exact = replace(found, interval=replace(found.interval, band=1e-6))
    assert any("more than the error" in sentence for sentence in about(MODEL, exact))


def test_what_nearly_fills_its_device_goes_behind_what_leaves_a_tenth_and_the_loss_is_said(found):
    first, second = found.plans[:2]
    fast = replace(first, step=0.9 * first.step, expected_step=0.9 * first.step, peak_bytes=(91,))
    roomy = replace(second, expected_step=first.step, peak_bytes=(90,))
    ranked = tuple(sorted((fast, roomy), key=lambda plan: by_rank(plan, 100)))
    assert ranked == (roomy, fast)
    (sentence,) = [s for s in about(MODEL, replace(found, plans=ranked, memory=100)) if "fills" in s]
    assert "would be 11.1 % faster but fills 91 % of its fullest device" in sentence
    (sentence,) = [s for s in about(MODEL, replace(found, plans=(fast,), memory=100)) if "fills" in s]
    assert sentence.startswith("the first fills 91 % of its fullest device")
    assert not [s for s in about(MODEL, replace(found, plans=ranked, memory=1e15)) if "fills" in s]


def test_plans_rank_by_the_step_to_expect_if_one_cluster_in_three_stalls(found):
    """Nothing stalls without tensor groups in a pipeline across nodes; where they may, the step is a weighted mean."""
    for plan in found.plans:
        layout = plan.layout
        if layout.tensor == 1 or layout.pipeline == 1:
            assert plan.expected_step == pytest.approx(plan.step)
    nodes = cluster_of(H100, 32)
    asked = Question(Config(gpus=32, global_batch=64), tries={"tensor": (8,), "pipeline": (4,)})
    risky = search(MODEL, nodes, asked, simulated=4)
    assert risky.plans
    for plan in risky.plans:
        stalled = judge(MODEL, nodes, plan.layout, if_stalled(None)).step
        assert plan.expected_step == pytest.approx(2 / 3 * plan.step + 1 / 3 * stalled, rel=0.02)
        assert plan.expected_step > plan.step


def test_measured_rows_that_tell_of_stalls_leave_no_chance():
    assert chance_of_stalling(None) == chance_of_stalling(GENERIC) == CHANCE
    told = replace(GENERIC, rows=5, stall=Factor(3.0, 0.05))
    assert chance_of_stalling(told) == 0
    assert expected(np.array([2.0]), np.array([5.0]), told) == 2.0


def test_the_founding_question_more_devices_at_the_same_batch():
    asked = {n: replace(SMALL, config=SMALL.config.changed(gpus=n)) for n in (4, 8, 16)}
    by_gpus = {n: search(MODEL, cluster_of(H100, n), one, simulated=20) for n, one in asked.items()}
    rows = scaled(by_gpus, price=2.0)
    assert rows[0].speedup == rows[0].efficiency == 1
    for row in rows:
        assert row.cost == pytest.approx(2.0 * row.gpus / 3600 / row.tokens_per_second * 1e9)
    assert len([s for s in more_devices(rows) if "->" in s]) == 2


def test_devices_that_cannot_hold_the_model_are_said_beside_those_that_can():
    big = read_model("llama3-70b")
    by_gpus = {
        n: search(big, cluster_of(H100, n), Question(Config(gpus=n, global_batch=64)), simulated=5) for n in (8, 64)
    }
    rows = scaled(by_gpus, None)
    assert rows[0].plan is None
    assert rows[1].speedup == 1
    assert "8 GPUs: no layout fits" in more_devices(rows)[0]


@given(st.floats(0, 0.5), st.floats(0.01, 0.3))
def test_expected_regret_is_the_mean_of_what_the_second_may_win(behind, band):
    ahead = np.random.default_rng(0).normal(-behind, band, 40_000)
    assert expected_regret(behind, band) == pytest.approx(np.maximum(ahead, 0).mean(), abs=0.004)


def calibration(path):
    """As ``plan --calibrate`` reads it: saved factors, or a fit to rows."""
    if path.suffix == ".toml":
        return read_calibration(path)
    return calibrate(read_runs(path, Planned(MODEL, EIGHT)).runs)


def test_a_calibration_is_read_back_as_it_was_written(tmp_path):
    one = replace(GENERIC, kernels=Factor(1.25, 0.05), memory=Factor(0.9, 0.02), rows=4, source='a "b"', band=0.06)
    (tmp_path / "c.toml").write_text(written(one))
    again = calibration(tmp_path / "c.toml")
    assert (again.rows, again.source, again.band) == (4, 'a "b"', 0.06)
    for name in ("kernels", "memory", "tensor"):
        before, after = getattr(one, name), getattr(again, name)
        assert (after.value, after.error) == pytest.approx((before.value, before.error))


def test_rows_measured_on_a_cluster_half_as_fast_calibrate_to_half_the_speed(tmp_path):
    """Rows are made by the model itself with slower kernels, so a fit that works must find that factor again."""
    slow = replace(GENERIC, kernels=Factor(2.0))
    lines = ["tp,pp,dp,mbs,gbs,seq_len,step_s"]
    for tensor, pipeline, data, size in ((1, 2, 4, 1), (2, 1, 4, 2), (2, 4, 1, 1), (1, 1, 8, 1)):
        layout = Layout(
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            micro_batch=size,
            microbatches=32 // data // size,
            sequence=8192,
        )
        seconds = judge(MODEL, EIGHT, layout, slow).step / 1e9
        lines.append(f"{tensor},{pipeline},{data},{size},32,8192,{seconds}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    fitted = calibration(tmp_path / "rows.csv")
    assert fitted.kernels.value == pytest.approx(2.0, rel=0.15)
    assert fitted.band < GENERIC.band


@pytest.mark.parametrize(
    ("name", "text", "faults"),
    [
        ("a.csv", "", 1),
        ("a.csv", "tp,step_s\nx,3\n2,-1\n", 2),
        ("a.csv", "tp,mbs,gbs,step_s\n1,4,6,2\n", 1),
        ("a.csv", "recompute,step_s\nsome,2\n", 1),
        ("a.toml", "kernels = 'x'", 1),
        ("a.toml", "= 3", 1),
    ],
)
def test_broken_calibrations_say_each_fault(tmp_path, name, text, faults):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        calibration(tmp_path / name)
    assert len(error.value.faults) == faults


@pytest.mark.parametrize(
    ("model", "gpus", "batch"), [("llama3-8b", 8, 32), ("llama3-70b", 64, 64), ("gpt3-175b", 16, 16)]
)
def test_what_was_ruled_out_and_what_is_ranked_sum_to_the_legal_layouts(model, gpus, batch):
    one = search(
        read_model(model), cluster_of(H100, gpus), Question(Config(gpus=gpus, global_batch=batch)), simulated=60
    )
    out = [each for each in one.rejected if each.cause in LEGAL]
    assert len(one.plans) + sum(each.count for each in out) == one.legal
    assert all(each.count > 0 for each in out)


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "share", "many"),
    [
        ("1f1b", 4, 1, 0.1, 27),  # (p-1)(1-s)/s
        ("zb-h1", 4, 1, 0.1, 9),  # (p-1)/(3m + p-1), F = I = W
        ("zb-v", 4, 2, 0.05, 10),  # (p-1)/2 / (3m + (p-1)/2) from m = 2p-1 on
        ("interleaved", 4, 2, 0.1, 16),  # 13.5 micro-batches in groups of 4
        ("gpipe", 1, 1, 0.1, 1),
    ],
)
def test_micro_batches_that_each_schedule_needs_to_idle_so_little(schedule, ranks, chunks, share, many):
    assert enough(schedule, ranks, share, chunks) == many


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "interleaved-zb", "dualpipe-v", "looped-bfs"])
def test_enough_is_the_least_that_idles_so_little(schedule):
    chunks = {"zb-h1": 1}.get(schedule, 2)
    many = enough(schedule, 4, 0.1, chunks)
    assert idle_share(schedule, 4, many, chunks) <= 0.1 < (idle_share(schedule, 4, many - 1, chunks) or 1)


def test_a_schedule_that_never_idles_so_little_has_no_number():
    assert enough("chimera", 8, 0.1, 1) is None
