"""What can be known to be wrong with ``run`` is said in one line each, before torch is even imported."""

import sys

import pytest

from debubble import Rates, Refusal, Release, Shape
from debubble.schedules.catalog import build

ASKED = ("run", "--schedule", "1f1b", "-p", 2, "-m", 4)


@pytest.fixture
def fails(cli, tmp_path, monkeypatch):
    """Run with more options, and return exit status and stderr; torch must not have been touched."""

    def run(*options: object, base: tuple[object, ...] = ASKED) -> tuple[int, str]:
        monkeypatch.setattr("debubble.runner.launch.warm_up", lambda: pytest.fail("torch was wanted"))
        ran = cli(*base, *options, "--out", tmp_path / "out")
        assert ran.out == ""
        assert not (tmp_path / "out").exists()
        return ran.status, ran.err

    return run


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--pace", "20ms"), "--pace = 20ms: it gives F"),
        (("--pace", "B=20ms"), "--pace = B=20ms: it gives F"),
        (("--pace", "F=1ms,F=2ms"), "each once"),
        (("--pace", "F=fast"), "--pace F = fast: a duration is a number"),
        (("--pace", "F=1ms,B=2ms,I=3ms"), "the two halves of a backward add up to it"),
        (("--hop", "-1ms"), "--transfer = -1ms: a duration is a number"),
        (("--batch", 6), "batch = 6: 1 x 4 micro-batches of one size make up a batch"),
        (("--steps", 0), "--steps = 0"),
        (("--data", "two"), "--data = two"),
    ],
)
def test_a_bad_option_is_exit_2_and_one_line(fails, options, line):
    status, err = fails(*options)
    assert status == 2
    assert line in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/debubble"])
def test_a_folder_that_cannot_be_written_is_exit_2_and_one_line(cli, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("debubble.runner.launch.warm_up", lambda: pytest.fail("torch was wanted"))
    (tmp_path / "file").touch()
    ran = cli(*ASKED, "--out", out)
    assert ran.status == 2
    assert ran.err.startswith(f"debubble: out = {out}: no recording can be written there")
    assert len(ran.err.splitlines()) == 1


def test_a_mistyped_schedule_gets_the_nearest_name(fails):
    assert "did you mean 1f1b" in fails(base=("run", "--schedule", "1f1c", "-p", 2, "-m", 4))[1]


def test_every_fault_is_named_at_once(fails):
    status, err = fails("--pace", "fast", base=("run", "--schedule", "gpipe", "-p", 0, "-m", 0))
    assert status == 2
    assert len(err.splitlines()) == 3


def test_what_torch_cannot_run_is_exit_1_with_the_reason(fails):
    status, err = fails(base=("run", "--schedule", "dualpipe", "-p", 4, "-m", 8))
    assert status == 1
    assert "two copies of the weights" in err


def test_without_torch_the_remedy_is_the_extra(fails, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("debubble.verbs.run.find_spec", lambda name: None)
    status, err = fails()
    assert status == 2
    assert "pip install 'debubble[torch]'" in err


@pytest.fixture
def tasks(monkeypatch):
    """The tasks of runs that end before they are run."""
    found = []

    def stop(task, wanted):
        found.append(task)
        raise Refusal("far enough")

    monkeypatch.setattr("debubble.verbs.run._on_device", stop)
    return found


@pytest.mark.parametrize(("cap", "release"), [("2", "w"), ("2p", "half"), ("1.5p", "i")])
def test_a_searched_schedule_keeps_the_cap_that_is_given(cli, tmp_path, tasks, cap, release):
    given = ("--memory", cap, "--release", release, "--pace", "F=10ms,I=12ms,W=6ms")
    assert cli("run", "--schedule", "zb-auto", "-p", 4, "-m", 8, *given, "--out", tmp_path / "out").status == 1
    wanted = build("zb-auto", Shape(4, 8), Rates(10e6, input=12e6, weight=6e6), cap=cap, release=Release(release))
    assert tasks[0].schedule.same_order(wanted)


def test_a_cap_for_a_schedule_that_takes_none_is_refused(cli, tmp_path):
    ran = cli("run", "--schedule", "1f1b", "-p", 4, "-m", 8, "--memory", "2p", "--out", tmp_path / "out")
    assert (ran.status, len(ran.err.splitlines())) == (2, 1)


def test_a_searched_schedule_is_searched_at_the_pace(cli, tmp_path, tasks):
    paced = ("--pace", "F=10ms,I=30ms,W=5ms")
    assert cli("run", "--schedule", "zb-auto", "-p", 4, "-m", 8, *paced, "--out", tmp_path / "out").status == 1
    usual, wanted = (
        build("zb-auto", Shape(4, 8), rates, release=Release.W)
        for rates in (Rates(), Rates(10e6, input=30e6, weight=5e6))
    )
    assert tasks[0].schedule.same_order(wanted)
    assert not tasks[0].schedule.same_order(usual)
