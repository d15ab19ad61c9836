"""Faults of files that users reported, one each in rank 2 of four: the answer stands, and what was lost is said."""

import gzip
import json

import pytest

from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.schedule import Shape
from debubble.core.units import MILLISECOND
from debubble.readers.source import read
from debubble.schedules.catalog import build
from pour import Style, pour, run_of, write

RATES = Rates(forward=3 * MILLISECOND, backward=7 * MILLISECOND, transfer=0.3 * MILLISECOND)


@pytest.fixture
def damaged(tmp_path):
    """The observation of a run of two steps whose rank 2 was changed, as JSON or as bytes, and the sound one."""
    schedule = build("1f1b", Shape(4, 6))
    events = pour(run_of(schedule, costs_of(RATES, schedule), 2), Style(kernels=3))

    def of(change):
        for name in ("sound", "damaged"):
            (tmp_path / name).mkdir()
        write(tmp_path / "sound", events)
        path = write(tmp_path / "damaged", events)[2]
        text = change(gzip.decompress(path.read_bytes()))
        path.write_bytes(text)
        return read([tmp_path / "damaged"]), read([tmp_path / "sound"])

    return of


def changed(change):
    """A change of the document as one of its bytes."""

    def of(text):
        document = json.loads(text)
        change(document, document["traceEvents"])
        return json.dumps(document).encode()

    return of


def kernels(rows):
    return [row for row in rows if row["cat"] == "kernel" and row["tid"] == 7]


def another(document, rows, *, cat="kernel", count=1, **said):
    """Add events like the first kernel, but for what is said."""
    first = kernels(rows)[0]
    rows.extend(
        {**first, "cat": cat, "args": {**first["args"], "correlation": 900_000 + i}, **said} for i in range(count)
    )


def synced(document, rows):
    another(document, rows, cat="cuda_sync", name="Stream Sync", dur=40_000, tid=1_000_007)


def unset(document, rows):
    another(document, rows, cat="gpu_memset", name="Memset (Device)", dur=3)


def zeros(document, rows):
    another(document, rows, count=1200, ts=0, dur=0)


def unfinished(document, rows):
    another(document, rows, dur=-2147483648 - kernels(rows)[0]["ts"])


def overlapping(document, rows):
    for row in kernels(rows)[::3]:
        row["dur"] += 0.027  # its successor has begun


def empty_kernels(document, rows):
    first = kernels(rows)[0]
    rows.append({**first, "ts": first["ts"] + 1, "dur": 0})


def absolute(document, rows):
    """The era before a base time: whole microseconds since 1970."""
    base = document.pop("baseTimeNanoseconds")
    for row in rows:
        row["ts"] = round(row["ts"] + base / 1000, 3)


def nameless(document, rows):
    del document["distributedInfo"]


def strings(document, rows):
    for row in rows:
        row["pid"], row["tid"] = f"python {row['pid']}", f"stream {row['tid']}"
        row["ts"] = f"{row['ts']:.3f}"


def stacked(document, rows):
    """Spans of Python that overlap without lying inside each other."""
    start = kernels(rows)[0]["ts"]
    another(
        document, rows, cat="python_function", name="model.py(1): forward", ts=start - 5, dur=5e5, tid=1002, pid=1002
    )
    another(
        document, rows, cat="python_function", name="model.py(2): forward", ts=start + 5, dur=6e5, tid=1002, pid=1002
    )


def behind_its_parent(document, rows):
    """A call that ends 1 ns after the call around it: nanoseconds cut to microseconds."""
    call = next(row for row in rows if row["cat"] == "cpu_op")
    rows.append({**call, "name": "aten::addmm", "ts": call["ts"] + 1, "dur": call["dur"] - 0.999})


def graph(document, rows):
    """Kernels of a CUDA graph: no External id, no launch of their own."""
    for row in kernels(rows):
        del row["args"]["External id"]


