"""A recording that is followed as it grows: a line a step, each byte read once, a gate, a callback that may fail."""

import json
import os
import socket
from pathlib import Path

import msgspec
import numpy as np
import pytest

from debubble import watch
from debubble.core.account import account
from debubble.core.errors import InputError
from debubble.core.schedule import Shape
from debubble.readers.recording import read_recording
from debubble.recorder.follow import Follower, follow
from debubble.recorder.wishes import Wish, wish_of
from debubble.recorder.writer import Keep, Writer
from debubble.schedules.catalog import build
from recorded import MS, files

ORDER = build("1f1b", Shape(2, 4))


def grown(folder: Path, steps: int, made=None, first: int = 0):
    """Write some steps of all processes; the writers, still open."""
    made = made or files(ORDER, steps=steps, pid=os.getpid(), host=socket.gethostname())
    writers = [Writer(folder, file.process) for file in made]
    for writer, file in zip(writers, made, strict=True):
        for step in file.steps:
            writer.add(file.part, step)
    return writers


def closed(folder: Path, steps: int, made=None) -> Path:
    for writer in grown(folder, steps, made):
        writer.close()
    return folder


def test_a_step_is_told_once_and_when_all_its_ranks_have_it(tmp_path):
    made = files(ORDER, steps=3)
    writers, follower = [Writer(tmp_path, file.process) for file in made], Follower(tmp_path)
    assert follower.poll() == []
    for number in range(3):
        writers[0].add(made[0].part, made[0].steps[number])
        assert follower.poll() == []
        writers[1].add(made[1].part, made[1].steps[number])
        assert [step.step for step in follower.poll()] == [number + 1]
        assert follower.poll() == []


def test_its_figures_are_those_of_the_account(tmp_path):
    (told, *_) = watch(closed(tmp_path, 2))
    window = read_recording(tmp_path).windows[0].timeline
    assert told.window_ms == pytest.approx(window.makespan / MS)
    assert told.idle_share == pytest.approx(account(window).idle_share)
    assert told.bubble_ratio == pytest.approx(account(window).bubble_ratio)
    assert (told.pipelines, told.microbatches, told.phase, told.loss) == (1, 4, "train", 2.5)
    assert told.drift_share == 0


def test_bytes_that_were_read_are_not_read_again(tmp_path, monkeypatch):
    writers, follower = grown(tmp_path, 5), Follower(tmp_path)
    follower.poll()
    seen, take = [], Follower._take
    monkeypatch.setattr(Follower, "_take", lambda self, tail, found: seen.append(found) or take(self, tail, found))
    follower.poll()
    assert seen == []
    for writer, file in zip(writers, files(ORDER, steps=1, first=9), strict=True):
        writer.add(file.part, file.steps[0])
    assert [step.step for step in follower.poll()] == [9]
    assert len(seen) == 2


def test_a_frame_that_is_half_written_is_taken_when_it_is_whole(tmp_path):
    closed(tmp_path, 2)
    path = tmp_path / "rank-00000.msgpack"
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    follower = Follower(tmp_path)
    assert [step.step for step in follower.poll()] == [1]
    path.write_bytes(data)
    assert [step.step for step in follower.poll()] == [2]


def test_a_rank_that_is_lost_holds_nobody_up_for_ever(tmp_path):
    made = files(ORDER, replicas=2, steps=8)
    del made[3].steps[1:]
    told = list(watch(closed(tmp_path, 8, made)))
    assert [step.step for step in told] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step.pipelines for step in told] == [2, 1, 1, 1, 1, 1, 1, 1]


def scaled(column: bytes, factor: float) -> bytes:
    return (np.frombuffer(column, "<u4") * factor).astype("<u4").tobytes()


def test_the_slowest_rank_and_the_drift_are_named(tmp_path):
    made = files(ORDER, steps=3)
    made[1].steps[1] = msgspec.structs.replace(made[1].steps[1], length=scaled(made[1].steps[1].length, 1.5))
    for file in made:
        last = file.steps[2]
        file.steps[2] = msgspec.structs.replace(last, gap=scaled(last.gap, 2), length=scaled(last.length, 2))
    first, second, third = watch(closed(tmp_path, 3, made))
    assert first.slowest_ratio == pytest.approx(1)
    assert (second.slowest_rank, second.slowest_ratio) == (1, pytest.approx(1.5 / 1.25))
    assert third.window_ms == pytest.approx(2 * first.window_ms, rel=0.1)
    assert third.drift_share > 0.4  # against the median of what was there by then


