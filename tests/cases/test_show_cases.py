"""Public reports that ``show`` answers, by id: inputs and expectations are read from the case file."""

import pytest


@pytest.fixture
def show(cli):
    """The JSON of ``show``; options by name, lists with commas."""

    def run(schedule: str, **options) -> dict:
        args = []
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            args += [flag] if value is True else [flag, ",".join(map(str, value)) if isinstance(value, list) else value]
        ran = cli("show", schedule, "--json", *args)
        assert ran.status == 0, ran.err
        return ran.json | {"stderr": ran.err}

    return run


def test_c06_slots_useful_and_both_bubbles_of_pp4_m8(cases, show, near):
    given, expect = cases["C06"]["inputs"], cases["C06"]["expect"]
    shown = show("1f1b", ranks=given["pp"], microbatches=given["m"], forward=1, backward=1)
    assert shown["makespan_ms"] == expect["slots"]
    assert {row["compute_ms"] for row in shown["per_rank"]} == {expect["useful"]}
    assert shown["idle_share"] == near(expect["idle"])
    assert shown["bubble_ratio"] == near(expect["overhead"])


def test_c08_one_micro_batch_on_eight_ranks_runs_and_warns(cases, show, near):
    given, expect = cases["C08"]["inputs"], cases["C08"]["expect"]
    shown = show(given["schedule"], ranks=given["pp"], microbatches=given["m"], forward=given["F"], backward=given["B"])
    assert not expect["deadlock"]  # it came back
    assert shown["makespan_ms"] == expect["makespan"]
    assert shown["idle_share"] == near(expect["idle"])
    assert expect["warning"] in shown["stderr"]
    assert expect["warning"] in shown["warnings"][0]


def test_c09_idle_share_and_overhead_are_two_numbers(cases, show, near):
    shown = [show("1f1b", ranks=case["pp"], microbatches=case["m"]) for case in cases["C09"]["inputs"]]
    assert [one["idle_share"] for one in shown] == near(cases["C09"]["expect"]["idle"])
    assert [one["bubble_ratio"] for one in shown] == near(cases["C09"]["expect"]["overhead"])


def test_c18_inference_without_backwards(cases, show, near):
    given = cases["C18"]["inputs"]
    shown = [show("gpipe", ranks=given["p"], microbatches=m, forward_only=given["forward_only"]) for m in given["m"]]
    assert [1 - one["idle_share"] for one in shown] == near(cases["C18"]["expect"]["busy"])


def test_c22_heavy_stages_first(cases, show, near):
    given, expect = cases["C22"]["inputs"], cases["C22"]["expect"]["makespan_layer_units"]
    found = {
        layers: show("1f1b", ranks=given["pp"], microbatches=given["m"], stage_scale=layers)["makespan_ms"] / 3
        for layers in expect  # a layer takes 1 ms forward and 2 ms back: 3 ms
    }
    assert found == {layers: near(units) for layers, units in expect.items()}
    assert list(found.values()) == sorted(found.values())


@pytest.mark.parametrize("option", ["a", "b", "c"])
def test_c24_same_heaviest_stage_but_another_makespan(cases, show, near, option):
    given, expect = cases["C24"]["inputs"], cases["C24"]["expect"]
    found = [
        show("1f1b", ranks=given["parts"], microbatches=m, stage_scale=given["options"][option])["makespan_ms"] / 3
        for m in given["m"]
    ]
    assert found == near(expect["makespan"][option])


def test_c29_micro_batches_in_flight(cases, show):
    shown = [show(g["schedule"], ranks=g["pp"], microbatches=g["m"]) for g in cases["C29"]["inputs"]]
    held = [[row["peak_activations"] for row in one["per_rank"]] for one in shown]
    assert held == cases["C29"]["expect"]["in_flight"]


