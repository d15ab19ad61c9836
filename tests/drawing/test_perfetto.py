"""Traces for Perfetto: threads tiled exactly, gaps with their reason, an arrow a transfer; lines written by columns."""

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.engine import BLOCKING, LINK, RENDEZVOUS
from debubble.core.laws import transfers
from debubble.core.lower import lower
from debubble.core.program import Timeline
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.drawing import perfetto
from debubble.drawing.perfetto import BATCH, Digits, Words, lines, microseconds
from debubble.schedules.catalog import build
from strategies import costs, schedules


def events_of(timeline, path, **options) -> list[dict]:
    perfetto.write(timeline, path, **options)
    text = path.read_bytes()
    text = gzip.decompress(text) if path.suffix == ".gz" else text
    return json.loads(text, parse_float=Decimal)["traceEvents"]


def nanoseconds(microseconds) -> int:
    exact = Decimal(microseconds) * 1000
    assert exact == int(exact)
    return int(exact)


def threads(events) -> dict[int, list[tuple[int, int, str, str]]]:
    """Slices of each thread in order: start, end, category, name."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            found[event["tid"]].append((start, start + nanoseconds(event["dur"]), event["cat"], event["name"]))
    return {tid: sorted(slices) for tid, slices in found.items()}


@pytest.fixture
def even():
    schedule = build("1f1b", Shape(4, 8))
    return simulate(lower(schedule), costs_of(Rates(transfer=100_000), schedule))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_slices_tile_the_window_of_each_rank_without_overlap(tmp_path_factory, data):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    found = threads(events_of(timeline, tmp_path_factory.mktemp("trace") / "t.json"))
    for rank in range(schedule.ranks):
        slices = [s for s in found.get(rank, []) if s[1] > s[0]]
        edges = [edge for start, end, *_ in slices for edge in (start, end)]
        assert edges == sorted(edges)
        assert sum(end - start for start, end, *_ in slices) == timeline.makespan


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_gaps_add_up_to_the_account(tmp_path_factory, data):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    found = threads(events_of(timeline, tmp_path_factory.mktemp("trace") / "t.json"))
    spent = account(timeline)
    for part in ("warm-up", "waiting", "transfer", "cool-down"):
        sums = [sum(e - s for s, e, cat, _ in found.get(r, []) if cat == part) for r in range(schedule.ranks)]
        assert sums == getattr(spent, part.replace("-", "_")).tolist(), part


def test_a_gap_says_which_op_of_which_rank_it_waits_for(even, tmp_path):
    gaps = [e for e in events_of(even, tmp_path / "t.json") if e.get("cat") == "waiting" and e["tid"] == 1]
    # 1F1B, rank 1: three forwards, then it waits for the gradient of micro-batch 0 from rank 2
    assert gaps[0]["name"] == "waiting for 2B0"
    assert gaps[0]["args"] == {"waits_for": "2B0", "of": "rank 2"}
    assert nanoseconds(gaps[0]["dur"]) == 4_300_000  # 2F0, 3F0, 3B0, 2B0 and three hops, less two forwards


def test_each_transfer_is_an_arrow_between_the_slices_of_its_two_ops(even, tmp_path):
    events = events_of(even, tmp_path / "t.json")
    slices = threads(events)
    ends = {(e["ph"], e["id"]): e for e in events if e["ph"] in "sf"}
    producer, consumer = transfers(even.program.schedule)
    assert len(ends) == 2 * len(producer) == 2 * 2 * 3 * 8  # both ways, three hops, eight micro-batches
    op = even.program.schedule.op
    for number, pair in enumerate(zip(producer.tolist(), consumer.tolist(), strict=True)):
        for phase, row in zip("sf", pair, strict=True):
            event = ends[phase, number]
            at = nanoseconds(event["ts"])
            inside = [name for start, end, _, name in slices[event["tid"]] if start <= at < end]
            assert inside == [str(op(row))]


def test_threads_are_named_and_sorted_by_rank(even, tmp_path):
    heads = [e for e in events_of(even, tmp_path / "t.json") if e["ph"] == "M"]
    names = {e["tid"]: e["args"]["name"] for e in heads if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in heads if e["name"] == "thread_sort_index"}
    assert names == {rank: f"rank {rank}" for rank in range(4)}
    assert order == {rank: rank for rank in range(4)}


@pytest.mark.parametrize("sends", [LINK, BLOCKING, RENDEZVOUS])
def test_transfers_that_take_up_a_link_or_a_rank_have_a_thread_for_their_two_ranks(tmp_path, sends):
    schedule = build("1f1b", Shape(3, 6))
    rates = Rates(transfer=0, payload=3e6, link=1.0) if sends is LINK else Rates(transfer=3_000_000)
    timeline = simulate(lower(schedule, sends), costs_of(rates, schedule))
    events = events_of(timeline, tmp_path / "t.json")
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    what = "link" if sends is LINK else "sends"
    assert [names[tid] for tid in range(3, 7)] == [f"{what} {way}" for way in ("0 -> 1", "1 -> 0", "1 -> 2", "2 -> 1")]
    lanes = {tid: slices for tid, slices in threads(events).items() if tid >= 3}
    assert {tid: len(slices) for tid, slices in lanes.items()} == dict.fromkeys(range(3, 7), 6)
    for slices in lanes.values():
        assert all(end - start == 3_000_000 for start, end, *_ in slices)
        assert all(before[1] <= after[0] for before, after in pairwise(slices))
    assert [name for *_, name in lanes[3]] == [f"0F{unit}" for unit in range(6)]


def test_an_overlapped_pair_is_one_slice_that_names_both(tmp_path):
    schedule = build("dualpipe-v", Shape(2, 4))
    timeline = simulate(lower(schedule), costs_of(Rates(), schedule))
    slices = [s for row in threads(events_of(timeline, tmp_path / "t.json")).values() for s in row]
    pairs = [name for _, _, category, name in slices if category == "overlapped"]
    assert len(pairs) == int(schedule.joined.sum())
    assert all(name.startswith("(") and ";" in name for name in pairs)


def test_names_cannot_break_out_of_the_file(even, tmp_path):
    title = 'a"}],"x":"</script>\n\x00'
    events = events_of(even, tmp_path / "t.json", title=title)
    assert events[0]["args"]["name"] == title


def test_gz_holds_the_same_trace(even, tmp_path):
    assert events_of(even, tmp_path / "t.json.gz") == events_of(even, tmp_path / "t.json")


def test_times_keep_every_nanosecond_after_a_month(even, tmp_path):
    late = 30 * 86_400 * 10**9 + 1  # nanoseconds; as a float of microseconds the last digit would be gone
    end = even.end.copy()
    end[-1] = late
    slow = Timeline(even.program, even.start, end, "measured")
    assert max(end for row in threads(events_of(slow, tmp_path / "t.json")).values() for _, end, *_ in row) == late


def test_measured_ops_that_overlap_are_drawn_one_after_the_other(even, tmp_path):
    start = even.start.copy()
    start[1] -= 400_000  # before the op before it has ended
    torn = Timeline(even.program, start, even.end, "measured")
    row = threads(events_of(torn, tmp_path / "t.json"))[0]
    edges = np.array([(s, e) for s, e, *_ in row])
    assert (edges[1:, 0] >= edges[:-1, 1]).all()


whole = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(whole, st.integers(0, 2), whole), min_size=1, max_size=30), st.integers(1, 6))
def test_numbers_and_words_stand_as_python_writes_them(rows, width):
    first, word, second = (np.array(column) for column in zip(*rows, strict=True))
    words = ("forward", "", "B")
    text = b"".join(lines((b"<", Digits(first), Words(words, word), Digits(second, width), b">\n"), len(rows)))
    assert text.decode() == "".join(f"<{a}{words[w]}{b:0{width}}>\n" for a, w, b in rows)


@given(st.lists(whole, min_size=1, max_size=30))
def test_microseconds_keep_every_nanosecond(times):
    text = b"".join(lines((*microseconds(np.array(times)), b"\n"), len(times)))
    assert [round(int(line.replace(".", ""))) for line in text.decode().split()] == times
    assert all(len(line.split(".")[1]) == 3 for line in text.decode().split())


@pytest.mark.parametrize("count", [0, 1, BATCH, BATCH + 1])
def test_no_line_is_lost_between_batches(count):
    text = b"".join(lines((Digits(np.arange(count)), b"\n"), count))
    assert text.split() == [str(number).encode() for number in range(count)]
