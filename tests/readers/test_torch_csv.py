"""torch's schedule files: lossless both ways, strict, and what torch itself makes of them."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.errors import InputError, Refusal
from debubble.core.lower import lower
from debubble.core.posting_rules import exchange
from debubble.core.schedule import Op, Shape, from_rows
from debubble.readers import torch_csv
from debubble.schedules.catalog import CATALOG, build
from strategies import schedules

SAYABLE = {"slices": False, "copies": False}  # what torch's format has words for


@pytest.fixture
def file(tmp_path):
    return tmp_path / "order.csv"


def ops(text: str, slices: int = 1) -> list[Op]:
    return [Op.parse(word, slices) for word in text.split()]


def written(schedule, file) -> list[list[str]]:
    torch_csv.write(schedule, file)
    return [line.split(",") for line in file.read_text().splitlines()]


def faults_of(file, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        torch_csv.read(file)
    return [str(fault).removeprefix(f"{file}") for fault in caught.value.faults]


def test_1f1b_of_two_ranks_as_torch_writes_it(file):
    assert written(build("1f1b", Shape(2, 3)), file) == [
        ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
        ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"],
    ]


def test_an_overlapped_pair_is_one_cell(file):
    rows = [ops("0F0 1F0 0F1 1B0 1F1 0B0 1B1 0B1")]
    joined = [[False, False, False, True, False, False, False, False]]
    pairs = from_rows("pairs", rows, [0, 0], 2, joined=joined)
    assert written(pairs, file)[0][2] == "(0F1;1B0)OVERLAP_F_B"
    assert torch_csv.read(file).same_order(pairs)


@settings(max_examples=80, deadline=None)
@given(schedule=schedules(**SAYABLE))
def test_what_is_written_is_read_back(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("csv") / "order.csv"
    torch_csv.write(schedule, path)
    again = torch_csv.read(path)
    assert again.same_order(schedule)
    assert (again.microbatches, again.ranks, again.stages) == (
        schedule.microbatches,
        schedule.ranks,
        schedule.stages,
    )
    assert np.array_equal(again.placement, schedule.placement)


@settings(max_examples=80, deadline=None)
@given(schedule=schedules(**SAYABLE))
def test_transfers_are_read_back_in_their_order(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("csv") / "order.csv"
    program = lower(schedule)
    torch_csv.write_with_transfers(program, path)
    again, placed = torch_csv.read_with_transfers(path)
    ours = exchange(program)
    assert again.same_order(schedule)
    assert torch_csv.read(path).same_order(schedule)
    for column in ("act", "op", "peer", "offsets"):
        assert np.array_equal(getattr(placed, column), getattr(ours, column)), column


def test_empty_cells_are_idle_and_weights_order_no_op(file):
    file.write_text("0UNSHARD,0F0,,0F1, 0B0 ,0B1,0REDUCE_GRAD,0RESHARD\n\n")
    assert [str(op) for op in torch_csv.read(file).row(0)] == ["0F0", "0F1", "0B0", "0B1"]


def test_a_mark_of_byte_order_and_windows_line_ends_are_no_cells(file):
    file.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n1F0,1B0\r\n")
    assert len(torch_csv.read(file)) == 4


def test_a_rank_in_the_middle_may_hold_nothing(file):
    file.write_text("0F0,0B0\n\n1F0,1B0\n")
    assert torch_csv.read(file).placement.tolist() == [[0, 2]]


def test_placement_follows_from_the_rows_in_which_stages_stand(file):
    file.write_text("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    assert torch_csv.read(file).placement.tolist() == [[0, 1, 1, 0]]


@pytest.mark.parametrize(
    "cell",
    ["1F0garbage", "xF0", "1Z0", "F0", "1F", "-1F0", "1F-1", "(0F7;7B3)", "1F0.5", "٣F0", "9999999999F0", "None"],
)
def test_rubbish_is_refused_with_row_and_column(file, cell):
    (fault,) = faults_of(file, f"0F0,0B0\n1F0,,{cell}\n")
    assert fault.startswith(f" row 2 column 3 = {cell!r}: this is no cell")


def test_all_bad_cells_are_told_at_once_but_not_a_thousand(file):
    assert len(faults_of(file, "0F0,x,y\nz,0B0\n")) == 3
    many = faults_of(file, "x," * 1000)
    assert len(many) == 21
    assert "980 more" in many[-1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it holds no op"),
        ("0RESHARD,\n,,\n", "it holds no op"),
        ("0F0,2F0,2B0,0B0\n", "stage 1: no row holds it, but stage 2 is there"),
        ("0F0,0B0,0F999999999\n", "they need at least 1000000000 ops, and the file holds 3"),
    ],
)
def test_a_file_that_is_no_schedule_says_why(file, text, says):
    assert says in faults_of(file, text)[0]


def test_a_file_name_cannot_command_the_terminal(tmp_path):
    path = tmp_path / "a\x1b[2J\udcff.csv"
    path.write_text("0F0,0B0\n")
    assert torch_csv.read(path).name == "a?[2J?"


def test_a_file_that_is_not_there_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        torch_csv.read(tmp_path / "nowhere.csv")


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_but_an_input_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("csv") / "order.csv"
    path.write_bytes(data)
    with suppress(InputError):
        torch_csv.read_with_transfers(path)


def test_transfers_of_what_is_not_there_are_refused(file):
    file.write_text("0F0,0SEND_F0,0SEND_F7,0B0\n1RECV_F0,1F0,1SEND_F0,1B0\n")
    with pytest.raises(InputError) as caught:
        torch_csv.read_with_transfers(file)
    assert [str(fault).removeprefix(str(file)).split(":")[0] for fault in caught.value.faults] == [
        " row 1 column 3 = '0SEND_F7'",
        " row 2 column 3 = '1SEND_F0'",
    ]


@pytest.mark.parametrize(
    "without_words",
    [
        from_rows("sliced", [ops("0F0.0 0F0.1 0B0.1 0B0.0", 2)], [0], 1, slices=2),
        from_rows("twins", [ops("0F0 0B0")], [[0], [0]], 1, route=[1]),
    ],
    ids=lambda schedule: schedule.name,
)
def test_what_torch_has_no_word_for_is_refused(file, without_words):
    with pytest.raises(Refusal, match="which torch's format cannot say"):
        torch_csv.write(without_words, file)
    assert not file.exists()


@pytest.fixture(scope="module")
def runtime():
    """A function that makes torch's runner of schedule files, as far as it goes without processes."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

    def make(schedule):
        runner = object.__new__(schedules._PipelineScheduleRuntime)
        runner.pp_group_size, runner._num_stages = schedule.ranks, schedule.stages
        runner._n_microbatches, runner._stages, runner._defer_pp_recv = schedule.microbatches, [], False
        runner.pipeline_order = {}
        return runner

    return make


