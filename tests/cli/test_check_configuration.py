"""``check`` of configurations: what it prints, how it exits, and which half of it answers."""

from pathlib import Path

import pytest

from debubble.frameworks.catalog import FRAMEWORKS, script_pairs
from debubble.frameworks.keys import read_config

MOCK_UP = ("--backend", "megatron", "--layers", 64, "--pipeline", 7)


def test_a_wish_that_cannot_be_exits_1_with_key_rule_and_ways_out(cli):
    ran = cli("check", *MOCK_UP)
    assert ran.status == 1
    assert "--pipeline-model-parallel-size = 7: 64 layers do not split evenly over 7 ranks" in ran.out
    assert "--pipeline-model-parallel-size 4 or 8" in ran.out
    assert "uneven ends: --decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 9" in ran.out


def test_json_has_the_keys_that_scripts_rely_on(cli):
    said = cli("check", *MOCK_UP, "--json").json
    assert {"legal", "faults", "warnings"} <= said.keys()
    assert {"key", "value", "rule", "remedy"} <= said["faults"][0].keys()


def test_every_alternative_costs_what_is_said_in_idle_share(cli):
    said = cli("check", *MOCK_UP, "-m", 16, "--json").json
    shares = {one["value"]: one["idle_share"] for one in said["faults"][0]["alternatives"]}
    assert shares == pytest.approx({4: 3 / 19, 8: 7 / 23})


def test_the_frameworks_own_flags_and_ours_mean_the_same(cli):
    theirs = ("--num-layers", 64, "--pipeline-model-parallel-size", 7)
    assert cli("check", "--backend", "megatron", *theirs, "--json").json == cli("check", *MOCK_UP, "--json").json


def test_a_file_is_recognised_by_its_own_keys_and_flags_win_over_it(cli, tmp_path: Path):
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": 64, "gradient_accumulation_steps": 4, "pipeline": {"stages": 3}}'
    )
    ran = cli("check", tmp_path / "ds.json", "--gpus", 8, "--json")
    assert (ran.status, ran.json["backend"]) == (1, "deepspeed")
    assert cli("check", tmp_path / "ds.json", "--gpus", 8, "--pipeline", 4).status == 0


def test_a_model_brings_its_layers_and_heads(cli):
    ran = cli("check", "--backend", "megatron", "--model", "llama3-70b", "--pipeline", 16, "--tensor", 16, "--json")
    assert ran.json["legal"]
    assert ran.json["split"] == [5] * 16
    assert cli("check", "--backend", "nanotron", "--model", "llama3-70b", "--tensor", 16).status == 1


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        (("--pipeline", 8, "-m", 4), "m < p: 4 micro-batches cannot keep 8 ranks busy"),
        (("--pipeline", 4, "-m", 8), "idle share 27.3 % with 8 micro-batches; 27 bring it to 10 % or less"),
        (("--pipeline", 4, "--split", "8,8,7,7"), "rebalancing cannot help: the largest stage stays ceil(30/4) = 8"),
        (("--pipeline", 4, "--split", "10,8,6,6", "-m", 8), "the largest rank holds 10 layers, an even split 8"),
    ],
)
def test_legal_but_poor_is_a_warning(cli, sizes, sentence):
    ran = cli("check", "--backend", "deepspeed", "--layers", 30, *sizes)
    assert ran.status == 0
    assert sentence in ran.out


