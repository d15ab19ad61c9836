"""Picture files of the verbs: each is written whole, said, and shows what the verb found."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings"
FOUR, EIGHT = RECORDINGS / "four", RECORDINGS / "eight"
VERBS = {
    "show": ("show", "1f1b", "-p", 4, "-m", 8),
    "diagnose": ("diagnose", EIGHT),
    "why": ("why", FOUR, EIGHT),
    "why of jobs": ("why", RECORDINGS.parent / "four.toml", RECORDINGS.parent / "eight.toml"),
}
PLAN = ("plan", "--model", "llama3-8b", "--gpu", "h100", "--gpus", 8, "--global-batch", 32, "--sequence", 8192)
PLAN += ("--tensor", 1, "-p", 4, "-v", 1, "--micro-batch", 1)
VERBS["plan"] = PLAN
OPENS = {"html": b"<!doctype html>", "svg": b"<svg ", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", OPENS)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_writes_every_kind_and_says_so(cli, tmp_path, verb, kind):
    if kind in ("png", "pdf"):
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / f"picture.{kind}"
    ran = cli(*VERBS[verb], f"--{kind}", path)
    assert (ran.status, ran.err) == (0, f"wrote {path}\n")
    assert path.read_bytes().startswith(OPENS[kind])


def data(path: Path) -> dict:
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_the_page_of_show_says_both_numbers_by_name_the_formula_and_the_bound(cli, tmp_path):
    cli(*VERBS["show"], "--html", tmp_path / "p.html")
    page = data(tmp_path / "p.html")
    tiles = {tile["name"]: tile for tile in page["tiles"]}
    assert tiles["Idle share (bubble ratio)"]["value"] == "27.3 % (37.5 %)"
    assert "(p-1)/(m+p-1), exact" in tiles["What the schedule itself promises"]["note"]
    assert tiles["Lower bound"]["value"] == "33 ms"
    assert page["next"] == "debubble show 1f1b -p 4 -m 19"


def test_the_page_of_diagnose_holds_what_json_says(cli, tmp_path):
    ran = cli(*VERBS["diagnose"], "--html", tmp_path / "p.html", "--json")
    page = data(tmp_path / "p.html")
    causes = {row["cause"]: row["cost_ms"] for row in page["causes"][0]["rows"]}
    assert causes == {row["cause"]: row["cost_ms"] for row in ran.json["causes"]}
    assert json.loads(page["take"][-1]["text"]) == ran.json
    assert page["tiles"][3]["value"] == f"{100 * ran.json['resim_ratio']:.1f} %"


def test_the_next_command_of_a_diagnosis_is_its_first_recommendation(cli, tmp_path):
    ran = cli(*VERBS["diagnose"], "--html", tmp_path / "p.html", "--json")
    command = data(tmp_path / "p.html")["next"]
    assert ran.json["first"]["change"] == "interleaved-zb with 2 chunks"
    assert command.startswith("debubble show interleaved-zb -p 4 -m 4 -v 2 --forward ")
    shown = cli(*command.split()[1:], "--json").json
    assert shown["makespan_ms"] == pytest.approx(ran.json["first"]["makespan_ms"], rel=0.02)  # one hop for all


def test_the_page_of_why_has_two_runs_and_the_verdict(cli, tmp_path):
    ran = cli(*VERBS["why"], "--html", tmp_path / "p.html", "--json")
    page = data(tmp_path / "p.html")
    assert [run["ranks"] for run in page["runs"]] == [2, 4]
    assert page["verdict"] == ran.json["verdict"]
    assert page["tiles"][0]["value"] == f"{ran.json['throughput_ratio']:.2f} x"


@pytest.mark.parametrize(
    ("args", "next_command"),
    [
        (("--stage-scale", "1,1,1,3"), "debubble show 1f1b -p 4 -m 8"),
        (("--transfer", "5ms"), "debubble show 1f1b -p 4 -m 8"),
        (("--forward", "2ms"), "debubble show 1f1b -p 4 -m 19 --forward 2ms"),
    ],
)
def test_the_next_command_leaves_out_what_costs_most(cli, tmp_path, args, next_command):
    cli(*VERBS["show"], *args, "--html", tmp_path / "p.html")
    assert data(tmp_path / "p.html")["next"] == next_command
    assert cli(*next_command.split()[1:]).status == 0


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v", "seq1f1b", "dualpipe"])
def test_commands_and_configurations_on_the_page_can_be_used(cli, tmp_path, name):
    extra = {"interleaved": ("-v", 2), "seq1f1b": ("--slices", 2)}.get(name, ())
    cli("show", name, "-p", 4, "-m", 8, *extra, "--html", tmp_path / "p.html")
    page = data(tmp_path / "p.html")
    again = cli(*page["take"][0]["text"].split()[1:], "--json")
    assert again.json["makespan_ms"] == page["runs"][0]["window"] / 1e6
    assert cli(*page["next"].split()[1:]).status == 0


def test_the_next_command_of_two_jobs_can_be_used(cli, tmp_path):
    cli(*VERBS["why of jobs"], "--html", tmp_path / "p.html")
    command = data(tmp_path / "p.html")["next"]
    first = cli(*VERBS["why of jobs"], "--json").json["first"]
    assert first["change"] == "interleaved-zb with 2 chunks"
    assert command == "debubble show interleaved-zb -p 4 -m 4 -v 2 --input 1ms --weight 1ms"
    assert cli(*command.split()[1:]).status == 0


def test_a_picture_that_cannot_be_written_is_one_line(cli, tmp_path):
    ran = cli(*VERBS["show"], "--html", tmp_path / "none" / "p.html")
    assert (ran.status, ran.out) == (2, "")
    assert "it cannot be written" in ran.err


def test_runs_without_a_pipeline_have_a_page_but_no_figure(cli, tmp_path):
    for name, tokens in (("a", 1000), ("b", 900)):
        (tmp_path / f"{name}.toml").write_text(f"gpus = 4\npipeline = 4\n[measured]\ntokens_per_second = {tokens}\n")
    jobs = (tmp_path / "a.toml", tmp_path / "b.toml")
    assert cli("why", *jobs, "--html", tmp_path / "p.html").status == 0
    assert data(tmp_path / "p.html")["runs"] == []
    ran = cli("why", *jobs, "--svg", tmp_path / "p.svg")
    assert ran.status == 2
    assert "neither run has a timeline" in ran.err


def test_the_page_of_plan_draws_the_window_that_the_planner_ranked_by(cli, tmp_path):
    ran = cli(*PLAN, "--html", tmp_path / "p.html", "--json")
    page, best = data(tmp_path / "p.html"), ran.json["candidates"][0]
    rows = page["causes"][0]["rows"]
    assert sum(row["cost_ms"] for row in rows) == pytest.approx(best["step_ms"])
    assert {row["evidence"] for row in rows} == {"estimated"}
    outside = sum(best["parts"][f"{part}_ms"] for part in ("data", "optimizer", "fixed"))
    run = page["runs"][0]
    assert run["window"] / 1e6 == pytest.approx(best["step_ms"] - outside, abs=1e-4)
    busy = sum(row["compute_ms"] for row in run["per_rank"]) * 1e6
    assert 1 - busy / (run["ranks"] * run["window"]) == pytest.approx(best["idle_share"], abs=1e-6)


def test_the_page_of_plan_promises_one_ninth_for_1f1b_on_2_ranks_with_8_microbatches(cli, tmp_path):
    args = [*PLAN, "--schedule", "1f1b", "-p", 2, "--data", 4]
    best = cli(*args, "--html", tmp_path / "p.html", "--json").json["candidates"][0]
    tiles = {tile["name"]: tile for tile in data(tmp_path / "p.html")["tiles"]}
    assert (best["pipeline"], best["microbatches"]) == (2, 8)
    assert tiles["What the schedule itself promises"]["value"] == "11.1 % idle share"
    assert tiles["Error of the estimate"]["value"] == "±11.1 %"  # that of runs of its kind: H100, dense, 16 bit


def tables(page: dict) -> dict[str, list[dict]]:
    return {section["title"]: section["tables"] for section in page["sections"]}


def test_the_page_of_plan_ranks_layouts_counts_what_was_ruled_out_and_shows_each_ranks_memory(cli, tmp_path):
    said = cli(*PLAN, "--micro-batch", "1,4", "--html", tmp_path / "p.html", "--json").json
    shown = tables(data(tmp_path / "p.html"))
    best = said["candidates"][0]
    memory = [float(line[1]) for line in shown["Memory, rank by rank"][0]["lines"]]
    assert memory == pytest.approx([size / 1e9 for size in best["peak_bytes_by_rank"]], abs=0.051)
    ranked = shown["Layouts, the best first"][0]
    assert [line[ranked["head"].index("schedule")] for line in ranked["lines"][: len(said["candidates"])]] == [
        each["schedule"] for each in said["candidates"]
    ]
    counts = [int(line[1].replace(",", "")) for line in shown["What was ruled out"][0]["lines"]]
    assert sum(counts) == sum(each["count"] for each in said["rejected"]) > 0


def test_the_next_command_of_a_plan_prints_what_to_paste(cli, tmp_path):
    args = [*PLAN, "--schedule", "zb-h1,1f1b"]
    cli(*args, "--html", tmp_path / "p.html")
    page = data(tmp_path / "p.html")
    words = page["next"].split()
    assert words[-2:] == ["--emit", "megatron"]
    ran = cli(*words[1:])
    assert ran.status == 0
    assert "--pipeline-model-parallel-size 4" in ran.out


def test_a_plan_without_a_model_says_why_it_has_no_picture(cli, tmp_path):
    ran = cli("plan", "--gpus", 8, "--global-batch", 32, "--html", tmp_path / "p.html")
    assert ran.status == 2
    assert "give --model and --gpu" in ran.err
    assert not (tmp_path / "p.html").exists()


def test_the_page_of_diagnose_draws_the_slowest_replica_beside_the_median_window(cli, tmp_path, shared):
    trace = shared / "traces" / "bytedance-st" / "timeline.json.gz"
    worst = cli("diagnose", trace, "--html", tmp_path / "p.html", "--json").json["worst"]
    page = data(tmp_path / "p.html")
    median, slow = page["runs"]
    assert slow["window"] / 1e6 == pytest.approx(worst["makespan_ms"])
    assert slow["per_rank"] == worst["per_rank"]
    for run, why in zip((median, slow), page["causes"], strict=True):
        assert sum(row["cost_ms"] for row in why["rows"]) == pytest.approx(run["window"] / 1e6)


def test_the_page_of_diagnose_shades_each_replica_and_stage_by_its_work(cli, tmp_path):
    heat = cli(*VERBS["diagnose"], "--html", tmp_path / "p.html", "--json").json["heat"]
    (table,) = tables(data(tmp_path / "p.html"))["Replicas by stages"]
    ranked = sorted(heat, key=lambda each: -each["makespan_ms"])
    assert [line[0] for line in table["lines"]] == [f"replica {each['replica']}" for each in ranked]
    work = [value for each in ranked for value in each["stage_ms"]]
    shown = [float(cell.replace(",", "").split()[0]) for line in table["lines"] for cell in line[3:]]
    assert shown == pytest.approx(work, abs=0.051)
    shades = [shade for line in table["shade"] for shade in line[3:]]
    assert all(a >= b for (_, a), (_, b) in pairwise(sorted(zip(work, shades, strict=True), reverse=True)))


def test_a_production_run_with_a_slow_last_stage_is_darkest_there(cli, tmp_path, shared):
    cli("diagnose", shared / "traces" / "bytedance-st" / "st-kineto", "--html", tmp_path / "p.html")
    shown = tables(data(tmp_path / "p.html"))
    (table,) = shown["Replicas by stages"]
    assert all(max(range(len(line)), key=line.__getitem__) == len(line) - 1 for line in table["shade"])
    assert all(line[-1].endswith("▲") for line in table["lines"])
    assert {line[1] for line in shown["What would help"][0]["lines"]} == {"change", "limit"}


def test_receives_on_the_page_are_split_into_waiting_and_transfer(cli, tmp_path, shared):
    said = cli(
        "diagnose", shared / "traces" / "bytedance-st" / "st-kineto", "--html", tmp_path / "p.html", "--json"
    ).json
    (table,) = tables(data(tmp_path / "p.html"))["Receives: waiting or transfer"]
    waiting = sum(float(line[2].replace(",", "")) for line in table["lines"])
    assert waiting == pytest.approx(
        sum(each["waiting_ms"] for each in said["transfers"]), abs=0.06 * len(table["lines"])
    )


def test_the_page_of_a_torn_pipeline_names_the_rank_beside_the_missing_ones(cli, tmp_path, shared):
    files = [shared / "traces" / "bytedance-st" / "st-kineto" / f"rank{rank}_trace.json.gz" for rank in (0, 2, 4)]
    ran = cli("diagnose", *files, "--html", tmp_path / "p.html", "--json")
    assert (ran.status, ran.json["torn_ranks"]) == (0, [4])
    page = data(tmp_path / "p.html")
    (sure,) = tables(page)["How sure this is"]
    assert ["torn: ranks that talk to ranks which were not measured", "4"] in sure["lines"]
    assert "What would help" not in tables(page)
    assert page["next"] == ""


def test_a_picture_says_so_if_nobody_stated_how_long_ops_take(cli, tmp_path):
    """Its order is drawn all the same, at the durations that ``show`` takes."""
    said = (RECORDINGS.parent / "four.toml").read_text().replace("[measured]", 'forward = "10ms"\n[measured]')
    (tmp_path / "stated.toml").write_text(said)
    cli("why", tmp_path / "stated.toml", RECORDINGS.parent / "eight.toml", "--html", tmp_path / "p.html")
    first, second = (run["name"] for run in data(tmp_path / "p.html")["runs"])
    assert "at 1 ms a forward" not in first
    assert second.endswith("at 1 ms a forward and 2 ms a backward")
