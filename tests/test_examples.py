"""Examples run: every line of the assistant's skill, the steps of the workflow, and both trackers."""

import os
import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml

import debubble
from debubble.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[1]
SKILL = (ROOT / "skills" / "debubble" / "SKILL.md").read_text()
LINES = re.findall(r"^(debubble .*?)\s+# (\d+): (.*)$", SKILL, re.M)
RECORDINGS = ROOT / "examples" / "four-to-eight" / "recordings"


def values(document: object, key: str) -> list[object]:
    """What a key such as ``causes[].cost_ms`` names in a document; none if it is not there."""
    found = [document]
    for part in key.split("."):
        inside = [value[part.removesuffix("[]")] for value in found if part.removesuffix("[]") in value]
        found = [one for value in inside for one in value] if part.endswith("[]") else inside
    return found


@pytest.mark.parametrize(("command", "status", "keys"), LINES, ids=[line[0] for line in LINES])
def test_a_line_of_the_skill_ends_as_it_says_and_its_keys_are_there(cli, monkeypatch, command, status, keys):
    monkeypatch.chdir(ROOT)
    ran = cli(*shlex.split(command)[1:])
    assert ran.status == int(status)
    missing = [key for key in keys.split() if not values(ran.json, key)]
    # What nothing is missing from has no rows to show their keys.
    assert [key for key in missing if ran.json.get(key.split("[]")[0]) != []] == []


def test_the_skill_names_verbs_that_exist_and_says_when_to_use_it():
    head = yaml.safe_load(SKILL.split("---")[1])
    assert head["name"] == "debubble"
    assert len(head["description"]) < 1024
    assert len(LINES) >= 8
    asked = set(re.findall(r"^\| .* \| `(\w+)", SKILL, re.M))
    assert {"why", "diagnose", "fit", "plan", "check", "show", "split"} == asked <= set(VERBS)


@pytest.fixture
def shell(tmp_path):
    """Run a script as a runner does, with ``debubble`` on the path."""
    program = tmp_path / "bin" / "debubble"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m debubble "$@"\n')
    program.chmod(0o755)

    def run(script: str, **environment: object) -> subprocess.CompletedProcess:
        env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
        env |= {name: str(value) for name, value in environment.items()}
        return subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env, capture_output=True, check=False)

    return run


def steps() -> dict[str, str]:
    """The scripts of the workflow by the names of their steps."""
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "bubble-gate.yml").read_text())
    return {step["name"]: step["run"] for step in workflow["jobs"]["gate"]["steps"] if "name" in step and "run" in step}


@pytest.mark.parametrize(
    ("step", "traces", "before", "status", "said"),
    [
        ("Idle share", "four", "four", 0, "passed"),
        ("Idle share", "eight", "four", 1, "more than 30.0 %"),
        ("Throughput against the run before", "four", "four", 0, "passed"),
        ("Throughput against the run before", "eight", "four", 1, "is slower by 17.5 %, more than 3.0 %"),
    ],
)
def test_the_workflow_fails_by_its_gates_and_says_why_in_the_summary(
    shell, tmp_path, step, traces, before, status, said
):
    where = {"TRACES": RECORDINGS / traces, "BEFORE": RECORDINGS / before, "IDLE": "30%"}
    ran = shell(steps()[step], GITHUB_STEP_SUMMARY=tmp_path / "summary.md", **where)
    assert ran.returncode == status
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("**")
    assert said in summary
    assert (tmp_path / "bubble.html").is_file() == (step == "Idle share")


@pytest.fixture(scope="module")
def tracking():
    """The example's module."""
    spec = spec_from_file_location("log_bubble", ROOT / "examples" / "tracking" / "log_bubble.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def eight():
    return debubble.diagnose(RECORDINGS / "eight")


def test_what_is_logged_sums_to_the_window(tracking, eight):
    logged = tracking.scalars(eight)
    assert logged["bubble/idle_share"] == eight.idle_share
    assert sum(value for name, value in logged.items() if name.startswith("bubble/cause/")) == pytest.approx(1)
    assert sum(name.startswith("bubble/rank/") for name in logged) == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_reads_what_was_logged(tracking, eight, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    tracking.to_tensorboard(eight, str(tmp_path), 1000)
    found = events.EventAccumulator(str(tmp_path)).Reload()
    (scalar,) = found.Scalars("bubble/idle_share")
    assert (scalar.step, scalar.value) == (1000, pytest.approx(eight.idle_share))
    assert "bubble/verdict/text_summary" in found.Tags()["tensors"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # wandb's own
def test_wandb_takes_what_is_logged(tracking, eight, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    logged, log = {}, wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, data, **more: [logged.update(data), log(run, data, **more)])
    tracking.to_wandb(eight, "bubbles", 7)
    assert logged["bubble/idle_share"] == eight.idle_share
    assert list(tmp_path.rglob("*.wandb"))


def test_the_example_prints_the_verdict(eight):
    script = ROOT / "examples" / "tracking" / "log_bubble.py"
    ran = subprocess.run([sys.executable, script, RECORDINGS / "eight"], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == list(eight.verdict)
