"""What bites whoever measures inside other people's jobs: each trap, in the smallest job there is."""

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from debubble.core.schedule import Shape
from debubble.readers.recording import read_recording, read_tracks
from debubble.readers.recording_file import track_files
from debubble.recorder.writer import Writer
from debubble.schedules.catalog import build
from recorded import files

from .jobs import CLIENTS, python, recorded

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")
ALONE = CLIENTS / "alone.py"


def steps_in(folder: Path) -> list[int]:
    return [window.step for window in read_recording(folder).windows]


def test_arguments_and_main_are_the_jobs_own(tmp_path):
    ran = recorded(1, tmp_path / "run", ALONE, "plain", "--out", "mine", options=("--every", "1"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "argv ['plain', '--out', 'mine'] main __main__\n"
    assert steps_in(tmp_path / "run") == [1, 2, 3]


def test_a_module_runs_as_python_m_runs_it(tmp_path):
    ran = recorded(1, tmp_path / "run", "-m", "alone", "plain", "--steps", "9", PYTHONPATH=f"{CLIENTS}:{source()}")
    assert ran.stdout == "argv ['plain', '--steps', '9'] main __main__\n"
    assert steps_in(tmp_path / "run") == [1, 2, 3]


def test_a_step_that_was_looked_up_before_the_recorder_came_is_recorded_all_the_same(tmp_path):
    ran = python(ALONE, "late", tmp_path / "run")
    assert ran.returncode == 0, ran.stderr
    assert "debubble: recorded 3 steps of torch" in ran.stderr
    assert steps_in(tmp_path / "run") == [1, 2, 3]


def test_workers_that_load_data_record_and_say_nothing(tmp_path):
    ran = recorded(1, tmp_path / "run", ALONE, "workers")
    assert ran.returncode == 0, ran.stderr
    assert len(track_files(tmp_path / "run")) == 1
    assert ran.stderr.count("debubble:") == 1


def test_functions_that_a_schedule_has_of_its_own_are_ops(tmp_path):
    """GraphPP runs each action by a function that was registered for it: no stage is asked, no other hook sees it."""
    ran = recorded(1, tmp_path / "run", ALONE, "graph")
    assert ran.returncode == 0, ran.stderr
    (track,), _ = read_tracks(tmp_path / "run")
    (part,) = track.parts.values()
    schedule = build("interleaved", Shape(1, 4, 2))
    assert part.kind == schedule.kind.tobytes()
    assert np.frombuffer(part.stage, "<i4").tolist() == schedule.stage.tolist()
    assert np.frombuffer(part.unit, "<i4").tolist() == schedule.unit.tolist()


def test_two_ops_of_one_function_share_a_slot(tmp_path):
    ran = recorded(1, tmp_path / "run", ALONE, "overlap")
    assert ran.returncode == 0, ran.stderr
    schedule = build("dualpipe-v", Shape(1, 4, 2))
    windows = read_recording(tmp_path / "run").windows
    assert len(windows) == 3
    for window in windows:
        timeline = window.timeline
        assert timeline.program.schedule.same_order(schedule)
        second = np.flatnonzero(schedule.joined)
        assert (timeline.start[second] == timeline.start[second - 1]).all()
        assert (timeline.end[second] == timeline.end[second - 1]).all()


def test_an_exception_keeps_its_traceback_and_status(tmp_path):
    ran = recorded(1, tmp_path / "run", ALONE, "raise")
    assert ran.returncode == 1
    assert 'KeyError: "the job\'s own error"' in ran.stderr
    assert f'File "{ALONE}", line' in ran.stderr
    assert steps_in(tmp_path / "run") == [1, 2]


RAISES = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
dist.init_process_group("gloo")
rank = dist.get_rank()
stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
for step in range(4):
    x = torch.randn(4, 4)
    if rank == 0:
        schedule.step(x)
    elif step == 3:
        raise KeyError("the last rank's own error")
    else:
        schedule.step(target=x, losses=[])
"""


def test_the_rank_that_raises_says_what_was_recorded(tmp_path):
    """torchrun ends all others by a signal, among them the first, which else would say it."""
    (tmp_path / "job.py").write_text(RAISES)
    ran = recorded(2, tmp_path / "run", tmp_path / "job.py")
    assert ran.returncode == 1
    assert "the last rank's own error" in ran.stderr
    assert "debubble: recorded 2 steps of torch" in ran.stderr
    assert steps_in(tmp_path / "run") == [1, 2]


@pytest.mark.parametrize(("how", "status"), [("exit", 7), ("_exit", 5), ("kill", -9)])
def test_whatever_ends_a_job_leaves_its_steps_and_its_status(tmp_path, how, status):
    ran = recorded(1, tmp_path / "run", ALONE, how)
    assert ran.returncode == status, ran.stderr
    assert steps_in(tmp_path / "run") == [1, 2]
    again = recorded(1, tmp_path / "run", ALONE, "plain")  # a lock of a process that is gone is no lock
    assert again.returncode == 0
    assert steps_in(tmp_path / "run") == [1, 2, 3]


def test_an_elastic_restart_starts_a_new_part_and_empties_nothing(tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts", "1")
    ran = python(*launcher, "-m", "debubble", "record", "--out", tmp_path / "run", ALONE, "once")
    assert ran.returncode == 0, ran.stderr
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["rank-00000.1.msgpack", "rank-00000.msgpack"]
    observation = read_recording(tmp_path / "run")
    assert len(observation.windows) == 5  # 2 before, 3 after; the first of each start is left out
    assert "the job was started 2 times" in observation.remarks[0]


def test_a_step_in_another_thread_is_a_step(tmp_path):
    assert recorded(1, tmp_path / "run", ALONE, "thread").returncode == 0
    assert steps_in(tmp_path / "run") == [1, 2, 3]


def test_the_environment_records_a_job_that_nothing_starts_for_it(tmp_path):
    """What the line in site-packages does, done here by a sitecustomize of the test's own."""
    (tmp_path / "sitecustomize.py").write_text(pth_line())
    told = {"DEBUBBLE_RECORD": f"{tmp_path / 'run'},steps=2:3", "PYTHONPATH": f"{tmp_path}:{source()}"}
    ran = python(ALONE, "workers", **told)
    assert ran.returncode == 0, ran.stderr
    assert steps_in(tmp_path / "run") == [2, 3]
    assert ran.stderr.count("debubble:") == 1


def test_the_line_in_site_packages_does_nothing_unless_it_is_asked(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(pth_line())
    code = "import sys; print([name for name in sys.modules if name.startswith('debubble')])"
    assert python("-c", code, PYTHONPATH=f"{tmp_path}:{source()}").stdout == "[]\n"


def test_steps_every_and_json(tmp_path):
    ran = recorded(1, tmp_path / "run", ALONE, "plain", options=("--steps", "0:", "--every", "2", "--json"))
    assert steps_in(tmp_path / "run") == [0, 2]
    said = json.loads(ran.stdout.partition("\n")[2])
    assert (said["steps"], said["ranks"], said["schema"]) == (2, 1, "record/1")
    assert said["overhead_share"] > 0


def test_where_deepspeed_puts_the_local_rank_the_program_gets_it(tmp_path):
    ran = python("-m", "debubble", "--local_rank=3", "record", "--out", tmp_path / "run", CLIENTS / "words.py", "x")
    assert ran.stdout == "['--local_rank=3', 'x']\n"


def test_nanotron_is_refused_by_name_and_runs(tmp_path):
    """Its releases on the index do not import beside torch 2.13 (a circle); a package of its shape stands in for it."""
    package = tmp_path / "nanotron" / "parallel" / "pipeline_parallel"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "engine.py").write_text("class PipelineEngine: pass\n")
    script = tmp_path / "train.py"
    script.write_text("from nanotron.parallel.pipeline_parallel.engine import PipelineEngine\nprint(PipelineEngine)\n")
    ran = recorded(1, tmp_path / "run", script)
    assert (ran.returncode, "PipelineEngine" in ran.stdout) == (0, True)
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("debubble:")]
    assert line.startswith("debubble: nanotron is not recorded: its receives lie inside its forwards and backwards")


def test_a_job_without_a_pipeline_runs_as_it_is_and_nothing_is_said(tmp_path):
    ran = python("-m", "debubble", "record", "--out", tmp_path / "run", CLIENTS / "words.py", "-x", "--json")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "['-x', '--json']\n", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere.py",), "nowhere.py: it is no file of Python's"),
        ((), "Missing FILE or -m MODULE"),
        (("--steps", "9:1", "--every", "0", "--keep", "1KB", "x.py"), "--steps 9:1"),
        (("--replicas", "a", str(ALONE)), "--replicas a: replicas are counted from 0"),
    ],
)
def test_bad_words_are_exit_2_before_anything_runs(cli, words, line):
    ran = cli("record", *words)
    assert ran.status == 2
    assert line in ran.err


def test_a_second_run_into_the_same_folder_is_said_in_one_line_and_the_job_goes_on(tmp_path):

    (mine,) = files(build("1f1b", Shape(1, 2)), pid=os.getpid(), host=socket.gethostname())
    writer = Writer(tmp_path / "run", mine.process)
    writer.add(mine.part, mine.steps[0])
    ran = recorded(1, tmp_path / "run", ALONE, "plain")
    assert ran.returncode == 0
    assert "main __main__" in ran.stdout
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("debubble: this run is not recorded")]
    assert f"process {os.getpid()} of" in line
    writer.close()
    assert len(read_tracks(tmp_path / "run")[0]) == 1


def source() -> str:
    return str(Path(__file__).resolve().parents[2] / "src")


def pth_line() -> str:
    return (Path(source()) / "debubble_record.pth").read_text()


def test_python_reads_the_line_as_one():
    line = pth_line()
    assert line.startswith("import ")
    assert line.count("\n") == 1
    compile(line, "debubble_record.pth", "exec")
    assert sys.version_info >= (3, 11)
