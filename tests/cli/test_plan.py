"""``plan``: what it prints and how it exits, with a model and without."""

from pathlib import Path

import pytest

MODEL = (
    "--model",
    "llama3-8b",
    "--gpu",
    "h100",
    "--global-batch",
    32,
    "--sequence",
    8192,
    "--tensor",
    "1,2",
    "--micro-batch",
    1,
)
KEYS = {
    "tensor",
    "pipeline",
    "data",
    "context",
    "expert",
    "chunks",
    "micro_batch",
    "microbatches",
    "schedule",
    "recompute",
}
KEYS |= {"step_ms", "tokens_per_second_per_gpu", "idle_share", "peak_bytes", "parts"}


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
        "Where the step of the first goes",
        "model FLOPs at peak",
    ):
        assert words in out
    assert "peak of each rank, GB" in out
    assert "of the first" in out


def test_should_i_add_gpus(cli):
    ran = cli("plan", "--gpus", "4,8", *MODEL, "--price", 2.5)
    assert ran.status == 0
    assert "Should I add GPUs?" in ran.out
    assert "4 -> 8 GPUs (2x)" in ran.out
    assert "per billion tokens" in ran.out
    scaling = cli("plan", "--gpus", "4,8", *MODEL, "--price", 2.5, "--json").json["scaling"]
    assert [row["gpus"] for row in scaling] == [4, 8]
    assert all(row["cost_per_billion_tokens"] > 0 for row in scaling)


@pytest.mark.parametrize("backend", ["megatron", "torchtitan", "torch", "deepspeed", "nemo", "nanotron"])
def test_emit_prints_what_check_finds_legal(cli, tmp_path: Path, backend):
    said = cli("plan", "--gpus", 8, *MODEL, "--pipeline", "2,4", "--emit", backend, "--json").json
    assert said["candidates"][0]["pipeline"] in (2, 4)
    suffix = {"megatron": ".sh", "deepspeed": ".json", "nanotron": ".yaml"}.get(backend, ".py")
    (tmp_path / f"made{suffix}").write_text(said["emit"])
    best = said["candidates"][0]
    degrees = ("--gpus", 8, "--tensor", best["tensor"], "--context", best["context"])  # not every framework has both
    checked = cli("check", tmp_path / f"made{suffix}", "--backend", backend, "--model", "llama3-8b", *degrees)
    assert checked.status == 0, checked.out


MOE = ("--model", "deepseek-v3", "--gpu", "h200", "--global-batch", 256, "--gpus", 128, "--tensor", 1)


@pytest.mark.parametrize("backend", ["megatron", "nemo", "nanotron", "torchtitan", "torch"])
def test_emit_of_experts_and_further_token_layers_is_legal_too(cli, tmp_path: Path, backend):
    said = cli("plan", *MOE, "-p", 16, "--micro-batch", 1, "--zero", 1, "--emit", backend, "--json").json
    suffix = {"megatron": ".sh", "nanotron": ".yaml"}.get(backend, ".py")
    (tmp_path / f"made{suffix}").write_text(said["emit"])
    best = said["candidates"][0]
    assert best["expert"] > 1
    checked = cli("check", tmp_path / f"made{suffix}", "--backend", backend, "--model", "deepseek-v3", "--gpus", 128)
    assert checked.status == 0, checked.out


@pytest.mark.parametrize("backend", ["torch", "torchtitan"])
def test_ranks_that_do_not_divide_the_micro_batches_leave_out_schedules_instead_of_failing(cli, backend):
    """96 GPUs, 12 ranks, 64 micro-batches: interleaved zero-bubble wants equal rounds."""
    args = ("--model", "llama3-70b", "--gpu", "h100", "--gpus", 96, "--global-batch", 384, "--sequence", 8192)
    ran = cli("plan", *args, "-p", 12, "--emit", backend, "--json")
    assert ran.status == 0
    assert any(row["cause"] == "schedule" for row in ran.json["rejected"])


