"""``annotate``: a loop that nobody could read becomes readable, from the profile to the diagnosis."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from debubble import InputError, annotate
from debubble.readers.source import read

LOOP = Path(__file__).with_name("annotated_loop.py")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Profiles of two ranks that trained together."""
    folder = tmp_path_factory.mktemp("annotated")
    command = [sys.executable, "-W", "ignore", str(LOOP)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([*command, str(rank), str(folder)], env=quiet) for rank in range(2)]
    try:
        assert [each.wait(120) for each in running] == [0, 0]
    finally:
        for each in running:
            each.kill()
    (folder / "store").unlink(missing_ok=True)
    return folder


@pytest.mark.real
def test_a_loop_of_our_own_is_diagnosed_as_the_gpipe_it_is(cli, traces):
    found = cli("diagnose", traces, "--json").json
    shape = [found[key] for key in ("schedule", "ranks", "microbatches", "steps")]
    assert shape == ["gpipe", 2, 4, 2]
    assert 0 < found["idle_share"] < 1
    assert sum(cause["cost_ms"] for cause in found["causes"]) == pytest.approx(found["makespan_ms"])


@pytest.mark.real
def test_every_op_of_every_step_is_there_once_and_in_order(traces):
    for window in read([traces]).windows:
        schedule = window.timeline.program.schedule
        for rank in range(2):
            order = [str(op) for op in schedule.row(rank)]
            assert order == [f"{rank}{kind}{i}" for kind in "FB" for i in range(4)]


@pytest.fixture
def names(monkeypatch):
    """The ranges that were opened, in order."""
    import torch

    opened = []

    def seen(work):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            work()
        opened.extend(sorted(event.key for event in profile.key_averages() if event.key.startswith("PP:")))
        return opened

    return seen


@pytest.mark.parametrize("kind", "FIWB")
def test_a_block_has_the_name_of_its_op(names, kind):
    def work():
        with annotate(kind, stage=12, microbatch=3):
            pass

    assert names(work) == [f"PP:12{kind}3"]


def test_a_decorator_counts_calls_or_asks_an_argument(names):
    counted = annotate("F", stage=0, of=2)(lambda: None)
    asked = annotate("W", 1, "i")(lambda x, i=7: x + i)

    def work():
        for _ in range(3):
            counted()
        assert asked(1, 4) == 5
        assert asked(1) == 8

    assert names(work) == ["PP:0F0", "PP:0F1", "PP:1W4", "PP:1W7"]


def test_a_decorated_function_keeps_its_name_and_its_errors():
    @annotate("F", 0)
    def fails():
        raise KeyError("x")

    assert fails.__name__ == "fails"
    with pytest.raises(KeyError):
        fails()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: annotate("Z", 0), "one of F, I, W, B"),
        (lambda: annotate("F", -1), "stage = -1"),
        (lambda: annotate("F", 0, of=0), "of = 0"),
        (lambda: annotate("F", 0, "j")(lambda i: i), "has no such argument"),
        (lambda: annotate("F", 0).__enter__(), "its number is not given"),
    ],
)
def test_what_cannot_be_named_is_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()
