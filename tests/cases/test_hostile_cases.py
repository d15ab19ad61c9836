"""Inputs beside the project that once crashed or hung: one line in bounded time, or the rest's answer."""

import json
import signal

import pytest

from debubble.cli.main import main

SECONDS = 20
REFUSED = {
    "column-twice.parquet": (["diagnose", "FILE"], "several columns have this name"),
    "text-where-number.config.json": (["plan", "--model", "FILE"], "intermediate_size = 'auto'"),
    "huge-layers.config.json": (["plan", "--model", "FILE"], "num_hidden_layers = 1000000000"),
    "list-aliases.yaml": (["check", "FILE"], "more than 100,000 keys"),
    "huge-microbatch.csv": (["check", "FILE"], "this is no cell"),
    "no-finite-step.csv": (["fit", "FILE", "-p", "4", "--data", "1", "--micro-batch", "1"], ""),
}
PLAN = ["--gpu", "h100", "--gpus", "8", "--global-batch", "32"]


@pytest.fixture(autouse=True)
def bounded():
    """A hang ends the test."""

    def stop(*_):
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(6 * SECONDS)  # a machine that others use too may be several times slower
    yield
    signal.alarm(0)


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_a_line(shared, capsys, name):
    words, said = REFUSED[name]
    file = str(shared / "cases" / "failing" / name)
    words = [file if word == "FILE" else word for word in words]
    assert main([*words, *(PLAN if words[0] == "plan" else [])]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "fault of debubble" not in err
    assert all(line.startswith("debubble: ") for line in err.splitlines())


@pytest.mark.parametrize("name", ["kineto-basetime", "huge-microbatch.csv"])
def test_costs_its_rank_or_its_row_and_no_more(shared, capsys, name):
    assert main(["diagnose", str(shared / "cases" / "failing" / name), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["idle_share"] < 1
    assert any("rank2.json" in remark or "left out" in remark for remark in found["remarks"])


def test_a_rank_without_ops_is_drawn_as_it_is_proven(shared, capsys):
    file = str(shared / "cases" / "failing" / "blank-row.torch.csv")
    assert main(["check", file]) == 0
    capsys.readouterr()
    assert main(["show", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 3