@pytest.mark.parametrize("backend", ["deepspeed", "nanotron"])
def test_a_framework_that_deals_layers_itself_is_planned_with_its_own_splits(cli, backend):
    args = ("--model", "llama3-70b", "--gpu", "h100", "--gpus", 96, "--global-batch", 384, "--sequence", 8192)
    said = cli("plan", *args, "-p", 12, "--emit", backend, "--json").json
    dealt = {"deepspeed": {(7,) * 8 + (6,) * 4, (6, *(7,) * 9, 6, 5)}, "nanotron": {(*(7, 7, 7, 7, 6) * 2, 7, 5)}}
    splits = {tuple(row["layers"]) for row in said["candidates"]}
    if backend == "deepspeed":
        assert splits <= dealt[backend]
        assert "it takes no other split" in said["emit"]
    else:
        (split,) = splits
        assert ", ".join(map(str, split)) in said["emit"].splitlines()[0]


def test_what_was_ruled_out_sums_to_the_legal_layouts(cli):
    said = cli("plan", "--gpus", 8, *MODEL, "--top", 1000, "--json").json
    out = sum(row["count"] for row in said["rejected"] if row["cause"] in ("memory", "behind", "twin"))
    assert out + len(said["candidates"]) == said["legal"]["8"]
    text = cli("plan", "--gpus", 8, *MODEL).out
    assert f"{said['legal']['8']:,} legal layouts screened" in text
    assert f"{len(said['candidates'])} ranked" in text


def test_a_growing_batch_with_a_model_says_the_step_of_each_size_and_what_growing_costs(cli):
    args = ("--gpus", 8, *MODEL, "-p", 4, "--tensor", 1, "--schedule", "1f1b")
    said = cli("plan", *args, "--rampup", "8,8,2400", "--json").json
    sizes = said["growth"]["sizes"]
    assert [row["global_batch"] for row in sizes] == [8, 16, 24, 32]
    assert [row["samples"] for row in sizes] == [800, 800, 800, 0]
    assert sizes[-1]["step_ms"] == pytest.approx(said["candidates"][0]["step_ms"])
    spent = sum(row["step_ms"] * row["samples"] / row["global_batch"] for row in sizes)
    assert said["growth"]["duration_ms"] == pytest.approx(spent)
    assert said["growth"]["lost_share"] == pytest.approx(spent / (sizes[-1]["step_ms"] * 2400 / 32) - 1)
    assert "The first while its batch grows" in cli("plan", *args, "--rampup", "8,8,2400").out


def test_plan_is_estimated_arithmetic_is_exact(cli):
    assert cli("plan", "--gpus", 8, *MODEL, "--json").json["evidence"] == "estimated"
    assert cli("plan", "--gpus", 8, "-p", 4, "--global-batch", 16, "--json").json["evidence"] == "exact"


def test_a_growing_batch_says_the_idle_share_of_each_size(cli):
    sizes = ("--gpus", 384, "--tensor", 4, "-p", 12, "--micro-batch", 2, "--global-batch", 64, "--rampup", "16,16,3000")
    rows = cli("plan", *sizes, "--json").json["candidates"]
    assert [row["microbatches"] for row in rows] == [1, 2, 3, 4]
    assert [row["idle_share"] for row in rows] == pytest.approx([11 / 12, 11 / 13, 11 / 14, 11 / 15])
    assert [row["samples"] for row in rows] == [1000, 1000, 1000, 0]
    # steps: 1000/16, 1000/32, 1000/48; slots m + 11
    busy, slots = (
        sum(1000 / (16 * m) * n for m, n in zip((1, 2, 3), each, strict=True)) for each in ((1, 2, 3), (12, 13, 14))
    )
    assert cli("plan", *sizes, "--json").json["idle_share_of_growth"] == pytest.approx(1 - busy / slots)


