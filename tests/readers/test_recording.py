"""Recordings: what is written is read, what is damaged costs as little as it can, and what was made up is refused."""

import socket
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from debubble import diagnose
from debubble.core.costs import Costs, Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.schedule import Kind, Shape
from debubble.core.simulate import simulate
from debubble.readers.recording import is_recording, read_recording, read_tracks
from debubble.readers.recording_file import MAGIC, Process, frame, frames, pack, track_path
from debubble.reconstruct.positions import Said
from debubble.schedules.catalog import build
from recorded import LATE, MS, RATES, files, former, record, record_former

from ..strategies import schedules

ORDER = build("1f1b", Shape(2, 3))


@pytest.fixture
def recorded(tmp_path) -> Path:
    """1F1B on 2 x 2 processes, two steps."""
    return record(tmp_path, files(ORDER, replicas=2))


@pytest.fixture
def old(tmp_path) -> Path:
    """The same in version 1."""
    return record_former(tmp_path, former(ORDER, replicas=2))


def edit(folder: Path, process: int, **changes: object) -> Path:
    """Change a file of version 1."""
    path = track_path(folder, process)
    track = msgspec.msgpack.decode(path.read_bytes())
    path.write_bytes(msgspec.msgpack.encode(track | changes))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_recording(folder)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    return "\n".join(lines)


def test_torchs_split_backward_on_stage_0_is_said_and_is_nobodys_fault(tmp_path):
    """As torch 2.13 runs it: I .01 ms and W 40.9 ms on stage 0, 20.8 and 20.9 on every other stage."""
    schedule = build("zb-h1", Shape(4, 8))
    costs = costs_of(Rates(20 * MS, input=20.8 * MS, weight=20.9 * MS, transfer=MS), schedule)
    durations = np.repeat(costs.durations, 4, axis=1) if costs.durations.shape[1] == 1 else costs.durations.copy()
    durations[Kind.I, 0], durations[Kind.W, 0] = 0.01 * MS, 40.9 * MS
    uneven = Costs(durations, costs.transfers)
    found = diagnose(record(tmp_path, files(schedule, steps=5, costs=uneven)))
    (said,) = (line for line in found.remarks if "stage 0's backward in W" in line)
    assert "no fault" in said
    assert not [each for each in found.findings if each.stage == 0 or each.rank == 0]


@pytest.mark.parametrize("write", ["today", "former"])
@given(schedule=schedules(slices=False, copies=False), steps=st.integers(1, 3), replicas=st.integers(1, 2))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path_factory, write, schedule, steps, replicas):
    folder = tmp_path_factory.mktemp("r")
    if write == "today":
        record(folder, files(schedule, replicas, steps))
    else:
        record_former(folder, former(schedule, replicas, steps))
    observation = read_recording(folder)
    expected = simulate(lower(schedule), costs_of(RATES, schedule))
    assert [(w.step, w.replica) for w in observation.windows] == [
        (s, r) for s in range(1, steps + 1) for r in range(replicas)
    ]
    for window in observation.windows:
        assert window.timeline.program.schedule.same_order(schedule)
        first = window.timeline.window[0]
        assert np.array_equal(window.timeline.start - first, expected.start)
        assert np.array_equal(window.timeline.end - first, expected.end)


def test_what_a_process_wrote_is_what_is_read(recorded):
    tracks, remarks = read_tracks(recorded)
    assert remarks == []
    for track, file in zip(tracks, files(ORDER, replicas=2), strict=True):
        assert (track.process, track.parts, track.steps) == (file.process, {0: file.part}, file.steps)


@pytest.mark.parametrize("form", ["recorded", "old"])
def test_the_header_becomes_the_observation(form, request):
    observation = read_recording(request.getfixturevalue(form))
    assert (observation.gpus, observation.samples, observation.tokens) == (4, 16, 512)
    assert (observation.paced, observation.hop_ns, observation.predicted_ns) == (True, MS, 28 * MS)
    assert (observation.clock_uncertainty_ns, observation.remarks) == (0, ())


