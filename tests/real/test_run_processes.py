"""``run`` as people start it: alone, under torchrun, with their own model, and with a rank killed in the middle."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from debubble.readers.recording import read_recording

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_kills.py"
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


def debubble(*args: object, launcher: tuple[str, ...] = (), cwd=None, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, "-m", "debubble", "run", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env={**os.environ, **env}, **pipes)


def harmed(folder, harm, rank, delay_s):
    """What is left of a run of which a rank, or the launcher, got a signal (``benchmarks/bench_kills.py``)."""
    spec = importlib.util.spec_from_file_location("bench_kills", BENCHMARK)
    bench = importlib.util.module_from_spec(spec)
    sys.modules["bench_kills"] = bench
    spec.loader.exec_module(bench)
    return bench.trial(folder, harm, rank, delay_s)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of which rank 2 was killed, and its folder."""
    folder = tmp_path_factory.mktemp("killed") / "out"
    return harmed(folder, signal.SIGKILL, 2, 0.5), folder


def test_a_killed_rank_is_named_with_the_op_it_was_in_and_what_is_kept(killed):
    found, folder = killed
    place = r"( in (the receive before )?2[FB]\d of step \d+)?"  # none between ops
    assert re.match(rf"debubble: rank 2 was killed by SIGKILL{place}; ", found.line)
    assert found.line.endswith(f"is kept in {folder}")
    assert (found.lost, found.alive, found.left) == (0, 0, 0)


@pytest.mark.parametrize(
    ("harm", "rank", "delay_s"),
    [
        (signal.SIGKILL, 0, 0.0),
        (signal.SIGKILL, 1, 0.21),
        (signal.SIGKILL, 3, 0.43),
        (signal.SIGSTOP, 0, 0.37),
        (signal.SIGSTOP, 1, 0.05),
        (signal.SIGSTOP, 2, 0.11),
        (signal.SIGTERM, None, 0.29),
        (signal.SIGHUP, None, 0.13),
        (signal.SIGINT, None, 0.17),
    ],
)
def test_at_any_moment_no_step_is_lost_no_process_left_and_the_right_one_named(tmp_path, harm, rank, delay_s):
    found = harmed(tmp_path / "out", harm, rank, delay_s)
    assert found.named, found.line
    assert (found.lost, found.alive, found.left) == (0, 0, 0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("boom_later", r"rank 2 failed in 2F\d of step \d: ValueError: boom .*user_models.py, line \d+"),
        ("exits_later", r"rank 2 left with status 7, without an error, in 2F\d of step \d"),
        ("hangs_later", r"rank 2 has been in 2F\d for \d+ s; "),
        ("cuts_later", r"rank \d failed.*: .*(shape|size)"),
        ("nan_later", r"rank \d failed.*: the loss of step \d is nan"),
    ],
)
def test_a_model_that_fails_later_is_one_line_with_rank_and_op(tmp_path, model, said):
    asked = ("--schedule", "1f1b", "-p", 4, "-m", 4, "--steps", 9, "--timeout", "8s", "--out", tmp_path / "out")
    run = debubble(*asked, "--model", f"user_models:{model}", cwd=Path(__file__).parent)
    _, err = run.communicate(timeout=120)
    *_, line = err.splitlines()
    assert run.returncode == 1
    assert re.search(said, line), err
    assert sum(each.startswith("debubble: rank") for each in err.splitlines()) == 1
    assert "\x1b" not in err


def test_what_a_killed_run_measured_can_be_diagnosed(killed, cli):
    folder = killed[1]
    found = cli("diagnose", folder, "--json")
    assert found.status == 0
    assert found.json["steps"] >= 2
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


def test_alone_it_starts_its_own_processes_though_no_socket_fits_into_the_temporary_folder(tmp_path):
    temporary = tmp_path / ("t" * 100)  # the address of a Unix socket has 108 bytes at most
    temporary.mkdir()
    asked = ("--schedule", "interleaved", "-p", 2, "-m", 2, "-v", 2, "--pace", "F=8ms,B=16ms", "--hop", "2ms")
    asked = (*asked, "--steps", 2, "--check", "--json", "--out", tmp_path / "out")
    out, err = debubble(*asked, TMPDIR=f"{temporary}").communicate(timeout=120)
    document = json.loads(out)
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
