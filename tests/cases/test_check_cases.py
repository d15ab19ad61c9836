"""Cases of users that ``check`` answers, by their id."""

import json
from itertools import count
from pathlib import Path

import pytest

from debubble.cli.main import main
from debubble.core.engine import BLOCKING, IDEAL, LINK, RENDEZVOUS, Engine
from debubble.core.errors import Deadlock
from debubble.core.lower import lower
from debubble.core.posts import Act, Exchange
from debubble.core.schedule import Op, Schedule, from_rows


def checked(capsys, *args: str) -> tuple[int, dict]:
    status = main(["check", *args, "--json"])
    return status, json.loads(capsys.readouterr().out)


def written(rows: list[str], placement: list[int], microbatches: int) -> tuple[Schedule, Exchange]:
    """A schedule and its exchange from the notation of the case: C computes, S sends what it names, R receives that."""
    cells = [[(cell[0], Op.parse(cell[2:])) for cell in row.split(", ")] for row in rows]
    computed = [[op for act, op in row if act == "C"] for row in cells]
    schedule = from_rows("case", computed, placement, microbatches)
    number = dict(zip((op for row in computed for op in row), count(), strict=False))
    users = {_source(op, number): op for op in number}
    acts, ops, peers = [], [], []
    for act, op in (cell for row in cells for cell in row):
        acts.append({"C": Act.COMPUTE, "S": Act.SEND, "R": Act.RECEIVE}[act])
        ops.append(number[users[op] if act == "R" else op])
        other = {"C": None, "S": users.get(op), "R": op}[act]
        peers.append(-1 if other is None else placement[other.stage])
    offsets = [0]
    for row in cells:
        offsets.append(offsets[-1] + len(row))
    return schedule, Exchange(*(_array(c, d) for c, d in ((acts, "u1"), (ops, "i4"), (peers, "i4"), (offsets, "i8"))))


def _source(op: Op, known: dict) -> Op | None:
    """The op that feeds this one."""
    step = -1 if op.kind.name == "F" else 1
    source = Op(op.kind, op.stage + step, op.microbatch)
    return source if source in known else None


def _array(values, kind):
    import numpy as np

    return np.array(values, kind)


# The cells of the case stand between the others, which only make the step whole.
A = ["C 0F0, S 0F0, C 0F1, S 0F1, R 1F0, C 2F0, R 1F1, C 2F1", "R 0F0, C 1F0, S 1F0, R 0F1, C 1F1, S 1F1"]
A_PARITY = [A[0], "R 0F0, C 1F0, R 0F1, S 1F0, C 1F1, S 1F1"]
B_BEFORE = [
    "C 0F0, S 0F0, C 0F1, S 0F1, R 1F0, C 2F0, S 2F0, R 1F1, C 2F1",
    "R 0F0, C 1F0, R 0F1, C 1F1, S 1F0, R 2F0, C 3F0, C 3B0, S 1F1",
]
B_CASE = [
    "S 2F1, C 0F2, S 0F2, R 3B0, C 2B0, R 3B1",
    "R 2F1, S 3B0, C 3F1, C 3B1, R 0F2, S 3B1, C 1F2",
]
B_AFTER = [
    "C 2B1, S 2B0, S 2B1, R 1B0, C 0B0, R 1B1, C 0B1, R 1F2, C 2F2, S 2F2, R 3B2, C 2B2, S 2B2, R 1B2, C 0B2",
    "R 2B0, C 1B0, R 2B1, C 1B1, S 1B0, S 1B1, S 1F2, R 2F2, C 3F2, C 3B2, S 3B2, R 2B2, C 1B2, S 1B2",
]
B = [", ".join(parts) for parts in zip(B_BEFORE, B_CASE, B_AFTER, strict=True)]


def cycle(error: pytest.ExceptionInfo[Deadlock]) -> list[str]:
    return [text.split(" (")[0] for text in error.value.cycle]


def test_c48_a_deadlocks_by_rendezvous_and_its_cycle_is_printed():
    with pytest.raises(Deadlock) as error:
        lower(*_with(RENDEZVOUS, A, [0, 1, 0], 2))
    assert cycle(error) == ["S 0F1", "S 1F0"]


def test_c48_b_deadlocks_by_rendezvous_and_its_cycle_is_printed():
    with pytest.raises(Deadlock) as error:
        lower(*_with(RENDEZVOUS, B, [0, 1, 0, 1], 3))
    assert cycle(error) == ["S 0F2", "S 3B0"]


def test_c48_a_with_parity_is_free_of_deadlock():
    lower(*_with(RENDEZVOUS, A_PARITY, [0, 1, 0], 2))


@pytest.mark.parametrize(("rows", "placement", "m"), [(A, [0, 1, 0], 2), (B, [0, 1, 0, 1], 3)], ids="AB")
@pytest.mark.parametrize("sends", [IDEAL, LINK, BLOCKING])
def test_c48_buffered_a_and_b_are_free_of_deadlock(sends, rows, placement, m):
    lower(*_with(sends, rows, placement, m))


def _with(sends: Engine, rows: list[str], placement: list[int], m: int) -> tuple[Schedule, Engine, Exchange]:
    schedule, given = written(rows, placement, m)
    return schedule, sends, given


def test_c47_a_makespan_of_71_is_impossible_for_1f1b_and_78_is_what_gpipe_takes(capsys):
    sizes = ["-p", "8", "-m", "32", "--forward", "1", "--backward", "1"]
    status, said = checked(capsys, "1f1b", *sizes, "--makespan", "71")
    assert status == 1
    assert "no order of the same ops less than 78ms" in said["faults"][0]["rule"]
    assert checked(capsys, "gpipe", *sizes, "--makespan", "78")[0] == 0
    assert checked(capsys, "1f1b", *sizes, "--makespan", "78")[0] == 0


def test_c46_zb_v_on_loop_placement_is_refused_with_the_pairs_that_it_requires(capsys):
    status, said = checked(capsys, "zb-v", "-p", "4", "-m", "8", "--placement", "loop")
    assert status == 1
    assert said["placement"] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert "rank 0: 0 and 7, rank 1: 1 and 6, rank 2: 2 and 5, rank 3: 3 and 4" in said["faults"][0]["remedy"]
    assert checked(capsys, "zb-v", "-p", "4", "-m", "8", "--placement", "v")[0] == 0


def test_c46_a_zb_v_file_whose_stages_stand_on_loop_ranks_is_caught(tmp_path: Path, capsys):
    main(["show", "zb-v", "-p", "4", "-m", "8", "--torch-csv", str(tmp_path / "v.csv")])
    capsys.readouterr()
    assert checked(capsys, str(tmp_path / "v.csv"), "--placement", "0,1,2,3,0,1,2,3")[0] == 1


def test_c37_a_batch_of_8_cannot_be_cut_into_3_micro_batches(capsys):
    status, said = checked(capsys, "gpipe", "-p", "2", "-m", "3", "--batch", "8")
    assert status == 1
    assert "3, 3, 2 samples" in said["faults"][0]["rule"]
    assert said["faults"][0]["remedy"] == "give a divisor of 8: 1, 2, 4, 8"
    for legal in ("1", "2", "4", "8"):
        assert checked(capsys, "gpipe", "-p", "2", "-m", legal, "--batch", "8")[0] == 0