def one_launch(document, rows):
    """A CUDA or HIP graph: one launch for all three kernels of an op."""
    work = [row for row in kernels(rows) if row["name"].startswith("ampere")]
    first = {row["args"]["correlation"]: work[3 * (i // 3)]["args"]["correlation"] for i, row in enumerate(work)}
    rows[:] = [r for r in rows if r["cat"] != "cuda_runtime" or first.get(c := r["args"]["correlation"], c) == c]
    for row in work:
        row["args"]["correlation"] = first[row["args"]["correlation"]]


def unordered(document, rows):
    rows.reverse()


HEADERS = {
    "cuda_sync is no kernel (HTA pull 149)": synced,
    "a memset without its runtime call (HTA 16)": unset,
    "1,200 kernels at ts 0, dur 0 (kineto 109)": zeros,
    "an op that never ended, INT_MIN (pytorch 124080)": unfinished,
    "kernels that overlap by 27 ns (roctracer 104, HTA pull 120)": overlapping,
    "a kernel of 0 us inside another (kineto 136)": empty_kernels,
    "absolute beside relative times (kineto 919)": absolute,
    "no distributedInfo (HTA 104, kineto 956)": nameless,
    "pid, tid and ts as strings (format fact 8)": strings,
    "overlapping spans of with_stack (pytorch 174555)": stacked,
    "a child that ends after its parent (pytorch 101861)": behind_its_parent,
    "kernels without an External id (TraceLens 60, chakra 83)": graph,
    "one launch for the kernels of a graph (TraceLens 728)": one_launch,
    "events in reverse": unordered,
}
SAID = {zeros: "1,200 events with the time 0", unfinished: "negative duration", nameless: "its header has no rank"}


@pytest.mark.parametrize("fault", HEADERS.values(), ids=HEADERS)
def test_a_fault_of_events_changes_nothing_but_is_said_where_something_was_left_out(damaged, fault):
    found, sound = damaged(changed(fault))
    assert [window.step for window in found.windows] == [window.step for window in sound.windows]
    for one, other in zip(found.windows, sound.windows, strict=True):
        assert one.timeline.program.schedule.same_order(other.timeline.program.schedule)
        assert one.timeline.makespan == pytest.approx(other.timeline.makespan, abs=300)  # an old era's ulp: .25 us
    said = [remark for remark in found.remarks if "rank2" in remark and SAID.get(fault, "nothing") in remark]
    assert list(found.remarks) == said[:1]
    assert bool(said) == (fault in SAID)


def inside(text, what):
    """Put something in front of an event in the middle of the list."""
    at = text.index(b'{"ph":"X"', len(text) // 2)
    return text[:at] + what + text[at:]


EVENT = b'{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":4458676530000.5,"dur":1.5,"args":{%s}},'
BYTES = {
    "unescaped quotes (kineto 1459)": lambda text: inside(text, EVENT % (b'op "bad" x', b"")),
    "a log line (kineto 1336)": lambda text: inside(text, b"\nINFO:2026-11-30 stage: warm-up\n"),
    "a control character (perfetto 598)": lambda text: inside(text, EVENT % (b"op\x01x", b"")),
    "bytes that are no UTF-8 (HTA 324)": lambda text: inside(text, EVENT % (b"op\xff\xfe", b"")),
    "Comms Id beyond int64 (HTA 324)": lambda text: inside(
        text, EVENT % (b"op", b'"Comms Id":18446744073709551615000')
    ),
    "NaN": lambda text: inside(text, EVENT % (b"op", b'"bandwidth":NaN')),
    "a .gz that is plain JSON": lambda text: text,
    "a gzip of two members": lambda text: gzip.compress(text[:9999]) + gzip.compress(text[9999:]),
}


@pytest.mark.parametrize("fault", BYTES.values(), ids=BYTES)
def test_a_fault_of_bytes_costs_at_most_the_event_that_has_it(damaged, fault):
    found, sound = damaged(fault)
    assert len(found.windows) == len(sound.windows) == 2
    assert [w.timeline.makespan for w in found.windows] == [w.timeline.makespan for w in sound.windows]


def test_a_file_that_is_cut_off_costs_the_windows_behind_the_cut(damaged):
    """Chakra 192: an unterminated string at character 151,257,080."""
    found, sound = damaged(lambda text: text[: int(0.8 * len(text))] + b'"unte')
    assert [window.step for window in found.windows] == [window.step for window in sound.windows][:1]
    assert any("rank2" in remark and "cut off" in remark for remark in found.remarks)


@pytest.mark.parametrize("keep", [0, 0.3], ids=["empty (pytorch 167601)", "cut off in its first step"])
def test_a_rank_without_a_whole_step_costs_itself_and_the_order(damaged, keep):
    """The others are accounted for; what they waited for is not known."""
    found, sound = damaged(lambda text: text[: int(keep * len(text))])
    assert found.torn == (1, 3)
    assert any("no whole trace of stage 2 is here" in remark for remark in found.remarks)
    assert any("rank2" in remark for remark in found.remarks)
    mine, theirs = (account(each.windows[0].timeline).compute.tolist() for each in (found, sound))
    assert mine == [theirs[0], theirs[1], theirs[3]]


def dropped(document, rows):
    """The kernels of the first two milliseconds and a half."""
    first = kernels(rows)[0]["ts"]
    rows[:] = [row for row in rows if row["cat"] != "kernel" or row["ts"] > first + 2_500]


def test_kernels_that_were_dropped_as_profiling_began_cost_the_first_step(damaged):
    """PyTorch 192021: they are silently missing, the more the older the process is."""
    found, sound = damaged(changed(dropped))
    assert [window.step for window in found.windows] == [window.step for window in sound.windows][1:]
    assert any("rank2" in remark and "no kernel" in remark for remark in found.remarks)


def late(document, rows):
    for row in rows:
        row["ts"] -= 2000 * (row["cat"] == "kernel")


def test_a_device_whose_clock_runs_before_its_host_keeps_its_ops_by_correlation(damaged):
    """Kineto 1082 and 991: kernels seem to run before their launches."""
    found, sound = damaged(changed(late))
    same = zip(found.windows, sound.windows, strict=True)
    assert all(a.timeline.program.schedule.same_order(b.timeline.program.schedule) for a, b in same)
    assert any("aligned by cause and effect" in remark for remark in found.remarks)