TORCH_CAN = [
    ("1f1b", Shape(4, 3)),
    ("interleaved", Shape(4, 8, 2)),
    ("interleaved-zb", Shape(4, 8, 2)),
    ("looped-bfs", Shape(4, 8, 2)),
    *((name, Shape(4, 8)) for name, entry in CATALOG.items() if not entry.not_on_torch and name != "forward-only"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), TORCH_CAN, ids=lambda v: v if isinstance(v, str) else "")
def test_torch_loads_our_files_and_dumps_the_same_cells(runtime, file, name, shape):
    schedule = build(name, shape)
    cells = written(schedule, file)
    runner = runtime(schedule)
    runner._load_csv(str(file), format="compute_only")  # torch's own validation, and its sends and receives
    runner._dump_csv(str(file), format="compute_only")
    assert [line.split(",") for line in file.read_text().splitlines()] == cells


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), TORCH_CAN, ids=lambda v: v if isinstance(v, str) else "")
def test_torch_runs_our_order_of_transfers_to_its_end_without_deadlock(runtime, file, name, shape):
    from torch.distributed.pipelining import schedules as theirs

    schedule = build(name, shape)
    torch_csv.write_with_transfers(lower(schedule), file)
    runner = runtime(schedule)
    runner._load_csv(str(file), format="compute_comms")
    order = runner.pipeline_order_with_comms
    sent = {rank: [a for a in row if "SEND" in str(a) or "RECV" in str(a)] for rank, row in order.items()}
    torch_places = runtime(schedule)
    torch_csv.write(schedule, file)
    torch_places._load_csv(str(file))
    for rank, row in torch_places.pipeline_order_with_comms.items():
        assert sorted(map(str, sent[rank])) == sorted(str(a) for a in row if "SEND" in str(a) or "RECV" in str(a))
    plain = {r: [a for a in row if a.computation_type != theirs.REDUCE_GRAD] for r, row in order.items()}
    if schedule.joined is None:  # torch's simulator has no overlapped pairs
        theirs._simulate_comms_compute(plain, lambda s: int(schedule.placement[0, s]), schedule.stages)


@pytest.mark.slow
def test_we_read_what_torch_dumps_with_its_own_transfers(runtime, file):
    schedule = build("dualpipe-v", Shape(4, 8))
    torch_csv.write(schedule, file)
    runner = runtime(schedule)
    runner._load_csv(str(file))
    runner._dump_csv(str(file), format="compute_comms")
    assert "UNSHARD" in file.read_text()
    assert "REDUCE_GRAD" in file.read_text()
    again, _ = torch_csv.read_with_transfers(file)
    assert again.same_order(schedule)
