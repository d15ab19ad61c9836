"""``run`` as people start it: alone, under torchrun, with their own model, and with a rank killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from debubble.core.errors import InputError
from debubble.readers.recording import read_recording, read_tracks

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn

def towers(stages):
    modules = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(stages)]
    def batch(step, samples):
        dice = torch.Generator().manual_seed(step)
        return torch.randn(samples, 6, generator=dice), torch.randn(samples, 6, generator=dice)
    return modules, lambda output, target: (output - target).square().mean(), batch

def too_few(stages):
    return towers(stages - 1)
"""


def debubble(*args: object, launcher: tuple[str, ...] = (), cwd: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "-m", "debubble", "run", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def steps_of(folder: Path) -> int:
    try:
        return len({window.step for window in read_recording(folder).windows})
    except InputError:
        return 0


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of which rank 2 was killed after three steps: status, stderr, seconds until the end, files, folder."""
    folder = tmp_path_factory.mktemp("killed") / "out"
    run = debubble("--schedule", "1f1b", "-p", 4, "-m", 8, "--pace", "F=10ms", "--steps", 500, "--out", folder)
    deadline = time.monotonic() + 120
    while steps_of(folder) < 3 and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.2)
    tracks = [track.process for track in read_tracks(folder)[0]]
    os.kill(tracks[2].pid, signal.SIGKILL)
    asked = time.monotonic()
    _, err = run.communicate(timeout=60)
    return run.returncode, err, time.monotonic() - asked, tracks, folder


def test_a_killed_rank_stops_the_others_within_20_seconds(killed):
    status, _, seconds, tracks, _ = killed
    assert status == 1
    assert seconds < 20
    assert not any(alive(track.pid) for track in tracks)


def test_a_killed_rank_is_named_in_one_line_without_a_traceback(killed):
    last = [line for line in killed[1].splitlines() if not line.startswith("step ")]
    assert len(last) == 1
    assert "rank 2 was killed by SIGKILL" in last[0]
    assert "is kept in" in last[0]


def test_what_a_killed_run_measured_can_be_diagnosed(killed, cli):
    folder = killed[4]
    found = cli("diagnose", folder, "--json")
    assert found.status == 0
    assert found.json["steps"] >= 3
    assert found.json["ranks"] == 4


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A user's model on PP=2 x DP=2 under torchrun: status, stdout, stderr, folder."""
    folder = tmp_path_factory.mktemp("joined")
    (folder / "mine.py").write_text(MODEL)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    asked = ("--schedule", "1f1b", "-p", 2, "-m", 4, "--data", 2, "--batch", 16, "--steps", 2, "--check", "--json")
    run = debubble(*asked, "--model", "mine:towers", "--out", "out", launcher=launcher, cwd=folder)
    out, err = run.communicate(timeout=120)
    return run.returncode, out, err, folder


def test_under_torchrun_one_process_speaks_for_all(joined):
    status, out, err, _ = joined
    assert status == 0, err
    assert json.loads(out)["recording"] == "out"
    assert err.count("step 1 ") == 1


def test_a_users_model_trains_as_in_one_process(joined):
    document = json.loads(joined[1])
    assert document["gradient_error"] < 1e-6
    assert document["loss_error"] < 1e-6
    assert document["replicas"] == 2


def test_samples_are_of_all_replicas_and_tokens_unknown(joined):
    observation = read_recording(joined[3] / "out")
    assert (observation.gpus, observation.samples, observation.tokens) == (4, 16, None)


def test_alone_it_starts_its_own_processes(tmp_path):
    asked = ("--schedule", "interleaved", "-p", 2, "-m", 2, "-v", 2, "--pace", "F=8ms,B=16ms", "--hop", "2ms")
    run = debubble(*asked, "--steps", 2, "--check", "--json", "--out", tmp_path / "out")
    out, err = run.communicate(timeout=120)
    document = json.loads(out)
    assert run.returncode == 0
    assert document["gradient_error"] < 1e-6
    assert document["measured_ms"] >= 0.98 * document["predicted_ms"] > 0
    assert document["per_rank"][1]["peak_activations"] > 0
    assert {"step", "loss", "idle", "measured"} <= set(err.split())
    assert sorted(os.listdir(tmp_path / "out")) == ["rank-00000.msgpack", "rank-00001.msgpack"]


def test_a_model_with_too_few_stages_starts_no_process(tmp_path, cli, monkeypatch):
    (tmp_path / "mine_too.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    ran = cli("run", "--schedule", "1f1b", "-p", 4, "-m", 4, "--model", "mine_too:too_few", "--out", tmp_path / "o")
    assert ran.status == 2
    assert "made 3 stages and the schedule has 4" in ran.err
    assert not (tmp_path / "o").exists()
