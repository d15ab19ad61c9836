"""``plan --emit``: each framework is given what ``check`` finds legal, and layouts that it can run."""

from pathlib import Path

import pytest

from planned import MODEL


@pytest.mark.parametrize("backend", ["megatron", "torchtitan", "torch", "deepspeed", "nemo", "nanotron"])
def test_emit_prints_what_check_finds_legal(cli, tmp_path: Path, backend):
    said = cli("plan", "--gpus", 8, *MODEL, "--pipeline", "2,4", "--emit", backend, "--json").json
    assert said["candidates"][0]["pipeline"] in (2, 4)
    suffix = {"megatron": ".sh", "deepspeed": ".json", "nanotron": ".yaml"}.get(backend, ".py")
    (tmp_path / f"made{suffix}").write_text(said["emit"])
    best = said["candidates"][said["emitted"] - 1]
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


def test_what_is_emitted_is_the_first_which_has_memory_to_spare(cli):
    args = ("plan", "--model", "llama3-70b", "--gpus", 64, "--gpu", "h100", "--global-batch", 512, "--sequence", 4096)
    said = cli(*args, "--emit", "megatron", "--json").json
    usable = 84.8e9  # 81,559 MiB that the driver shows, less 0.7 GB of the CUDA context
    chosen = said["candidates"][0]
    assert said["emitted"] == 1
    assert max(chosen["peak_bytes_by_rank"]) <= 0.9 * usable
    assert f"--pipeline-model-parallel-size {chosen['pipeline']}" in said["emit"]
    assert "\nMegatron-LM:\n" in cli(*args, "--emit", "megatron").out