def test_c31_interleaving_holds_more_than_1f1b(cases, show, near):
    p, chunks = cases["C31"]["inputs"]["pp"], cases["C31"]["inputs"]["v"]
    plain = show("1f1b", ranks=p, microbatches=4 * p)["per_rank"][0]["peak_activations"]
    held = [
        show("interleaved", ranks=p, microbatches=4 * p, chunks=v)["per_rank"][0]["peak_activations"]
        for v in chunks
        if v > 1  # v = 1 means plain 1F1B
    ]
    assert [1.0, *(most / plain for most in held)] == near(cases["C31"]["expect"]["activation_factor_vs_1f1b"])


def test_c32_a_v_holds_the_parameters_of_as_many_devices_and_twice_those_of_as_many_stages(cases, show):
    given, expect = cases["C32"]["inputs"], cases["C32"]["expect"]
    devices, stages = given["devices"], given["stages"]
    v, same_devices, same_stages = (
        show(name, ranks=p, microbatches=4 * devices)
        for name, p in (("dualpipe-v", devices), ("1f1b", devices), ("1f1b", stages))
    )
    held = {id(one): 1 / one["ranks"] for one in (v, same_devices, same_stages)}  # of the model, on each rank
    assert v["stages"] == stages
    assert held[id(v)] / held[id(same_devices)] == expect["params_per_device_same_devices"]
    assert held[id(v)] / held[id(same_stages)] == expect["params_per_device_same_stages"]


def test_c40_idle_share_of_1f1b_with_thirds(cases, show, near):
    given = cases["C40"]["inputs"]
    times = {"forward": given["F"], "input": given["B_input"], "weight": given["W"]}
    shown = show("1f1b", ranks=given["pp"], microbatches=given["m"], **times)
    assert shown["idle_share"] == near(cases["C40"]["expect"]["idle_1f1b"])


def test_c44_zb_h1_loses_the_same_under_both_meanings_of_b(cases, show, near):
    given, expect = cases["C44"]["inputs"], cases["C44"]["expect"]
    times = {"forward": given["F"], "input": given["B_input"], "weight": given["W"]}
    shown = show("zb-h1", ranks=given["pp"], microbatches=2 * given["pp"], **times)
    (lost,) = {shown["makespan_ms"] - row["compute_ms"] for row in shown["per_rank"]}
    assert lost == near(expect["zb_h1_paper"])
    assert lost == near(expect["zb1p_report"])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_c47_a_claimed_makespan_below_the_bound_is_impossible(cases, show, near, schedule):
    given, expect = cases["C47"]["inputs"], cases["C47"]["expect"]
    shown = show(schedule, ranks=given["pp"], microbatches=given["m"], forward=given["F"], backward=given["B"])
    assert shown["lower_bound_ms"] == expect["lower_bound"]
    assert (given["claimed_makespan"][schedule] >= shown["lower_bound_ms"]) == expect["possible"][schedule]
    assert shown["idle_share"] == near(expect["idle_both"])
    assert shown["per_rank"][0]["peak_activations"] == expect["in_flight_stage0"][schedule]


def test_c50_two_repeats_on_four_ranks(cases, show, near):
    given = cases["C50"]["inputs"]
    shown = show("interleaved", ranks=given["pp"], chunks=given["repeats"], microbatches=given["m"])
    assert shown["idle_share"] == near(cases["C50"]["expect"]["idle_bubble"])


@pytest.mark.parametrize("m", [8, 32, 128])
def test_c53_one_slow_stage_costs_more_the_more_micro_batches_there_are(cases, show, near, m):
    given, expect = cases["C53"]["inputs"], cases["C53"]["expect"]["slowdown"]
    even = show(given["schedule"], ranks=given["pp"], microbatches=m)["makespan_ms"]

    def slowed(stage: int) -> float:
        scale = [given["factor"] if s == stage else 1 for s in range(given["pp"])]
        return show(given["schedule"], ranks=given["pp"], microbatches=m, stage_scale=scale)["makespan_ms"] / even

    assert [slowed(stage) for stage in given["slow_stage"]] == near(expect[m])
