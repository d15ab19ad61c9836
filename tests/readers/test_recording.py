"""Recordings: what is written is read, and what is cut, mixed or made up is refused in one line."""

from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.schedule import Schedule, Shape
from debubble.core.simulate import simulate
from debubble.readers.recording import (
    Track,
    clear,
    is_recording,
    pack,
    read_recording,
    read_tracks,
    track_path,
    write_track,
)
from debubble.schedules.catalog import build

from ..strategies import schedules

MS = 1_000_000
LATE = 5 * MS  # the second replica runs that much later


def tracks(schedule: Schedule, replicas: int = 1, steps: int = 2, **header: object) -> list[Track]:
    """What the ranks of a simulated run would have measured, step after step."""
    timeline = simulate(lower(schedule), costs_of(Rates(2 * MS, 4 * MS, transfer=MS), schedule))
    length, made = timeline.makespan + 10 * MS, []
    shift = np.arange(1, steps + 1)[:, None] * length
    for replica in range(replicas):
        for rank in range(schedule.ranks):
            rows = slice(schedule.offsets[rank], schedule.offsets[rank + 1])
            start, end = (column[None, rows] + shift + replica * LATE for column in (timeline.start, timeline.end))
            given = {
                "run": "one",
                "rank": rank,
                "ranks": schedule.ranks,
                "replica": replica,
                "replicas": replicas,
                "schedule": schedule.name,
                "microbatches": schedule.microbatches,
                "placement": pack(schedule.placement[0], "i4"),
                "kind": pack(schedule.kind[rows], "u1"),
                "stage": pack(schedule.stage[rows], "i4"),
                "unit": pack(schedule.unit[rows], "i4"),
                "joined": None if schedule.joined is None else pack(schedule.joined[rows], "u1"),
                "samples": 16,
                "tokens": 512,
                "paced": True,
                "predicted_ns": timeline.makespan,
                "hop_ns": MS,
                "clock": "here",
                "pid": 1,
                "anchor": 0,
                "anchor_spread": 0,
                "steps": pack(range(1, steps + 1), "i4"),
                "start": pack(start, "i8"),
                "end": pack(end, "i8"),
                "waited": pack(np.zeros_like(start), "i8"),
                "begun": pack(shift[:, 0] - MS, "i8"),
                "finished": pack(shift[:, 0] + timeline.makespan + 3 * MS, "i8"),
                "loss": pack(np.full(steps, 2.5), "f8"),
            }
            made.append(Track(**(given | header)))
    return made


def record(folder: Path, made: list[Track]) -> Path:
    for track in made:
        write_track(folder, track)
    return folder


@pytest.fixture
def recorded(tmp_path) -> Path:
    """1F1B on 2 x 2 processes, two steps."""
    return record(tmp_path, tracks(build("1f1b", Shape(2, 3)), replicas=2))


def edit(folder: Path, process: int, **changes: object) -> Path:
    path = track_path(folder, process)
    track = msgspec.msgpack.decode(path.read_bytes(), type=Track)
    path.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(track, **changes)))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_recording(folder)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    return "\n".join(lines)


@given(schedule=schedules(slices=False, copies=False), steps=st.integers(1, 3), replicas=st.integers(1, 2))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path_factory, schedule, steps, replicas):
    folder = tmp_path_factory.mktemp("r")
    made = tracks(schedule, replicas, steps)
    observation = read_recording(record(folder, made))
    expected = simulate(lower(schedule), costs_of(Rates(2 * MS, 4 * MS, transfer=MS), schedule))
    assert [(w.step, w.replica) for w in observation.windows] == [
        (s, r) for s in range(1, steps + 1) for r in range(replicas)
    ]
    for window in observation.windows:
        assert window.timeline.program.schedule.same_order(schedule)
        first = window.timeline.window[0]
        assert np.array_equal(window.timeline.start - first, expected.start)
        assert np.array_equal(window.timeline.end - first, expected.end)
    assert sorted(read_tracks(folder), key=str) == sorted(made, key=str)


def test_the_header_becomes_the_observation(recorded):
    observation = read_recording(recorded)
    assert (observation.gpus, observation.samples, observation.tokens) == (4, 16, 512)
    assert (observation.paced, observation.hop_ns, observation.predicted_ns) == (True, MS, 28 * MS)
    assert (observation.clock_uncertainty_ns, observation.remarks) == (0, ())


def test_a_step_lasts_from_its_first_to_its_last_process(recorded):
    window = read_recording(recorded).windows[0]
    assert window.step_ns == window.timeline.makespan + 4 * MS


def test_replicas_keep_their_own_times(recorded):
    first, second = read_recording(recorded).windows[:2]
    assert second.timeline.window[0] - first.timeline.window[0] == LATE


def test_a_track_is_rewritten_whole_and_leaves_nothing_beside_it(recorded):
    edit(recorded, 0, schedule="other")
    before = sorted(recorded.iterdir())
    write_track(recorded, tracks(build("1f1b", Shape(2, 3)), replicas=2)[0])
    assert sorted(recorded.iterdir()) == before
    assert read_recording(recorded).windows[0].timeline.program.schedule.name == "1f1b"


