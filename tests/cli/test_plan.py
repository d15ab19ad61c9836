"""``plan``: what it prints and how it exits, with a model and without."""

import json
from pathlib import Path

import pytest

from planned import MODEL

KEYS = {"tensor", "pipeline", "data", "context", "expert", "chunks", "micro_batch", "microbatches", "schedule"}
KEYS |= {"recompute", "step_ms", "tokens_per_second_per_gpu", "idle_share", "peak_bytes", "parts"}


def test_json_has_the_keys_that_scripts_rely_on_with_a_model_and_without(cli):
    for args in (("--gpus", 8, *MODEL), ("--gpus", 8, "--global-batch", 32)):
        said = cli("plan", *args, "--json").json
        assert {"candidates", "rejected", "evidence"} <= said.keys()
        assert said["candidates"][0].keys() >= KEYS


def test_parts_of_each_candidate_sum_to_its_step(cli):
    said = cli("plan", "--gpus", 8, *MODEL, "--top", 3, "--json").json
    assert len(said["candidates"]) == 3
    for row in said["candidates"]:
        assert sum(row["parts"].values()) == pytest.approx(row["step_ms"])
        assert max(row["peak_bytes_by_rank"]) == row["peak_bytes"] == pytest.approx(sum(row["memory_bytes"].values()))
        tokens = row["global_batch"] * 8192 / (row["step_ms"] / 1e3) / row["gpus"]
        assert row["tokens_per_second_per_gpu"] == pytest.approx(tokens)


def test_text_has_table_band_ties_waterfall_memory_and_what_was_ruled_out(cli):
    out = cli("plan", "--gpus", 8, *MODEL).out
    for words in (
        "(estimated ±",
        "> 1",
        "legal layouts screened",
        "Where the step of",
        "model FLOPs at peak",
    ):
        assert words in out
    assert "peak of each rank, GB" in out
    assert "of the first" in out


def test_terminal_json_page_and_emit_recommend_the_same_layout(cli, tmp_path):
    """A layout that fills its device ranks behind those that do not: estimates of memory are off by a tenth."""
    args = ("plan", "--model", "llama3-70b", "--gpus", 64, "--gpu", "h100", "--global-batch", 512, "--sequence", 4096)
    args += ("--schedule", "1f1b,interleaved", "--emit", "megatron", "--top", 1)
    said = cli(*args, "--json", "--html", tmp_path / "p.html").json
    out = cli(*args).out
    chosen = next(row for row in said["candidates"] if row["number"] == said["recommended"])
    assert said["recommended"] == said["emitted"] == 1
    assert max(chosen["peak_bytes_by_rank"]) <= 0.9 * said["device_bytes"]
    assert said["verdict"][0].startswith(f"Launch tensor {chosen['tensor']}, pipeline {chosen['pipeline']}")
    page = json.loads((tmp_path / "p.html").read_text().split('id="data">')[1].split("</script>")[0])
    assert page["verdict"] == said["verdict"]
    assert page["runs"][0]["ranks"] == chosen["pipeline"]
    pasted = next(item["text"] for item in page["take"] if item["file"] == "megatron.txt")
    assert pasted == said["emit"]
    assert said["emit"] in out
    assert "> 1 " in out
    assert "Where the step of the first goes" in out


def test_should_i_add_gpus(cli):
    ran = cli("plan", "--gpus", "4,8", *MODEL, "--price", 2.5)
    assert ran.status == 0
    assert "Should I add GPUs?" in ran.out
    assert "4 -> 8 GPUs (2x)" in ran.out
    assert "per billion tokens" in ran.out
    scaling = cli("plan", "--gpus", "4,8", *MODEL, "--price", 2.5, "--json").json["scaling"]
    assert [row["gpus"] for row in scaling] == [4, 8]
    assert all(row["cost_per_billion_tokens"] > 0 for row in scaling)


def test_what_was_ruled_out_sums_to_the_legal_layouts(cli):
    said = cli("plan", "--gpus", 8, *MODEL, "--top", 1000, "--json").json
    out = sum(row["count"] for row in said["rejected"] if row["cause"] in ("memory", "behind", "twin"))
    assert out + len(said["candidates"]) == said["legal"]["8"]
    text = cli("plan", "--gpus", 8, *MODEL).out
    assert f"{said['legal']['8']:,} legal layouts screened" in text
    assert f"{len(said['candidates'])} ranked" in text


def test_plan_is_estimated_arithmetic_is_exact(cli):
    assert cli("plan", "--gpus", 8, *MODEL, "--json").json["evidence"] == "estimated"
    assert cli("plan", "--gpus", 8, "-p", 4, "--global-batch", 16, "--json").json["evidence"] == "exact"


