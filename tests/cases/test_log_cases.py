"""Logs that were read wrong once, with the right answer; each stands for its kind."""

import pytest


def log(shared, name):
    return shared / "cases" / "failing" / name


def test_a_slow_phase_counts_and_the_gate_sees_it(cli, shared):
    """Steps 2 to 11 take 1,200 and 1,450 ms in the mean: B has .828 of A's throughput."""
    sizes = ("--ranks", 4, "--data", 1, "--micro-batch", 1)
    ran = cli("why", log(shared, "phases-a.log"), log(shared, "phases-b.log"), *sizes, "--gate", "3%", "--json")
    assert ran.status == 1
    assert ran.json["throughput_ratio"] == pytest.approx(1200 / 1450, rel=1e-6)


def test_steps_that_grow_are_said_first_and_no_fit_is_given(cli, shared):
    sizes = ("-p", 2, "--data", 1, "--micro-batch", 1)
    found = cli("fit", log(shared, "growing-steps.log"), *sizes, "--json").json
    assert found["verdict"][0].startswith("steps grow from 11.08 s to 25.34 s over steps 1 to 25: no fit holds")
    assert [found[key] for key in ("slot_ms", "bubble_ms", "fixed_ms", "evidence")] == [None] * 4
    (phase,) = found["phases"]
    assert (phase["first_step"], phase["last_step"]) == (1, 25)


@pytest.mark.parametrize("verb", ["fit", "why"])
def test_a_table_without_a_finite_step_is_one_line(cli, shared, verb):
    path = log(shared, "no-finite-step.csv")
    ran = cli(verb, path, *([path] if verb == "why" else []), "--ranks", 4)
    assert (ran.status, ran.out) == (2, "")
    assert all("none of its rows has a step time" in line for line in ran.err.splitlines())


@pytest.mark.parametrize(
    ("name", "seconds"), [("nanotron.log", 11.5), ("titan.log", 0.298), ("nemo.log", 26.7), ("neox.log", 87.5)]
)
def test_logs_of_every_framework_are_read(cli, shared, name, seconds):
    found = cli("fit", log(shared, name), "-p", 4, "--json").json
    assert found["step_ms"] == pytest.approx(1000 * seconds, rel=0.01)
    assert found["slot_ms"] is None  # without micro-batches there is no line
    both = cli("why", log(shared, name), log(shared, name), "--json").json
    assert both["throughput_ratio"] == pytest.approx(1)
