"""Whatever a file holds, it costs its own rank: the answer stands by the other ranks, and the line names the file."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest

from debubble.core.errors import InputError, Refusal
from debubble.readers.source import read
from worlds import World, pour

DEEP = b"[" * 2_000 + b"]" * 2_000


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Eight ranks, two replicas: without rank 2 the second one answers."""
    folder = tmp_path_factory.mktemp("sound")
    pour(World(data=2, noise=0.02, steps=2, units=6), folder)
    return folder


def spoiled(sound, folder, change):
    """A copy in which the bytes of rank 2 are changed."""
    for path in sound.iterdir():
        raw = path.read_bytes()
        (folder / path.name).write_bytes(change(raw) if path.name == "rank2.json" else raw)
    return folder


def zipped(raw):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("rank2.json", raw)
    return stream.getvalue()


def each_event(**columns):
    """A change of every event, by what is done to the old value."""

    def change(raw):
        document = json.loads(raw)
        for event in document["traceEvents"]:
            event.update({name: value(event[name]) for name, value in columns.items()})
        return json.dumps(document).encode()

    return change


def each_argument(name, value):
    """Sets one argument wherever it is."""

    def change(raw):
        document = json.loads(raw)
        for event in document["traceEvents"]:
            event["args"].update({name: value} if name in event["args"] else {})
        return json.dumps(document).encode()

    return change


USELESS = {
    "empty": (lambda raw: b"", "it is empty"),
    "a web page": (lambda raw: b"<!DOCTYPE html>\n<html><body>404</body></html>", "it is a web page"),
    "a packed web page": (lambda raw: gzip.compress(b"<html></html>"), "it is a web page"),
    "a picture": (lambda raw: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20, "it is a PNG picture"),
    "UTF-16": (lambda raw: raw.decode().encode("utf-16"), "it is UTF-16 text"),
    "a zip archive": (zipped, "it is a zip archive; unpack it"),
    "zeros": (lambda raw: bytes(5_000), "of no known format"),
    "prose": (lambda raw: b"hello " * 1_000, "of no known format"),
    "nothing but brackets": (lambda raw: b'{"traceEvents":[' + DEEP + b"]}", "could not be read"),
    "negative times": (each_event(ts=lambda ts: -ts), "with a negative time"),
    "negative durations": (each_event(dur=lambda dur: -dur - 1), "with a negative duration"),
    "times of 1e30": (each_event(ts=lambda ts: 1e30), "at a time that cannot be"),
    "processes that are objects": (each_event(pid=lambda pid: {"a": pid}), "could not be read"),
    "names that are numbers": (each_event(name=lambda name: 5), "could not be read"),
    "arguments that are lists": (each_event(args=lambda args: [1]), "shows no forward and no backward"),
    "no event": (lambda raw: b'{"traceEvents": []}', "shows no forward and no backward"),
}


@pytest.mark.parametrize("fault", USELESS)
def test_a_useless_file_costs_its_rank_and_is_named_with_what_it_is(sound, tmp_path, fault):
    change, said = USELESS[fault]
    run = read([spoiled(sound, tmp_path, change)])
    assert {window.timeline.program.schedule.ranks for window in run.windows} == {4}
    assert len(run.windows) == 2
    assert any("rank2.json" in remark and said in remark for remark in run.remarks)
    assert any("rank2.json" in remark and "left out" in remark for remark in run.remarks)


