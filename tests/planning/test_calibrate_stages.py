"""Calibration by stage: factors are found again, one measured run says how long others take, faults are said."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.config.config import Layout
from debubble.core.costs import Costs
from debubble.core.errors import InputError
from debubble.core.schedule import Kind
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.model import transformer
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import GENERIC, PRIOR, Factor
from debubble.planning.calibrate import StageRun, calibrate_stages, predict
from debubble.planning.judge import judge, simulated
from debubble.planning.runs import Run

pytestmark = pytest.mark.slow

MODEL, CLUSTER = read_model("llama3-8b"), cluster_of(read_hardware("h100"), 64)
LAYOUT = Layout(tensor=2, pipeline=4, data=8, microbatches=8, sequence=8192)


def run_of(layout=LAYOUT, **factors):
    """A run whose every part takes what the model says, times these factors."""
    truth = replace(GENERIC, **{name: Factor(value) for name, value in factors.items()})
    costs = simulated(MODEL, CLUSTER, layout, truth)[1]
    parts = judge(MODEL, CLUSTER, layout, truth).parts
    return StageRun(MODEL, CLUSTER, layout, costs, (parts.data + parts.optimizer + parts.fixed) / 1e9)


def changed(run, durations):
    return replace(run, costs=Costs(durations, run.costs.transfers))


@settings(max_examples=10, deadline=None)
@given(st.floats(0.7, 1.6), st.floats(0.5, 3.0))
def test_slow_kernels_and_slow_hops_are_found_again(kernels, transfer):
    found = calibrate_stages([run_of(replace(LAYOUT, tensor=1), kernels=kernels, transfer=transfer)])
    assert found.kernels.value == pytest.approx(kernels, rel=0.05)
    assert abs(np.log(found.transfer.value / transfer)) < 1.5 * found.transfer.error / found.transfer.value
    assert found.kernels.error < 0.03 * kernels


def test_stages_of_a_tensor_group_take_what_they_took_though_kernels_and_collectives_are_not_told_apart():
    run = run_of(kernels=1.3)
    found = calibrate_stages([run])
    again = simulated(MODEL, CLUSTER, LAYOUT, found)[1].durations
    whole = [Kind.F, Kind.B]
    assert again[whole].sum(axis=0) == pytest.approx(run.costs.durations[whole].sum(axis=0), rel=0.03)
    assert abs(found.kernels.value - 1.3) < 2 * found.kernels.error


def test_slow_replicas_are_told_by_what_lies_outside_the_pipeline():
    layout = replace(LAYOUT, overlap=False, data=8, tensor=1)
    found = calibrate_stages([run_of(layout, data=3.0)])
    assert found.data.value == pytest.approx(3.0, rel=0.4)
    assert found.kernels.value == pytest.approx(1.0, abs=0.02)


def test_a_slow_host_shows_in_small_forwards_alone():
    small = Layout(tensor=2, pipeline=4, microbatches=8, sequence=512)
    found = calibrate_stages([run_of(small, floor=1.5)])
    assert found.floor.value == pytest.approx(1.5, rel=0.1)
    assert found.floor.error < PRIOR["floor"] / 3


def test_what_a_run_does_not_tell_keeps_its_prior_and_is_named():
    run = run_of(Layout(pipeline=4, microbatches=8))
    silent = replace(run, costs=Costs(run.costs.durations, 0 * run.costs.transfers), outside=0.0)
    found = calibrate_stages([silent])
    assert {"tensor", "data", "transfer", "memory"} < set(found.silent())
    assert "kernels" not in found.silent()
    assert found.data.error == pytest.approx(PRIOR["data"])


def test_a_split_backward_counts_whole():
    run = run_of(kernels=1.3)
    split = run.costs.durations.copy()
    split[Kind.B] = 0
    assert calibrate_stages([changed(run, split)]).kernels.value == pytest.approx(1.3, rel=0.05)


def test_forwards_and_backwards_that_ran_together_count_by_their_sum():
    run = run_of(kernels=1.3)
    halves = run.costs.durations.copy()
    halves[Kind.F] = halves[Kind.B] = (halves[Kind.F] + halves[Kind.B]) // 2
    assert calibrate_stages([replace(changed(run, halves), overlapped=True)]).kernels.value == pytest.approx(
        1.3, rel=0.05
    )


def test_one_slow_device_is_no_slow_machine():
    run = run_of(Layout(pipeline=8, microbatches=8))
    slow = run.costs.durations.copy()
    slow[:, 3] = slow[:, 3] * 3 // 2
    assert calibrate_stages([changed(run, slow)]).kernels.value == pytest.approx(1.0, abs=0.03)


def test_steps_of_other_layouts_add_what_stages_do_not_tell():
    truth = replace(GENERIC, kernels=Factor(1.3), tensor=Factor(2.0))
    layouts = [Layout(tensor=t, data=64 // t, micro_batch=4, microbatches=2 * t, sequence=8192) for t in (2, 4, 8)]
    rows = [Run(MODEL, CLUSTER, layout, (), "made") for layout in layouts]
    rows = [replace(row, seconds=s) for row, s in zip(rows, predict(rows, truth)[0], strict=True)]
    alone = run_of(Layout(pipeline=8, data=8, microbatches=8), kernels=1.3)
    both = calibrate_stages([alone], rows)
    assert both.rows == 3
    assert both.tensor.value == pytest.approx(2.0, rel=0.15)
    assert "tensor" in calibrate_stages([alone]).silent()
    assert "tensor" not in both.silent()


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (replace(run_of(), layout=replace(LAYOUT, pipeline=8)), "its layout has 8 stages and 4 were measured"),
        (changed(run_of(), np.zeros((4, 4, 1), np.int64)), "no stage has both a forward and a backward"),
    ],
)
def test_runs_that_say_nothing_or_are_of_other_stages_are_refused(run, says):
    with pytest.raises(InputError, match=says):
        calibrate_stages([run])


# Layers of each stage where the head's weight was evened out, as the times tell: five layers take 5/4 of four.
UNEVEN = {
    "fullpp_redis_dp1_pp8_tp1_v128k_s2k": (4, 4, 4, 4, 4, 5, 5, 2),
    "fullpp_redis_dp1_pp8_tp1_v256k_s4k": (4, 4, 4, 5, 5, 5, 5, 0),
    "fullpp_redis_dp1_pp8_tp1_v64k_s4k": (4, 4, 4, 4, 4, 4, 5, 3),
}


def vocabulary_runs(shared, sequence):
    """Stage times of plain 1F1B on eight A100 with 32,000 to 256,000 words, and seconds of the iteration of each."""
    with (shared / "data/throughput/vocabpar_stage_times.csv").open(newline="") as lines:
        rows = [r for r in csv.DictReader(lines) if r["method"] in ("base", "redis") and r["seq_len"] == str(sequence)]
    cluster = cluster_of(read_hardware("A100-80GB"), 8)
    for row in rows:
        sizes = {"layers": int(row["n_layers"]), "heads": int(row["n_heads"]), "vocab": int(row["vocab"])}
        model = transformer("gpt", hidden=3072, ffn=12288, kv_heads=sizes["heads"], gated=False, **sizes)
        model = replace(model, biases=True, dropout=True, positions=2048)
        layout = Layout(pipeline=8, microbatches=int(row["microbatches"]), sequence=sequence, sequence_parallel=False)
        durations = np.zeros((4, 8, 1), np.int64)
        for kind, name in ((Kind.F, "fwd"), (Kind.B, "bwd")):
            durations[kind, :, 0] = [1000 * int(us) for us in row[f"{name}_us_per_stage"].split()]
        split = replace(layout, layers=UNEVEN.get(row["name"], ()))
        costs = Costs(durations, np.zeros_like(durations), "measured")
        yield StageRun(model, cluster, split, costs, source=row["source"]), float(row["iteration_ms"]) / 1000


# The worst is a last stage of 256,000 words and no layer: the head against layers is not what a factor can mend.
@pytest.mark.parametrize(("sequence", "mean", "worst"), [(2048, 0.04, 0.06), (4096, 0.07, 0.15)])
def test_measured_stages_of_one_vocabulary_say_how_long_an_iteration_with_another_takes(shared, sequence, mean, worst):
    runs = list(vocabulary_runs(shared, sequence))
    off = []
    for given_run, _ in runs:
        found = calibrate_stages([given_run])
        others = [(run, seconds) for run, seconds in runs if run.model.vocab != given_run.model.vocab]
        off += [judge(run.model, run.cluster, run.layout, found).step / 1e9 / seconds - 1 for run, seconds in others]
    assert len(off) >= 10
    assert np.abs(off).mean() < mean
    assert np.abs(off).max() < worst


def test_measured_stages_mend_the_file_of_a_device_that_says_too_little(shared):
    runs = [pair for sequence in (2048, 4096) for pair in list(vocabulary_runs(shared, sequence))[::2]]
    device = read_hardware("A100-80GB")
    weak = replace(runs[0][0].cluster, device=replace(device, flops={"bf16": 0.6 * device.flops["bf16"]}))
    before, after = [], []
    for run, seconds in runs:
        found = calibrate_stages([replace(run, cluster=weak)])
        steps = [judge(run.model, weak, run.layout, factors).step / 1e9 for factors in (GENERIC, found)]
        before.append(steps[0] / seconds - 1)
        after.append(steps[1] / seconds - 1)
    assert min(before) > 0.25
    assert np.abs(after).max() < 0.06