@pytest.mark.parametrize("form", ["recorded", "old"])
def test_a_step_lasts_from_its_first_to_its_last_process(form, request):
    window = read_recording(request.getfixturevalue(form)).windows[0]
    assert window.step_ns == window.timeline.makespan + 4 * MS


def test_replicas_keep_their_own_times(recorded):
    first, second = read_recording(recorded).windows[:2]
    assert second.timeline.window[0] - first.timeline.window[0] == LATE


def test_only_steps_that_all_ranks_have_are_used_and_the_rest_is_named(recorded):
    record(recorded, files(ORDER, replicas=2, steps=5))
    short = files(ORDER, replicas=2, steps=3)
    record(recorded, [short[1], short[3]])
    observation = read_recording(recorded)
    assert {window.step for window in observation.windows} == {1, 2, 3}
    assert observation.remarks == ("steps 4, 5 are left out: not measured by process 1, 3",)


def test_hosts_without_a_shared_disk_bring_a_folder_each(tmp_path, cli):
    made = files(ORDER, replicas=2)
    for host, some in (("a", made[:2]), ("b", made[2:])):
        (tmp_path / host).mkdir()
        record(tmp_path / host, some)
    found = cli("diagnose", tmp_path / "a", tmp_path / "b", "--json").json
    assert (found["ranks"], found["replicas"], found["steps"]) == (2, 2, 2)
    assert cli("diagnose", tmp_path / "a", "--json").json["replicas"] == 1


def test_clocks_of_two_hosts_meet_at_the_anchor(recorded):
    clean = read_recording(recorded).windows[0].timeline
    ahead = files(ORDER, replicas=2)
    moved = [each.later(777 * MS).of(clock="there", anchor_ns=777 * MS, anchor_spread_ns=MS) for each in ahead]
    record(recorded, [moved[1], moved[3]])
    observation = read_recording(recorded)
    assert np.ptp(observation.windows[0].timeline.start - clean.start) == 0
    assert observation.clock_uncertainty_ns == MS
    assert observation.remarks == ("clocks of 2 hosts were aligned at a barrier, to within 1.00 ms",)


@pytest.mark.parametrize("wrong_ms", [-3, 0, 4])
def test_without_an_anchor_the_time_of_day_and_cause_and_effect_align_clocks(tmp_path, wrong_ms):
    apart = 5000 * MS  # of the monotonic clocks; the time of day is wrong by some ms on top
    mine = [each.of(anchor_ns=None, wall_ns=9000 * MS, clock_ns=0) for each in files(ORDER)]
    there = mine[1].later(apart).of(clock="there", clock_ns=apart + wrong_ms * MS)
    record(tmp_path, [mine[0], there])
    observation = read_recording(tmp_path)
    clean = simulate(lower(ORDER), costs_of(RATES, ORDER))
    off = observation.windows[0].timeline.start - clean.start
    half = ORDER.offsets[1]
    assert abs(int(off[half:].mean()) - int(off[:half].mean())) <= MS  # a hop is 1 ms: that much is unknown
    assert observation.clock_uncertainty_ns <= 2 * MS
    assert observation.remarks[0] == "clocks of 2 hosts were put on one by their time of day"


def test_nothing_there_is_no_recording(tmp_path):
    assert not is_recording(tmp_path)
    assert "no recording is here" in refusal(tmp_path)
    assert "no recording is here" in refusal(tmp_path / "nowhere")


# Damage costs what it hits: a step, a replica, and only then the recording.


@pytest.mark.parametrize("kept", [0, 1, 10, 25])
def test_a_file_that_is_cut_in_its_head_costs_its_replica_and_is_named(recorded, kept):
    path = track_path(recorded, 2)
    path.write_bytes(path.read_bytes()[:kept])
    observation = read_recording(recorded)
    assert {window.replica for window in observation.windows} == {0}
    assert any(str(path) in remark and "cut or damaged" in remark for remark in observation.remarks)