def test_a_growing_batch_that_does_not_come_out_whole_exits_1(cli):
    ran = cli("plan", "--gpus", 64, "-p", 8, "--micro-batch", 4, "--global-batch", 64, "--rampup", "16,16,3000")
    assert ran.status == 1
    assert "does not divide a global batch of 16" in ran.out


def test_a_calibration_is_used_said_and_saved(cli, tmp_path: Path):
    (tmp_path / "rows.csv").write_text(
        "tp,pp,dp,mbs,gbs,seq_len,step_s,memory_gb\n2,1,4,1,32,8192,9.5,60\n1,2,4,1,32,8192,9.2,70\n"
    )
    ran = cli(
        "plan", "--gpus", 8, *MODEL, "--calibrate", tmp_path / "rows.csv", "--save-calibration", tmp_path / "c.toml"
    )
    assert "calibrated on 2 rows" in ran.out
    assert "kernels" in ran.out
    again = cli("plan", "--gpus", 8, *MODEL, "--calibrate", tmp_path / "c.toml")
    assert again.out.splitlines()[3:] == ran.out.splitlines()[3:]


def test_a_job_file_asks_for_its_devices_and_batch(cli):
    """The founding case: at eight's batch of 8, two ranks of a pipeline idle far less than its four."""
    job = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "eight.toml"
    rows = cli("plan", job, "--json").json["candidates"]
    assert [(row["pipeline"], row["microbatches"]) for row in rows] == [(1, 1), (2, 2), (4, 4), (8, 8)]
    assert [row["idle_share"] for row in rows] == pytest.approx([0, 1 / 3, 3 / 7, 7 / 15])


def test_a_job_file_with_a_model_searches_its_devices(cli, tmp_path: Path):
    (tmp_path / "job.toml").write_text("gpus = 8\npipeline = 4\ndata = 2\nmicrobatches = 16\nmicro_batch = 1\n")
    said = cli("plan", tmp_path / "job.toml", "--model", "llama3-8b", "--gpu", "h100", "--json").json
    assert {(row["gpus"], row["global_batch"]) for row in said["candidates"]} == {(8, 32)}


LOG = """  data_parallel_size .............................. 4
  global_batch_size ............................... 32
  micro_batch_size ................................ 1
  num_layers ...................................... 32
  overlap_grad_reduce ............................. True
  overlap_param_gather ............................ True
  pipeline_model_parallel_size .................... 2
  recompute_granularity ........................... None
  seq_length ...................................... 8192
  sequence_parallel ............................... False
  tensor_model_parallel_size ...................... 1
  use_distributed_optimizer ....................... True
  world_size ...................................... 8
 iteration        1/     100 | elapsed time per iteration (ms): 60000.0 | global batch size:    32 |
 iteration        2/     100 | elapsed time per iteration (ms): 4500.0 | global batch size:    32 |
 iteration        3/     100 | elapsed time per iteration (ms): 4550.0 | global batch size:    32 |
 iteration        4/     100 | elapsed time per iteration (ms): 4525.0 | global batch size:    32 |
"""


def test_a_megatron_log_calibrates_by_its_own_arguments_and_steps(cli, tmp_path: Path):
    (tmp_path / "run.log").write_text(LOG)
    said = cli(
        "plan", "--gpus", 8, *MODEL, "-p", 2, "--calibrate", tmp_path / "run.log", "--schedule", "1f1b", "--json"
    ).json
    (same,) = [
        row
        for row in said["candidates"]
        if (row["tensor"], row["pipeline"], row["context"], row["recompute"]) == (1, 2, 1, "none")
        and len(set(row["layers"])) == 1
    ][:1]
    assert same["step_ms"] == pytest.approx(4525, rel=0.05)


