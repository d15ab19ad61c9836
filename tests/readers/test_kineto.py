"""Kineto traces poured from simulated runs: each reader gives back every op to the nanosecond, or says what is lost."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError, Refusal
from debubble.core.schedule import Kind, Shape
from debubble.core.units import MILLISECOND
from debubble.readers.kineto import read_traces
from debubble.readers.op_names import Role, Way, ops_of, role_of, step_of, way_of
from debubble.reconstruct.observe import observe
from debubble.schedules.catalog import build
from pour import BASE, EPOCH, HOST, Style, pour, run_of, untold, write

RATES = Rates(forward=3 * MILLISECOND, backward=7 * MILLISECOND, transfer=0.3 * MILLISECOND)


def simulated(name="1f1b", ranks=4, microbatches=6, chunks=1, steps=2, rates=RATES):
    schedule = build(name, Shape(ranks, microbatches, chunks))
    return run_of(schedule, costs_of(rates, schedule), steps)


def poured(tmp_path, runs, style, **header):
    return write(tmp_path, pour(runs, style), **header)


def same(reading, run, *, step, shift=0):
    """Whether a reading holds exactly the ops of one simulated step; ``shift`` is the step's start behind the base."""
    schedule = run.program.schedule
    for rank, device in enumerate(sorted(reading.devices, key=lambda d: d.rank)):
        rows = slice(*schedule.offsets[[rank, rank + 1]])
        mine = np.flatnonzero(device.step == step)
        mine = mine[np.argsort(device.start[mine])]
        assert device.kind[mine].tolist() == schedule.kind[rows].tolist()
        assert device.unit[mine].tolist() == schedule.unit[rows].tolist()
        if device.stage is not None:
            assert device.stage[mine].tolist() == schedule.stage[rows].tolist()
        origin = int(device.start.min()) - int(run.start[rows].min()) if shift is None else shift
        np.testing.assert_allclose(device.start[mine] - origin, run.start[rows], atol=2)
        np.testing.assert_allclose(device.end[mine] - origin, run.end[rows] - HOST, atol=2)


GPU, CPU = Style(kernels=3), Style()
STYLES = {
    "cpu, labelled": CPU,
    "cpu, unlabelled, flows": Style(labels=False, flows=True),
    "cpu, unlabelled, no flows": Style(labels=False),
    "gpu, labelled": GPU,
    "gpu, labelled, launched long before": Style(kernels=3, ahead=2_500_000),
    "gpu, unlabelled, autograd thread": Style(kernels=5, labels=False),
    "gpu, unlabelled, flows": Style(kernels=5, labels=False, flows=True),
    "gpu, unlabelled, named kernels": Style(kernels=1, labels=False, engine=False, named=True),
    "gpu, unlabelled, rocm": Style(kernels=2, labels=False, p2p="rocm"),
    "gpu, unlabelled, batched p2p": Style(kernels=2, labels=False, p2p="batch"),  # pytorch 194693, chakra 178
    "noise": Style(kernels=2, noise=20),
}


@pytest.mark.parametrize("steps", ["profiler", "optimizer"])
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_every_op_comes_back_to_the_nanosecond(tmp_path, style, steps):
    runs = simulated()
    reading = read_traces(poured(tmp_path, runs, Style(**{**_fields(style), "steps": steps})))
    assert reading.remarks == ()
    first = 10 if steps == "profiler" else 0
    same(reading, runs[0], step=first, shift=1_790_857_026_000_000_000 + EPOCH)
    assert {int(step) for device in reading.devices for step in device.step} == {first, first + 1}


def _fields(style):
    return {name: getattr(style, name) for name in Style.__slots__}


@pytest.mark.parametrize("style", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("zb-h1", 1), ("interleaved", 2), ("zb-v", 2)])
def test_labels_of_any_schedule_come_back(tmp_path, name, chunks, style):
    runs = simulated(name, chunks=chunks, microbatches=8, steps=1)
    same(read_traces(poured(tmp_path, runs, style)), runs[0], step=10, shift=1_790_857_026_000_000_000 + EPOCH)