def test_an_empty_stage_of_a_layout_is_a_warning(cli):
    ran = cli("check", "Et||tL", "--backend", "megatron", "--pipeline", 3)
    assert "stage 1 is empty" in ran.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--backend", "megatronn", "--layers", 3), "did you mean megatron"),
        (("--backend", "megatron"), "there is nothing to check"),
        (("Et|tL", "--backend", "megatron"), "over how many ranks"),
        (("--backend", "megatron", "--layers", "many"), "--layers = many"),
        (("1f1b", "--micobatches", 3), "did you mean --microbatches"),
        (("1f1b", "gpipe", "-p", 2, "-m", 2), "one schedule at a time"),
        (("missing.yaml",), "missing.yaml"),
        ((), "it is required"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_2(cli, args, words):
    ran = cli("check", *args)
    assert ran.status == 2
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("flag", ["--pipeline", "--layers", "--chunks", "--micro-batch", "--global-batch", "--gpus"])
def test_numbers_beyond_reason_are_refused_at_once(cli, flag):
    ran = cli("check", "--backend", "megatron", "--layers", 5, "--pipeline", 3, flag, 10**14)
    assert ran.status == 1
    assert "it is a whole number from 1 to" in ran.out


LAUNCH = """#!/bin/bash
TP=8; PP=6
ARGS="--num-layers 80 --num-attention-heads 64 --num-query-groups 8 --seq-length 4096"
srun torchrun --nproc_per_node 8 --nnodes 16 pretrain_gpt.py $ARGS --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size $PP --micro-batch-size 1 --global-batch-size 1024
"""


def test_a_launch_line_whose_last_flag_of_torchrun_stands_before_the_program_counts_its_nodes(cli, tmp_path: Path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    said = cli("check", tmp_path / "launch.sh", "--json").json
    assert (said["backend"], said["legal"]) == ("megatron", False)
    assert [fault["key"] for fault in said["faults"]] == ["--world-size", "--pipeline-model-parallel-size"]
    assert {one["value"] for one in said["faults"][0]["alternatives"]} == {4, 8, 96, 192}


@pytest.mark.parametrize(("nodes", "devices"), [("", 8), ("--nnodes 1", 8), ("--nnodes $SLURM_NNODES", None)])
def test_torchrun_alone_is_one_node_and_a_variable_is_none_that_is_known(nodes, devices):
    text = LAUNCH.replace("--nnodes 16", nodes)
    assert read_config(FRAMEWORKS["megatron"], script_pairs(text)).known().get("gpus") == devices


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("Et*4|(t|)*", "-p", 4), ("(t|)* does not say how often", "put a number behind the star")),
        (("Et|t|X", "-p", 3), ("no layout has X", "known: E embedding")),
        (("tE|t|L", "-p", 3), ("exactly one E, and it comes first; here it stands at place 2 of 4",)),
        (
            ("--backend", "nemo", "--layers", 61, "--pipeline", 16, "--chunks", 2),
            ("pipeline_model_parallel_layout 'Et*2|(t*2|)*28t|t|tL'",),
        ),
        (
            ("--backend", "megatron", "--gpus", 50, "-p", 4, "--tensor", 3, "--global-batch", 33, "--micro-batch", 4),
            ("--world-size 48 or 60", "--global-batch-size 32 or 36"),
        ),
        (("--backend", "megatron", "--recompute", "full"), ("full needs --recompute-method, --recompute-num-layers",)),
    ],
    ids=str,
)
def test_faults_say_what_to_write_instead(cli, args, words):
    ran = cli("check", *args)
    assert ran.status == 1
    assert all(word in ran.out for word in words), ran.out


def test_nanotrons_own_keys_by_their_last_word_and_the_layers_that_it_deals(cli):
    ran = cli(
        "check", "--backend", "nanotron", "--model", "llama3-8b", "-p", 4, "-m", 30, "--pp_engine", "1f1b", "--json"
    )
    assert (ran.json["schedule"], ran.json["split"]) == ("1f1b", [9, 9, 8, 6])


def test_deepspeeds_method_tells_the_layers_of_each_stage(cli):
    flags = ("--backend", "deepspeed", "--layers", 30, "-p", 4, "--partition")
    assert cli("check", *flags, "uniform", "--json").json["split"] == [7, 8, 8, 7]
    assert cli("check", *flags, "type:Block", "--json").json["split"] == [8, 8, 7, 7]


def test_modules_of_a_torchtitan_configuration_are_its_split(cli, tmp_path: Path):
    modules = [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "layers.3"], ["layers.4", "norm", "lm_head"]]
    text = f"ParallelismConfig(pipeline_parallel_degree=3, num_pp_microbatches=9, module_fqns_per_model_part={modules})"
    (tmp_path / "run.py").write_text(text)
    said = cli("check", tmp_path / "run.py", "--layers", 5, "--json").json
    assert (said["backend"], said["legal"], said["split"]) == ("torchtitan", True, [2, 2, 1])
    missing = cli("check", tmp_path / "run.py", "--layers", 6, "--json").json
    assert "1 layers not assigned" in missing["faults"][0]["rule"]


