"""``diagnose``: keys that scripts rely on, sums that are exact, and recordings that are broken."""

import shutil
from pathlib import Path

import pytest

from debubble.diagnosis.order import recognise
from debubble.readers.recording import read_recording
from debubble.readers.torch_csv import read as read_csv

RECORDING = Path(__file__).resolve().parents[2] / "examples" / "four-to-eight" / "recordings" / "eight"
KEYS = {
    "source", "steps", "ranks", "schedule", "makespan_ms", "idle_share", "bubble_ratio", "evidence", "per_rank",
    "causes", "resim_ratio", "replicas", "matched_share", "clock_uncertainty_ms", "outside_ms", "step_ms",
    "pooled_idle_share", "findings", "what_if", "verdict", "worst", "heat", "transfers", "receive_waiting_share",
}  # fmt: skip
PARTS = ("compute_ms", "warm_up_ms", "waiting_ms", "transfer_ms", "cool_down_ms")


@pytest.fixture
def broken(tmp_path):
    """A copy of the recording whose rank 2 a function has spoilt."""

    def spoil(how) -> Path:
        folder = tmp_path / "eight"
        shutil.copytree(RECORDING, folder)
        file = folder / "rank-00002.msgpack"
        file.chmod(0o600)
        file.write_bytes(how(file.read_bytes()))
        return folder

    return spoil


def test_json_has_the_keys_of_the_design_and_says_what_ran(cli):
    found = cli("diagnose", RECORDING, "--json").json
    assert set(found) >= KEYS
    assert (found["schedule"], found["ranks"], found["microbatches"], found["replicas"]) == ("1f1b", 4, 4, 2)
    assert (found["evidence"], found["paced"]) == ("measured", True)
    assert found["idle_share_min"] <= found["idle_share"] <= found["idle_share_max"]


def test_causes_and_the_parts_of_each_rank_sum_to_the_window(cli):
    found = cli("diagnose", RECORDING, "--json").json
    assert sum(cause["cost_ms"] for cause in found["causes"]) == pytest.approx(found["makespan_ms"], abs=1e-6)
    assert sum(cause["cost_share"] for cause in found["causes"]) == pytest.approx(1)
    for row in found["per_rank"]:
        assert sum(row[part] for part in PARTS) == pytest.approx(found["makespan_ms"], abs=1e-6)


def test_the_hop_that_was_put_on_each_arrival_is_found_ten_times(cli):
    """1F1B with 4 ranks and 4 micro-batches has 10 asynchronous hops on its longest path (case C12b)."""
    causes = {cause["cause"]: cause["cost_ms"] for cause in cli("diagnose", RECORDING, "--json").json["causes"]}
    assert causes["transfer"] == pytest.approx(10 * read_recording(RECORDING).hop_ns / 1e6, rel=0.2)


def test_a_person_sees_the_answer_the_picture_and_the_next_step_in_80_columns(cli):
    out = cli("diagnose", RECORDING).out
    words = " ".join(out.split())
    for said in ("1f1b, 4 ranks x 4 micro-batches, 2 replicas", "(measured)", "Why", "When", "Next:", "rank 3"):
        assert said in words
    assert max(map(len, out.splitlines())) <= 80


def test_a_letters_only_terminal_gets_letters(cli):
    assert cli("diagnose", RECORDING, "--ascii").out.isascii()


def test_a_perfetto_file_is_written_and_said(cli, tmp_path):
    ran = cli("diagnose", RECORDING, "--perfetto", tmp_path / "eight.json.gz")
    assert (tmp_path / "eight.json.gz").stat().st_size > 100
    assert "wrote" in ran.err


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda raw: raw[: len(raw) // 2], "cut or damaged"),
        (lambda raw: raw.replace(b"\xa7version\x01", b"\xa7version\x63"), "version 99"),
        (lambda raw: b"", "cut or damaged"),
    ],
)
def test_a_broken_file_costs_its_replica_and_the_last_one_is_one_line_that_names_it(cli, broken, how, said):
    folder = broken(how)
    found = cli("diagnose", folder, "--json")
    assert (found.status, found.json["replicas"]) == (0, 1)
    assert any("rank-00002.msgpack" in line and said in line for line in found.json["remarks"])
    for rank in (4, 5, 6, 7):
        (folder / f"rank-{rank:05}.msgpack").unlink()
    for ran in (cli("diagnose", folder), cli("why", RECORDING, folder)):
        assert (ran.status, ran.out) == (2, "")
        (line,) = ran.err.splitlines()
        assert "rank-00002.msgpack" in line
        assert said in line


