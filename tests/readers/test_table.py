"""Op tables: what is written comes back to the nanosecond, in every unit, and a bad row costs itself."""

import gzip
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from debubble.core.errors import InputError
from debubble.core.schedule import Kind, Shape
from debubble.readers.columns import KNOWN, classify, parse_mapping
from debubble.readers.table import read_table, read_tables
from debubble.reconstruct.observe import observe
from debubble.schedules.catalog import build
from devices import devices, simulated

HEADER = "rank,step,op,stage,microbatch,start_ns,end_ns"


@pytest.fixture
def wrote(tmp_path):
    def write(*lines: str, name="ops.csv"):
        path = tmp_path / name
        path.write_text("\n".join([*lines, ""]))
        return path

    return write


def rows_of(found):
    """Rows of a table of these devices, as the document says to write them."""
    for d in found:
        for i in range(len(d)):
            yield (
                d.rank,
                int(d.step[i]),
                Kind(d.kind[i]).name,
                int(d.stage[i]),
                int(d.unit[i]),
                int(d.start[i]),
                int(d.end[i]),
            )


def same(reading, found):
    assert [device.rank for device in reading.devices] == [device.rank for device in found]
    for got, want in zip(reading.devices, found, strict=True):
        for name in ("step", "kind", "start", "end", "stage", "unit"):
            assert np.array_equal(getattr(got, name), getattr(want, name)), name


FOUND = devices(simulated("zb-h1"))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_csv_comes_back_to_the_nanosecond_even_since_1970(wrote, separator):
    lines = [separator.join(map(str, row)) for row in rows_of(FOUND)]
    same(read_table(wrote(HEADER.replace(",", separator), *lines)), FOUND)


def test_gzip_a_byte_order_mark_and_windows_line_ends(tmp_path):
    text = "\r\n".join([HEADER, *(",".join(map(str, row)) for row in rows_of(FOUND))])
    (tmp_path / "ops").write_bytes(gzip.compress(text.encode("utf-8-sig")))
    same(read_table(tmp_path / "ops"), FOUND)


@pytest.mark.parametrize("op", [pa.string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_parquet_comes_back(tmp_path, op):
    columns = dict(zip(HEADER.split(","), zip(*rows_of(FOUND), strict=True), strict=True))
    table = pa.table({name: pa.array(list(column), op if name == "op" else None) for name, column in columns.items()})
    parquet.write_table(table, tmp_path / "ops.parquet")
    same(read_table(tmp_path / "ops.parquet"), FOUND)


def test_a_parquet_of_time_stamps_and_durations_needs_no_unit(tmp_path):
    start, length = pa.array([5, 7], pa.timestamp("us")), pa.array([9, None], pa.duration("ms"))
    table = pa.table({"rank": [0, 0], "op": ["F", "B"], "start": start, "duration": length})
    parquet.write_table(table, tmp_path / "t")
    reading = read_table(tmp_path / "t")
    assert (reading.devices[0].start.tolist(), reading.devices[0].end.tolist()) == ([5000], [9_005_000])
    assert "1 row left out" in reading.remarks[0]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**60), st.integers(0, 10**12), st.sampled_from([("ns", 0), ("us", 3), ("ms", 6), ("s", 9)]))
def test_decimal_digits_of_any_unit_are_exact(tmp_path_factory, start, length, unit):
    name, digits = unit

    def text(value):
        return f"{value // 10**digits}.{value % 10**digits:0{digits}d}" if digits else str(value)

    path = tmp_path_factory.mktemp("t") / "ops.csv"
    path.write_text(f"rank,op,start_{name},end_{name}\n0,F,{text(start)},{text(start + length)}\n")
    device = read_table(path).devices[0]
    assert (int(device.start[0]), int(device.end[0])) == (start, start + length)


def test_a_bare_time_is_milliseconds_and_a_duration_serves_as_an_end(wrote):
    device = read_table(wrote("stage,op,start,duration", "0,F,1.5,2", "0,B,4,1")).devices[0]
    assert (device.start.tolist(), device.end.tolist()) == ([1_500_000, 4_000_000], [3_500_000, 5_000_000])


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        *[("F", 0), ("fwd", 0), ("forward-compute", 0), ("B", 3), ("Backward", 3), ("I", 1), ("backward_input", 1)],
        *[("W", 2), ("wgrad", 2), ("backward-weight", 2), ("optimizer", None), ("grads-reduce-scatter", None)],
    ],
)
def test_words_for_work(word, kind):
    assert classify(word)[0] == kind


@pytest.mark.parametrize(
    ("word", "sends", "forward"),
    [
        ("send", True, -1),
        ("recv", False, -1),
        ("forward-send", True, 1),
        ("backward-recv", False, 0),
        ("F receive", False, 1),
    ],
)
def test_words_for_transfers(word, sends, forward):
    assert classify(word) == (None, sends, forward)


def test_other_work_only_lengthens_its_step_and_transfers_are_kept(wrote):
    rows = ("0,3,F,0,0,10,20", "0,3,B,0,0,30,50", "0,3,optimizer,,,60,95", "0,3,send,,,20,25")
    device = read_table(wrote(HEADER, *rows)).devices[0]
    assert device.step_ns == {3: 85}
    assert (device.transfers.send.tolist(), device.transfers.end.tolist()) == ([True], [25])
    assert len(device) == 2


