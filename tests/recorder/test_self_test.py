"""The self-test says what agrees, and what does not: on a recording of a job whose order and parts are known."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from debubble.core.schedule import Shape
from debubble.readers.recording import read_recording
from debubble.recorder.self_test import _slack, examined
from debubble.schedules.catalog import build

RECORDING = Path(__file__).resolve().parents[2] / "examples" / "own-job" / "recordings" / "m8"


def test_a_job_of_1f1b_agrees_and_its_cost_is_the_median_of_pairs():
    found = examined(RECORDING, build("1f1b", Shape(4, 8)), "cpu", [110, 130, 103], [100, 100, 100])
    assert (found.order_agrees, found.parts_sum, found.early_messages, found.exit_status) == (True, True, 0, 0)
    assert found.messages == found.steps * 48  # 3 boundaries x 8 micro-batches x 2 ways
    assert found.even_idle_share == 3 / 11
    assert found.overhead_share == pytest.approx(0.1)
    assert "agrees: the order of ops" in found.text()


def test_another_order_than_the_expected_differs():
    found = examined(RECORDING, build("gpipe", Shape(4, 8)), "cpu", [1], [1])
    assert (found.order_agrees, found.exit_status) == (False, 1)
    assert "DIFFERS: the order of ops" in found.text(200)


def test_a_message_that_is_used_before_it_is_made_is_told_by_how_much():
    timeline = read_recording(RECORDING).windows[0].timeline
    late = timeline.program.schedule.rank_of() == 0  # the clock of rank 0 is an hour ahead
    shifted = replace(timeline, start=timeline.start + late * 3600 * 10**9, end=timeline.end + late * 3600 * 10**9)
    assert _slack(timeline).min() >= 0
    assert _slack(shifted).min() < -3599 * 10**9


@pytest.mark.real
@pytest.mark.slow
def test_the_self_test_of_this_machine_agrees():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "debubble", "record", "--self-test", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert (found["order_agrees"], found["parts_sum"], found["early_messages"]) == (True, True, 0)
    assert found["steps"] == 12
    assert ran.stderr == ""
