"""Nsight exports poured from simulated runs, in the shapes that versions give them, and with what they lack."""

import sqlite3
import struct

import numpy as np
import pytest

from debubble.core.errors import InputError, Refusal
from debubble.core.schedule import Kind
from debubble.readers.nsight import is_nsight, read_nsight
from debubble.reconstruct.observe import observe
from devices import devices, simulated

PROCESS = 1 << 24
LATE = 40_000  # nanoseconds between a launch and its kernel
SCHEMA = 16777226


class Export:
    """Writes one file, a table at a time."""

    def __init__(self, path, *, suffix="", by_id=False, payload=False, one_stream=False):
        self.path, self.suffix, self.by_id = path, suffix, by_id
        self.payload, self.one_stream = payload, one_stream
        self.words: dict[str, int] = {}
        self.db = sqlite3.connect(path)
        text = "textId INTEGER" if by_id else "text TEXT"
        self.db.executescript(f"""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
                (start, "end", deviceId, streamId, correlationId, globalPid, shortName);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId);
            CREATE TABLE NVTX_EVENTS{suffix} (start, "end", eventType, {text}, globalTid, binaryData);
            CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId, schemaId, idx, type, name, "offset");
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
        """)
        fields = [("NCCL communicator ID", None), ("Rank", 8), ("Peer rank", 12)]
        self.db.executemany(
            "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?, 0, 0, ?, ?)", [(SCHEMA, *field) for field in fields]
        )
        self.correlation = 0

    def stream(self, down, sense):
        return 20 if self.one_stream else 20 + 2 * down + (sense == "ncclSend")

    def word(self, name):
        return self.words.setdefault(name, len(self.words) + 1)

    def kernel(self, rank, start, end, name, stream=7):
        self.correlation += 1
        process = (100 + rank) * PROCESS
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start - LATE, start - LATE + 5000, process + 1, self.correlation)
        row = (start, end, rank, stream, self.correlation, process, self.word(name))
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", *row)

    def range(self, rank, start, end, name, blob=None):
        text = self.word(name) if self.by_id else name
        self.insert(f"NVTX_EVENTS{self.suffix}", start, end, 59, text, (100 + rank) * PROCESS + 1, blob)

    def insert(self, table, *row):
        marks = ", ".join("?" * len(row))
        self.db.execute(
            f"INSERT INTO {table} VALUES ({marks})",
            [v if isinstance(v, (str, bytes)) or v is None else int(v) for v in row],
        )

    def close(self, epoch=None):
        self.db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, w) for w, i in self.words.items()])
        if epoch is not None:
            self.insert("TARGET_INFO_SESSION_START_TIME", epoch)
        self.db.commit()
        self.db.close()
        return self.path


def payload(own, peer):
    return struct.pack("<IIIIQQ", 1, 0, SCHEMA, 0, 16, 48) + struct.pack("<Qii", 77, own, peer)


def poured(export, found, *, labels=True, exchange=True, told=True, kernels=3):
    """Kernels of each op, launched inside its range a little before they run; and sends and receives between ranks."""
    zero = min(int(device.start.min()) for device in found) - 10**9
    for device in found:
        rank = device.rank
        for i in range(len(device)):
            start, end = int(device.start[i]) - zero, int(device.end[i]) - zero - 1000
            name = f"{device.stage[i]}{Kind(device.kind[i]).name}{device.unit[i]}"
            if labels:
                export.range(rank, start - LATE - 500, end - LATE - 500, f"PP:{name}, op_id = {i}")
            way = "gemm_fwd" if device.kind[i] == Kind.F else "gemm_bwd"
            for part in np.linspace(start, end, kernels + 1)[:-1].astype(int).tolist():
                export.kernel(rank, part, part + (end - start) // kernels + 1, "gemm" if labels or not told else way)
            _exchange(export, device, i, end, found, zero) if exchange else None
    return zero


def _exchange(export, device, i, end, found, zero):
    """Send what the op made; the other side receives once it is done with the op before the one that needs it."""
    rank, down = device.rank, device.kind[i] == Kind.F
    peer = rank + 1 if down else rank - 1
    if not 0 <= peer < len(found):
        return
    other = found[peer]
    mine = (other.step == device.step[i]) & (other.kind == device.kind[i]) & (other.unit == device.unit[i])
    needed = int(other.start[mine][0]) - zero
    done = other.end[other.end <= needed + zero].max(initial=needed + zero - 10**6) - zero - 700  # sends come first
    for who, sense, with_, start in ((rank, "ncclSend", peer, end), (peer, "ncclRecv", rank, done)):
        if export.payload:
            export.range(who, start - LATE - 2, start - LATE - 1, sense, payload(who, with_))
        export.kernel(who, start, needed - 100, "ncclDevKernel_SendRecv", export.stream(down, sense))


@pytest.fixture
def timeline():
    return simulated("1f1b", 4, 6)


def same(observation, timeline, *, windows=3):
    assert len(observation.windows) == windows
    for window in observation.windows:
        got = window.timeline
        assert got.program.schedule.same_order(timeline.program.schedule)
        np.testing.assert_allclose(got.start - got.start.min(), timeline.start, atol=3)
        np.testing.assert_allclose(got.end - got.start.min(), timeline.end - 1000, atol=3)


@pytest.mark.parametrize("shape", [{}, {"suffix": "_V2"}, {"suffix": "_V3", "by_id": True}, {"payload": True}])
def test_ranges_name_ops_and_kernels_time_them_whatever_the_version(tmp_path, timeline, shape):  # nsys-ai pull 291
    export = Export(tmp_path / "run.sqlite", **shape)
    poured(export, devices(timeline))
    same(observe(read_nsight([export.close()], "run")), timeline)


def test_interleaved_stages_come_from_labels(tmp_path):
    timeline = simulated("interleaved", 4, 8, 2)
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline), exchange=False)
    same(observe(read_nsight([export.close()], "run")), timeline)


