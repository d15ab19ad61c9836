"""Megatron-Core and DeepSpeed recorded from inside, in real processes: orders, phases, who is a replica of whom."""

import importlib.util
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from debubble.core.schedule import Schedule, Shape
from debubble.readers.recording import read_recording, read_tracks
from debubble.readers.recording_file import Part
from debubble.schedules.catalog import build

from .jobs import CLIENTS, recorded, torchrun

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RANKS = 4

pytestmark = [pytest.mark.engines, pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def megatron(tmp_path_factory):
    """Runs the client of Megatron-Core; the folder of its recording."""
    if not find_spec("megatron"):
        pytest.skip("megatron-core is not installed: make engines")

    def run(*words: str):
        folder = tmp_path_factory.mktemp("megatron") / "run"
        ran = recorded(4, folder, CLIENTS / "megatron_all.py", *words)
        assert ran.returncode == 0, ran.stderr[-3000:]
        return folder

    return run


@pytest.fixture(scope="module")
def orders(megatron):
    return megatron("orders")


@pytest.fixture(scope="module")
def deepspeed(tmp_path_factory):
    """The recording of both engines of DeepSpeed in one process."""
    if not find_spec("deepspeed"):
        pytest.skip("deepspeed is not installed: make engines")
    folder = tmp_path_factory.mktemp("deepspeed") / "run"
    words = ("1f1b", "dualpipe-v") if find_spec("deepspeed.runtime.pipe.dualpipev") else ("1f1b",)
    ran = recorded(4, folder, CLIENTS / "deepspeed_all.py", *words, DS_ACCELERATOR="cpu")
    assert ran.returncode == 0, ran.stderr[-3000:]
    return folder


def is_row(part: Part, schedule: Schedule, rank: int) -> bool:
    rows = slice(schedule.offsets[rank], schedule.offsets[rank + 1])
    columns = (part.kind, np.frombuffer(part.stage, "<i4").tolist(), np.frombuffer(part.unit, "<i4").tolist())
    wanted = (schedule.kind[rows].tobytes(), schedule.stage[rows].tolist(), schedule.unit[rows].tolist())
    return columns == wanted


@pytest.mark.parametrize(
    ("instance", "engine", "name", "chunks"),
    [(0, "megatron", "1f1b", 1), (1, "megatron", "interleaved", 2), (2, "megatron-overlap", "interleaved", 2)],
)
def test_megatron_runs_the_order_that_build_makes(orders, instance, engine, name, chunks):
    schedule = build(name, Shape(4, 8, chunks) if chunks > 1 else Shape(4, 8))
    tracks, remarks = read_tracks(orders)
    assert (len(tracks), remarks) == (4, [])
    for track in tracks:
        (part,) = [p for p in track.parts.values() if (p.instance, p.phase) == (instance, "train")]
        assert part.engine == engine
        assert is_row(part, schedule, track.process.rank)
        assert part.axes["tensor"] == (0, 1)


def test_megatrons_evaluation_between_steps_is_a_part_of_its_own(orders):
    for track in read_tracks(orders)[0]:
        mine = [part for part in track.parts.values() if part.instance == 0]
        assert [(part.phase, len(part.kind)) for part in mine] == [("train", 16), ("evaluation", 8)]
    (other,) = [each for each in read_recording(orders).others if each.phase == "evaluation"]
    assert (other.steps, other.microbatches) == (1, 8)


def test_every_message_of_megatron_is_a_wait_and_of_overlap_in_its_handle(orders):
    for track in read_tracks(orders)[0]:
        of = {number: part.engine for number, part in track.parts.items() if part.phase == "train"}
        for step in [step for step in track.steps if step.part in of]:
            assert step.posted or track.process.rank == 3  # what it sends is posted at a known moment
            if of[step.part] == "megatron-overlap":
                assert step.received
            else:
                assert step.received or step.both


def test_members_of_a_tensor_group_are_one_rank_and_replicas_are_two(megatron):
    """The pipelines are [0, 2] and [1, 3] in both: only Megatron's own state tells them apart."""
    tensor, data = read_recording(megatron("tensor")), read_recording(megatron("data"))
    assert {window.replica for window in tensor.windows} == {0}
    assert {window.replica for window in data.windows} == {0, 1}
    assert tensor.gpus == data.gpus == 4
    assert any("devices of one stage were merged" in remark for remark in tensor.remarks)


def test_a_function_that_was_looked_up_before_the_recorder_came_is_recorded_all_the_same(tmp_path, megatron):
    ran = torchrun(4, CLIENTS / "megatron_all.py", "late", tmp_path / "run")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [window.step for window in read_recording(tmp_path / "run").windows] == [1, 2]
    assert "debubble: recorded 2 steps of megatron" in ran.stderr


def test_deepspeed_runs_1f1b_and_its_outside_is_split(deepspeed):
    schedule = build("1f1b", Shape(4, 8))
    for track in read_tracks(deepspeed)[0]:
        (part,) = [p for p in track.parts.values() if (p.schedule, p.phase) == ("1F1B", "train")]
        assert is_row(part, schedule, track.process.rank)
        assert part.axes["data"] == (0, 1)
        for step in track.steps:
            if step.part == part.number:
                assert step.optimizer > 0
                assert (step.load or 0) >= 0
                assert step.update >= 1


def test_deepspeeds_evaluation_and_its_second_engine_stand_apart(deepspeed):
    for track in read_tracks(deepspeed)[0]:
        phases = [(part.instance, part.schedule, part.phase) for part in track.parts.values()]
        assert phases[:2] == [(0, "1F1B", "train"), (0, "1F1B", "evaluation")]
        for part in track.parts.values():
            if part.schedule == "DualPipeV":
                assert (part.instance, len(part.kind)) == (1, 32)
                stages = set(np.frombuffer(part.stage, "<i4").tolist())
                assert stages == {track.process.rank, 7 - track.process.rank}


def test_deepspeeds_dual_pipe_v_is_a_legal_schedule(deepspeed):
    """Its order is DeepSpeed's own; that it is whole and legal is what every window of it proves."""
    parts = read_tracks(deepspeed)[0][0].parts.values()
    if all(part.schedule != "DualPipeV" for part in parts):
        pytest.skip("this DeepSpeed has no DualPipeV")
    others = [each for each in read_recording(deepspeed).others if each.schedule == "DualPipeV"]
    found = others[0].makespan_ns if others else read_recording(deepspeed).windows[0].timeline.makespan
    assert found > 0


@pytest.fixture(scope="module")
def windows():
    """``benchmarks/recorded_windows.py``, which records loops that sleep and simulates their windows again."""
    made = {}
    for name in ("real_engines", "recorded_windows"):  # the second imports the first
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        made[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made[name])
    return made["recorded_windows"]


@pytest.mark.clock
@pytest.mark.parametrize(
    "name", ["Megatron-Core 1F1B", "Megatron-Core interleaved", "DeepSpeed 1F1B", "torch 1F1B", "torch interleaved"]
)
def test_a_recorded_window_is_what_the_simulation_makes_of_its_engine_and_hops(windows, shared, name):
    """100 and 200 ms a stage. On a quiet machine within 1.5 % and .011 (docs); here what a loaded one meets."""
    package = {"DeepSpeed": "deepspeed", "Megatron-Core": "megatron.core", "torch": "torch"}[name.split()[0]]
    pytest.importorskip(package, reason=f"{package} is not installed: make engines")
    (loop,) = [each for each in windows.LOOPS if each.name == name]
    found = windows.run_loop(loop, shared / "clients", sys.executable, (100.0, 200.0), windows.STEPS + 2)
    ideal = (RANKS - 1) / (8 * loop.chunks + RANKS - 1)
    assert found.parts_ms["slept"] == pytest.approx(300 / loop.chunks * (8 * loop.chunks + RANKS - 1))
    assert sum(found.parts_ms.values()) == pytest.approx(found.window_ms)
    assert 0.97 < found.window_ratio < 1.05
    assert abs(found.idle_difference) < 0.04
    assert ideal - 0.001 < found.idle_share < ideal + 0.06