def test_a_file_that_is_cut_keeps_the_steps_before(recorded):
    path = track_path(recorded, 2)
    path.write_bytes(path.read_bytes()[:-1])
    observation = read_recording(recorded)
    assert {window.step for window in observation.windows} == {1}
    assert observation.remarks == ("step 2 is left out: not measured by process 2",)


def test_a_damaged_step_is_told_by_its_checksum_and_those_before_are_kept(recorded):
    path = track_path(recorded, 1)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    observation = read_recording(recorded)
    assert {window.step for window in observation.windows} == {1}
    assert any(str(path) in remark and "is damaged" in remark for remark in observation.remarks)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("form", ["recorded", "old"])
def test_no_damage_of_a_byte_is_a_traceback(form, request, data):
    recorded = request.getfixturevalue(form)
    path = track_path(recorded, 1)
    whole = bytearray(path.read_bytes())
    spoiled = whole.copy()
    spoiled[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(spoiled)
    with suppress(InputError):
        read_recording(recorded)
    path.write_bytes(whole)


def test_a_lost_rank_costs_its_replica_and_the_only_one_costs_the_recording(recorded):
    track_path(recorded, 3).unlink()
    observation = read_recording(recorded)
    assert {window.replica for window in observation.windows} == {0}
    assert observation.remarks == ("4 ranks took part and rank-00003.msgpack is missing; replica 1 is left out",)
    track_path(recorded, 0).unlink()
    assert "4 ranks took part and rank-00000.msgpack, rank-00003.msgpack is missing" in refusal(recorded)


def test_another_version_is_named_with_the_remedy(tmp_path):
    record(tmp_path, files(ORDER))
    path = track_path(tmp_path, 0)
    path.write_bytes(path.read_bytes().replace(MAGIC, b"debubble recording 7\n"))
    assert "of version 7; this debubble reads version 1 and 2" in refusal(tmp_path)


def test_another_version_of_the_former_form_is_named_too(tmp_path):
    record_former(tmp_path, former(ORDER))
    assert "of version 7; this debubble reads version 1 and 2" in refusal(edit(tmp_path, 0, version=7))


def test_a_file_of_something_else_is_refused(tmp_path):
    record(tmp_path, files(ORDER))
    track_path(tmp_path, 0).write_bytes(msgspec.msgpack.encode({"format": "holiday", "version": 1}))
    assert "not a debubble recording" in refusal(tmp_path)


def test_all_bad_files_are_named_at_once(old):
    edit(old, 0, version=7)
    edit(old, 3, steps=b"1")
    assert refusal(old).count("\n") == 1


# Who ran with whom.


def test_of_two_runs_the_newest_whole_one_counts_and_the_other_is_said(recorded):
    newer = [each.of(run="two", wall_ns=99, samples=32) for each in files(ORDER, replicas=2)]
    for each in newer[:-1]:
        track_path(recorded, each.process.rank, "two").write_bytes(each.data())
    assert read_recording(recorded).samples == 16
    track_path(recorded, 3, "two").write_bytes(newer[3].data())
    observation = read_recording(recorded)
    assert observation.samples == 32
    assert observation.remarks == ("4 files of another run lie beside it and are left out",)


def test_files_of_two_runs_none_of_which_is_whole_are_not_mixed(recorded):
    made = files(ORDER, replicas=2)
    record(recorded, [made[1].of(run="two"), made[2].of(run="two")])
    assert "files of two runs lie here (they differ in run)" in refusal(recorded)


def test_no_common_step_is_said(tmp_path):
    first, second = files(ORDER)[0], files(ORDER, first=8)[1]
    assert "no step is there that all ranks have" in refusal(record(tmp_path, [first, second]))


@pytest.mark.parametrize("data", [None, (0, 1)])
def test_members_of_one_stage_are_one_rank_where_the_engine_says_it(tmp_path, data):
    made = files(ORDER, members=2)
    axes = {} if data is None else {"axes": {"data": data}}
    observation = read_recording(record(tmp_path, [each.by(**axes) for each in made]))
    assert {window.replica for window in observation.windows} == {0}
    assert (observation.gpus, observation.windows[0].timeline.program.schedule.ranks) == (4, 2)


def test_two_pipelines_of_which_nothing_is_said_are_taken_as_replicas_and_that_is_said(tmp_path):
    made = [each.by(axes={}) for each in files(ORDER, replicas=2)]
    record(tmp_path, made)
    observation = read_recording(tmp_path)
    assert {window.replica for window in observation.windows} == {0, 1}
    assert "--data says how many there are" in observation.remarks[0]
    assert {window.replica for window in read_recording(tmp_path, Said(data=1)).windows} == {0}
    with pytest.raises(InputError, match="--data 3: 2 pipelines were recorded"):
        read_recording(tmp_path, Said(data=3))


def test_other_numbers_of_micro_batches_are_counted_apart(tmp_path):
    other = files(build("1f1b", Shape(2, 6)), steps=1, first=9)
    made = files(ORDER, steps=3)
    for mine, more in zip(made, other, strict=True):
        data = mine.data() + frame(msgspec.structs.replace(more.part, number=1))
        data += b"".join(frame(msgspec.structs.replace(step, part=1)) for step in more.steps)
        track_path(tmp_path, mine.process.rank).write_bytes(data)
    observation = read_recording(tmp_path)
    assert {window.step for window in observation.windows} == {1, 2, 3}
    assert observation.remarks[0] == "apart from these: 1 steps of 1f1b with 6 micro-batches, median window 48.0 ms"
    (apart,) = observation.others
    assert (apart.phase, apart.microbatches, apart.steps) == ("train", 6, 1)
    assert (
        apart.makespan_ns
        == simulate(lower(build("1f1b", Shape(2, 6))), costs_of(RATES, build("1f1b", Shape(2, 6)))).makespan
    )


def test_a_job_that_was_started_again_goes_on_counting(tmp_path):
    record(tmp_path, files(ORDER, steps=2))
    for each in files(ORDER, steps=3, restart=1):
        track_path(tmp_path, each.process.rank, "1").write_bytes(each.data())
    observation = read_recording(tmp_path)
    assert [window.step for window in observation.windows] == [1, 2, 3, 4, 5]
    assert "the job was started 2 times" in observation.remarks[0]


def test_what_a_host_shares_out_is_read_from_the_processes_time(tmp_path):
    made = files(ORDER, cores=2, processes=2, host=socket.gethostname())
    for each in made:
        each.steps[:] = [
            msgspec.structs.replace(step, cpu=3 * 10**8, queued=5 * 10**8, since=10**9) for step in each.steps
        ]
    observation = read_recording(record(tmp_path, made))
    (load,) = observation.hosts
    # Two processes of .3 cores each on 2 cores: .3 of them; each waited half of its time: .3 + .5 x 2 / 2 were wanted.
    assert (load.processes, load.cores, load.cpu_share, load.queued_share) == (2, 2, 0.3, 0.5)
    assert load.wanted_share == pytest.approx(0.8)
    assert "crowded" not in [found.cause for found in diagnose(observation).findings]


@pytest.mark.parametrize(("cpu", "queued", "first"), [(0.95, 0.5, True), (0.02, 0.02, False), (0.5, 0.0, False)])
def test_four_processes_on_two_cores_are_the_first_finding_if_they_compute_and_none_if_they_sleep(
    tmp_path, cpu, queued, first
):
    made = files(build("1f1b", Shape(4, 8)), cores=2, processes=4)
    for each in made:
        used = {"cpu": round(cpu * 10**9 / 2), "queued": round(queued * 10**9), "since": 10**9}
        each.steps[:] = [msgspec.structs.replace(step, **used) for step in each.steps]
    found = diagnose(read_recording(record(tmp_path, made))).findings
    assert (found[0].cause == "crowded") is first
    if first:
        assert found[0].finding.startswith("4 processes share 2 cores of here: what is measured is the processor")


def test_what_lies_outside_is_split_where_the_engine_shows_it(tmp_path):
    made = files(ORDER)
    for each in made:
        outside = {"load": MS, "reduction": 2 * MS, "optimizer": None}
        each.steps[:] = [msgspec.structs.replace(step, **outside) for step in each.steps]
    (found,) = [f for f in diagnose(read_recording(record(tmp_path, made))).findings if f.cause == "outside"]
    assert found.finding.endswith("outside the pipeline: data loading 1.0 ms, reduction 2.0 ms")


def test_who_waits_for_others_in_the_optimizers_step_does_not_make_it_longer(tmp_path):
    """The first rank ends last and takes 4 ms; the other has been there for 100 ms more, in the norm's reduction."""
    made = files(ORDER)
    for each, optimizer in zip(made, (4 * MS, 104 * MS), strict=True):
        each.steps[:] = [msgspec.structs.replace(step, optimizer=optimizer) for step in each.steps]
    (found,) = [f for f in diagnose(read_recording(record(tmp_path, made))).findings if f.cause == "outside"]
    assert found.finding.endswith("outside the pipeline: optimizer 4.0 ms")


# What cannot be.


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
def test_a_track_of_the_former_version_that_cannot_be_is_refused(old, changes, fault):
    edit(old, 0, **changes)
    assert fault in refusal(edit(old, 2, **changes))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": b"\x09" * 6}, "kind holds what cannot be"),
        ({"stage": b""}, "stage or unit has another number of ops"),
        ({"joined": b"\x01"}, "joined has 1 bytes"),
        ({"joined": b"\x01\x00\x00\x00\x00\x00"}, "joined holds what cannot be"),
        ({"stage": pack([5] * 6, "i4")}, "not a legal schedule"),
        ({"unit": pack([0] * 6, "i4")}, "not a legal schedule"),
        ({"placement": pack([0, 7], "i4")}, "stages live on ranks"),
        ({"pipeline": [7, 8]}, "its rank is not in its own pipeline"),
    ],
)
def test_an_order_that_cannot_be_is_refused(tmp_path, changes, fault):
    assert fault in refusal(record(tmp_path, [each.by(**changes) for each in files(ORDER)]))


