"""``diagnose`` on real traces: the answer in one line of JSON, faults in one line of text, never a traceback."""

import pytest

TRUTH = {  # bubble of facts and ground truth, schedule, p, v, m
    "bytedance-st/st-kineto": (0.5158, "1f1b", 4, 1, 4),
    "bytedance-st/timeline.json.gz": (0.5143, "1f1b", 4, 1, 4),
    "megatronapp-pp": (0.4377, "interleaved", 4, 4, 8),
}
SCHEDULES = {  # torch 2.13 class that ran, and our name of its order
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "1f1b_runtime": "1f1b",
    "zbv": "zb-v",
}


@pytest.mark.parametrize("trace", TRUTH)
def test_bubble_and_schedule_of_production_traces(cli, shared, trace):
    said = cli("diagnose", shared / "traces" / trace, "--json").json
    bubble, schedule, ranks, chunks, microbatches = TRUTH[trace]
    assert said["idle_share"] == pytest.approx(bubble, abs=0.005)
    assert said["schedule"] == schedule
    assert (said["ranks"], said["chunks"], said["microbatches"]) == (ranks, chunks, microbatches)
    assert sum(cause["cost_ms"] for cause in said["causes"]) == pytest.approx(_window(said))


def _window(said):
    """The median window, put together from the five parts of rank 0."""
    rank = said["per_rank"][0]
    return sum(rank[f"{part}_ms"] for part in ("compute", "warm_up", "waiting", "transfer", "cool_down"))


@pytest.mark.parametrize(("trace", "name"), SCHEDULES.items())
def test_schedules_of_torch_are_named(cli, shared, trace, name):
    said = cli("diagnose", shared / "traces" / "torch-cpu" / trace, "--json").json
    assert (said["schedule"], said["ranks"], said["microbatches"]) == (name, 4, 8)


def test_st_causes_schedule_0_364_imbalance_0_149(cli, shared):
    said = cli("diagnose", shared / "traces" / "bytedance-st" / "st-kineto", "--json").json
    shares = {cause["cause"]: cause["cost_share"] for cause in said["causes"]}
    assert shares["schedule"] == pytest.approx(0.364, abs=0.01)
    assert shares["imbalance"] == pytest.approx(0.149, abs=0.01)
    assert shares["variation"] == pytest.approx(-0.001, abs=0.01)
    assert shares["transfer"] + shares["unexplained"] == pytest.approx(0.0025, abs=0.01)


@pytest.mark.parametrize("fault", ["truncgz", "norank", "duprank", "ts0", "skew", "listroot"])
def test_a_broken_rank_is_named_and_the_answer_stands(cli, shared, fault):
    ran = cli("diagnose", shared / "traces" / "broken" / fault)
    assert ran.status == 0
    assert "51." in ran.out
    assert "100 %" not in ran.out.split("Findings")[0].split("idle share")[1].split("\n")[0]


def test_no_pipeline_is_exit_1(cli, shared):
    ran = cli("diagnose", shared / "traces" / "dlrm8")
    assert ran.status == 1
    assert "no pipeline here" in ran.err


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
    from debubble.formats.kineto import parallel
    from debubble.formats.kineto.read import read_traces

    paths = sorted((shared / "traces" / "bytedance-st" / "st-kineto").iterdir())[:4]
    alone = read_traces(paths)
    monkeypatch.setattr(parallel, "_WORTH", 0)
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: 2)
    together = read_traces(paths, each=parallel.in_processes)
    assert [d.rank for d in alone.devices] == [d.rank for d in together.devices]
    assert all((a.start == b.start).all() for a, b in zip(alone.devices, together.devices, strict=True))