@pytest.mark.parametrize(("gate", "steps", "status"), [("30%", 12, 0), ("10%", 12, 1), ("10%", 4, 1), ("30%", 4, 0)])
def test_the_gate_ends_watch_with_1_once_ten_steps_idle_more(tmp_path, cli, gate, steps, status):
    """1F1B of 2 ranks and 4 micro-batches idles 1/5 and its hops."""
    ran = cli("watch", closed(tmp_path, steps), "--gate", gate, "--json")
    assert ran.status == status
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert len(lines) == (10 if status and steps > 10 else steps)
    assert lines[-1]["recent_steps"] == min(len(lines), 10)
    assert ("the gate is" in ran.err) == bool(status)


def test_a_folder_in_which_nothing_appears_is_one_line(tmp_path, cli):
    ran = cli("watch", tmp_path / "nowhere", "--wait", "0")
    assert (ran.status, ran.out) == (2, "")
    assert "no step of a recording is there" in ran.err
    with pytest.raises(InputError):
        list(watch(tmp_path, wait="0"))


def test_on_step_gets_the_keys_of_watch(tmp_path):
    got = []
    end = follow(tmp_path, got.append, pytest.fail)
    closed(tmp_path, 3)
    end()
    assert got == [step.document() for step in watch(tmp_path)]
    assert {"idle_share", "window_ms", "slowest_rank", "step"} <= set(got[0])


def test_on_step_that_raises_ends_its_calls_and_nothing_else(tmp_path):
    calls, said = [], []

    def broken(step):
        calls.append(step)
        raise RuntimeError("no network")

    closed(tmp_path, 3)
    end = follow(tmp_path, broken, said.append)
    end()
    assert len(calls) == 1
    assert said == ["on_step raised RuntimeError: no network; it is called no more"]


def test_a_sample_of_replicas_is_a_recording(tmp_path):
    made = files(ORDER, replicas=4, sample=[0, 3])
    closed(tmp_path, 2, [each for each in made if each.part.axes["data"][0] in (0, 3)])
    observation = read_recording(tmp_path)
    assert {window.replica for window in observation.windows} == {0, 3}
    assert observation.remarks == ("replicas 0, 3 were recorded, a sample",)
    assert [step.pipelines for step in watch(tmp_path)] == [2, 2]


# What is asked for, in words.


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        ({}, {}),
        ({"steps": "10:20"}, {"steps": (10, 20)}),
        ({"steps": "10:"}, {"steps": (10, None)}),
        ({"steps": "7"}, {"steps": (7, 7)}),
        ({"every": "5"}, {"every": 5}),
        ({"keep": "100"}, {"keep": Keep(steps=100)}),
        ({"keep": "20MB"}, {"keep": Keep(bytes=20_000_000)}),
        ({"keep": "1MiB"}, {"keep": Keep(bytes=1 << 20)}),
        ({"replicas": "0,7"}, {"replicas": (0, 7)}),
        ({"replicas": "0-3+9"}, {"replicas": (0, 1, 2, 3, 9)}),
    ],
)
def test_words_become_a_wish(tmp_path, words, wish):
    assert wish_of(tmp_path, **words) == Wish(tmp_path, **wish)


@pytest.mark.parametrize(
    "words", [{"steps": "a"}, {"steps": "5:2"}, {"every": "0"}, {"every": "x"}, {"keep": "1kb"}, {"keep": "-3"}]
)
def test_words_that_cannot_be_are_one_fault_each(tmp_path, words):
    with pytest.raises(InputError) as caught:
        wish_of(tmp_path, **words)
    assert len(caught.value.faults) == 1


def test_which_steps_are_taken():
    by_default, some = Wish(Path()), Wish(Path(), steps=(2, 8), every=3)
    assert [number for number in range(4) if by_default.takes(number, fresh=number == 0)] == [1, 2, 3]
    assert [number for number in range(12) if some.takes(number, fresh=False)] == [2, 5, 8]
