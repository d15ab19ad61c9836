"""What ``plan`` prints for people: it fits the terminal, its parts sum, and what cannot be run is counted."""

import re

import pytest

MODEL = ("--model", "llama3-70b", "--gpu", "h100", "--gpus", 64, "--sequence", 8192)


def milliseconds(text):
    number, unit = text.split()
    return float(number.replace(",", "")) * {"s": 1e3, "ms": 1.0}[unit]


def test_the_lines_of_the_waterfall_sum_to_the_step(cli):
    out = cli("plan", *MODEL, "--global-batch", 512, "--gpu", "h200", "--sequence", 4096).out
    waterfall = out[out.index("Where the step") : out.index("Memory of")]
    *parts, step = (milliseconds(found) for found in re.findall(r"  (-?[\d,.]+ m?s)  ", waterfall))
    assert "smaller parts" in waterfall
    assert sum(parts) == pytest.approx(step, rel=5e-4)  # each is printed to four digits


def test_but_for_the_ranking_nothing_is_wider_than_the_terminal(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("plan", *MODEL, "--global-batch", 512, "--top", 1).out.splitlines()
    assert [line for line in lines if len(line) > 80 and not re.match(r"#|[> ] \d", line)] == []


def test_sizes_of_a_growing_batch_that_cannot_be_run_are_counted_with_steps_that_can(cli):
    sizes = ("--tensor", 4, "-p", 4, "--micro-batch", 2, "--schedule", "1f1b")
    out = cli("plan", *MODEL, *sizes, "--global-batch", 64, "--rampup", "2,2,900").out
    assert "16 of 32 sizes cannot be run, and count nowhere; the first: micro-batch 2 x data 2" in " ".join(out.split())
    assert "start and grow by a multiple of 4, or try --micro-batch 1" in " ".join(out.split())


def test_a_file_of_measured_rows_that_is_not_there_is_one_line_with_a_remedy(cli):
    ran = cli("plan", *MODEL, "--global-batch", 512, "--calibrate", "missing.csv")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "missing.csv: there is no such file or folder; give a path that is there" in ran.err


def test_rows_without_a_step_time_are_asked_for_the_column_that_the_page_names(cli, tmp_path):
    (tmp_path / "rows.csv").write_text("tensor,pipeline,data,micro_batch\n8,4,2,1\n")
    assert "add a column step_s" in cli("plan", *MODEL, "--global-batch", 512, "--calibrate", tmp_path / "rows.csv").err


def test_a_recipe_is_an_option_a_job_key_and_a_part_of_the_next_command(cli, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('gpus = 8\nglobal_batch = 32\ntensor_overlap = true\noptimizer_precision = "bf16"\n')
    model = ("--model", "llama3-8b", "--gpu", "h100", "--top", 3, "--json")
    options = ("--tensor-overlap", "--optimizer-precision", "bf16", "--tensor", "2,4")
    of_job = cli("plan", job, *model, "--tensor", "2,4").json
    of_options = cli("plan", "--gpus", 8, "--global-batch", 32, *model, *options).json
    plain = cli("plan", "--gpus", 8, "--global-batch", 32, *model, "--tensor", "2,4").json
    assert of_job["candidates"] == of_options["candidates"]
    assert of_options["candidates"][0]["step_ms"] < plain["candidates"][0]["step_ms"]
    assert {"--tensor-overlap", "--optimizer-precision"} <= set(of_options["next"].split())


def test_what_is_recomputed_can_be_asked_for(cli):
    model = ("--gpus", 8, "--global-batch", 32, "--model", "llama3-8b", "--gpu", "h100", "--top", 100, "--json")
    found = cli("plan", *model, "--recompute", "none", "--tensor", 2).json["candidates"]
    assert {each["recompute"] for each in found} == {"none"}
    refused = cli("plan", *model, "--recompute-modules", "all of it")
    assert refused.status == 2
    assert "layernorm" in refused.err
