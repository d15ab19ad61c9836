"""The reader of Chrome traces: every event once, whatever the chunks, the root, and what profilers write wrongly."""

import gzip
import json
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.readers import chrome
from debubble.readers.chrome import Words, arguments, read_events
from debubble.readers.files import blocks, first_bytes


def read(text, size=1 << 20, **options):
    """Names with start and duration in ns, and what the file told."""
    words, rows = Words(), []

    def take(events):
        names = [name for _, name in words.known]
        rows.extend(zip([names[w] for w in events.word], events.start.tolist(), events.duration.tolist(), strict=True))

    told = read_events((text[i : i + size] for i in range(0, len(text), size)), take, words, **options)
    return rows, told


def event(name="k", ts=1.0, **more):
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2.5, **more}


def trace(*events, **header):
    return json.dumps({**header, "traceEvents": list(events)}).encode()


def test_microseconds_become_whole_nanoseconds():
    rows, _ = read(trace(event(ts=4458676522690.001), displayTimeUnit="ns"))
    assert rows == [("k", 4458676522690001, 2500)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("root", ["before", "behind", "list"])
@pytest.mark.parametrize("size", [37, 1000, 1 << 20])
def test_any_root_any_layout_any_chunk(indent, root, size):
    events = [event(f"k{i}", ts=i) for i in range(40)]
    keys = {"deviceProperties": [{"id": 0}, {"id": 1}], "distributedInfo": {"rank": 3}}
    document = {
        "before": {**keys, "traceEvents": events},
        "behind": {"traceEvents": events, **keys},
        "list": events,
    }[root]
    rows, told = read(json.dumps(document, indent=indent).encode(), size)
    assert [name for name, _, _ in rows] == [f"k{i}" for i in range(40)]
    assert told.remarks == ()
    assert told.header.get("distributedInfo", {}).get("rank") == (None if root == "list" else 3)


nested = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=8) | st.sampled_from(["}, {", '"}, {"', "]}", "traceEvents"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.text(max_size=12), nested), max_size=12), st.integers(16, 400), st.booleans())
def test_every_event_is_read_once_whatever_its_arguments_hold(parts, size, listed):
    events = [event(name, args={"x": value}) for name, value in parts]
    document = events if listed else {"traceEvents": events}
    rows, told = read(json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass"), size)
    assert [row[0] for row in rows] == [name for name, _ in parts]
    assert told.remarks == ()


def test_skipped_categories_never_become_columns():
    rows, told = read(trace(event(), event("f", cat="python_function")), skip=frozenset({"python_function"}))
    assert (len(rows), told.rows) == (1, 2)


BROKEN = {
    "nan": (b'"dur": 2.5', b'"dur": NaN', 3),
    "infinity": (b'"dur": 2.5', b'"dur": -Infinity', 3),
    "control character": (b'"bad"', b'"b\x01d"', 3),
    "bytes that are no UTF-8": (b'"bad"', b'"b\xff\xfed"', 3),
    "escape of nothing": (b'"bad"', rb'"C:\new\path\dir"', 3),
    "unescaped quotes (pytorch 146900)": (b'"bad"', b'"op "bad" x"', 2),
    "a comma too many": (b'"name": "bad"', b'"name": "bad",,', 2),
    "a log line between events": (b'{"ph": "X", "cat": "kernel", "name": "bad"', b'\nINFO:12 "x"\n{"name": "bad"', 3),
    "an integer beyond 64 bits (HTA 324)": (b'"dur": 2.5', b'"args": {"Comms Id": 18446744073709551616000}', 3),
}


@pytest.mark.parametrize(("good", "bad", "kept"), BROKEN.values(), ids=BROKEN)
def test_one_broken_event_costs_at_most_itself(good, bad, kept):
    text = trace(event("a"), event("bad"), event("c"))
    at = text.index(b'{"ph": "X", "cat": "kernel", "name": "bad"')
    rows, told = read(text[:at] + text[at:].replace(good, bad, 1))
    names = [name for name, _, _ in rows]
    assert len(names) == kept
    assert {"a", "c"} <= set(names)
    assert told.remarks or "64 bits" in str(bad) or b"Comms" in bad


def test_a_broken_event_among_many_chunks_costs_only_itself():
    text = json.dumps([event(f"k{i}", ts=i) for i in range(3000)]).encode().replace(b'"k1500"', b'"k"1500"')
    rows, told = read(text, 4096)
    assert len(rows) == 2999
    assert told.remarks == ("1 events could not be read and were left out",)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.9])