def test_a_log_without_its_head_says_what_is_missing(cli, tmp_path: Path):
    (tmp_path / "run.log").write_text("\n".join(LOG.splitlines()[-4:]))
    ran = cli("plan", "--gpus", 8, *MODEL, "--calibrate", tmp_path / "run.log")
    assert ran.status == 2
    assert "its head does not print --pipeline-model-parallel-size" in ran.err


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
        (("--gpus", 8, *MODEL, "--schedule", "zbv"), ("did you mean zb-v",)),
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
        (("--gpus", 8, "-p", 2, "-m", 4, "--schedule", "zbv"), ("did you mean zb-v",)),
    ],
    ids=lambda value: " ".join(map(str, value))[:60],
)
def test_bad_input_exits_2_and_names_every_fault(cli, args, words):
    ran = cli("plan", *args)
    assert ran.status == 2
    assert all(word in ran.err for word in words)
    assert "Traceback" not in ran.err


def test_a_batch_that_cannot_be_divided_exits_1_with_the_nearest_that_can(cli):
    ran = cli(
        "plan", "--gpus", 16, "--model", "llama3-8b", "--gpu", "h100", "--global-batch", 30, "--tensor", 1, "-p", 1
    )
    assert ran.status == 1
    assert "nearest 16 or 32" in ran.err
    ran = cli("plan", "--gpus", 16, "-p", 4, "--global-batch", 30)
    assert ran.status == 1
    assert "nearest 28 or 32" in ran.out


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


def test_ranks_that_do_not_fit_the_devices_name_those_that_do(cli):
    ran = cli("plan", "--gpus", 8, "-p", 3, "-m", 3)
    assert ran.status == 1
    assert "nearest 6 or 9 GPUs, or pipeline 2 or 4" in ran.out


def test_the_micro_batches_for_10_percent_are_those_of_the_schedule(cli):
    rows = cli("plan", "--gpus", 4, "-p", 4, "-m", 8, "--schedule", "zb-h1", "--json").json["candidates"]
    assert rows[0]["microbatches_for_10_percent"] == 9
    rows = cli("plan", "--gpus", 4, "-p", 4, "-m", 8, "--schedule", "zb-v", "--json").json["candidates"]
    assert rows[0]["chunks"] == 2


def test_what_would_make_room_is_not_what_was_asked_for(cli):
    args = ("--gpus", 8, "--model", "llama3-405b", "--gpu", "h100", "--global-batch", 8)
    assert "give more devices, --zero 3, or" in cli("plan", *args).err
    assert "--zero 3" not in cli("plan", *args, "--zero", 3).err
    assert "--zero 3" not in cli("plan", *args, "--emit", "megatron").err


def test_a_model_that_fits_nowhere_exits_1_with_what_it_needs(cli):
    ran = cli("plan", "--gpus", 8, "--model", "llama3-405b", "--gpu", "h100", "--global-batch", 8)
    assert ran.status == 1
    assert "none of" in ran.err
    assert "GB of 80 on its fullest rank" in ran.err


LAYERS = ("--recompute-method", "uniform", "--recompute-num-layers", 1)


def test_full_recompute_with_room_to_spare_is_a_warning_of_check(cli):
    sizes = (
        "--backend",
        "megatron",
        "--gpus",
        64,
        "--tensor",
        8,
        "--pipeline",
        8,
        "--micro-batch",
        1,
        "--global-batch",
        64,
    )
    ran = cli(
        "check", *sizes, "--model", "llama3-8b", "--gpu", "h100", "--recompute", "full", *LAYERS, "--sequence", 4096
    )
    assert ran.status == 0
    assert "full recomputation with room to spare" in ran.out
    tight = cli(
        "check",
        "--backend",
        "megatron",
        "--gpus",
        8,
        "--tensor",
        1,
        "-p",
        1,
        "--micro-batch",
        8,
        "--global-batch",
        64,
        "--model",
        "llama3-8b",
        "--gpu",
        "h100",
        "--recompute",
        "full",
        *LAYERS,
        "--sequence",
        8192,
    )
    assert "room to spare" not in tight.out
