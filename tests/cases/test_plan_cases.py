"""Cases of users that ``plan`` answers, by their id."""

import json

import pytest

from debubble.cli.main import main
from debubble.planning.batch import placed

AXES = {"dp": "data", "pp": "pipeline", "tp": "tensor"}


def planned(capsys, *args: object) -> dict:
    assert main(["plan", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def column(said: dict, key: str) -> list:
    return [row[key] for row in said["candidates"]]


def listed(values) -> str:
    return ",".join(map(str, values))


def test_c01_the_pipe_is_first_full_at_a_global_batch_of_192(cases, capsys, near):
    given, expect = cases["C01"]["inputs"], cases["C01"]["expect"]
    sizes = ("--gpus", given["gpus"], "--tensor", given["tp"], "--pipeline", given["pp"], "--micro-batch", given["mbs"])
    said = planned(capsys, *sizes, "--global-batch", listed(given["gbs"]))
    assert column(said, "data") == [expect["dp"]] * 6
    assert column(said, "microbatches") == expect["m"]
    assert column(said, "busy_share") == near(expect["busy"])
    assert column(said, "full_from_global_batch") == [expect["first_gbs_with_m_ge_p"]] * 6
    slots = column(said, "slots")
    assert slots[1] / slots[0] == near(expect["step_ratio_16_to_32"])
    assert said["verdict"][0].startswith("the pipe is first full at a global batch of 192")
    assert said["verdict"][0].endswith("(384 would count the micro-batch twice)")


def test_c05_a_larger_micro_batch_enlarges_the_bubble(cases, capsys, near):
    given, expect = cases["C05"]["inputs"], cases["C05"]["expect"]
    sizes = ("--data", given["dp"], "--pipeline", given["pp"], "--micro-batch", listed(given["mbs"]))
    said = planned(capsys, *sizes, "--global-batch", given["gbs"])
    assert column(said, "microbatches") == expect["m"]
    assert column(said, "idle_share") == near(expect["idle"])
    assert "a larger micro-batch at the same global batch enlarges the bubble" in said["verdict"]


def test_c10_four_gpus_do_the_work_of_two_without_accumulation(cases, capsys, near):
    given, expect = cases["C10"]["inputs"], cases["C10"]["expect"]
    said = planned(capsys, "--gpus", given["gpus"], "--pipeline", given["pp"], "--microbatches", listed(given["gas"]))
    assert column(said, "data") == [expect["dp"]] * 2
    assert column(said, "effective_gpus") == near(expect["effective_gpus"])
    assert column(said, "data")[0] == expect["samples_per_step_vs_1gpu"]
    verdict = " ".join(said["verdict"])
    assert "a step takes as long as on one rank that holds all stages, and trains 2 micro-batches" in verdict
    assert "raise accumulation" in verdict


def test_c14_batches_that_divide_are_candidates_and_the_others_are_rejected(cases, capsys):
    given, expect = cases["C14"]["inputs"], cases["C14"]["expect"]
    sizes = ("--gpus", given["gpus"], "--tensor", given["tp"], "--pipeline", given["pp"])
    said = planned(capsys, *sizes, "--global-batch", listed(given["gbs"]), "--micro-batch", listed(given["mbs"]))
    pairs = [[row["global_batch"], row["micro_batch"]] for row in said["candidates"]]
    assert sorted(pairs) == sorted(expect["valid"])
    refused = [[row["global_batch"], row["micro_batch"]] for row in said["rejected"]]
    assert sorted(refused) == sorted(expect["invalid"])
    assert all("does not divide" in row["reason"] for row in said["rejected"])


def test_c24_same_heaviest_stage_and_another_makespan(cases, capsys, near):
    given, expect = cases["C24"]["inputs"], cases["C24"]["expect"]
    weights, splits = listed(given["weights"]), [("--split", listed(s)) for s in given["options"].values()]
    sizes = ("--weights", weights, "--pipeline", given["parts"], "--microbatches", listed(given["m"]))
    said = planned(capsys, *sizes, *[word for pair in splits for word in pair])
    for name, split in given["options"].items():
        rows = [row for row in said["candidates"] if row["split"] == split]
        assert [row["heaviest"] for row in rows] == [expect["max"][name]] * 2
        assert [row["makespan"] for row in rows] == near(expect["makespan"][name])
        assert [row["empty_stage"] for row in rows] == [name == "a"] * 2
    assert said["candidates"][0]["split"] == given["options"]["b"]
    for many, best, worst in zip(given["m"], expect["makespan"]["b"], expect["makespan"]["c"], strict=True):
        sentence = next(one for one in said["verdict"] if one.startswith(f"{many} micro-batches"))
        assert sentence == (
            f"{many} micro-batches: 2,1,1,1 is best, {best:g}; 5 splits have the same heaviest stage, up to {worst:g}"
        )


def test_c25_a_tied_embedding_of_one_and_a_half_layers_takes_a_layer_off_both_ends(cases, capsys, near):
    given, expect = cases["C25"]["inputs"], cases["C25"]["expect"]
    embedding = given["embed_params"] / given["layer_params"]
    assert embedding == near(expect["embed_in_layers"])
    weights = f"{embedding},1*{given['layers']},{embedding}"
    sizes = ("--weights", weights, "--pipeline", given["pp"], "--microbatches", 32)
    said = planned(capsys, *sizes, "--split", "7,6,6,6,6,6,6,6,6,6,5,6")
    best, worse = said["candidates"][0], said["candidates"][-1]
    assert best["split"] == [6] * 12  # E + 5 layers, 6 x 10, 5 layers + E
    assert sum(best["split"]) == expect["unit_count"]
    assert [best["heaviest"], said["heaviest_at_least"]] == near([expect["heaviest_if_5_plus_embed"]] * 2)
    assert worse["heaviest"] == near(expect["heaviest_if_6_plus_embed"])


@pytest.mark.parametrize("number", [0, 1])
def test_c51_the_outermost_axis_crosses_nodes(cases, number):
    given, expect = cases["C51"]["inputs"], cases["C51"]["expect"]
    sizes = {"data": given["dp"], "pipeline": given["pp"], "tensor": given["tp"]}
    order = tuple(AXES[axis] for axis in given["orders"][number])
    found = placed(order, sizes, given["gpus_per_node"])
    assert found.cross_node == (AXES[expect["cross_node"][number]],)
    assert found.first_groups["data"] == tuple(expect["dp_groups_first"][number])
    assert found.first_groups["pipeline"] == tuple(expect["pp_pair_first"][number])


def test_c51_plan_puts_the_pipeline_outermost(cases, capsys):
    given = cases["C51"]["inputs"]
    sizes = ("--gpus", 16, "--nodes", given["nodes"], "--tensor", given["tp"], "--pipeline", given["pp"], "-m", 8)
    first = planned(capsys, *sizes)["placement"][0]
    assert (first["order"], first["cross_node"]) == (["pipeline", "data", "tensor"], ["pipeline"])
    words = ("--gpus", 16, "--nodes", given["nodes"], "--tensor", given["tp"], "--pipeline", given["pp"], "-m", 8)
    assert main(["plan", *map(str, words)]) == 0
    assert "the outermost axis crosses nodes: put the pipeline outermost" in capsys.readouterr().out


def test_c13_the_drop_from_8_to_16_ranks_is_bubble_at_m_32_and_half_is_idle_at_m_p_minus_1(cases, capsys, near):
    given, expect = cases["C13"]["inputs"], cases["C13"]["expect"]
    said = planned(capsys, "--gpus", 16, "--pipeline", listed(given["pp"]), "--microbatches", given["m"])
    busy = [row["busy_share"] for row in said["candidates"]]
    assert busy == near(expect["busy"])
    assert 1 - busy[1] / busy[0] == near(expect["predicted_drop"])
    for ranks in given["pp"]:
        said = planned(capsys, "--gpus", ranks, "--pipeline", ranks, "--microbatches", ranks - 1)
        assert column(said, "busy_share") == near([expect["busy_when_m_is_p_minus_1"]])


def test_c25_e_plus_5_then_ten_sixes_then_5_plus_e(cases, capsys):
    given, expect = cases["C25"]["inputs"], cases["C25"]["expect"]
    embedding = given["embed_params"] / given["layer_params"]
    sizes = ("--weights", f"{embedding},1*{given['layers']},{embedding}", "--pipeline", given["pp"], "-m", 32)
    said = planned(capsys, *sizes)
    held = said["candidates"][0]["split"]
    layers = [held[0] - 1, *held[1:-1], held[-1] - 1]  # the ends' first and last block are the embedding
    assert f"E+{layers[0]}, {layers[1]} x{len(layers) - 2}, {layers[-1]}+E" == expect["split"]
