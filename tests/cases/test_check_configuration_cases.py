"""Cases of users that ``check`` answers for configurations of frameworks, by their id."""

import json

import pytest

from debubble.cli.main import main


def checked(capsys, *args: object) -> tuple[int, dict]:
    status = main(["check", *map(str, args), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_c14_a_micro_batch_of_8_is_valid_and_5_is_not(cases, capsys):
    given, expect = cases["C14"]["inputs"], cases["C14"]["expect"]
    flags = ("--backend", "megatron", "--gpus", given["gpus"], "--tensor", given["tp"], "--pipeline", given["pp"])
    for legal, pairs in ((True, expect["valid"]), (False, expect["invalid"])):
        for batch, size in pairs:
            status, said = checked(capsys, *flags, "--global-batch", batch, "--micro-batch", size)
            assert (status == 0, said["legal"], said["data"]) == (legal, legal, expect["dp"])


def test_c22_two_layers_not_assigned_and_heavy_stages_first(cases, capsys, near):
    given, expect = cases["C22"]["inputs"], cases["C22"]["expect"]
    split = ",".join(map(str, given["stage_layers"]))
    sizes = ("--backend", "torch", "--layers", given["layers"], "--pipeline", given["pp"], "-m", given["m"])
    status, said = checked(capsys, *sizes, "--split", split)
    assert status == 1
    assert expect["error"] in said["faults"][0]["rule"]
    assert "8,8,7,7 (takes 84 times" in said["faults"][0]["remedy"]
    status, said = checked(capsys, *sizes, "--split", "8,8,7,7")
    assert (status, said["balance"]) == (0, near(expect["balance"]))


def test_c22_makespans_of_each_split(cases, near):
    from debubble.planning.splits import judged

    given, expect = cases["C22"]["inputs"], cases["C22"]["expect"]
    for text, makespan in expect["makespan_layer_units"].items():
        split = tuple(map(int, text.split(",")))
        assert judged(split, [1.0] * given["layers"], given["m"]).makespan == near(makespan)


def test_c24_an_empty_stage_is_an_error(capsys):
    status, said = checked(capsys, "--backend", "torch", "-p", 4, "--layers", 5, "--split", "2,2,1,0", "-m", 8)
    assert status == 1
    assert "empty stage" in said["faults"][0]["rule"]
    assert "2,1,1,1" in said["faults"][0]["remedy"]


@pytest.mark.parametrize("number", range(3))
def test_c27_what_each_published_layout_means(cases, capsys, number):
    given, expect = cases["C27"]["inputs"][number], cases["C27"]["expect"][number]
    _, said = checked(capsys, given["layout"], "--backend", "megatron", "--pipeline", given["pp"])
    assert expect.items() <= said["layout"].items()


@pytest.mark.parametrize(
    ("number", "rules"),
    [
        (0, []),
        (1, ["exactly one L, and it comes last; here are 4", "all 3 m share one stage; here they are in 3"]),
        (2, []),
    ],
)
def test_c27_which_published_layouts_megatron_takes(cases, capsys, number, rules):
    given = cases["C27"]["inputs"][number]
    status, said = checked(capsys, given["layout"], "--pipeline", given["pp"])
    assert (status, said["backend"]) == (1 if rules else 0, "megatron")
    told = [fault["rule"] for fault in said["faults"]]
    assert all(rule in told for rule in rules)
    assert bool(told) == bool(rules)


def test_c34_fewer_micro_batches_than_ranks_leave_no_group_size(cases, capsys):
    given, expect = cases["C34"]["inputs"], cases["C34"]["expect"]
    status, said = checked(
        capsys, "--backend", given["backend"], "-p", given["pp"], "--chunks", given["vpp"], "-m", given["m"]
    )
    assert status == 1
    fault = said["faults"][0]
    assert fault["rule"].startswith("m < PP")
    offers = {(one["key"], one["value"]) for one in fault["alternatives"]}
    assert ("micro-batches", expect["min_m"]) in offers
    assert ("--pipeline-model-parallel-size", 3) in offers
    assert "double the global batch, or halve the micro-batch" in fault["remedy"]
    flags = ("--backend", given["backend"], "-p", given["pp"], "--chunks", given["vpp"], "-m")
    legal = [many for many in range(1, 25) if checked(capsys, *flags, many)[0] == 0]
    assert legal == [many for many in range(1, 25) if many % expect["m_multiple_of"] == 0]


def test_c34_where_the_batch_is_given_its_fixes_are_numbers(capsys):
    flags = ("--backend", "megatron", "-p", 6, "--chunks", 2, "--data", 4, "--micro-batch", 2, "--global-batch", 24)
    _, said = checked(capsys, *flags)
    offers = {(one["key"], one["value"]) for one in said["faults"][0]["alternatives"]}
    assert {("--global-batch-size", 48), ("--micro-batch-size", 1), ("--pipeline-model-parallel-size", 3)} <= offers


def test_c35_a_multiple_of_pp_not_of_pp_x_vpp(cases, capsys, near):
    given, expect = cases["C35"]["inputs"], cases["C35"]["expect"]
    for many, legal in zip(given["m"], expect["legal"], strict=True):
        flags = ("--backend", given["backend"], "-p", given["pp"], "--chunks", given["vpp"], "-m", many)
        status, said = checked(capsys, *flags)
        assert said["legal"] is legal
        assert status == (0 if legal else 1)
        if legal:
            assert said["idle_share"] == near(expect["idle_legal"][many])
        else:
            assert "they are a multiple of the ranks, chunks do not matter" in said["faults"][0]["rule"]


def test_c37_a_batch_of_8_in_3_micro_batches_is_cut_unequally(cases, capsys):
    given, expect = cases["C37"]["inputs"], cases["C37"]["expect"]
    for backend in ("torch", "torchtitan"):
        _, said = checked(
            capsys, "--backend", backend, "-p", 2, "-m", given["m"], "--batch", given["batch"], "--schedule", "GPipe"
        )
        fault = next(fault for fault in said["faults"] if "falls into" in fault["rule"])
        assert ", ".join(map(str, expect["chunks"])) in fault["rule"]
        assert {one["value"] for one in fault["alternatives"]} & set(expect["legal_m"]) == {2, 4}
    for many in range(1, 9):
        flags = ("--backend", "torch", "-p", 1, "-m", many, "--batch", given["batch"], "--schedule", "GPipe")
        assert (checked(capsys, *flags)[0] == 0) == (many in expect["legal_m"])