def test_without_ranges_names_of_kernels_tell_the_direction_and_transfers_the_neighbours(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline), labels=False)
    same(observe(read_nsight([export.close()], "run")), timeline)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("launches", "shape"),
    [(True, {}), (False, {}), (True, {"payload": True}), (True, {"payload": True, "one_stream": True})],
)
def test_without_any_telling_name_transfers_tell_the_direction(tmp_path, name, launches, shape):
    """Which are sends their ranges say, else their streams: one for each way of each hop."""
    timeline = simulated(name, 4, 6)
    export = Export(tmp_path / "run.sqlite", **shape)
    poured(export, devices(timeline), labels=False, told=False, kernels=1)
    if not launches:
        export.db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    observation = observe(read_nsight([export.close()], "run"))
    same(observation, timeline)
    assert any("transfers matched between neighbours told them apart" in remark for remark in observation.remarks)


def test_transfers_that_share_a_stream_without_a_range_tell_nothing_and_what_to_record_is_said(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite", one_stream=True)
    poured(export, devices(timeline), labels=False, told=False, kernels=1)
    with pytest.raises(Refusal, match="record NVTX ranges: NCCL names"):
        observe(read_nsight([export.close()], "run"))


def test_exports_without_ranges_need_all_ranks_at_once_and_say_so(tmp_path, timeline, cli):
    """Sends and receives are told by streams of both sides, which hosts on their own do not have."""
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline), labels=False, told=False, kernels=1)
    export.db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId > 1")
    there = cli("diagnose", export.close(), "--record", tmp_path / "small")
    assert (there.status, there.out) == (0, "")
    assert "give the exports of all ranks at once, or record NVTX ranges" in there.err
    assert "Traceback" not in there.err


@pytest.mark.parametrize("steps", [0.3, 1.6])
def test_a_trace_that_begins_within_a_step_is_refused_where_only_streams_tell(tmp_path, timeline, steps):
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline), labels=False, told=False, kernels=1)
    first = 10**9 + int(steps * timeline.makespan)
    export.db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start < ?", (first,))
    with pytest.raises(Refusal, match="begins in the middle of a step"):
        observe(read_nsight([export.close()], "run"))


def test_payloads_name_the_peers(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite", payload=True)
    poured(export, devices(timeline))
    reading = read_nsight([export.close()], "run")
    peers = [sorted(set(device.transfers.peer.tolist())) for device in reading.devices]
    assert peers == [[1], [0, 2], [1, 3], [2]]
    sends = [device.transfers.send.tolist() for device in reading.devices]
    assert [sum(send) / len(send) for send in sends] == [0.5] * 4


def test_files_of_several_hosts_are_anchored_by_when_they_began(tmp_path, timeline):
    found = devices(timeline)
    paths = []
    for device in found:
        export = Export(tmp_path / f"rank{device.rank}.sqlite")
        zero = poured(export, [device], exchange=False)
        paths.append(export.close(epoch=zero))
    same(observe(read_nsight(paths, "run")), timeline)


def test_files_without_an_anchor_are_aligned_by_cause(tmp_path, timeline):
    paths = []
    for device in devices(timeline):
        export = Export(tmp_path / f"rank{device.rank}.sqlite")
        poured(export, [device], exchange=False)
        paths.append(export.close())
    observation = observe(read_nsight(paths, "run"))
    assert len(observation.windows) == 3
    assert any("no common clock" in remark for remark in observation.remarks)


def test_an_all_to_all_is_no_pipeline_even_where_kernels_are_called_forward(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite")
    found = [d for d in devices(timeline) if d.rank == 0]
    for rank in (0, 1):  # both ranks do the same at the same time, and exchange
        for start, end, kind in zip(found[0].start, found[0].end, found[0].kind, strict=True):
            export.kernel(rank, start, end, "softmax_forward" if kind == Kind.F else "softmax_backward")
            export.kernel(rank, end, end + 50_000, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 20)
    with pytest.raises(Refusal, match="no pipeline"):
        read_nsight([export.close()], "run")


def test_no_nvtx_table_at_all_is_said(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline), labels=False)
    export.db.execute("DROP TABLE NVTX_EVENTS")
    reading = read_nsight([export.close()], "run")
    assert "no NVTX ranges" in reading.remarks[0]


def test_unfinished_ranges_and_kernels_without_a_launch_cost_themselves(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline))
    export.range(0, 5, None, "PP:0F0")
    export.insert("CUPTI_ACTIVITY_KIND_KERNEL", 1, 2, 0, 7, 10**9, 100 * PROCESS, 1)
    same(observe(read_nsight([export.close()], "run")), timeline)