def test_a_job_file_with_a_model_searches_its_devices(cli, tmp_path: Path):
    (tmp_path / "job.toml").write_text("gpus = 8\npipeline = 4\ndata = 2\nmicrobatches = 16\nmicro_batch = 1\n")
    said = cli("plan", tmp_path / "job.toml", "--model", "llama3-8b", "--gpu", "h100", "--json").json
    assert {(row["gpus"], row["global_batch"]) for row in said["candidates"]} == {(8, 32)}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--gpus", 8, "--model", "lama3-8b", "--gpu", "h1000", "--global-batch", 8), ("llama3-8b", "h100")),
        (("--model", "llama3-8b", "--gpu", "h100"), ("--gpus", "--global-batch")),
        (
            (
                "--gpus",
                8,
            ),
            ("--global-batch or --microbatches",),
        ),
        (("--gpus", "0", "--global-batch", 8), ("--gpus = 0",)),
        (("--gpus", 8, "--global-batch", 8, "--emit", "megatron"), ("it needs --model and --gpu",)),
        (("--gpus", 8, *MODEL, "--emit", "megatronn"), ("did you mean megatron",)),
        (("--gpus", 8, *MODEL, "--emit", "megatron", "--schedule", "zb-v"), ("Megatron-LM runs 1f1b, interleaved",)),
        (("--gpus", 8, *MODEL, "--schedule", "zbw"), ("did you mean zb-v",)),
        (("--gpus", 8, *MODEL, "--nodes", 3), ("it does not divide 8 GPUs",)),
        (("--gpus", 8, *MODEL, "--price", -1), ("price = -1",)),
        (("--weights", "1,x", "-p", 2, "-m", 2), ("--weights = 1,x",)),
        (("--weights", "1,1", "-p", 3, "-m", 2), ("2 blocks cannot fill it",)),
        (("--weights", "1,1", "-p", 2, "-m", 10**9), ("each split is simulated",)),
        (("--gpus", 8, "--global-batch", ",".join(["8"] * 200)), ("rows",)),
        (("--gpus", ",".join(["8"] * 20), *MODEL), ("give at most 16",)),
        (("--weights", "1*9999999999", "-p", 3, "-m", 2), ("at most 2000",)),
        (("--gpus", 8, *MODEL, "--calibrate", "missing.csv"), ("missing.csv",)),
        (
            ("--gpus", 8, *MODEL, "--expert", 2, "--precision", "fp4"),
            (
                "llama3-8b has no experts to spread",
                "precision = fp4: H100 has no such matrix products; give bf16 or fp8",
            ),
        ),
        (("--gpus", 8, *MODEL, "--nic", 50), ("slower than any network card", "with their unit, as in 50GB")),
        (
            ("--gpus", 8, *MODEL, "--emit", "megatron", "--zero", 3),
            ("Megatron-LM shares out the optimizer's state alone",),
        ),
        (("--gpus", 8, *MODEL, "--rampup", "8,9,100"), ("32 is not reached from 8",)),
        (("--gpus", 8, "-p", 2, "-m", 4, "--schedule", "zbw"), ("did you mean zb-v",)),
    ],
    ids=lambda value: " ".join(map(str, value))[:60],
)
def test_bad_input_exits_2_and_names_every_fault(cli, args, words):
    ran = cli("plan", *args)
    assert ran.status == 2
    assert all(word in ran.err for word in words)
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--data", 3), "3 replicas do not divide 8 GPUs; nearest 2 or 4"),
        (("--tensor", 3), "tensor 3 does not divide 8 GPUs; nearest 2 or 4"),
        (("-p", 64), "nearest"),
        (("--emit", "deepspeed", "--context", 2), "DeepSpeed has no context parallelism"),
        (("-v", 40, "-p", 2, "--tensor", 1), "32 layers cannot fill 2 x 40 stages"),
    ],
)
def test_degrees_that_cannot_be_exit_1_with_their_neighbours(cli, args, words):
    ran = cli("plan", "--gpus", 8, "--model", "llama3-8b", "--gpu", "h100", "--global-batch", 8, *args)
    assert ran.status == 1
    assert words in ran.err


def test_what_would_make_room_is_not_what_was_asked_for(cli):
    args = ("--gpus", 8, "--model", "llama3-405b", "--gpu", "h100", "--global-batch", 8)
    assert "give more devices, --zero 3, or" in cli("plan", *args).err
    assert "--zero 3" not in cli("plan", *args, "--zero", 3).err
    assert "--zero 3" not in cli("plan", *args, "--emit", "megatron").err


def test_a_model_that_fits_nowhere_exits_1_with_what_it_needs(cli):
    ran = cli("plan", "--gpus", 8, "--model", "llama3-405b", "--gpu", "h100", "--global-batch", 8)
    assert ran.status == 1
    assert "none of" in ran.err
    assert "GB of 85 on its fullest rank" in ran.err


def test_samples_as_long_as_the_sequence_idle_as_the_plan_does_and_shorter_ones_by_what_attention_spares(cli):
    asked = ("plan", "--gpus", 16, *MODEL, "--pipeline", 4, "--schedule", "1f1b", "--json")
    said = cli(*asked, "--lengths", 8192).json
    found, best = said["unequal_samples"], said["candidates"][0]
    assert found["evidence"] == "estimated"
    for steps in (found["as_they_come"], found["balanced"]):
        assert steps["p95_idle_share"] == pytest.approx(best["idle_share"], abs=1e-6)
    # A layer of Llama 3 8B has 1,308 MFLOP a token in products and 6 s h = 201 in causal attention at 8,192 tokens: an
    # eighth of that spares 12 % of FLOPs, and more of the time, as attention is the slower kernel.
    short = cli(*asked, "--lengths", 1024).json["unequal_samples"]
    ratio = short["as_they_come"]["expected_makespan_ms"] / found["as_they_come"]["expected_makespan_ms"]
    assert 0.7 < ratio < 0.89
    assert short["as_they_come"]["expected_idle_share"] == pytest.approx(best["idle_share"], abs=0.01)


def test_lengths_without_a_model_are_refused(cli):
    ran = cli("plan", "--gpus", 8, "--global-batch", 32, "--lengths", "2048")
    assert ran.status == 2
    assert "--lengths: it needs --model and --gpu" in ran.err