HARMLESS = {
    "a rank of 1e30": lambda raw: raw.replace(b'"rank": 2', b'"rank": 1' + b"0" * 30),
    "a base time of 1e30": lambda raw: raw.replace(b'{"dist', b'{"baseTimeNanoseconds": 1e30, "dist', 1),
    "groups of ranks as objects": each_argument("Process Group Name", {"a": 1}),
    "a group as large as a word": each_argument("Group size", "many"),
    "an argument 80 lists deep": each_event(args=lambda args: {**args, "deep": json.loads(DEEP[1_920:-1_920])}),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_no_op_rests_on_costs_nothing(sound, tmp_path, change):
    assert len(read([spoiled(sound, tmp_path, change)]).windows) == 4


@pytest.mark.parametrize("value", [10**30, -(10**30), 2**63])
def test_numbers_beyond_64_bits_are_no_crash(sound, tmp_path, value):
    for name in ("correlation", "Src Rank", "External id"):
        folder = tmp_path / name.replace(" ", "")
        folder.mkdir()
        assert read([spoiled(sound, folder, each_argument(name, value))]).windows


def test_a_file_that_may_not_be_read_is_named_and_not_its_folder(sound, monkeypatch):
    opened = Path.open

    def refused(path, *args, **kwargs):
        if path.name == "rank2.json":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    run = read([sound])
    assert len(run.windows) == 2
    assert any(f"{sound}/rank2.json: it cannot be read: Permission denied" in remark for remark in run.remarks)
    with pytest.raises(InputError, match=r"rank2.json: it cannot be read"):
        read([sound / "rank2.json"])


@pytest.mark.parametrize("raw", [b"", b'{"traceEvents": ["', b'{"traceEvents": []}'])
def test_992_bad_files_are_one_line_with_their_count(sound, tmp_path, raw):
    spoiled(sound, tmp_path, lambda raw: raw)
    for rank in range(8, 1_000):
        (tmp_path / f"rank{rank}.json").write_bytes(raw)
    run = read([tmp_path])
    assert len(run.windows) == 4
    lines = [remark for remark in run.remarks if "left out" in remark]
    assert len(lines) == 1
    assert "so for 992 files" in lines[0]


def test_files_that_are_all_bad_are_one_fault_with_their_count(tmp_path):
    for rank in range(992):
        (tmp_path / f"rank{rank}.json").write_bytes(b'{"traceEvents": ["')
    with pytest.raises(InputError) as caught:
        read([tmp_path])
    assert len(caught.value.faults) == 1
    assert "so for 992 files" in str(caught.value)


def test_a_stray_table_among_eight_traces_is_set_aside(sound, tmp_path):
    folder = spoiled(sound, tmp_path, lambda raw: raw)
    (folder / "ops.csv").write_text("rank,step,op,stage,start_ms,end_ms\n0,1,F,0,0,1\n")
    run = read([folder])
    assert len(run.windows) == 4
    assert any("ops.csv: it is an op table among 8 files" in remark for remark in run.remarks)
    with pytest.raises(InputError, match="several formats"):
        read([*sorted(folder.glob("*.json")), folder / "ops.csv"])


def test_a_table_with_a_column_twice_is_one_line(tmp_path):
    (tmp_path / "t.csv").write_text("rank,op,start_ms,end_ms,rank\n0,F,0,1,0\n")
    with pytest.raises(InputError, match="column rank: several columns have this name"):
        read([tmp_path / "t.csv"])


def test_columns_of_lists_cost_the_file(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"rank": [0], "op": [["F"]], "start_ms": [0], "end_ms": [1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match="not what a table of ops holds"):
        read([tmp_path / "t.parquet"])


def test_an_absurd_micro_batch_is_left_out_before_anything_is_as_large(tmp_path):
    rows = "".join(f"{r},{op},{m},{t},{t + 1}\n" for m in (0, 1) for r, op, t in ((0, "F", 9 * m), (0, "B", 9 * m + 1)))
    (tmp_path / "t.csv").write_text("rank,op,microbatch,start_ms,end_ms\n" + rows + "0,F,1000000000,50,51\n")
    with pytest.raises((InputError, Refusal)):
        read([tmp_path / "t.csv"])


@pytest.mark.parametrize("by", [-5e6, -5.05e6, -8e6, -3600e6 * 5])
def test_a_clock_that_is_behind_by_seconds_shows_times_below_zero_and_is_a_clock(sound, tmp_path, by):
    """It is 0 before, within or after the run; what was launched still runs after its launch."""
    found = read([spoiled(sound, tmp_path, each_event(ts=lambda ts: ts + by))])
    true = read([sound])
    assert len(found.windows) == len(true.windows)
    assert not any("negative" in remark for remark in found.remarks)
    ahead = {clock.device: clock.offset_ns for clock in found.clocks}[2]
    assert ahead == pytest.approx({clock.device: clock.offset_ns for clock in true.clocks}[2] + 1000 * by, abs=50_000)
    for mine, theirs in zip(found.windows, true.windows, strict=True):
        assert mine.timeline.makespan == pytest.approx(theirs.timeline.makespan, abs=50_000)


def test_one_time_below_zero_among_others_above_is_set_aside(sound, tmp_path):
    def one_below(raw):
        document = json.loads(raw)
        document["traceEvents"][len(document["traceEvents"]) // 2]["ts"] = -9e12
        return json.dumps(document).encode()

    run = read([spoiled(sound, tmp_path, one_below)])
    assert any("rank2.json: 1 events with a negative time were set aside" in remark for remark in run.remarks)


@pytest.mark.parametrize("size", [10**400, 2**64, 0, -1])
def test_a_world_that_cannot_be_is_said_and_not_used(sound, tmp_path, size, cli):
    def change(raw):
        document = json.loads(raw)
        document["distributedInfo"]["world_size"] = size
        return json.dumps(document).encode()

    for path in sound.iterdir():
        (tmp_path / path.name).write_bytes(change(path.read_bytes()))
    folder = tmp_path / "distilled"
    assert cli("diagnose", tmp_path, "--distil", folder).status == 0
    run = read([folder])
    assert len(run.windows) == 4
    assert any("ranks of the job cannot be" in remark for remark in run.remarks)