def test_a_writer_that_was_killed_in_the_middle_is_no_rank(recorded):
    (recorded / "rank-00000.unfinished").write_bytes(b"half")
    assert len(read_tracks(recorded)) == 4


def test_only_steps_that_all_ranks_have_are_used_and_the_rest_is_named(recorded):
    record(recorded, tracks(build("1f1b", Shape(2, 3)), replicas=2, steps=5))
    record(recorded, [t for t in tracks(build("1f1b", Shape(2, 3)), replicas=2, steps=3) if t.rank == 1])
    observation = read_recording(recorded)
    assert {window.step for window in observation.windows} == {1, 2, 3}
    assert observation.remarks == ("steps 4, 5 are left out: not measured by process 1, 3",)


def test_clocks_of_two_hosts_meet_at_the_anchor(recorded):
    clean = read_recording(recorded).windows[0].timeline
    for process in (1, 3):
        ahead = tracks(build("1f1b", Shape(2, 3)), replicas=2)[process]
        moved = {name: pack(ahead.times(name) + 777 * MS, "i8") for name in ("start", "end")}
        edit(recorded, process, clock="there", anchor=777 * MS, anchor_spread=MS, **moved)
    observation = read_recording(recorded)
    assert np.ptp(observation.windows[0].timeline.start - clean.start) == 0
    assert observation.clock_uncertainty_ns == MS
    assert observation.remarks == ("clocks of 2 hosts were aligned at a barrier, to within 1.00 ms",)


def test_nothing_there_is_no_recording(tmp_path):
    assert not is_recording(tmp_path)
    assert "no recording is here" in refusal(tmp_path)
    assert "no recording is here" in refusal(tmp_path / "nowhere")


def test_clear_deletes_tracks_and_nothing_else(recorded):
    (recorded / "notes.txt").write_text("mine")
    clear(recorded)
    assert [path.name for path in recorded.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("kept", [0, 1, 10, 200, -1])
def test_a_file_that_is_cut_is_named_with_its_fault(recorded, kept):
    path = track_path(recorded, 2)
    path.write_bytes(path.read_bytes()[:kept])
    text = refusal(recorded)
    assert str(path) in text
    assert "cut or damaged" in text


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_of_a_byte_is_a_traceback(recorded, data):
    path = track_path(recorded, 1)
    whole = bytearray(path.read_bytes())
    spoiled = whole.copy()
    spoiled[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(spoiled)
    with suppress(InputError):
        read_recording(recorded)
    path.write_bytes(whole)


def test_another_version_is_named_with_the_remedy(recorded):
    assert "of version 7; this debubble reads version 1" in refusal(edit(recorded, 0, version=7))


def test_a_file_of_something_else_is_refused(recorded):
    track_path(recorded, 0).write_bytes(msgspec.msgpack.encode({"format": "holiday", "version": 1}))
    assert "not a debubble recording" in refusal(recorded)


def test_all_bad_files_are_named_at_once(recorded):
    edit(recorded, 0, version=7)
    edit(recorded, 3, steps=b"1")
    assert refusal(recorded).count("\n") == 1


def test_a_missing_rank_is_named(recorded):
    track_path(recorded, 3).unlink()
    assert "4 ranks took part and rank-00003.msgpack is missing" in refusal(recorded)


def test_files_of_two_runs_are_not_mixed(recorded):
    assert "files of two runs lie here (they differ in run)" in refusal(edit(recorded, 1, run="two"))


def test_no_common_step_is_said(recorded):
    assert "no step is there that all ranks have" in refusal(edit(recorded, 1, steps=pack([8, 9], "i4")))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rank": 9}, "rank 9 of 2"),
        ({"start": b""}, "start has 0 bytes"),
        ({"kind": b"\x09" * 6}, "kind holds what cannot be"),
        ({"joined": b"\x01"}, "joined has 1 bytes"),
        ({"joined": b"\x01\x00\x00\x00\x00\x00"}, "joined holds what cannot be"),
        ({"end": pack(np.zeros(12), "i8")}, "ops end before they start"),
        ({"stage": pack([5] * 6, "i4")}, "not a legal schedule"),
        ({"unit": pack([0] * 6, "i4")}, "not a legal schedule"),
    ],
)
def test_a_track_that_cannot_be_is_refused(recorded, changes, fault):
    edit(recorded, 0, **changes)
    text = refusal(edit(recorded, 2, **changes) if "replica" not in changes else recorded)
    assert fault in text


@pytest.mark.parametrize("claimed", [0, -1, 10**12])
def test_micro_batches_that_no_op_bears_out_cost_no_memory(recorded, claimed):
    for process in range(4):
        edit(recorded, process, microbatches=claimed)
    assert f"{claimed} micro-batches of 2 stages cannot be in 12 ops" in refusal(recorded)


def test_stages_on_ranks_that_are_not_there_are_refused(recorded):
    for process in range(4):
        edit(recorded, process, placement=pack([0, 7], "i4"))
    assert "stages live on ranks" in refusal(recorded)


def test_replicas_with_different_orders_are_refused(recorded):
    other = tracks(build("gpipe", Shape(2, 3)), replicas=2)
    edit(recorded, 2, kind=other[2].kind, unit=other[2].unit)
    assert "rank 0 has another order in replica 1" in refusal(recorded)
