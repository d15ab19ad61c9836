"""Public reports that ``fit`` answers, by id: inputs and expectations are read from the case file."""

import pytest


@pytest.fixture
def table(tmp_path):
    """Write columns as a CSV."""

    def write(**columns):
        path = tmp_path / "steps.csv"
        rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(rows) + "\n")
        return path

    return write


def test_c02_12_s_of_a_step_do_not_scale_with_batch(cases, cli, table, near):
    given, want = cases["C02"]["inputs"], cases["C02"]["expect"]
    path = table(gbs=given["gbs"], sec=given["sec"])
    found = cli("fit", path, "-p", given["pp"], "--data", given["dp"], "--micro-batch", given["mbs"], "--json").json
    assert found["slot_ms"] == near(1e3 * want["slot_s"])
    assert found["intercept_ms"] == near(1e3 * want["intercept_s"])
    assert found["bubble_ms"] == near(1e3 * want["bubble_s"])
    assert found["fixed_ms"] == near(1e3 * want["fixed_s"])
    shares = {row["batch"]: row["bubble_share"] for row in found["rows"]}
    assert (shares[512], shares[2048]) == near((want["bubble_share_at_512"], want["bubble_share_at_2048"]))
    assert found["forecast"][-1]["step_ms"] == near(1e3 * want["holdout_2048_from_first3_s"], 1e-4)
    assert want["verdict"] in found["verdict"]
    assert found["model"] == "batch grows with micro-batches"


def test_c17_cost_per_micro_batch_dominates(cases, cli, table, near):
    given, want = cases["C17"]["inputs"], cases["C17"]["expect"]
    path = table(m=given["m"], sec=given["sec"])
    found = cli("fit", path, "-p", given["pp"], "--constant-batch", "--json").json
    assert found["slot_ms"] == near(1e3 * want["sec_per_microbatch"])
    assert found["fixed_ms"] == near(1e3 * want["fixed_s"])
    assert [gain["bubble_only_ratio"] for gain in found["gains"]] == near(want["bubble_only_gain"])
    assert [gain["measured_ratio"] for gain in found["gains"]] == near(want["measured_gain"])
    assert "cost per micro-batch dominates" in found["verdict"][0]
    assert "use fewer chunks" in found["verdict"][0]


def test_c11_activations_in_flight_grow_until_m_equals_p(cases, cli, table, near):
    given, want = cases["C11"]["inputs"], cases["C11"]["expect"]
    path = table(gas=given["gas"], gb=given["gb"])
    asked = ",".join(map(str, given["ask_gas"]))
    args = ("--forecast", asked, "--capacity", f"{given['capacity_gb']}GB", "--json")
    memory = (found := cli("fit", path, "-p", given["pp"], *args).json)["memory"]
    assert [*memory["in_flight"], *(row["in_flight"] for row in memory["forecast"])] == want["in_flight_stage0"]
    assert memory["bytes_per_in_flight"] == near(1e9 * want["gb_per_in_flight"])
    assert memory["base_bytes"] == near(1e9 * want["base_gb"])
    assert [row["peak_bytes"] / 1e9 for row in memory["forecast"]] == near(want["predicted_gb"])
    assert [not row["fits"] for row in memory["forecast"]] == want["oom"]
    assert "not a leak" in found["verdict"][0]


def test_c33_memory_that_grows_beyond_m_equal_p_is_a_bug(cases, cli, table):
    given, want = cases["C33"]["inputs"], cases["C33"]["expect"]
    found = cli("fit", table(m=given["m"], gb=given["peak_gb"]), "-p", given["pp"], "--json").json
    assert found["memory"]["in_flight"] == [8, 8, 8]
    assert found["memory"]["grows_beyond_in_flight"]
    assert "grows with m beyond p" in want["verdict"]
    assert "grows with m beyond p" in found["verdict"][0]


def test_people_get_a_table_and_a_verdict(cli, table):
    ran = cli("fit", table(m=[8, 16, 32], s=[1.1, 1.9, 3.5]), "-p", 4, "--forecast", 64)
    assert ran.status == 0
    assert "slot 100 ms" in ran.out
    assert "64 micro-batches: forecast 6.7 s" in ran.out


def test_a_log_with_timers_is_coarse_and_says_so(cli, tmp_path):
    lines = "elapsed time per iteration (ms): 2500 | global batch size: 64 |\n(min, max) time across ranks (ms):\n"
    (tmp_path / "log").write_text(lines + " forward-compute: (600.0, 700.0)\n backward-compute: (1200.0, 1300.0)\n")
    ran = cli("fit", tmp_path / "log", "-p", 4, "--data", 1, "--micro-batch", 8, "--json")
    assert ran.json["timers"]["idle_share_at_least"] == pytest.approx(1 - 2.0 / 2.5)
    assert "coarse" in ran.json["timers"]["evidence"]


@pytest.mark.parametrize(
    ("text", "args", "words"),
    [
        ("gbs,sec\n512,35\n", (), "give --data and --micro-batch"),
        ("gbs,sec\n512,35\n", ("--data", 3, "--micro-batch", 1), "do not divide"),
        ("m,s\n4,-1\n", (), "above 0"),
        ("m,s\n", (), "no step time"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(cli, tmp_path, text, args, words):
    (tmp_path / "f.csv").write_text(text)
    ran = cli("fit", tmp_path / "f.csv", "-p", 4, *args)
    assert ran.status == 2
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1
    assert "Traceback" not in ran.err
