"""Calibration by recordings and traces on the command line: poured runs give their factors back, faults are said."""

from dataclasses import replace
from pathlib import Path

import pytest

import pour
from debubble.config.config import Config, Layout
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import GENERIC, Factor
from debubble.frameworks.megatron import MEGATRON
from debubble.planning.judge import judge, simulated

MODEL, CLUSTER = read_model("llama3-8b"), cluster_of(read_hardware("h100"), 8)
LAYOUT = Layout(tensor=2, pipeline=4, micro_batch=2, microbatches=8, sequence=4096, recompute="full")
TRUTH = replace(GENERIC, kernels=Factor(1.3), transfer=Factor(2.0))
PLAN = ("plan", "--model", "llama3-8b", "--gpu", "h100", "--gpus", 8, "--global-batch", 16, "--top", 3)
EXAMPLE = Path(__file__).parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Two steps of 1F1B on a machine whose kernels are 1.3 and whose hops are 2 times slower, as Kineto files."""
    folder = tmp_path_factory.mktemp("traces")
    window, _ = simulated(MODEL, CLUSTER, LAYOUT, TRUTH)
    pour.write(folder, pour.pour([window] * 2, pour.Style(kernels=4)))
    return folder


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The launch script of that run."""
    path = tmp_path_factory.mktemp("script") / "launch.sh"
    path.write_text(
        f"torchrun pretrain_gpt.py {MEGATRON.emit(LAYOUT, Config(layers=MODEL.layers, sequence=LAYOUT.sequence))}\n"
    )
    return path


def test_a_trace_and_its_launch_script_give_the_factors_of_the_machine(cli, traces, script, tmp_path):
    saved = tmp_path / "machine.toml"
    ran = cli(*PLAN, "--calibrate", traces, "--launched", script, "--save-calibration", saved, "--json")
    factors = ran.json["calibration"]["factors"]
    for name, truth in (("kernels", 1.3), ("transfer", 2.0)):
        assert abs(factors[name]["value"] - truth) < 1.5 * factors[name]["error"]
        assert factors[name]["value"] > 1
        assert factors[name]["told"] is True
    assert factors["data"]["told"] is False
    again = cli(*PLAN, "--calibrate", saved, "--json").json["calibration"]
    assert again["factors"]["kernels"]["value"] == pytest.approx(factors["kernels"]["value"])


def test_what_the_planner_then_says_of_that_layout_is_what_was_measured(cli, traces, script):
    ran = cli(
        *(*PLAN, "--calibrate", traces, "--launched", script, "--tensor", 2, "-p", 4, "--json"),
        *("--micro-batch", 2, "--schedule", "1f1b", "--top", 100),
    )
    plain = [row for row in ran.json["candidates"] if len(set(row["layers"])) <= 1 and row["recompute"] == "none"]
    expected = judge(MODEL, CLUSTER, replace(LAYOUT, recompute="none", microbatches=8), TRUTH).step / 1e6
    assert plain[0]["step_ms"] == pytest.approx(expected, rel=0.05)


def test_without_a_configuration_options_and_the_trace_say_the_layout_and_it_is_said_what_was_taken(cli, traces):
    ran = cli(*PLAN, "--calibrate", traces, "--tensor", 2, "--micro-batch", 2)
    assert ran.status == 0
    assert "taken to have run with tensor 2, context 1, micro-batch 2, sequence 4096, nothing recomputed" in ran.err
    assert f"calibrated on {traces}: kernels 1." in ran.out
    silent = next(line for line in ran.out.splitlines() if "that says next to nothing of" in line)
    assert "data" in silent
    assert "kernels" not in silent


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--calibrate", "{traces}"), "--launched with its configuration"),
        (("--calibrate", "{traces}", "--launched", "missing.sh"), "no such file"),
        (("--calibrate", "{traces}", "--launched", "{other}"), "it has 8 ranks and 8 stages, the run 4 and 4"),
        (("--calibrate", "{traces}", "--launched", "{model}"), "--num-layers = 80: llama3-8b has 32 layers"),
        (("--calibrate", "{rows}", "--launched", "{other}"), "it says how recordings and traces were launched"),
        (("--launched", "{other}"), "there is none without --calibrate"),
        (("--calibrate", str(EXAMPLE)), "its ops were stretched"),
        (("--calibrate", "{empty}"), "it holds no measurement"),
    ],
)
def test_faults_of_measured_runs_are_said(cli, traces, tmp_path, args, says):
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").write_text("tensor,data,global_batch,step_s\n1,8,16,9.0\n")
    other = MEGATRON.emit(Layout(pipeline=8, microbatches=8), Config(layers=32, sequence=4096))
    (tmp_path / "other.sh").write_text(f"torchrun pretrain_gpt.py {other}\n")
    (tmp_path / "model.sh").write_text(
        f"torchrun pretrain_gpt.py {MEGATRON.emit(LAYOUT, Config(layers=80, sequence=4096))}\n"
    )
    places = {
        "model": tmp_path / "model.sh",
        "traces": traces,
        "other": tmp_path / "other.sh",
        "rows": tmp_path / "rows.csv",
    }
    ran = cli(*PLAN, *(arg.format(**places, empty=tmp_path / "empty") for arg in args))
    assert ran.status == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
