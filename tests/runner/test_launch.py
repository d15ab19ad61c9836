"""A process that failed is named with the first cause, not with what the engine made of it."""

import subprocess
import sys

import pytest

from debubble.runner import launch

CHAIN = """Traceback (most recent call last):
  File "/lib/stage.py", line 786, in forward_one_chunk
    output = self.forward_maybe_with_nosync(*args)
  File "/home/me/mine.py", line 8, in forward
    raise ValueError("boom")
ValueError: boom

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/lib/schedules.py", line 2600, in step
RuntimeError:
            [Stage 1] failed to run forward:
            args: ('Tensor(torch.Size([1, 6]), grad=True)',)
"""


def test_the_first_cause_and_its_line_are_named():
    message = {"message": "RuntimeError: [Stage 1] failed", "extraInfo": {"py_callstack": CHAIN}}
    assert launch._how(1, message) == "failed: ValueError: boom (/home/me/mine.py, line 8)"


def test_a_signal_is_named():
    assert launch._how(-9, "Signal 9 (SIGKILL) received by PID 7") == "was killed by SIGKILL"


@pytest.mark.parametrize("message", ["it broke", {"message": "it broke"}, {"message": "it broke", "extraInfo": {}}])
def test_what_has_no_call_stack_is_passed_on(message):
    assert launch._how(1, message) == "failed: it broke"


def test_a_long_message_is_cut_to_one_line():
    text = launch._how(1, "a\n" * 10_000)
    assert len(text) < 700
    assert "\n" not in text


def test_nothing_measured_is_said(tmp_path):
    assert launch._kept(tmp_path, None) == "the others were stopped, and no step had been measured by all of them"


@pytest.mark.real
@pytest.mark.slow
def test_a_script_without_a_guard_and_one_that_has_no_file_can_run_a_pipeline(tmp_path):
    pytest.importorskip("torch")
    script = (
        f"import debubble\nrun = debubble.run(schedule='1f1b', ranks=2, microbatches=2, steps=1, out={str(tmp_path)!r})"
    )
    script += "\nprint('windows', run.windows)"
    ran = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "windows 1\n"), ran.stderr