@pytest.mark.parametrize("column", ["gap", "length", "received", "posted"])
def test_a_column_of_another_length_is_refused(tmp_path, column):
    made = files(ORDER)
    made[1].steps[:] = [msgspec.structs.replace(step, **{column: b"12"}) for step in made[1].steps]
    assert f"{column} has 2 bytes, not 24 or 48" in refusal(record(tmp_path, made))


@pytest.mark.parametrize("claimed", [0, -1, 10**12])
def test_micro_batches_that_no_op_bears_out_cost_no_memory(tmp_path, claimed):
    record(tmp_path, [each.by(microbatches=claimed) for each in files(ORDER)])
    assert f"{claimed} micro-batches of 2 stages cannot be in 12 ops" in refusal(tmp_path)


def test_replicas_with_different_orders_are_refused(recorded):
    other = files(build("gpipe", Shape(2, 3)), replicas=2)[2].part
    made = files(ORDER, replicas=2)
    record(recorded, [made[2].by(kind=other.kind, unit=other.unit)])
    assert "rank 0 has another order in replica 1" in refusal(recorded)


# The form itself.


def test_a_step_of_64_micro_batches_takes_less_than_4_kb():
    (step,) = files(build("1f1b", Shape(4, 64)), steps=1)[0].steps
    assert len(frame(step)) < 4096


def test_frames_say_where_each_ends_and_pass_over_one_that_is_cut():
    head = Process(run="one", rank=0, world=1, pid=1, host="here", clock="here", wall_ns=0, clock_ns=0)
    two = frame(head) * 2
    assert [end for _, end in frames(two)] == [len(two) // 2, len(two)]
    assert [end for _, end in frames(two[:-1])] == [len(two) // 2]
