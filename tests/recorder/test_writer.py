"""The writer: steps are appended, a full disk leaves whole ones, a folder belongs to one run at a time."""

import json
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from debubble.core.errors import InputError
from debubble.core.schedule import Shape
from debubble.readers.recording import read_recording
from debubble.readers.recording_file import frame, track_files, track_path
from debubble.recorder.writer import LOCK, Keep, Writer, in_use
from debubble.schedules.catalog import build
from recorded import files

ORDER = build("1f1b", Shape(2, 4))


def writers(folder: Path, steps: int, keep: Keep | None = None, replace: bool = False, **header: object):
    """The two processes of a pipeline, after so many steps."""
    made = []
    for file in files(ORDER, steps=steps, **{"pid": os.getpid(), "host": socket.gethostname()} | header):
        writer = Writer(folder, file.process, keep, replace)
        made.append((writer, file))
    for number in range(steps):
        for writer, file in made:
            writer.add(file.part, file.steps[number])
    return [writer for writer, _ in made]


def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_is_written_is_read_while_it_grows(tmp_path):
    (first, second) = writers(tmp_path, 3)
    assert len(read_recording(tmp_path).windows) == 3
    for writer in (first, second):
        writer.close()
    assert len(read_recording(tmp_path).windows) == 3


def test_a_step_costs_its_own_bytes_however_many_are_there(tmp_path):
    made = files(ORDER, steps=40)[0]
    writer, sizes = Writer(tmp_path, made.process), []
    for step in made.steps:
        writer.add(made.part, step)
        sizes.append(writer.path.stat().st_size)
    grown = [after - before for before, after in pairwise(sizes)]
    assert max(grown) <= len(frame(made.steps[-1])) + 8


def test_nothing_is_there_before_the_first_step_and_the_lock_goes_at_the_end(tmp_path):
    folder = tmp_path / "new" / "run"
    writer = Writer(folder, files(ORDER)[0].process)
    assert [file.name for file in folder.iterdir()] == [LOCK]
    writer.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("keep", "steps"), [(1, 1), (3, 3), (8, 8), (100, 40)])
def test_keep_bounds_the_steps_on_disk_to_the_newest(tmp_path, keep, steps):
    writers(tmp_path, 40, Keep(steps=keep))
    kept = [window.step for window in read_recording(tmp_path).windows]
    assert keep * 3 // 4 <= len(kept) <= steps or len(kept) == steps
    assert kept == list(range(41 - len(kept), 41))


def test_keep_bounds_the_bytes_on_disk(tmp_path):
    writers(tmp_path, 200, Keep(bytes=8000))
    for rank in range(2):
        held = sum(file.stat().st_size for file in track_files(tmp_path) if file.name.startswith(f"rank-0000{rank}"))
        assert 4000 < held < 8000 + 1000  # a step may end beyond a quarter


def test_another_runs_files_are_neither_emptied_nor_joined(tmp_path):
    for writer in writers(tmp_path, 2):
        writer.close()
    before = {file: file.read_bytes() for file in track_files(tmp_path)}
    for writer in writers(tmp_path, 3, run="second-run", wall_ns=99, samples=32):
        writer.close()
    assert {file: file.read_bytes() for file in before} == before
    observation = read_recording(tmp_path)
    assert (observation.samples, len(observation.windows)) == (32, 3)
    assert observation.remarks == ("2 files of another run lie beside it and are left out",)


def test_a_run_that_replaces_does_so_once_all_its_ranks_have_a_step(tmp_path):
    for writer in writers(tmp_path, 2):
        writer.close()
    old = track_files(tmp_path)
    made = files(ORDER, run="second-run", wall_ns=99, pid=os.getpid(), host=socket.gethostname())
    both = [Writer(tmp_path, file.process, replace=True) for file in made]
    both[0].add(made[0].part, made[0].steps[0])
    assert set(old) < set(track_files(tmp_path))
    assert len(read_recording(tmp_path).windows) == 2  # still those of the first
    both[1].add(made[1].part, made[1].steps[0])
    both[0].add(made[0].part, made[0].steps[1])
    assert not set(old) & set(track_files(tmp_path))
    assert len(read_recording(tmp_path).windows) == 1


def test_a_second_run_into_a_folder_is_refused_while_the_first_one_writes(tmp_path):
    first = writers(tmp_path, 1)
    assert in_use(tmp_path) is not None
    with pytest.raises(InputError) as caught:
        writers(tmp_path, 1, run="second-run")
    assert f"process {os.getpid()} of {socket.gethostname()} writes a recording there since" in str(caught.value)
    for writer in first:
        writer.close()
    assert in_use(tmp_path) is None
    writers(tmp_path, 1, run="second-run")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": "x"}'])
def test_a_lock_that_says_nothing_of_use_is_no_lock_for_ever(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    os.utime(tmp_path / LOCK, (1, 1))
    assert writers(tmp_path, 1)


def test_a_lock_of_a_process_that_is_gone_is_taken_over(tmp_path):
    (tmp_path / LOCK).write_text(json.dumps({"run": "x", "host": socket.gethostname(), "pid": dead(), "time": 1}))
    assert in_use(tmp_path) is None
    assert writers(tmp_path, 1)


def test_a_lock_of_another_host_holds_while_it_is_touched(tmp_path):
    (tmp_path / LOCK).write_text(json.dumps({"run": "x", "host": "elsewhere", "pid": 1, "time": 1}))
    with pytest.raises(InputError, match="of elsewhere writes a recording there"):
        writers(tmp_path, 1)
    os.utime(tmp_path / LOCK, (1, 1))
    assert writers(tmp_path, 1)


def test_a_disk_that_is_full_leaves_whole_steps(tmp_path, monkeypatch):
    made = files(ORDER, steps=3)
    both = [Writer(tmp_path, file.process) for file in made]
    for writer, file in zip(both, made, strict=True):
        writer.add(file.part, file.steps[0])

    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        both[0].add(made[0].part, made[0].steps[1])
    monkeypatch.undo()
    both[0].add(made[0].part, made[0].steps[2])
    both[1].add(made[1].part, made[1].steps[2])
    assert [window.step for window in read_recording(tmp_path).windows] == [1, 3]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="no recording can be written there"):
        Writer(tmp_path / "file" / "below", files(ORDER)[0].process)


def test_a_job_that_was_started_again_writes_a_part_of_its_own(tmp_path):
    for restart in (0, 1):
        for writer in writers(tmp_path, 2, restart=restart):
            writer.close()
    assert track_path(tmp_path, 0, "1").exists()
    assert [window.step for window in read_recording(tmp_path).windows] == [1, 2, 3, 4]