@given(
    st.sampled_from(["gpipe", "1f1b", "eager-1f1b"]),
    st.integers(2, 5),
    st.integers(1, 9),
    st.lists(st.floats(0.5, 2), min_size=5, max_size=5),
    st.sampled_from(list(STYLES)),
)
@settings(max_examples=25, deadline=None)
def test_windows_of_random_runs_are_the_simulated_ones(tmp_path_factory, name, ranks, microbatches, scale, style):
    rates = replace(RATES, stage_scale=tuple(scale[:ranks]))
    runs = simulated(name, ranks, microbatches, rates=rates)
    paths = poured(tmp_path_factory.mktemp("poured"), runs, STYLES[style])
    window = observe(read_traces(paths)).windows[0]
    assert window.timeline.program.schedule.same_order(runs[0].program.schedule)
    assert abs(window.timeline.makespan - (runs[0].makespan - HOST)) <= 4


def test_the_base_time_is_added_and_may_stand_behind_the_events(tmp_path):
    paths = poured(tmp_path, simulated(), GPU, baseTimeNanoseconds=7_000_000_000)
    device = read_traces(paths).devices[0]
    assert int(device.start.min()) == 7_000_000_000 + EPOCH


def test_one_file_without_a_base_time_takes_that_of_the_others_aloud(tmp_path):
    paths = poured(tmp_path, simulated(), GPU)
    rewrite(paths[2], lambda document: document["traceEvents"])
    reading = read_traces(paths)
    assert len({round(int(d.start.min()) / 1e12) for d in reading.devices}) == 1
    assert any("no base time" in remark for remark in reading.remarks)


def rewrite(path, change):
    document = change(json.loads(gzip.decompress(path.read_bytes())))
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def without(path, lost):
    def change(document):
        document["traceEvents"] = [event for event in document["traceEvents"] if not lost(event)]
        return document

    rewrite(path, change)


def test_kernels_whose_launch_is_missing_are_left_out_and_counted(tmp_path):
    paths = poured(tmp_path, simulated(), GPU)
    without(paths[1], lambda e: e["cat"] == "cuda_runtime" and e["args"]["correlation"] < 6)
    reading = read_traces(paths)
    assert any("whose launch is not in the file" in remark for remark in reading.remarks)


def test_a_file_without_any_launch_goes_by_the_order_on_the_device(tmp_path):
    runs = simulated()
    paths = poured(tmp_path, runs, Style(kernels=1, labels=False, engine=False, named=True))
    for path in paths:
        without(path, lambda e: e["cat"] == "cuda_runtime")
    window = observe(read_traces(paths)).windows[0]
    assert window.timeline.program.schedule.same_order(runs[0].program.schedule)


def test_named_ops_that_lost_their_kernels_are_left_out_not_taken_from_the_cpu(tmp_path):
    paths = poured(tmp_path, simulated(), GPU)
    without(paths[0], lambda e: e["cat"] == "kernel" and e["ts"] * 1000 < EPOCH + 4e6)
    remarks = read_traces(paths).remarks
    assert any("launched no kernel" in remark for remark in remarks)


def test_a_kernel_that_runs_over_its_successors_is_cut(tmp_path):
    """TraceLens 669: on ROCm one kernel of 1.6 s made all totals wrong."""
    runs, paths = simulated(), poured(tmp_path, simulated(), GPU)

    def longer(document):
        kernels = [e for e in document["traceEvents"] if e["cat"] == "kernel" and e["pid"] == 0 and e["tid"] == 7]
        kernels[0]["dur"] = 1.6e6
        return document

    rewrite(paths[1], longer)
    window = observe(read_traces(paths)).windows[0]
    assert window.timeline.makespan < 1.2 * runs[0].makespan


ABSURD = {
    "time 0 (kineto 109)": {"ts": 0, "dur": 0},
    "a negative duration (HTA 342)": {"dur": -1000.0},
    "an end at INT_MIN (pytorch 124080)": {"dur": 2.0**63},
}