TOML = """[training]
local_batch_size = 8
global_batch_size = -1
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 3
"""


def test_minus_one_is_what_torchtitan_works_out_itself(cli, tmp_path: Path):
    (tmp_path / "run.toml").write_text(TOML)
    said = cli("check", tmp_path / "run.toml", "--layers", 32, "--gpus", 32, "--json").json
    assert (said["legal"], said["data"], said["chunks"]) == (True, 2, 3)
    assert said["split"] == [2, *[3] * 9, 2, 1]  # 34 of weight over 12 stages: ten of 3, two of 2


def test_files_of_two_frameworks_are_not_one_configuration(cli, tmp_path: Path):
    (tmp_path / "a.json").write_text('{"train_batch_size": 8, "pipeline": {"stages": 2}}')
    (tmp_path / "b.yaml").write_text("parallelism: {pp: 2, dp: 1}\ntokens: {micro_batch_size: 1}\n")
    ran = cli("check", tmp_path / "a.json", tmp_path / "b.yaml")
    assert ran.status == 2
    assert "a.json is DeepSpeed's" in ran.err
    assert "b.yaml is nanotron's" in ran.err


def test_a_file_without_a_flag_is_named(cli, tmp_path: Path):
    (tmp_path / "junk.sh").write_bytes(b"\xff\xfe\x00 nothing")
    ran = cli("check", tmp_path / "junk.sh")
    assert (ran.status, "junk.sh: no flag and no key was found in it" in ran.err) == (2, True)


def test_a_switch_is_told_by_its_own_name(cli):
    ran = cli("check", "--backend", "megatron", "-p", 2, "--overlap-param-gather-with-optimizer-step", "--json")
    assert ran.json["faults"][0]["key"] == "--overlap-param-gather-with-optimizer-step"


def test_a_split_that_deepspeed_cannot_be_told_is_a_warning(cli):
    ran = cli("check", "--backend", "deepspeed", "--layers", 30, "-p", 4, "--split", "10,8,8,4", "-m", 30)
    assert ran.status == 0
    assert "DeepSpeed deals layers by itself, as 8,8,7,7 or 7,8,8,7" in ran.out


def test_full_recompute_with_room_to_spare_is_a_warning(cli):
    what = ("--backend", "megatron", "--model", "llama3-8b", "--gpu", "h100", "--global-batch", 64)
    what += ("--recompute", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1)
    roomy = ("--gpus", 64, "--tensor", 8, "--pipeline", 8, "--micro-batch", 1, "--sequence", 4096)
    ran = cli("check", *what, *roomy)
    assert ran.status == 0
    assert "full recomputation with room to spare" in ran.out
    tight = cli("check", *what, "--gpus", 8, "--tensor", 1, "-p", 1, "--micro-batch", 8, "--sequence", 8192)
    assert "room to spare" not in tight.out


def test_the_idle_share_says_whether_it_is_a_formula_or_a_simulation_and_fits_the_terminal(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    flags = ("--layers", 64, "--pipeline", 8, "--microbatches")
    interleaved = ("--backend", "megatron", "--chunks", 4, *flags)
    exact, grouped = (cli("check", *interleaved, m) for m in (16, 20))
    assert "idle share 9.9 % of interleaved with even stages (exact)" in " ".join(exact.out.split())
    assert "idle share 8.0 % of interleaved with even stages (exact)" in " ".join(grouped.out.split())  # 7/(4 x 20 + 7)
    few = ("--backend", "torch", "--schedule", "ZBVZeroBubble", *flags, 10)  # its formula holds from 2p-1 on
    simulated = cli("check", *few)
    assert "with even stages (simulated)" in " ".join(simulated.out.split())
    assert max(map(len, exact.out.splitlines())) <= 80
