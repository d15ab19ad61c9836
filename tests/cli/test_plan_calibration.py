"""``plan --calibrate`` by tables and by logs of steps: used, said and saved."""

from pathlib import Path

import pytest

from planned import MODEL


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
