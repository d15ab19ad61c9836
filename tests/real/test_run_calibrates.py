"""A real run of the built-in model, recorded and unpaced, calibrates the planner to the stages that it measured."""

import numpy as np
import pytest

from debubble.config.layout import Layout
from debubble.diagnosis.causes import stage_costs
from debubble.diagnosis.windows import summarise
from debubble.estimate.hardware import cluster_of, read_hardware
from debubble.estimate.read_model import read_model
from debubble.estimate.setting import GENERIC
from debubble.planning.calibrate import read_calibration
from debubble.planning.judge import simulated
from debubble.readers.recording import read_recording

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")

# What ``run`` trains, and a host whose file is a guess.
MODEL = "layers = 8\nhidden = 32\nffn = 128\nheads = 2\nkv_heads = 2\nvocab = 256\nbiases = true\ngated = false\n"
HOST = "units = 1\nbf16_tflops = 0.05\nmemory_gb = 8\nmemory_tb_s = 0.01\nlink_gb_s = 1\n"


def slots(costs):
    """F + B of each stage, milliseconds."""
    return costs.durations.sum(axis=(0, 2)) / 1e6


def test_a_recording_calibrates_the_planner_to_its_own_stages(cli, tmp_path):
    files = {name: tmp_path / f"{name}.toml" for name in ("model", "host", "factors")}
    files["model"].write_text(MODEL)
    files["host"].write_text(HOST)
    sizes = ("--schedule", "1f1b", "-p", 2, "-m", 4, "--steps", 8, "--device", "cpu")
    assert cli("run", *sizes, "--out", tmp_path / "recorded").status == 0
    ran = cli(
        *("plan", "--model", files["model"], "--gpu", files["host"], "--gpus", 2, "--global-batch", 4),
        *("--sequence", 32, "--calibrate", tmp_path / "recorded", "--save-calibration", files["factors"]),
    )
    assert "micro-batch 1, sequence 32" in ran.err

    # The measured sum is met as nearly as the run's own stages agree: on a loaded machine one of them may be slowed
    # by any factor, and then no one factor meets both.
    model, cluster = read_model(str(files["model"])), cluster_of(read_hardware(str(files["host"])), 2)
    layout = Layout(pipeline=2, microbatches=4, sequence=32)
    measured = slots(stage_costs(summarise(read_recording(tmp_path / "recorded"))))
    calibrated = read_calibration(files["factors"])
    before, after = (
        slots(simulated(model, cluster, layout, factors)[1])[: len(measured)] for factors in (GENERIC, calibrated)
    )
    apart = abs(np.diff(np.log(measured / before))).item()
    off_before, off_after = (abs(np.log(costs.sum() / measured.sum())) for costs in (before, after))
    assert off_after < 0.25 + off_before / 4 + apart