@pytest.mark.parametrize("fault", ABSURD.values(), ids=ABSURD)
def test_absurd_times_are_set_aside_and_said(tmp_path, fault):
    runs, paths = simulated(), poured(tmp_path, simulated(), GPU)

    def spoil(document):
        kernel = next(e for e in document["traceEvents"] if e["cat"] == "kernel" and e["tid"] == 7)
        return {**document, "traceEvents": [*document["traceEvents"], {**kernel, **fault}]}

    rewrite(paths[2], spoil)
    reading = read_traces(paths)
    same(reading, runs[0], step=10, shift=1_790_857_026_000_000_000 + EPOCH)
    assert any("set aside" in remark and "rank2" in remark for remark in reading.remarks)


def test_events_in_any_order_read_alike(tmp_path):
    runs, paths = simulated(), poured(tmp_path, simulated(), Style(kernels=3, labels=False, flows=True))

    def shuffle(document):
        np.random.default_rng(0).shuffle(document["traceEvents"])
        return document

    for path in paths:
        rewrite(path, shuffle)
    same(read_traces(paths), runs[0], step=10, shift=1_790_857_026_000_000_000 + EPOCH)


# Whose trace is it?


def test_the_name_tells_a_rank_that_the_header_lacks(tmp_path):
    paths = poured(tmp_path, simulated(), GPU, distributedInfo=None)
    reading = read_traces(paths)
    assert [device.rank for device in reading.devices] == [0, 1, 2, 3]
    assert len(reading.remarks) == 1
    assert "so for 4 files" in reading.remarks[0]


def test_two_files_of_one_rank_never_overwrite_each_other(tmp_path):
    """HTA files the second as the first, and says nothing."""
    paths = poured(tmp_path, simulated(), GPU)
    copy = tmp_path / "again.json.gz"
    copy.write_bytes(paths[1].read_bytes())
    reading = read_traces([*paths, copy])
    assert [device.rank for device in reading.devices] == [0, 1, 2, 3]
    assert any("again.json.gz" in remark and "left out" in remark for remark in reading.remarks)


def test_a_file_of_no_rank_is_left_out_aloud(tmp_path):
    paths = poured(tmp_path, simulated(), GPU)
    rewrite(paths[3], lambda document: document["traceEvents"])
    strange = paths[3].rename(tmp_path / "host7.json.gz")
    remarks = read_traces([*paths[:3], strange]).remarks
    assert any("host7" in remark and "left out" in remark for remark in remarks)


@pytest.mark.parametrize("bad", [b"", b"{", b"not a trace", b"\x1f\x8bgarbage", b'{"traceEvents": []}'])
def test_one_unreadable_rank_costs_one_rank(tmp_path, bad):
    paths = poured(tmp_path, simulated(), GPU)
    paths[2].write_bytes(bad)
    reading = read_traces(paths)
    assert [device.rank for device in reading.devices] == [0, 1, 3]
    assert any("rank2" in remark for remark in reading.remarks)


def test_nothing_readable_is_an_input_error_that_names_each_file(tmp_path):
    paths = poured(tmp_path, simulated(), GPU)
    for path in paths:
        path.write_bytes(b"{")
    with pytest.raises(InputError) as error:
        read_traces(paths)
    assert len(error.value.faults) == 4


def test_training_without_a_pipeline_is_refused(tmp_path):
    paths = poured(tmp_path, simulated(), Style(kernels=3, labels=False, p2p=""))
    with pytest.raises(Refusal, match="no pipeline here"):
        read_traces(paths)


def test_megatron_groups_tell_position_and_replica(tmp_path):
    runs = simulated(ranks=2, microbatches=2)
    events = pour(runs, GPU)
    both = {2 * stage + q: events[stage] for stage in range(2) for q in range(2)}
    groups = {
        rank: [
            {"pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [rank % 2, rank % 2 + 2]},
            {"pg_desc": "DATA_PARALLEL_GROUP", "ranks": str([rank // 2 * 2, rank // 2 * 2 + 1])},
        ]
        for rank in both
    }
    for rank, rows in both.items():
        info = {"rank": rank, "pg_config": groups[rank]}
        write(tmp_path, {rank: rows}, distributedInfo=info)
    devices = read_traces(sorted(tmp_path.iterdir())).devices
    assert [(d.position, d.replica) for d in devices] == [(0, 0), (0, 1), (1, 0), (1, 1)]


# What names say


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("PP:2F0", [(Kind.F, 2, 0)]),
        ("PP:11W127", [(Kind.W, 11, 127)]),
        ("PP:(0F7;7B3)OVERLAP_F_B", [(Kind.F, 0, 7), (Kind.B, 7, 3)]),
        ("Forward 3", [(Kind.F, -1, 3)]),
        ("Backward 12", [(Kind.B, -1, 12)]),
        ("PP:1RECV_F0", []),
        ("PP:1UNSHARD", []),
    ],
)
def test_labels(name, ops):
    assert list(ops_of(name)) == ops


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("fwd_gemm_kernel", Way.FORWARD),
        ("flash_bwd_kernel", Way.BACKWARD),
        ("Megatron forward_step", Way.FORWARD),
        ("multi_tensor_apply_kernel_forward", Way.NEITHER),
        ("forward-backward", Way.UNTOLD),
        ("straightforward_copy", Way.UNTOLD),
        ("ampere_gemm", Way.UNTOLD),
    ],
)
def test_directions(name, way):
    assert way_of(name) == way