def test_replicas_stand_side_by_side_and_the_worst_is_shown(cli):
    found = cli("diagnose", RECORDING, "--json").json
    assert [(row["replica"], len(row["stage_ms"])) for row in found["heat"]] == [(0, 4), (1, 4)]
    slowest = max(found["heat"], key=lambda row: row["makespan_ms"])
    assert found["worst"]["replica"] == slowest["replica"]
    assert "Replicas x stages" in cli("diagnose", RECORDING).out


def test_the_order_that_ran_is_written_for_torch_and_reads_back_as_the_same(cli, tmp_path):
    ran = cli("diagnose", RECORDING, "--torch-csv", tmp_path / "order.csv", "--json")
    assert "wrote" in ran.err
    shown = cli("show", tmp_path / "order.csv", "--json").json
    assert (shown["ranks"], shown["microbatches"]) == (ran.json["ranks"], ran.json["microbatches"])
    assert recognise(read_csv(tmp_path / "order.csv")).name == "1f1b"


def test_an_order_that_was_not_asked_for_is_a_finding_and_a_schedule_that_does_not_exist_a_fault(cli):
    found = cli("diagnose", RECORDING, "--expect", "gpipe", "--json").json["findings"]
    assert any(each["finding"] == "gpipe was asked for, and the order shows 1f1b" for each in found)
    ran = cli("diagnose", RECORDING, "--expect", "1f1c")
    assert (ran.status, len(ran.err.splitlines())) == (2, 1)
    assert "did you mean 1f1b" in ran.err


def test_what_cannot_be_done_is_never_the_next_step(cli):
    found = cli("diagnose", RECORDING, "--json").json
    assert {each["change"] for each in found["what_if"] if each["bound"]} >= {"free transfers"}
    (said,) = [line for line in found["verdict"] if line.startswith("Next: ")]
    best = next(each for each in found["what_if"] if not (each["bound"] or each["demands"]))
    assert said.startswith(f"Next: {best['change']}, {best['speedup']:.2f} times")


def test_the_next_step_keeps_batch_weights_and_engine_and_what_brings_more_says_what_it_asks_for(cli):
    found = cli("diagnose", RECORDING, "--json").json
    demands = {each["change"]: each["demands"] for each in found["what_if"]}
    assert demands["chimera"][0] == "a GPU holds two copies of its weights"
    assert demands["chimera"][1].startswith("another engine than torch runs it: ")
    assert demands["16 micro-batches"] == ["the batch is 4 x as large"]
    said = [line for line in found["verdict"] if line.startswith(("Next: ", "More: "))]
    assert [line[:4] for line in said] == ["Next", "More"]
    assert not any(name in said[0] for name in ("chimera", "dualpipe", "micro-batches"))
    assert said[1].endswith("(simulated), if the batch is 4 x as large.")


def test_nothing_there_is_one_line(cli, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        ran = cli("diagnose", path)
        assert (ran.status, len(ran.err.splitlines())) == (2, 1)


def test_a_gate_on_the_idle_share_and_on_the_schedule_sets_the_status(cli):
    idle = cli("diagnose", RECORDING, "--json").json["idle_share"]
    below, above = (f"{100 * idle + off:.1f}%" for off in (-1, 1))
    assert [cli("diagnose", RECORDING, "--gate", limit).status for limit in (below, above)] == [1, 0]
    ran = cli("diagnose", RECORDING, "--gate", below, "--expect", "gpipe", "--json")
    assert ran.status == 1
    gate = ran.json["gate"]
    assert (gate["passed"], gate["idle_share"], len(gate["reasons"])) == (False, idle, 2)
    assert gate["limit_share"] == pytest.approx(float(below[:-1]) / 100)
    assert cli("diagnose", RECORDING, "--expect", "1f1b", "--strict").status == 0
