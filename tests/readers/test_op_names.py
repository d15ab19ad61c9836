"""Names of ops as tracers spell them: kind, stage, chunk, micro-batch; and lanes that hold one way or both."""

import json
from itertools import permutations

import pytest

from debubble.core.account import account
from debubble.core.schedule import Kind
from debubble.readers.op_names import read_name
from debubble.readers.source import read

NAMES = {  # (kind, stage, chunk, micro-batch), -1 if the name has none
    "forward": ("F", -1, -1, -1),
    "FORWARD": ("F", -1, -1, -1),
    "fwd": ("F", -1, -1, -1),
    "F": ("F", -1, -1, -1),
    "f": ("F", -1, -1, -1),
    "bwd": ("B", -1, -1, -1),
    "BWD": ("B", -1, -1, -1),
    "b": ("B", -1, -1, -1),
    "fwd_compute": ("F", -1, -1, -1),
    "bwd_compute": ("B", -1, -1, -1),
    "forward_step": ("F", -1, -1, -1),
    "Forward Pass": ("F", -1, -1, -1),
    "forwardPass": ("F", -1, -1, -1),
    "FwdStep": ("F", -1, -1, -1),
    "fwdpass": ("F", -1, -1, -1),
    "forward-compute": ("F", -1, -1, -1),
    "backward_0": ("B", -1, -1, 0),
    "F3": ("F", -1, -1, 3),
    "B 12": ("B", -1, -1, 12),
    "fwd[2]": ("F", -1, -1, 2),
    "fwd mb 3 chunk 1": ("F", -1, 1, 3),
    "bwd-mb7-chunk1": ("B", -1, 1, 7),
    "chunk1_bwd_3": ("B", -1, 1, 3),
    "stage 2 forward microbatch 5": ("F", 2, -1, 5),
    "Backward(mb=3, chunk=1, stage=4)": ("B", 4, 1, 3),
    "2F0": ("F", 2, -1, 0),
    "PP:11W127": ("W", 11, -1, 127),
    "wgrad": ("W", -1, -1, -1),
    "dgrad_4": ("I", -1, -1, 4),
    "backward-weight": ("W", -1, -1, -1),
    "backward_input 3": ("I", -1, -1, 3),
    "backward_b_2": ("I", -1, -1, 2),
    "backward_w_2": ("W", -1, -1, 2),
    "W[4]": ("W", -1, -1, 4),
    "jvp(stage_0)": ("F", -1, -1, -1),
    "jit(train)/transpose(jvp(stage_0))/dot_general": ("B", -1, -1, -1),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_its_op(name):
    said = read_name(name)
    assert said.kind is not None
    assert (said.kind.name, said.stage, said.chunk, said.unit) == NAMES[name]
    assert said.plain


@pytest.mark.parametrize(
    "name",
    [
        "input",
        "weight",
        "optimizer",
        "forward_backward",
        "1F1B",
        "grads-reduce-scatter",
        "step 3",
        "DataLoader",
        "",
        "0",
    ],
)
def test_what_is_no_op_is_none(name):
    said = read_name(name)
    assert not (said.kind is not None and said.plain)
    assert not said.transfers


def test_names_of_kernels_and_layers_are_no_plain_names_of_ops():
    assert not any(read_name(name).plain for name in ("flash_fwd_kernel", "Layer 3 forward", "DDP.forward", "fwd_hook"))


@pytest.mark.parametrize(
    ("name", "sends", "forward"),
    [
        ("send_forward", True, 1),
        ("recv_backward", False, 0),
        ("async_send_next", True, 1),
        ("recv_prev", False, 1),
        ("send_prev", True, 0),
        ("irecv activation", False, 1),
        ("send_grad", True, 0),
        ("isend", True, -1),
        ("send_forward_recv_backward", None, -1),
    ],
)
def test_a_transfer_says_its_way(name, sends, forward):
    said = read_name(name)
    assert said.transfers
    assert (said.kind, said.send) == (None, sends)
    assert said.forward == forward or sends is None


@pytest.mark.parametrize("name", ["F" + "9" * 40, "mb" + "9" * 40 + " fwd", "9" * 40 + "F0"])
def test_numbers_beyond_reason_are_no_micro_batches(name):
    said = read_name(name)
    assert max(said.stage, said.unit) < 1 << 31


# Two ranks, two micro-batches, 1F1B: F 10 ms, B 20 ms, free hops. By hand: 90 ms, busy 2 x 60, idle share 1/3.
SPANS = [
    ("F", 0, 0, 0), ("F", 0, 1, 10), ("F", 1, 0, 10), ("B", 1, 0, 20), ("F", 1, 1, 40), ("B", 1, 1, 50),
    ("B", 0, 0, 40), ("B", 0, 1, 70),
]  # fmt: skip


def written(path, lane_of, name_of):
    """A trace of these spans in lanes (process, thread) and under names of a tracer's liking."""
    events = []
    for letter, rank, unit, start in SPANS:
        process, thread = lane_of(letter, rank)
        length = {"F": 10, "B": 20}[letter]
        where = {"pid": process, "tid": thread, "ts": start * 1000.0, "dur": length * 1000.0}
        events.append({"ph": "X", "name": name_of(letter, unit), **where, "args": {}})
    path.write_text(json.dumps({"traceEvents": events}))
    return path


LANES = {
    "a process a rank": lambda letter, rank: (rank, 0),
    "a process a rank, by name": lambda letter, rank: (f"rank {rank}", "compute"),
    "a lane a rank in one process": lambda letter, rank: (0, rank),
    "a lane a rank, by name": lambda letter, rank: (0, f"GPU{rank}"),
    "a lane each way of each process": lambda letter, rank: (rank, f"{letter == 'B'}"),
    "lanes that are named by their way": lambda letter, rank: (f"rank{rank}", "02_fwd" if letter == "F" else "03_bwd"),
    "all in one process, a lane for each rank and way": lambda letter, rank: (
        7,
        f"rank {rank} {'forward' if letter == 'F' else 'backward'}",
    ),
}
SPELLED = {
    "words": lambda letter, unit: {"F": "forward", "B": "backward"}[letter],
    "words with an index": lambda letter, unit: f"{ {'F': 'Fwd', 'B': 'Bwd'}[letter] } mb={unit}",
    "letters with an index": lambda letter, unit: f"{letter}{unit}",
    "compute": lambda letter, unit: {"F": "fwd_compute", "B": "bwd_compute"}[letter],
    "jax": lambda letter, unit: {"F": "jvp(stage)", "B": "transpose(jvp(stage))"}[letter],
}


@pytest.mark.parametrize("spelled", SPELLED.values(), ids=SPELLED)
@pytest.mark.parametrize("lanes", LANES.values(), ids=LANES)
def test_lanes_that_hold_both_ways_are_devices_and_those_of_one_way_are_one(tmp_path, lanes, spelled):
    (window,) = read([written(tmp_path / "t.json", lanes, spelled)]).windows
    schedule = window.timeline.program.schedule
    assert (schedule.ranks, schedule.stages, schedule.microbatches) == (2, 2, 2)
    found = account(window.timeline)
    assert (found.window, found.idle_share) == (90_000_000, pytest.approx(1 / 3))
    assert [op.kind for op in schedule.row(1)] == [Kind.F, Kind.B, Kind.F, Kind.B]


def test_spans_inside_spans_of_their_kind_are_one_op(tmp_path):
    path = written(tmp_path / "t.json", LANES["a process a rank"], SPELLED["words"])
    document = json.loads(path.read_text())
    for event in list(document["traceEvents"]):
        inner = {"name": f"{event['name']}_step", "ts": event["ts"] + 1, "dur": event["dur"] - 2}
        document["traceEvents"].append({**event, **inner})
    for order in list(permutations(range(3)))[:3]:
        rows = document["traceEvents"][order[0] :: 3] + document["traceEvents"][order[1] :: 3]
        rows += document["traceEvents"][order[2] :: 3]
        path.write_text(json.dumps({"traceEvents": rows}))
        assert read([path]).windows[0].timeline.program.schedule.microbatches == 2


def test_the_cases_of_public_tools_are_read_as_they_are(shared):
    """SimuMax's lanes, 1F1B of 4 x 8 by hand .4; and two lanes of one process that idle half of the time."""
    cases = shared / "cases" / "failing"
    for name, ranks, units, share in (
        ("fwd-compute-names.json.gz", 4, 8, 0.4),
        ("lanes-of-one-process.json", 2, 1, 0.5),
    ):
        (window,) = read([cases / name]).windows
        schedule = window.timeline.program.schedule
        assert (schedule.ranks, schedule.microbatches) == (ranks, units)
        assert account(window.timeline).idle_share == pytest.approx(share, abs=0.001)
