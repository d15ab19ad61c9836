"""Distilled traces: whole after a round trip, small, never over another run's; one bad file costs one rank."""

from dataclasses import fields

import msgspec
import numpy as np
import pytest

from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError, Refusal
from debubble.core.schedule import Shape
from debubble.core.units import MILLISECOND
from debubble.readers.distilled import distil, read_distilled
from debubble.readers.source import gather, read
from debubble.schedules.catalog import build
from pour import Style, pour, run_of, untold, write


@pytest.fixture
def traces(tmp_path):
    """Four ranks and three steps of an interleaved run, poured into Kineto form."""
    folder = tmp_path / "run"
    folder.mkdir()
    schedule = build("interleaved", Shape(4, 4, 2))
    write(folder, pour(run_of(schedule, costs_of(Rates(), schedule), 3), Style(kernels=2)))
    return folder


def same(one, other):
    """Whether two nouns hold the same, arrays and nouns inside them included."""
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_every_column_of_every_device_comes_back(traces, tmp_path):
    reading = gather([traces])
    back = read_distilled(distil(reading, tmp_path / "small"), reading.source)
    assert len(back.devices) == 4
    assert all(same(one, other) for one, other in zip(reading.devices, back.devices, strict=True))
    assert back.remarks == reading.remarks


def test_the_folder_is_read_like_the_traces_and_is_kilobytes_a_rank(traces, tmp_path):
    files = distil(gather([traces]), tmp_path / "small")
    one, other = read([traces]), read([tmp_path / "small"])
    assert all(same(a.timeline.start, b.timeline.start) for a, b in zip(one.windows, other.windows, strict=True))
    assert (one.clock_uncertainty_ns, one.matched_share, one.links) == (
        other.clock_uncertainty_ns,
        other.matched_share,
        other.links,
    )
    assert max(file.stat().st_size for file in files) < 10_000


def test_ranks_distilled_host_by_host_are_one_run(traces, tmp_path):
    files = sorted(traces.iterdir())
    for host in (files[:2], files[2:]):
        distil(gather(host), tmp_path / "small")
    assert len(read([tmp_path / "small"]).windows) == len(read([traces]).windows) == 3


@pytest.fixture
def hosts(tmp_path):
    """Four ranks whose kernels name no direction, as the files of two hosts."""
    folder = tmp_path / "run"
    folder.mkdir()
    schedule = build("1f1b", Shape(4, 6))
    runs = run_of(schedule, costs_of(Rates(transfer=0.3 * MILLISECOND), schedule), 2)
    for rank, events in pour(runs, Style(kernels=2, labels=False)).items():
        write(folder, {rank: untold(events)})
    files = sorted(folder.iterdir())
    return files[:2], files[2:]


def test_work_that_only_all_ranks_together_tell_is_told_when_hosts_are_merged(hosts, tmp_path):
    """Neither host alone holds a whole pipeline; the folder of both says what all traces say."""
    for host in hosts:
        distil(gather(host), tmp_path / "small")
        with pytest.raises(Refusal, match="nothing tells its forward work"):
            read(host)
    one, other = read([tmp_path / "small"]), read([file for host in hosts for file in host])
    assert all(same(a.timeline.start, b.timeline.start) for a, b in zip(one.windows, other.windows, strict=True))
    assert one.windows[0].timeline.program.schedule.same_order(build("1f1b", Shape(4, 6)))
    assert (one.matched_share, one.links, one.clock_uncertainty_ns) == (1.0, other.links, other.clock_uncertainty_ns)
    assert not any("ranks are here" in remark for remark in one.remarks)


def test_a_host_without_directions_is_recorded_and_says_that_the_others_are_needed(hosts, tmp_path, cli):
    for host in hosts:
        there = cli("diagnose", *host, "--record", tmp_path / "small")
        assert (there.status, there.out) == (0, "")
        assert "recorded; alone these ranks cannot be diagnosed" in there.err
    assert cli("diagnose", tmp_path / "small", "--json").json["schedule"] == "1f1b"


@pytest.mark.parametrize("column", ["op", "first_end"])
def test_columns_of_work_that_do_not_fit_are_refused(hosts, tmp_path, column):
    (file, *_) = distil(gather(hosts[0]), tmp_path / "small")
    raw = msgspec.msgpack.decode(file.read_bytes())
    held = raw["transfers" if column == "op" else "columns"]
    held[column] = np.full(len(held[column]) // 8 - (column != "op"), 99, "<i8").tobytes()
    file.write_bytes(msgspec.msgpack.encode(raw))
    with pytest.raises(InputError, match="columns do not fit each other"):
        read_distilled([file], "small")


def test_a_rank_of_another_run_is_never_written_over(traces, tmp_path):
    distil(gather([traces]), tmp_path / "small")
    distil(gather([traces]), tmp_path / "small")  # the same trace again
    other = tmp_path / "other"
    traces.rename(other)
    with pytest.raises(InputError, match="it holds rank 0 of another trace"):
        distil(gather([other]), tmp_path / "small")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda raw: raw[: len(raw) // 2], "cut or damaged"),
        (lambda raw: raw.replace(b"\xa7version\x02", b"\xa7version\x09"), "version 9"),
        (lambda raw: raw.replace(b"\xa6shared", b"\xa6sharek"), "do not fit"),
    ],
)
def test_a_damaged_file_costs_its_rank_and_is_named(traces, tmp_path, how, said):
    files = distil(gather([traces]), tmp_path / "small")
    files[1].write_bytes(how(files[1].read_bytes()))
    reading = read_distilled(files, "small")
    assert [device.rank for device in reading.devices] == [0, 2, 3]
    assert any(files[1].name in remark and said in remark for remark in reading.remarks)


def test_columns_of_unequal_length_are_refused(traces, tmp_path):
    (file, *_) = distil(gather([traces]), tmp_path / "small")
    raw = msgspec.msgpack.decode(file.read_bytes())
    raw["columns"]["end"] = raw["columns"]["end"][:-8]
    file.write_bytes(msgspec.msgpack.encode(raw))
    with pytest.raises(InputError, match="columns do not fit each other"):
        read_distilled([file], "small")
