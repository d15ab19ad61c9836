"""Runs as the page holds them: every op survives packing, gaps and zones account for the window, files are Python's."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account, rank_times
from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.schedule import Release, Shape, peak_activations
from debubble.core.simulate import simulate
from debubble.diagnosis.simulated import simulated
from debubble.drawing import html as page
from debubble.drawing import perfetto
from debubble.drawing.scene import scene
from debubble.readers import torch_csv
from debubble.schedules.catalog import CATALOG, build
from node import ask
from strategies import costs, schedules


def timeline_of(name: str, shape: Shape, **rates):
    schedule = build(name, shape)
    return simulate(lower(schedule), costs_of(Rates(**rates), schedule))


def data_of(timeline, release=Release.W) -> dict:
    spent = account(timeline)
    rows = [asdict(rank) for rank in rank_times(spent, peak_activations(timeline.program.schedule))]
    text = page.html(page.Page("", [], "", [], [page.Run("run", timeline, spent, rows, release=release)]))
    return json.loads(text.split('id="data">')[1].split("</script>")[0])["runs"][0]


EVEN = timeline_of("1f1b", Shape(4, 8), forward=1e6, backward=2e6)


def said(timeline, *places) -> list[str]:
    """What is said at (rank, time in ms)."""
    [found] = ask(
        "await unpack(q.run); return q.at.map(([r, t]) => explain(q.run, r, t * 1e6));",
        [{"run": data_of(timeline), "at": places}],
    )
    return found


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_op_is_in_the_page_with_its_times(data):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    columns = "[...q.kind], [...q.stage], [...q.unit], [...q.start], [...q.end]"
    [(*found, quantum)] = ask(f"await unpack(q); return [{columns}, q.quantum];", [data_of(timeline)])
    drawn = scene(timeline)
    for ours, theirs in zip((schedule.kind, schedule.stage, schedule.unit), found, strict=False):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip((drawn.start, drawn.end), found[3:], strict=True):  # exact below 4 s an op
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=quantum - 1)


def test_an_op_of_a_minute_is_rounded_to_some_nanoseconds():
    timeline = timeline_of("1f1b", Shape(1, 3), forward=60e9 + 1, backward=1e9)
    [[end, quantum]] = ask("await unpack(q); return [[...q.end], q.quantum];", [data_of(timeline)])
    assert 1 < quantum < 20
    np.testing.assert_allclose(end, timeline.end, rtol=0, atol=quantum)


@pytest.mark.parametrize("name", CATALOG)
def test_gaps_and_zones_account_for_the_window(name):
    timeline = timeline_of(name, Shape(4, 8, CATALOG[name].chunks), transfer=1e5)
    script = "await unpack(q); const sum = list => list.reduce((n, g) => n + g.end - g.begin, 0);"
    script += "const worked = [...working(q)].reduce((n, s) => n + s.working * (s.end - s.begin), 0);"
    script += "return [sum(gapsOf(q)), sum([...zones(q)]), worked];"
    [(idle, whole, worked)] = ask(script, [data_of(timeline)])
    spent = account(timeline)
    assert idle == spent.window * 4 - spent.compute.sum()
    assert (whole, worked) == (spent.window, spent.compute.sum())


def test_1f1b_is_a_burst_for_15_of_33_ms_and_dead_at_start_and_end():
    script = "await unpack(q); return [...zones(q)].map(z => [z.what, z.begin / 1e6, z.end / 1e6]);"
    [found] = ask(script, [data_of(EVEN)])
    assert found[0] == ["dead zone", 0, 2]
    assert found[-1] == ["dead zone", 27, 33]
    assert [stretch for stretch in found if stretch[0] == "burst"] == [["burst", 3, 4], ["burst", 10, 24]]


def test_a_gap_says_what_it_waits_for_on_which_rank_until_when_and_what_would_end_it():
    [waits] = said(EVEN, (0, 7))
    assert waits == (
        "rank 0 waits 6 ms, 4 ms to 10 ms, before 0B0: it needs 1B0 on rank 1, which ends at 10 ms. "
        "1B0 itself waited for 2B0 on rank 2."
    )
    [busy] = said(EVEN, (2, 4.5))
    assert busy == (
        "rank 2 waits 2 ms, 4 ms to 6 ms, before 2B0: it needs 3B0 on rank 3, which ends at 6 ms. "
        "To end the wait sooner, 3B0 must come before 3F0 on rank 3, or that be shorter."
    )


def test_warm_up_cool_down_and_ops_are_said():
    fill, drain, op = said(EVEN, (3, 1), (3, 30), (1, 9))
    assert fill.startswith("rank 3 idles 3 ms, 0 ms to 3 ms (warm-up), before 3F0: it needs 2F0 on rank 2")
    assert drain.startswith(
        "rank 3 has no more ops and idles 6 ms, 27 ms to 33 ms, when the window ends with 0B7 on rank 0"
    )
    assert op == "1B0: backward of stage 1, micro-batch 0, on rank 1; 2 ms, from 8 ms to 10 ms."


def test_a_transfer_is_told_from_a_wait():
    [moving] = said(timeline_of("1f1b", Shape(2, 2), forward=2e6, backward=4e6, transfer=1e6), (1, 2.5))
    assert "it needs 0F0 on rank 0, which ends at 2 ms, and its result is on its way until 3 ms" in moving


def test_an_overlapped_pair_waits_for_the_later_of_both_inputs():
    timeline = timeline_of("dualpipe-v", Shape(4, 8, 2), transfer=2e5)
    [gaps] = ask(
        "await unpack(q); return gapsOf(q).filter(g => g.op >= 0).map(g => [g.end, g.made]);", [data_of(timeline)]
    )
    assert gaps
    assert all(end == made + 200_000 for end, made in gaps)


def written(timeline, tmp_path) -> list:
    path = tmp_path / "trace.json"
    perfetto.write(timeline, path, title="run")
    return json.loads(path.read_text())["traceEvents"]


def in_order(events: list) -> list:
    numbers = {"id"}
    return sorted(json.dumps({k: v for k, v in e.items() if k not in numbers}, sort_keys=True) for e in events)


@pytest.mark.parametrize("name", CATALOG)
def test_the_perfetto_file_of_the_page_is_that_of_the_python(name, tmp_path):
    timeline = timeline_of(name, Shape(4, 8, CATALOG[name].chunks, 2 if name == "seq1f1b" else 1), transfer=1e5)
    [text] = ask("return perfettoTrace(await unpack(q), 'run');", [data_of(timeline)])
    ours = [json.loads(json.dumps(event), parse_int=float) for event in written(timeline, tmp_path)]
    theirs = [json.loads(json.dumps(event), parse_int=float) for event in json.loads(text)["traceEvents"]]
    assert in_order(theirs) == in_order(ours)


@pytest.mark.parametrize("name", [n for n, entry in CATALOG.items() if not entry.not_on_torch])
def test_the_csv_of_the_page_is_that_of_the_python(name, tmp_path):
    timeline = timeline_of(name, Shape(4, 8, CATALOG[name].chunks))
    torch_csv.write(timeline.program.schedule, tmp_path / "s.csv")
    assert ask("return torchCsv(await unpack(q));", [data_of(timeline)]) == [(tmp_path / "s.csv").read_text()]


def test_ops_as_csv_have_a_line_each():
    [text] = ask("return opsCsv(await unpack(q));", [data_of(EVEN)])
    lines = text.splitlines()
    assert len(lines) == 1 + 64
    assert lines[1] == "0,0F0,F,0,0,0,1000000"


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("release", Release)
def test_the_most_that_a_rank_holds_over_time_is_what_the_python_counts(name, release):
    timeline = timeline_of(name, Shape(4, 8, CATALOG[name].chunks, 2 if name == "seq1f1b" else 1), transfer=1e5)
    [most] = ask("return [...heldOf(await unpack(q)).most];", [data_of(timeline, release)])
    assert most == peak_activations(timeline.program.schedule, release).tolist()


@pytest.mark.parametrize("release", ["w", "half", "i"])
def test_the_curve_of_memory_reaches_the_peaks_of_the_table(release):
    result = simulated(build("zb-h1", Shape(4, 8)), Rates(), release)
    run = json.loads(result.html().split('id="data">')[1].split("</script>")[0])["runs"][0]
    [most] = ask("return [...heldOf(await unpack(q)).most];", [run])
    assert most == [rank.peak_activations for rank in result.per_rank]


def test_a_rank_holds_a_micro_batch_from_the_start_of_its_forward_to_the_end_of_its_backward():
    script = "await unpack(q.run); return q.at.map(([r, t]) => heldAt(q.run, r, t * 1e6));"
    times = [(0, 0.5), (0, 3.5), (0, 7), (0, 11.5), (0, 12.1), (3, 3.5), (3, 5), (3, 6.5), (0, 32), (3, 30)]
    # Rank 0: F at 0, 1, 2, 3 ms, then 0B0 from 10 to 12 ms and 0F4 right after; rank 3: F, B, F, B .. from 3 ms.
    [found] = ask(script, [{"run": data_of(EVEN), "at": times}])
    assert found == [1, 4, 4, 4, 4, 1, 1, 1, 1, 0]


@settings(max_examples=15)
@given(data=st.data())
def test_a_range_is_measured_exactly(data):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    spent = account(timeline)
    if not spent.window:
        return
    middle = data.draw(st.integers(1, spent.window))
    script = "const run = await unpack(q.run), between = (a, b) => b > a ? measure(run, a, b) : null;"
    script += "return [between(0, q.to), between(q.to, run.window)];"
    [(before, after)] = ask(script, [{"run": data_of(timeline), "to": middle}])
    idle = [(each["idleShare"] * each["span"] if each else 0) for each in (before, after)]
    assert sum(idle) == pytest.approx(spent.idle_share * spent.window, abs=1e-6 * spent.window)
    ranks = zip(*([share * each["span"] for share in each["idle"]] for each in (before, after) if each), strict=True)
    assert [sum(rank) for rank in ranks] == pytest.approx(
        [spent.window - work for work in spent.compute], abs=1e-6 * spent.window
    )


def test_a_range_is_said_by_its_length_its_work_and_who_idles():
    # 1F1B p=4 m=8, F 1 ms, B 2 ms, from 0 to 3 ms: rank 0 runs three forwards, rank 1 two, rank 2 one, rank 3 none.
    [sentence] = ask("return measured(await unpack(q), 0, 3e6);", [data_of(EVEN)])
    assert sentence == (
        "3 ms, from 0 ms to 3 ms: forward 50.0 %, idle 50.0 % (rank 3 most, 100.0 %; rank 0 least, 0.0 %)."
    )


def test_the_longest_gaps_come_first_and_are_those_of_all_gaps():
    script = "await unpack(q); const long = g => g.end - g.begin;"
    script += "return [longestGaps(q, 5).map(long), gapsOf(q).map(long).sort((a, b) => b - a).slice(0, 5)];"
    [(longest, first)] = ask(script, [data_of(EVEN)])
    assert longest == first
    assert longest[0] == 6e6


def test_many_ops_are_bins_whose_shares_are_the_work(monkeypatch):
    monkeypatch.setattr(page, "MOST_OPS", 10)
    script = "await unpack(q); const worked = [...working(q)].reduce((n, s) => n + s.working * (s.end - s.begin), 0);"
    script += "return [worked, explain(q, 0, 5e6)];"
    [(worked, sentence)] = ask(script, [data_of(EVEN)])
    assert worked == pytest.approx(account(EVEN).compute.sum(), rel=1e-6)
    assert sentence.endswith("busy 0.0 %.")
