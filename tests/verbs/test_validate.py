"""``validate``: keys of the contract, rows beside predictions, an empty set, and what it says of unknown columns."""

import csv
import json

import pytest

import debubble
from debubble.core.errors import InputError

HEAD = (
    "model,gpu,gpus,sequence,global_batch,micro_batch,tensor,pipeline,data,context,chunks,status,step_seconds,peak_gib"
)
ROWS = (
    "llama3-8b,H100,8,8192,128,1,1,1,8,1,1,ok,12.0,70",
    "llama3-8b,H100,8,8192,128,1,2,1,4,1,1,ok,12.5,55",
    "llama3-8b,H100,8,8192,128,8,1,1,8,1,1,oom,,",
    "llama3-8b,H900,8,8192,128,1,2,1,4,1,1,ok,12.5,",
)
CONTRACT = {
    *("name", "rows", "mape_percent", "mape_after_scale_percent", "calibrated_mape_percent", "spearman"),
    *("top1_regret_percent", "calibrated_top1_regret_percent", "constant_mfu_mape_percent"),
    *("memory_median_error_percent", "ran_rows", "ran_called_too_large_share", "out_of_memory_recall_share"),
    *("out_of_memory_precision_share", "interval_coverage_share", "left_out"),
}


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "ours.csv"
    path.write_text("\n".join([HEAD, *ROWS]))
    return path


def test_the_keys_of_the_contract(cli, runs):
    found = cli("validate", runs, "--json").json["sets"]
    assert len(found) == 1
    assert found[0].keys() >= CONTRACT, json.dumps(found)
    assert (found[0]["name"], found[0]["rows"], found[0]["ran_rows"]) == ("ours", 2, 2)
    assert found[0]["left_out"] == [{"reason": "gpu = H900 is not known", "rows": 1}]


def test_errors_are_those_of_the_rows_that_are_written_beside(tmp_path, runs):
    found = debubble.validate(runs, rows=tmp_path / "rows.csv").sets[0]
    with (tmp_path / "rows.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    errors = [abs(float(row["error_percent"])) for row in rows if row["step_seconds"]]
    assert len(rows) == 3
    assert found.mape_percent == pytest.approx(sum(errors) / len(errors), abs=0.01)
    peaks = [abs(float(row["predicted_peak_gib"]) / float(row["peak_gib"]) - 1) for row in rows if row["peak_gib"]]
    assert found.memory_median_error_percent == pytest.approx(100 * sum(peaks) / 2, abs=0.01)
    assert found.out_of_memory_rows == 1
    assert found.out_of_memory_recall_share == (float(rows[2]["predicted_peak_gib"]) * 2**30 > 80e9)


def test_each_file_is_a_set_and_a_folder_is_all_of_its_files(tmp_path, runs):
    (tmp_path / "theirs.csv").write_text("\n".join([HEAD, *ROWS[:2]]))
    assert [each.name for each in debubble.validate(tmp_path).sets] == ["ours", "theirs"]
    assert [each.name for each in debubble.validate(tmp_path / "theirs.csv", runs).sets] == ["theirs", "ours"]


def test_a_set_of_which_nothing_can_be_scored_is_a_line(cli, tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("\n".join([HEAD, ROWS[3]]))
    ran = cli("validate", path)
    assert ran.status == 0
    assert "empty: none of its rows can be scored" in ran.out
    scored = cli("validate", path, "--json").json["sets"][0]
    assert (scored["rows"], scored["mape_percent"], scored["ran_called_too_large_share"]) == (0, None, None)


def test_columns_that_mean_nothing_are_a_line(cli, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEAD},weather\n{ROWS[0]},fine\n")
    assert "columns that mean nothing here: weather" in cli("validate", path).out


def test_faults_of_all_tables_come_at_once(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"{HEAD}\n{ROWS[0].replace('8192', 'long')}\n")
    with pytest.raises(InputError) as caught:
        debubble.validate(tmp_path)
    assert [fault.value for fault in caught.value.faults] == [
        f"{n} line 2: sequence = long" for n in ("a.csv", "b.csv")
    ]


def test_a_folder_without_tables_is_one_line(cli, tmp_path):
    ran = cli("validate", tmp_path)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "it holds no CSV file" in ran.err


def test_the_same_as_markdown(cli, runs):
    assert "| ours | 2 | generic |" in cli("validate", runs, "--markdown").out