def test_a_file_that_is_torn_costs_itself_and_is_named(tmp_path, timeline):
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline))
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(b"SQLite format 3\0" + bytes(5000))
    reading = read_nsight([export.close(), torn], "run")
    assert "torn.sqlite" in reading.remarks[-1]
    with pytest.raises(InputError, match=r"torn.sqlite"):
        read_nsight([torn], "run")


def test_a_database_of_something_else_says_what_it_has(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE holidays (day)")
    db.close()
    with pytest.raises(InputError, match="holidays"):
        read_nsight([tmp_path / "other.sqlite"], "other")


def test_it_is_known_by_its_content():
    assert is_nsight(b"SQLite format 3\0")
    assert not is_nsight(b"{}")


def pithtrain(export, timeline, steps=3, *, named="", cut=0):
    """A DualPipeV under the names that PithTrain's engine gives its ranges, on the CPU threads that launch kernels."""
    schedule = timeline.program.schedule
    period = timeline.makespan + 5_000_000
    for rank in range(schedule.ranks):
        rows = range(schedule.offsets[rank], schedule.offsets[rank + 1])
        lead = f"rank {rank} " if named else ""
        for step in range(steps):
            base = 1_000_000_000 + step * period
            held = None
            for i in rows if step or not cut else rows[cut:]:
                kind, unit = Kind(schedule.kind[i]), schedule.unit[i]
                phase = int(schedule.stage[i] >= schedule.ranks)
                start, end = base + int(timeline.start[i]), base + int(timeline.end[i]) - 1000
                way = {Kind.F: "forward", Kind.W: "weight"}.get(kind, "backward")
                name = f"{lead}{way} chunk" + ("" if kind == Kind.W else f" {unit} (phase{phase})")
                begins = i + 1 in rows and schedule.joined[i + 1]
                if begins:
                    held = name, start
                    export.kernel(rank, start, (start + end) // 2 - 2 * LATE, "gemm")
                elif held:
                    first, begun = held
                    export.kernel(rank, (begun + end) // 2 + LATE, end, "gemm")
                    both = f"{lead}{'overlapped ' if named else ''}{first.removeprefix(lead)} {name.removeprefix(lead)}"
                    export.range(rank, begun - LATE - 500, end - LATE, both)
                    held = None
                else:
                    export.range(rank, start - LATE - 500, end - LATE, name)
                    export.kernel(rank, start, end, "gemm")


@pytest.mark.parametrize("named", ["", "rank"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_pithtrains_ranges_name_the_ops_of_its_order(tmp_path, ranks, named):
    timeline = simulated("dualpipe-v", ranks, 2 * ranks + 2, 2)
    export = Export(tmp_path / "node0.sqlite")
    pithtrain(export, timeline, named=named)
    found = observe(read_nsight([export.close()], "run"))
    assert len(found.windows) == 3
    schedule = timeline.program.schedule
    for window in found.windows:
        got = window.timeline.program.schedule
        np.testing.assert_array_equal(got.kind, schedule.kind)
        np.testing.assert_array_equal(got.stage, schedule.stage)
        np.testing.assert_array_equal(got.unit, schedule.unit)


def test_a_step_of_pithtrain_that_is_cut_is_left_out_and_said(tmp_path, cli):
    timeline = simulated("dualpipe-v", 3, 8, 2)
    export = Export(tmp_path / "node0.sqlite")
    pithtrain(export, timeline, cut=9)
    ran = cli("diagnose", export.close())
    assert ran.status == 0
    assert "dualpipe-v" in ran.out
    assert "overlap each counts half of their time" in " ".join(ran.out.split())


def test_ranges_of_pithtrain_that_are_no_whole_step_are_refused_by_name(tmp_path, cli):
    export = Export(tmp_path / "node0.sqlite")
    for row, name in enumerate(["forward chunk 0 (phase0)", "backward chunk 0 (phase1)", "weight chunk"]):
        export.range(0, 1000 * row, 1000 * row + 900, name)
        export.kernel(0, 1000 * row + 50_000, 1000 * row + 50_800, "gemm")
    ran = cli("diagnose", export.close())
    assert ran.status == 1
    assert "no pipeline here" in ran.err
    assert "1 steps of PithTrain's ranges were left out" in ran.err


@pytest.mark.parametrize("number", ["gpu", None, 1.5])
def test_kernels_of_a_device_without_a_number_cost_themselves(tmp_path, timeline, number):
    export = Export(tmp_path / "run.sqlite")
    poured(export, devices(timeline))
    export.db.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, ?, 7, 999999, ?, 1)", (number, 100 * PROCESS)
    )
    same(observe(read_nsight([export.close()], "run")), timeline)
