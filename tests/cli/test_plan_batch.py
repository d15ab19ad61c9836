"""``plan`` by the batch: how it is divided, how it grows, and what micro-batches do to the idle share."""

from pathlib import Path

import pytest

from planned import MODEL


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


def test_a_job_file_asks_for_its_devices_and_batch(cli):
    """The founding case: at eight's batch of 8, two ranks of a pipeline idle far less than its four."""
    job = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "eight.toml"
    rows = cli("plan", job, "--json").json["candidates"]
    assert [(row["pipeline"], row["microbatches"]) for row in rows] == [(1, 1), (2, 2), (4, 4), (8, 8)]
    assert [row["idle_share"] for row in rows] == pytest.approx([0, 1 / 3, 3 / 7, 7 / 15])


def test_a_batch_that_cannot_be_divided_exits_1_with_the_nearest_that_can(cli):
    ran = cli(
        "plan", "--gpus", 16, "--model", "llama3-8b", "--gpu", "h100", "--global-batch", 30, "--tensor", 1, "-p", 1
    )
    assert ran.status == 1
    assert "nearest 16 or 32" in ran.err
    ran = cli("plan", "--gpus", 16, "-p", 4, "--global-batch", 30)
    assert ran.status == 1
    assert "nearest 28 or 32" in ran.out


def test_ranks_that_do_not_fit_the_devices_name_those_that_do(cli):
    ran = cli("plan", "--gpus", 8, "-p", 3, "-m", 3)
    assert ran.status == 1
    assert "nearest 6 or 9 GPUs, or pipeline 2 or 4" in ran.out


def test_the_micro_batches_for_10_percent_are_those_of_the_schedule(cli):
    rows = cli("plan", "--gpus", 4, "-p", 4, "-m", 8, "--schedule", "zb-h1", "--json").json["candidates"]
    assert rows[0]["microbatches_for_10_percent"] == 9
    rows = cli("plan", "--gpus", 4, "-p", 4, "-m", 8, "--schedule", "zb-v", "--json").json["candidates"]
    assert rows[0]["chunks"] == 2
