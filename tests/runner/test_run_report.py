"""What ``run`` says at the end: the exit status of a check, and the keys that scripts rely on."""

import json
from pathlib import Path

import numpy as np
import pytest

from debubble.cli.console import Look
from debubble.cli.options import Output
from debubble.core.schedule import Shape
from debubble.runner.task import Task
from debubble.runner.worker import Outcome, Step
from debubble.schedules.catalog import build
from debubble.verbs import run

HOPS = np.full((4, 4, 1), 8_000_000)
EIGHT = Path(__file__).parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"


def report(outcome: Outcome, *, as_json: bool = False, predicted_ns: int | None = 1_392_500_000) -> int:
    task = Task(build("1f1b", Shape(4, 4)), 16, str(EIGHT), 2, predicted_ns=predicted_ns, hops=HOPS)
    return Output(as_json, False, {}, Look()).show(run.executed(task, outcome))


@pytest.mark.parametrize("error", [None, 0.0, 1e-5])
def test_a_good_gradient_or_none_is_no_refusal(error, capsys):
    assert report(Outcome(3.9, error, 0.0)) == 0
    assert "1.393 s simulated" in capsys.readouterr().out


@pytest.mark.parametrize("error", [1.1e-5, float("inf")])
def test_a_bad_gradient_is_refused_after_the_report(error, capsys):
    assert report(Outcome(3.9, error, 0.0)) == 1
    said = capsys.readouterr()
    assert "is above 1e-05" in said.err
    assert "gradient_error" in said.out


def test_json_holds_the_runs_keys_and_those_of_diagnose(capsys):
    report(Outcome(3.9, 1e-8, 1e-9), as_json=True)
    document = json.loads(capsys.readouterr().out)
    own = {"predicted_ms", "measured_ms", "idle_share", "loss", "gradient_error", "recording"}
    assert own | {"causes", "per_rank", "verdict", "what_if", "step_ms"} <= set(document)
    assert document["predicted_ms"] == 1392.5


def test_an_unpaced_run_is_predicted_from_its_own_durations(capsys):
    report(Outcome(3.9), as_json=True, predicted_ns=None)
    document = json.loads(capsys.readouterr().out)
    assert document["predicted_ms"] == pytest.approx(1392.5, rel=0.01)  # paced, so its durations are what was asked


def test_the_line_of_a_step():
    line = run.step_line(Step(12, 6.914, 412_300_000, 0.3136), expected="27 % exact")
    assert line == "step 12 loss 6.91 412 ms idle share 31 % measured (27 % exact)"