@pytest.mark.parametrize(
    ("category", "name", "role"),
    [
        ("kernel", "ncclDevKernel_SendRecv(x)", Role.COMM_KERNEL),
        ("Kernel", "ampere_sgemm", Role.KERNEL),
        ("Runtime", "cudaLaunchKernel", Role.LAUNCH),
        ("cuda_runtime", "hipExtModuleLaunchKernel", Role.LAUNCH),
        ("cpu_op", "autograd::engine::evaluate_function: MmBackward0", Role.ENGINE),
        ("user_annotation", "gloo:recv", Role.RECEIVE),
        ("user_annotation", "nccl:send 0->1", Role.SEND),
        ("user_annotation", "ProfilerStep#7", Role.STEP),
        ("gpu_user_annotation", "PP:2F0", Role.NONE),
        ("cuda_sync", "Stream Sync", Role.NONE),
        ("", "forward", Role.TOLD),
    ],
)
def test_roles(category, name, role):
    assert role_of(category, name) == role


def test_step_numbers():
    assert [step_of("ProfilerStep#23"), step_of("ProfilerStep# 5"), step_of("x")] == [23, 5, -1]


# What would be misread


def test_an_absurd_last_kernel_is_set_aside(tmp_path):
    """TraceLens 972: one event was 99 % of GPU time, and "idle .04 %" the answer."""
    runs, paths = simulated(), poured(tmp_path, simulated(), GPU)

    def longer(document):
        last = max((e for e in document["traceEvents"] if e["name"] == "ampere_gemm_kernel"), key=lambda e: e["ts"])
        last["dur"] = 100e6
        return document

    rewrite(paths[0], longer)
    observation = observe(read_traces(paths))
    assert any("rank0" in remark and "more than a second" in remark for remark in observation.remarks)
    assert max(window.timeline.makespan for window in observation.windows) <= runs[0].makespan


def test_a_run_on_a_device_without_kernels_is_not_read_from_the_cpu(tmp_path):
    """Kineto 996: all kernels out of range, and none in the file."""
    paths = poured(tmp_path, simulated(), GPU)
    for path in paths[:2]:
        without(path, lambda e: e["cat"] == "kernel")
    reading = read_traces(paths)
    assert [device.rank for device in reading.devices] == [2, 3]
    assert sum("no kernel is in the file" in remark for remark in reading.remarks) == 2


def merged(tmp_path, runs, style, rename, keep=list):
    """One file of all ranks, whose ids collide; processes are renamed by rank and pid."""
    kept = {rank: keep(events) for rank, events in pour(runs, style).items()}
    rows = [{**event, "pid": rename(rank, event["pid"])} for rank, events in kept.items() for event in events]
    return write(tmp_path, {0: rows})


MERGED = {  # how tools that merge rename processes; kernels' pid is the device (0 in each file), others' the process
    "devices of one host": lambda rank, pid: rank if pid == 0 else pid,
    "offset by rank": lambda rank, pid: rank * 100_000_000 + pid,
    "named after ranks": lambda rank, pid: f"rank {rank}: {pid}",
}


