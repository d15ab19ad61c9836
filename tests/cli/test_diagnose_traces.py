"""``diagnose`` on traces as people see it: text that stands, faults in one line, ranks read by processes."""

import pytest


@pytest.mark.parametrize("fault", ["truncgz", "norank", "duprank", "ts0", "skew", "listroot"])
def test_a_broken_rank_is_named_and_the_answer_stands(cli, shared, fault):
    ran = cli("diagnose", shared / "traces" / "broken" / fault)
    assert ran.status == 0
    assert "51." in ran.out
    assert "100 %" not in ran.out.split("Findings")[0].split("idle share")[1].split("\n")[0]


@pytest.mark.parametrize("steps", ["3", "5:2", "a:b", "1:2:3"])
def test_steps_are_a_range(cli, steps):
    ran = cli("diagnose", "x", "--steps", steps)
    assert ran.status == 2
    assert "10:20" in ran.err


def test_why_compares_a_trace_with_itself(cli, shared):
    trace = shared / "traces" / "bytedance-st" / "st-kineto"
    said = cli("why", trace, trace, "--json").json
    assert said["factors"]["busy"] == pytest.approx(1)


def test_ranks_are_read_by_processes_where_that_pays(shared, monkeypatch):
    from debubble.readers import kineto as traces
    from debubble.readers.kineto import read_traces

    paths = sorted((shared / "traces" / "bytedance-st" / "st-kineto").iterdir())[:4]
    alone = read_traces(paths)
    monkeypatch.setattr(traces, "_WORTH", 0)
    monkeypatch.setattr(traces.os, "cpu_count", lambda: 2)
    together = read_traces(paths, each=traces.in_processes)
    assert [d.rank for d in alone.devices] == [d.rank for d in together.devices]
    assert all((a.start == b.start).all() for a, b in zip(alone.devices, together.devices, strict=True))


def test_receives_say_over_which_windows_and_every_table_fits_80_columns(cli, shared, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = cli("diagnose", shared / "traces/bytedance-st/st-kineto").out
    assert "Receives split by their sends, ms of 16 windows (measured; 100.0 % matched)" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_trace_without_a_pipeline_says_what_would_name_one(cli, shared):
    ran = cli("diagnose", shared / "traces/dlrm8")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "name its ops with debubble.annotate" in ran.err