def test_columns_are_mapped_as_the_user_says(wrote):
    path = wrote("who,what,when,till,mb", "1,F,1,2,7")
    device = read_table(path, parse_mapping("rank=who,op=what,start_us=when,end_us=till,microbatch=mb")).devices[0]
    assert (device.rank, device.start.tolist(), device.unit.tolist()) == (1, [1000], [7])


def test_every_column_that_is_missing_is_named_at_once(wrote):
    with pytest.raises(InputError) as caught:
        read_table(wrote("who,what,when", "1,F,1"))
    assert len(caught.value.faults) == 4
    assert all("--columns" in str(fault) for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("text", "words"),
    [("op", "our column = yours"), ("start_min=t", "did you mean start_ns"), ("op=", "our column = yours")],
)
def test_a_mapping_that_is_none_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_mapping(text)


def test_a_mapped_column_that_is_not_there_is_named(wrote):
    with pytest.raises(InputError, match="no such column"):
        read_table(wrote("rank,op,start,end", "0,F,1,2"), {"op": "nothing"})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0,0,F,0,1,abc,30", "its start is no time"),
        ("0,0,F,0,1,30,nan", "its end is no time"),
        ("0,0,F,0,1,30,-2147483648", "it ends before it starts"),  # pytorch pull 124080: an op that never finished
        ("0,0,F,0,1,30,1e30", "its end is no time"),
        ("0,0,F,0.5,1,30,40", "its stage is no whole number"),
        (",0,F,0,1,30,40", "it has no rank"),
        ("0,0,F,0", "not as many cells"),
        ('0,0,"F,0,1,30,40', "not as many cells"),
    ],
)
def test_a_bad_row_costs_itself_and_is_said_with_its_line(wrote, row, words):
    reading = read_table(wrote(HEADER, "0,0,F,0,0,10,20", row, "0,0,B,0,0,50,60"))
    assert len(reading.devices[0]) == 2
    assert words in reading.remarks[0]
    assert "line 3" in reading.remarks[0]


def test_control_characters_cost_nothing(wrote):  # perfetto issue 598
    reading = read_table(wrote(HEADER, "0,0,F,0,0,10,20", "0,0,opt\x01imizer,0,0,20,30"))
    assert len(reading.devices[0]) == 1


def test_a_gzip_that_is_cut_off_costs_its_tail(tmp_path):
    rng = np.random.default_rng(1)
    lines = [f"0,{i},F,0,0,{s},{s + 5}" for i, s in enumerate(rng.integers(0, 10**9, 4000))]
    packed = gzip.compress("\n".join([HEADER, *lines]).encode())
    (tmp_path / "ops.csv").write_bytes(packed[: len(packed) // 2])
    reading = read_table(tmp_path / "ops.csv")
    assert 500 < len(reading.devices[0]) < 4000
    assert any("cut off" in remark for remark in reading.remarks)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1 and then nothing", b"hello", b"\0" * 5000, b"a,b\n" + b"x" * (3 << 20)]
)
def test_what_is_no_table_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "ops").write_bytes(content)
    with pytest.raises(InputError):
        read_table(tmp_path / "ops")


def test_a_table_without_any_op_says_which_words_it_lacks(wrote):
    with pytest.raises(InputError, match="F, I, W or B"):
        read_table(wrote("rank,op,start,end", "0,optimizer,1,2"))


def test_a_device_with_two_positions_is_refused(wrote):
    with pytest.raises(InputError, match="a device has one position"):
        read_table(wrote("rank,position,op,start,end", "0,0,F,1,2", "0,1,F,3,4"))


def test_one_bad_table_of_several_costs_itself(wrote):
    good, bad = wrote("rank,op,start,end", "0,F,1,2"), wrote("nonsense", name="bad.csv")
    reading = read_tables([good, bad])
    assert len(reading.devices) == 1
    assert "bad.csv" in reading.remarks[0]
    with pytest.raises(InputError):
        read_tables([bad])


def test_without_ranks_a_device_is_a_position_of_a_replica(wrote):
    rows = [f"{q},{p},F,{p},{p + 1}" for q in (0, 1) for p in (0, 1)]
    reading = read_table(wrote("replica,position,op,start,end", *rows))
    assert [(d.replica, d.position) for d in reading.devices] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_order_alone_gives_micro_batches(wrote):
    timeline = simulated("1f1b")
    rows = [f"{r},{op},{s},{e}" for r, _, op, _, _, s, e in rows_of(devices(timeline, steps=1))]
    observation = observe(read_table(wrote("rank,op,start_ns,end_ns", *rows)))
    assert observation.windows[0].timeline.program.schedule.same_order(timeline.program.schedule)


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "op-tables.md").read_text()


def test_the_table_of_the_document_is_read(tmp_path):
    (tmp_path / "page.csv").write_text(re.search(r"```csv\n(.*?)```", PAGE, re.DOTALL)[1])
    observation = observe(read_table(tmp_path / "page.csv"))
    assert observation.windows[0].timeline.program.schedule.same_order(build("1f1b", Shape(2, 2)))
    assert observation.windows[0].timeline.makespan == 30_800_000


def test_the_document_names_every_column():
    assert all(f"`{re.sub('_(ns|us|ms|s)$', '_', name)}" in PAGE for name in KNOWN)
