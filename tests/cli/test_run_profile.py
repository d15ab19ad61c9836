"""``run --profile`` on the CPU that is here: it writes factors that ``plan`` takes, and refuses what is not so."""

from importlib.util import find_spec

import numpy as np
import pytest

from debubble.config.config import Layout
from debubble.core.errors import InputError
from debubble.estimate.hardware import read_hardware
from debubble.estimate.model import layer_parameters
from debubble.estimate.read_model import model_of_sizes, read_model
from debubble.verbs.arguments import listening
from debubble.verbs.planner import layer_sizes, refuse_other_device

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
MODEL = "layers = 4\nhidden = 256\nffn = 688\nheads = 4\nkv_heads = 2\nvocab = 1000\n"
CPU = "units = 1\nbf16_tflops = 0.05\nmemory_gb = 8\nmemory_tb_s = 0.01\nlink_gb_s = 1\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "small.toml").write_text(MODEL)
    (tmp_path / "cpu.toml").write_text(CPU)
    return ("--model", tmp_path / "small.toml", "--gpu", tmp_path / "cpu.toml")


@pytest.fixture
def given_times(monkeypatch):
    """A clock that gives the narrow layer .2 + .4 ms, the layer 3 + 6 ms, and 1 + 2 ms to each of the model's ends."""
    from debubble.runner import profile

    given = iter([(0.2e-3, 0.4e-3), (3e-3, 6e-3), (1e-3, 2e-3), (1e-3, 2e-3)])

    class Clock(profile._Clock):
        def seconds(self):
            return np.full_like(super().seconds(), next(given))

    monkeypatch.setattr(profile, "_Clock", Clock)


def test_a_profile_is_written_and_the_planner_estimates_that_layer_as_it_was_timed(cli, files, given_times, tmp_path):
    out = tmp_path / "factors.toml"
    sizes = ("--sequence", 128, "--micro-batch", 2, "--repeats", 8)
    said = cli("run", "--profile", *files, *sizes, "--device", "cpu", "--out", out, "--json").json
    layer, kernels = said["layer"], said["factors"]["kernels"]
    assert (layer["forward_ms"], layer["backward_ms"]) == pytest.approx((3, 6))
    assert layer["error_share"] == 0
    # The factors of the two are one and a prior of two e-folds pulls on each, so not to the digit.
    assert layer["calibrated_forward_ms"] + layer["calibrated_backward_ms"] == pytest.approx(9, rel=0.03)
    assert said["factors"]["transfer"]["told"] is False
    assert said["head"]["forward_ms"] == pytest.approx(1)

    planned = cli(
        "plan", *files, "--gpus", 2, "--global-batch", 4, "--sequence", 128, "--calibrate", out, "--json"
    ).json
    assert planned["calibration"]["factors"]["kernels"]["value"] == pytest.approx(kernels["value"])
    assert planned["calibration"]["source"] == "one layer of small on CPU"


def test_people_read_times_factors_and_what_comes_next(cli, files, tmp_path):
    out = tmp_path / "factors.toml"
    ran = cli("run", "--profile", *files, "--sequence", 64, "--repeats", 3, "--device", "cpu", "--out", out)
    assert ran.status == 0
    said = " ".join(ran.out.split())
    assert "one layer of small on CPU, held against cpu: tensor 1, micro-batch 1, sequence 64" in said
    assert "one layer says next to nothing of" in said
    assert "tensor, data, transfer" in said
    assert f"--calibrate {out}" in said
    assert f"wrote {out}" in ran.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--profile",), ("--model: it is required", "--gpu: it is required", "--out: it is required")),
        (("--profile", "--model", "{small}", "--gpu", "h100", "--out", "f.toml", "--device", "cpu"), ("CPU",)),
        (("--profile", "--model", "lama3-8b", "--gpu", "h1000", "--out", "f"), ("llama3-8b", "h100", "ends in .toml")),
        (("--profile", "--schedule", "1f1b", "-p", 4, "--steps", 3), ("--schedule", "--ranks", "--steps")),
        (("--profile", "--model", "{small}", "--gpu", "{cpu}", "--tensor", 3, "--out", "f.toml"), ("heads 4",)),
        (("--schedule", "1f1b", "-p", 2, "-m", 2, "--out", "d", "--tensor", 2, "--gpu", "h100"), ("--tensor", "--gpu")),
        (("-p", 2, "-m", 2), ("--schedule: it is required", "--out: it is required")),
    ],
)
def test_faults_are_said_before_anything_is_timed(cli, tmp_path, monkeypatch, files, args, says):
    monkeypatch.chdir(tmp_path)
    places = {"small": files[1], "cpu": files[3]}
    ran = cli("run", *(arg.format(**places) if isinstance(arg, str) else arg for arg in args))
    assert ran.status == 2
    assert all(word in ran.err for word in says), ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("asked", "name"),
    [("h100", "NVIDIA H200"), ("h200", "NVIDIA H100 80GB HBM3"), ("mi300x", "CPU"), ("gb200", "NVIDIA B200")],
)
def test_a_device_of_another_name_is_refused(asked, name):
    with pytest.raises(InputError, match="the device here is"):
        refuse_other_device(read_hardware(asked), asked, name)


@pytest.mark.parametrize(
    ("asked", "name", "says"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", ""),
        ("a100", "NVIDIA A100-SXM4-80GB", ""),
        ("mi300x", "AMD Instinct MI300X", ""),
        ("h100", "Graphics Device", "cannot be told"),
    ],
)
def test_a_device_of_that_name_passes_and_one_without_a_telling_name_is_warned_of(asked, name, says):
    told = []
    with listening(told.append):
        refuse_other_device(read_hardware(asked), asked, name)
    assert says in " ".join(told) if says else not told


def parameters_of(model, layout):
    """Those of one device's share of a layer, which take no memory."""
    import torch

    from debubble.runner.profile import Layer

    with torch.device("meta"):
        return list(Layer(layer_sizes(model, layout)).parameters())


@pytest.mark.parametrize("name", ["llama3-8b", "gpt-3.6b", "mixtral-8x7b", "deepseek-v3"])
def test_a_layer_has_as_many_parameters_as_the_planner_counts(name):
    model = read_model(name)
    counted = layer_parameters(model, model.last_kind)
    assert sum(p.numel() for p in parameters_of(model, Layout())) == pytest.approx(counted, rel=1e-4)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
def test_each_of_four_devices_holds_a_quarter_of_the_matrices(name):
    model = read_model(name)
    held = [parameters_of(model, Layout(tensor=tensor)) for tensor in (1, 4)]
    whole, share = (sum(p.numel() for p in parameters if p.dim() > 1) for parameters in held)
    assert share == pytest.approx(whole / 4, rel=1e-3)  # a router is on each


def test_sizes_that_a_group_cannot_share_out_are_all_named():
    table = {"layers": 2, "hidden": 64, "ffn": 100, "heads": 4, "vocab": 50}
    with pytest.raises(InputError, match=r"(?s)heads 4.*ffn 100.*no experts"):
        layer_sizes(model_of_sizes(table, "odd"), Layout(tensor=8, expert=2))
