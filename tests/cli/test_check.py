"""``check``: what it prints and how it exits, for files that are legal, broken, or stuck."""

import json
from pathlib import Path

import pytest

from debubble.cli.main import main
from debubble.core.lower import lower
from debubble.core.schedule import Shape
from debubble.readers import torch_csv
from debubble.schedules.catalog import CATALOG, build

# Out of order on purpose: rank 0 sends before it receives, and so does rank 1.
MEETING = ["0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1", "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1"]


def csv_file(folder: Path, *rows: str) -> str:
    path = folder / "order.csv"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def checked(capsys, *args: str) -> tuple[int, dict]:
    status = main(["check", *args, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_legal_file_says_so_and_exits_0(tmp_path, capsys):
    status, said = checked(capsys, csv_file(tmp_path, "0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"))
    assert (status, said["legal"], said["faults"]) == (0, True, [])
    assert said["deadlocks"] == {"async": None, "rendezvous": None}
    assert (said["ranks"], said["stages"], said["microbatches"]) == (2, 2, 2)


def test_every_fault_of_a_broken_file_has_rank_position_rule_and_remedy(tmp_path, capsys):
    status, said = checked(capsys, csv_file(tmp_path, "0F0,0B0,0F1,0F1,0B1", "1B0,1F0,1F1,1B1,1W1"))
    assert status == 1
    assert said["faults"] == [
        {
            "key": "rank 0 position 3",
            "value": "0F1",
            "rule": "0F1 repeats 0F1, which already ran",
            "remedy": "leave it out",
        },
        {
            "key": "rank 1 position 4",
            "value": "1W1",
            "rule": "1W1 repeats 1B1, which holds W",
            "remedy": "leave it out, or split 1B1 into I and W",
        },
    ]


def test_a_deadlock_of_computations_prints_its_circle(tmp_path, capsys):
    status, said = checked(capsys, csv_file(tmp_path, "0F0,0B0,0F1,0B1", "1F1,1B1,1F0,1B0"))
    assert status == 1
    assert said["deadlocks"]["async"]["cycle"] == ["0B0", "1F1"]
    assert said["deadlocks"]["async"]["waits"][0] == {
        "rank": 0,
        "position": 1,
        "sentence": "0B0 waits for 1B0 on rank 1 for ever",
    }


def test_a_deadlock_by_rendezvous_alone_prints_who_waits(tmp_path, capsys):
    status = main(["check", csv_file(tmp_path, *MEETING)])
    text = capsys.readouterr().out
    assert status == 1
    assert "S 0F1 (rank 0) -> S 1F0 (rank 1)" in text
    assert "rank 0 position 3: S 0F1 waits for R 0F1 on rank 1 for ever" in text


def test_only_the_ways_of_sending_that_are_asked_for_are_tried(tmp_path, capsys):
    status, said = checked(capsys, csv_file(tmp_path, *MEETING), "--sends", "async", "--sends", "blocking")
    assert (status, said["deadlocks"]) == (0, {"async": None, "blocking": None})


def test_receives_in_another_order_than_the_sends_are_a_fault(tmp_path, capsys):
    rows = ["0F0,0SEND_F0,0F1,0SEND_F1", "1RECV_F1,1RECV_F0,1F0,1F1"]
    status, said = checked(capsys, csv_file(tmp_path, *rows))
    assert status == 1
    assert said["faults"][0]["rule"] == "receives 0F1 when rank 0 sends 0F0: they are matched first in, first out"
    assert [fault["key"] for fault in said["faults"]] == ["rank 1 position 0", "rank 1 position 1"]


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (("0F0,0SEND_F0", "1F0"), "never receives the input of 1F0 from rank 0"),
        (("0F0", "1RECV_F0,1F0"), "never sends the output of 0F0 to rank 1"),
        (("0SEND_F0,0F0", "1RECV_F0,1F0"), "sends the output of 0F0 before it is made"),
        (("0F0,0SEND_F0", "1F0,1RECV_F0"), "receives the input of 1F0 after it was needed"),
        (("0F0,0SEND_F0,0SEND_F0", "1RECV_F0,1F0"), "sends the output of 0F0 a second time"),
        (("0F0,0SEND_F0,1RECV_F0", "1RECV_F0,1F0"), "receives the input of 1F0 from rank 0 here"),
        (("0F0,1F0,0SEND_F0,1SEND_F0", "2RECV_F0,2F0"), "sends the output of 0F0, which no transfer carries"),
    ],
)
def test_each_law_of_sends_and_receives(rows, rule, tmp_path, capsys):
    status, said = checked(capsys, csv_file(tmp_path, *rows))
    assert (status, [fault["rule"] for fault in said["faults"]]) == (1, [rule])


def test_forwards_out_of_order_on_the_last_stage_are_warned_of(tmp_path, capsys):
    status, said = checked(capsys, csv_file(tmp_path, "0F1,0F0,0B1,0B0", "1F1,1F0,1B1,1B0"))
    assert status == 0
    assert "out of order" in said["warnings"][-1]


def test_cells_that_are_none_are_bad_input(tmp_path, capsys):
    assert main(["check", csv_file(tmp_path, "0F0,0X0")]) == 2
    assert "row 1 column 2 = '0X0'" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if not entry.not_on_torch])
def test_files_with_our_own_sends_and_receives_pass_both_ways(name, tmp_path, capsys):
    torch_csv.write_with_transfers(lower(build(name, Shape(4, 8))), tmp_path / "order.csv")
    status, said = checked(capsys, str(tmp_path / "order.csv"))
    assert (status, said["deadlocks"]) == (0, {"async": None, "rendezvous": None})