def test_a_file_that_is_cut_off_costs_its_tail(part):
    text = trace(*[event(f"k{i}", ts=i) for i in range(100)])
    rows, told = read(text[: int(part * len(text))], 1000)
    assert abs(len(rows) - part * 100) < 4
    assert "cut off" in told.remarks[-1]


@pytest.mark.parametrize("text", [b"", b'{"a": 1}', b"rank,step\n0,1\n", b"\x00\x01", b'{"traceEvents": 3}'])
def test_what_holds_no_list_of_events_is_refused(text):
    with pytest.raises(InputError, match="traceEvents"):
        read(text)


@pytest.mark.parametrize("text", [b"[", b"[]", b'{"traceEvents": []}', b'{"traceEvents": ['])
def test_an_empty_list_has_no_rows(text):
    assert read(text)[0] == []


@pytest.mark.parametrize(
    ("tail", "said"), [(b'], "a": [1], "b": {}}', ()), (b"]}\n", ()), (b"]", ()), (b'], "a": oh}', 1)]
)
def test_what_stands_behind_the_list_is_read_or_said_to_be_lost(tail, said):
    rows, told = read(trace(event())[: -len(b"]}")] + tail)
    assert len(rows) == 1
    assert told.remarks == (() if said == () else ("what stands behind the list of events could not be read",))


def test_log_lines_and_a_byte_order_mark_before_the_root():
    rows, _ = read(b"\xef\xbb\xbfINFO: profiler started {\n" + trace(event()))
    assert len(rows) == 1


def test_times_as_strings_and_absurd_times_do_not_overflow():
    rows, _ = read(trace(event(ts="1704161511420306.5"), event(ts=1e300), event(dur=-2147483648000)))
    assert rows[0][1] == 1704161511420306432 or abs(rows[0][1] - 1704161511420306500) < 256
    assert len(rows) == 3


def test_arguments_of_many_events_at_once_one_of_them_broken():
    class Args(msgspec.Struct):
        correlation: int = -1

    raws = [msgspec.Raw(b'{"correlation": 1, "x": [NaN]}'), msgspec.Raw(b'{"correlation": "x"}'), msgspec.Raw(b"{}")]
    decoded = arguments(raws, msgspec.json.Decoder(list[Args]))
    assert [a.correlation for a in decoded] == [1, -1, -1]


@pytest.mark.parametrize("cut", [None, 0.6])
def test_gzip_is_told_by_its_bytes_and_may_be_cut_off(tmp_path, cut):
    rng = np.random.default_rng(0)
    text = trace(*[event(str(rng.random()), ts=i) for i in range(20000)])
    packed = gzip.compress(text)
    path = tmp_path / "trace.json"  # the ending lies
    path.write_bytes(packed if cut is None else packed[: int(cut * len(packed))])
    remarks = []
    got = b"".join(blocks(path, remarks))
    assert text.startswith(got)
    assert len(got) > (cut or 0.999) * len(text) - (1 << 20)
    assert bool(remarks) == (cut is not None)
    assert first_bytes(path, 10) == text[:10]


def test_gzip_of_several_members_and_an_empty_one(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"cd"))
    assert b"".join(blocks(path, [])) == b"abcd"


def test_torn_gzip_is_said(tmp_path):
    path = tmp_path / "x.gz"
    packed = bytearray(gzip.compress(np.random.default_rng(1).bytes(300_000)))
    packed[150_000:150_100] = bytes(100)
    path.write_bytes(packed)
    remarks = []
    b"".join(blocks(path, remarks))
    assert "torn" in remarks[0]


def test_past_the_most_that_are_told_apart_names_and_lanes_share_one_number(monkeypatch):
    """A file of ids in place of names or threads must not fill memory."""
    monkeypatch.setattr(chrome, "_MOST", 3)
    words, taken = Words(), []
    rows = (*range(6), 0)
    read_events([trace(*(event(f"k{i}", tid=i) for i in rows))], taken.append, words)
    (columns,) = taken
    assert columns.word.tolist() == columns.lane.tolist() == [0, 1, 2, 3, 3, 3, 0]
    assert list(words.known)[3:] == [("", "")]
    assert list(words.lanes)[3:] == [(None, None)]


def test_memory_is_bounded_by_a_chunk_not_by_the_file():
    part = b", ".join(json.dumps(event(f"k{i % 100}", ts=i)).encode() for i in range(4000))

    def text():
        yield b"["
        for _ in range(30):
            yield part + b", "
        yield b'{"ph": "M"}]'

    tracemalloc.start()
    told = read_events(text(), lambda events: None, Words())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told.rows == 120_001
    assert peak < 16 * len(part)  # the text alone is 30 x len(part)