@pytest.mark.parametrize("style", ["gpu, labelled", "gpu, unlabelled, autograd thread", "gpu, unlabelled, batched p2p"])
@pytest.mark.parametrize("rename", MERGED.values(), ids=MERGED)
def test_merged_ranks_are_told_apart_by_what_launched_their_kernels(tmp_path, style, rename):
    """TraceLens 581: correlation ids of merged files collide."""
    runs = simulated()
    reading = read_traces(merged(tmp_path, runs, STYLES[style], rename))
    assert [device.rank for device in reading.devices] == [0, 1, 2, 3]
    same(reading, runs[0], step=10, shift=EPOCH + BASE)
    assert any("it holds 4 ranks" in remark for remark in reading.remarks)


@pytest.mark.parametrize("style", ["cpu, labelled", "cpu, unlabelled, flows"])
def test_merged_ranks_on_a_cpu_are_their_processes(tmp_path, style):
    runs = simulated()
    reading = read_traces(merged(tmp_path, runs, STYLES[style], MERGED["offset by rank"]))
    same(reading, runs[0], step=10, shift=EPOCH + BASE)


def test_merged_ranks_without_directions_are_told_by_their_transfers(tmp_path):
    paths = merged(tmp_path, simulated(), Style(kernels=2, labels=False), MERGED["offset by rank"], untold)
    window = observe(read_traces(paths)).windows[0].timeline
    assert window.program.schedule.same_order(simulated()[0].program.schedule)


def test_merged_ranks_that_any_process_can_have_launched_are_left_out(tmp_path):
    paths = merged(tmp_path, simulated(), GPU, lambda rank, pid: rank if pid == 0 else 77)
    with pytest.raises(Refusal, match="kernels of 4 devices: ranks that were merged cannot be told apart"):
        read_traces(paths)


def test_a_rank_that_a_merged_file_holds_again_is_taken_once(tmp_path):
    paths = poured(tmp_path, simulated(), GPU)
    other = json.loads(gzip.decompress(paths[1].read_bytes()))["traceEvents"]

    def merge(document):
        moved = [{**e, "pid": 1} if e["pid"] == 0 else e for e in other]
        return {**document, "traceEvents": [*document["traceEvents"], *moved]}

    rewrite(paths[0], merge)
    reading = read_traces(paths)
    assert sorted(device.rank for device in reading.devices) == [0, 1, 2, 3]
    assert any("it claims rank 1, which rank1_trace.json.gz has; it was left out" in r for r in reading.remarks)


def test_ranks_of_the_job_that_are_not_here_are_counted(tmp_path):
    """Megatron-LM 3273, slime 2397: people keep some ranks only."""
    paths = poured(tmp_path, simulated(), GPU, distributedInfo=None)
    for rank, path in enumerate(paths):
        rewrite(path, lambda d, rank=rank: {**d, "distributedInfo": {"rank": rank, "world_size": 4}})
    assert observe(read_traces(paths)).remarks == ()
    assert any("3 of 4 ranks are here" in remark for remark in observe(read_traces(paths[:3])).remarks)


def test_a_replica_that_lacks_a_rank_is_left_out_the_other_answers(tmp_path):
    runs = simulated(rates=replace(RATES, microbatch_scale=(1.0, 1.13, 0.9, 1.21, 0.97, 1.07)))
    style = Style(kernels=3, labels=False)
    late = [run_of(runs[0].program.schedule, costs_of(RATES, runs[0].program.schedule))[0]] * 2
    both = {2 * p + q: rows for q, some in enumerate((runs, late)) for p, rows in pour(some, style).items()}
    paths = write(tmp_path, both)
    assert {w.replica for w in observe(read_traces(paths)).windows} == {0, 1}
    observation = observe(read_traces([path for path in paths if "rank2_" not in path.name]))
    assert len(observation.windows) == 2
    assert observation.windows[0].timeline.makespan == pytest.approx(late[0].makespan, abs=2 * HOST)
    assert any("rank 0, 4, 6: their pipeline lacks a rank" in remark for remark in observation.remarks)


def test_a_pipeline_that_lacks_a_rank_is_no_shorter_pipeline(tmp_path):
    paths = poured(tmp_path, simulated(), Style(kernels=3, labels=False))
    with pytest.raises(InputError, match="rank 0 sends to or receives from ranks whose traces are not here"):
        observe(read_traces([paths[0], *paths[2:]]))
