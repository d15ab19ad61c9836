"""torch.distributed.pipelining recorded from inside: every schedule class, four real processes, no line changed."""

import json

import numpy as np
import pytest

from debubble.core.schedule import Kind, Shape
from debubble.readers.recording import read_recording, read_tracks
from debubble.schedules.catalog import build

from .jobs import CLIENTS, recorded

pytestmark = [pytest.mark.real, pytest.mark.slow]
pytest.importorskip("torch")

LETTER = {"FORWARD": Kind.F, "FULL_BACKWARD": Kind.B, "BACKWARD_INPUT": Kind.I, "BACKWARD_WEIGHT": Kind.W}
OURS = {  # orders that `build` makes too; torch's zero bubbles and LoopedBFS differ from the papers' in places
    "1F1B": ("1f1b", Shape(4, 8)),
    "GPipe": ("gpipe", Shape(4, 8)),
    "Interleaved1F1B": ("interleaved", Shape(4, 8, 2)),
}
CLASSES = (*OURS, "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One launch of all classes: what it said, torch's own orders, the tracks of its processes, its folder."""
    folder = tmp_path_factory.mktemp("torch")
    ran = recorded(4, folder / "run", CLIENTS / "torch_all.py", folder / "orders.json", options=("--json",))
    assert ran.returncode == 0, ran.stderr[-3000:]
    tracks, remarks = read_tracks(folder / "run")
    assert remarks == []
    return ran, json.loads((folder / "orders.json").read_text()), tracks, folder / "run"


def parts_of(track, schedule, microbatches=8):
    return [p for p in track.parts.values() if (p.schedule, p.microbatches) == (schedule, microbatches)]


@pytest.mark.parametrize("name", CLASSES)
def test_the_order_is_the_one_that_torch_says_it_runs(job, name):
    _, orders, tracks, _ = job
    # What torch 2.13 says of 1F1B's last rank it does not run: it counts that rank's forwards from 1.
    for track in tracks[:3] if name == "1F1B" else tracks:
        (part,) = parts_of(track, name)
        stages, units = (np.frombuffer(column, "<i4").tolist() for column in (part.stage, part.unit))
        said = orders[name][str(track.process.rank)]
        said = [(LETTER.get(kind.rpartition(".")[2]), stage, unit) for kind, stage, unit in said]
        assert list(zip(part.kind, stages, units, strict=True)) == [op for op in said if op[0] is not None]


@pytest.mark.parametrize("name", OURS)
def test_the_order_is_the_one_that_build_makes(job, name):
    schedule = build(OURS[name][0], OURS[name][1])
    for track in job[2]:
        (part,) = parts_of(track, name)
        rows = slice(schedule.offsets[track.process.rank], schedule.offsets[track.process.rank + 1])
        assert part.kind == schedule.kind[rows].tobytes()
        assert part.stage == schedule.stage[rows].astype("<i4").tobytes()
        assert part.unit == schedule.unit[rows].astype("<i4").tobytes()


def test_the_first_step_of_each_pipeline_is_left_out_and_the_others_are_there(job):
    for track in job[2]:
        for name in CLASSES:
            (part,) = parts_of(track, name)
            assert [step.number for step in track.steps if step.part == part.number] == [1, 2]


def test_seven_classes_and_one_model_are_eight_pipelines_of_one_process(job):
    for track in job[2]:
        assert {part.instance for part in track.parts.values()} == set(range(8))


def test_evaluation_between_steps_and_a_changed_number_of_micro_batches_are_parts_of_their_own(job):
    for track in job[2]:
        mine = [part for part in track.parts.values() if part.instance == 7]
        assert sorted((part.phase, part.microbatches) for part in mine) == [
            ("evaluation", 4),
            ("train", 4),
            ("train", 6),
        ]


def test_torch_alone_does_not_say_who_is_a_replica_of_whom(job):
    """Trap 5: without a DeviceMesh no axis is known, and none is made up."""
    for track in job[2]:
        assert {axis for part in track.parts.values() for axis in part.axes} <= {"pipeline"}


def test_every_hop_of_1f1b_has_a_send_and_a_wait(job):
    """Each rank but the last posts its F, each but the first its B; half of the waits cover a send and a receive."""
    for track in job[2]:
        (part,) = parts_of(track, "1F1B")
        rank = track.process.rank
        for step in track.steps:
            if step.part == part.number:
                posted = np.frombuffer(step.posted, "<u4") if step.posted else np.zeros(16)
                kinds = np.frombuffer(part.kind, np.uint8)
                assert ((posted > 0) == np.where(kinds == Kind.F, rank < 3, rank > 0)).all()
                assert step.received or step.both


def test_what_is_measured_is_one_window_a_step_without_overlap(job):
    observation = read_recording(job[3])
    for window in observation.windows:
        assert (window.timeline.end >= window.timeline.start).all()
        assert window.timeline.program.schedule.microbatches == 8
    assert {other.phase for other in observation.others} == {"train", "evaluation"}
    assert observation.engine in ("torch", "torch-1f1b")


def test_at_the_end_one_process_says_what_was_recorded(job):
    ran, _, _, folder = job
    lines = [line for line in ran.stderr.splitlines() if line.startswith("debubble:")]
    assert len(lines) == 1
    assert lines[0].startswith("debubble: recorded 20 steps of torch 2.")
    said = json.loads(ran.stdout)
    assert (said["recording"], said["steps"], said["ranks"], said["replicas"]) == (str(folder), 20, 4, None)
    assert said["engine"].startswith("torch 2.")


def test_a_processs_bytes_are_bounded_by_its_steps(job):
    for track in job[2]:
        assert track.file.stat().st_size < 20 * 4096


def test_it_can_be_watched_afterwards_a_line_a_step(job, cli):
    ran = cli("watch", job[3], "--json")
    steps = [json.loads(line) for line in ran.out.splitlines()]
    assert len(steps) == 20
    assert all(0 <= step["idle_share"] < 1 and step["pipelines"] == 1 for step in steps)
    assert sum(step["phase"] == "evaluation" for step in steps) == 2
