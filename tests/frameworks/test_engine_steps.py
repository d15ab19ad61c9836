"""The order of sends and receives of each engine, drawn rank by rank.

``X(..)`` is a batch that is waited for at once, ``x(..)`` one that is waited for later; what is sent last is waited for
when the step ends, which is the same. Letters as in the engines' own names: ``sendF`` an activation, ``recvB`` a
gradient; a number is the micro-batch, behind a point the chunk where a rank has several.
"""

import numpy as np
import pytest

import debubble
from debubble.core.engine import Engine, steps_of
from debubble.core.errors import InputError
from debubble.core.lower import communication, lower
from debubble.core.posts import Act, Exchange
from debubble.core.schedule import Schedule, Shape
from debubble.frameworks.engines import ENGINES
from debubble.schedules.catalog import build

_SIDES = {Act.SEND: "send", Act.RECEIVE: "recv"}


def drawn(name: str, engine: str, p: int, m: int, v: int = 1) -> list[str]:
    schedule = build(name, Shape(p, m, v))
    placed = communication(schedule, ENGINES[engine])
    return [" ".join(_cells(schedule, placed, rank, v)) for rank in range(p)]


def _cells(schedule: Schedule, placed: Exchange, rank: int, v: int):
    rows = range(placed.offsets[rank], placed.offsets[rank + 1])
    batches = np.split(np.array(rows), np.flatnonzero(np.diff([placed.batch[row] for row in rows])) + 1)
    for batch in batches:
        if placed.act[batch[0]] == Act.COMPUTE:
            yield from (_op(schedule, placed.op[row], v) for row in batch)
        else:
            now = placed.until[batch[0]] == batch[-1] + 1
            sides = (
                ("send" if placed.act[row] == Act.SEND else "recv") + _op(schedule, placed.op[row], v) for row in batch
            )
            yield f"{'X' if now else 'x'}({', '.join(sides)})"


def _op(schedule: Schedule, number: int, v: int) -> str:
    op = schedule.op(int(number))
    kind = "B" if op.kind.name == "I" else op.kind.name
    return f"{kind}{op.microbatch}" + (f".{op.stage // schedule.ranks}" if v > 1 else "")


def test_megatron_on_1f1b_fuses_what_goes_to_one_neighbour():
    """w times X(recvF) F X(sendF); X(recvF); F X(sendF, recvB) B X(sendB, recvF); w times X(recvB) B X(sendB)."""
    assert drawn("1f1b", "megatron", 3, 4) == [
        "F0 X(sendF0) F1 X(sendF1) F2 X(sendF2, recvB0) B0 F3 X(sendF3, recvB1) B1 X(recvB2) B2 X(recvB3) B3",
        "X(recvF0) F0 X(sendF0) X(recvF1) F1 X(sendF1, recvB0) B0 X(sendB0, recvF2) F2 X(sendF2, recvB1) B1"
        " X(sendB1, recvF3) F3 X(sendF3, recvB2) B2 X(sendB2) X(recvB3) B3 X(sendB3)",
        "X(recvF0) F0 B0 X(sendB0, recvF1) F1 B1 X(sendB1, recvF2) F2 B2 X(sendB2, recvF3) F3 B3 X(sendB3)",
    ]


def test_megatron_interleaved_sends_and_receives_behind_each_pair():
    assert drawn("interleaved", "megatron", 2, 2, 2) == [
        "F0.0 X(sendF0.0) F1.0 X(sendF1.0, recvF0.1) F0.1 X(sendF0.1, recvF1.1) F1.1 X(sendF1.1) X(recvB0.1)"
        " B0.1 X(sendB0.1, recvB1.1) B1.1 X(sendB1.1, recvB0.0) B0.0 X(recvB1.0) B1.0",
        "X(recvF0.0) F0.0 X(sendF0.0, recvF1.0) F1.0 X(sendF1.0, recvF0.1) F0.1 B0.1"
        " X(sendB0.1, recvF1.1) F1.1 B1.1 X(sendB1.1, recvB0.0) B0.0 X(sendB0.0, recvB1.0) B1.0 X(sendB1.0)",
    ]


def test_megatron_with_overlap_receives_one_op_ahead_in_the_steady_phase():
    """Of rank 1 of 2 (w = 2): the warm-up and the cool-down as without; in between nothing is waited for at once."""
    assert drawn("interleaved", "megatron-overlap", 2, 4, 2)[1] == (
        "X(recvF0.0) F0.0 X(sendF0.0, recvF1.0) F1.0 X(sendF1.0, recvF0.1)"
        " F0.1 x(recvF1.1) B0.1 x(sendB0.1) F1.1 x(recvF2.0) B1.1 x(sendB1.1, recvB0.0)"
        " F2.0 x(sendF2.0, recvF3.0) B0.0 x(sendB0.0, recvB1.0) F3.0 x(sendF3.0, recvF2.1) B1.0 x(sendB1.0)"
        " F2.1 x(recvF3.1) B2.1 x(sendB2.1) F3.1 B3.1 x(sendB3.1, recvB2.0)"
        " B2.0 X(sendB2.0, recvB3.0) B3.0 X(sendB3.0)"
    )


def test_megatron_with_overlap_of_warm_up_and_flush_receives_before_it_computes():
    assert drawn("interleaved", "megatron-overlap:warmup-flush", 3, 3, 2)[1] == (
        "X(recvF0.0) x(recvF1.0) F0.0 x(sendF0.0) x(recvF2.0) F1.0 x(sendF1.0) x(recvF0.1) F2.0 x(sendF2.0)"
        " x(recvF1.1) F0.1 x(sendF0.1) x(recvF2.1) F1.1 x(sendF1.1) x(recvB0.1) F2.1 x(sendF2.1) B0.1"
        " x(sendB0.1, recvB1.1) x(recvB2.1) B1.1 x(sendB1.1) x(recvB0.0) B2.1 x(sendB2.1) x(recvB1.0) B0.0"
        " x(sendB0.0) x(recvB2.0) B1.0 x(sendB1.0) B2.0 X(sendB2.0)"
    )


def test_torchs_1f1b_batches_both_ways_and_sends_by_itself_in_warm_up_and_cool_down():
    assert drawn("1f1b", "torch-1f1b", 3, 4)[1] == (
        "X(recvF0) F0 x(sendF0) X(recvF1) F1 X(sendF1, recvB0) B0 X(sendB0, recvF2) F2 X(sendF2, recvB1) B1"
        " X(sendB1, recvF3) F3 X(sendF3, recvB2) B2 x(sendB2) X(recvB3) B3 X(sendB3)"
    )


def test_torchs_runtime_receives_when_the_sender_is_placed():
    """In its third turn rank 0 places F2, so that rank 1 has the receive before it places B1."""
    assert drawn("1f1b", "torch", 2, 4)[1] == (
        "X(recvF0) F0 x(recvF1) B0 x(sendB0) F1 x(recvF2) B1 x(sendB1) F2 x(recvF3) B2 x(sendB2) F3 B3 X(sendB3)"
    )


@pytest.mark.parametrize(
    ("name", "p", "m", "v"), [("1f1b", 4, 8, 1), ("interleaved", 4, 8, 2), ("zb-h1", 3, 7, 1), ("zb-v", 3, 9, 2)]
)
def test_torchs_runtime_posts_as_torchs_own_function_does(name, p, m, v):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")
    schedule = build(name, Shape(p, m, v))
    compute = {rank: [schedules._Action.from_str(f"{op}") for op in schedule.row(rank)] for rank in range(p)}
    home = schedule.placement[0].tolist()
    placed = schedules._add_send_recv(compute, stage_to_rank=home.__getitem__, num_stages=schedule.stages)
    ours = communication(schedule, ENGINES["torch"])
    for rank in range(p):
        rows = range(ours.offsets[rank], ours.offsets[rank + 1])
        assert [_torchs(schedule, ours, row) for row in rows] == [str(action) for action in placed[rank]]


def _torchs(schedule: Schedule, placed: Exchange, row: int) -> str:
    op = schedule.op(int(placed.op[row]))
    if placed.act[row] == Act.COMPUTE:
        return str(op)
    side = "SEND" if placed.act[row] == Act.SEND else "RECV"
    return f"{op.stage}{side}_{'F' if op.kind.name == 'F' else 'B'}{op.microbatch}"


def test_deepspeed_blocks_on_one_transfer_after_the_other():
    """A backward step receives its gradient, then sends the activation; a forward step the other way round."""
    assert drawn("1f1b", "deepspeed", 3, 4)[1] == (
        "X(recvF0) F0 X(sendF0) X(recvF1) F1 X(recvB0) X(sendF1) B0 X(sendB0) X(recvF2) F2 X(recvB1) X(sendF2) B1"
        " X(sendB1) X(recvF3) F3 X(recvB2) X(sendF3) B2 X(sendB2) X(recvB3) B3 X(sendB3)"
    )


#            1000   2000   3000   4000   5000   6000   7000   8000            by plan, with a hop of 1
#   rank 0   F0     F1     F2                          B0     W0     B1 ..
#   rank 1          F0     F1         B0   F2     B1     W0        B2 ..       F1 is received during F0, B1 during F2
#   rank 2                 F0     B0     F1     B1        F2     B2 ..
def test_zero_bubble_receives_during_the_op_that_runs_when_the_output_is_made():
    assert drawn("zb-h1", "zero-bubble", 3, 3)[1] == (
        "x(recvF0) x(recvF1) F0 x(recvF2) x(sendF0) F1 x(sendF1) X(recvB0) B0 x(sendB0) x(recvB1) F2 x(sendF2) B1"
        " x(sendB1) W0 X(recvB2) B2 x(sendB2) W1 W2"
    )


def test_zero_bubble_batched_posts_a_flush_as_one_the_rank_before_first():
    assert drawn("zb-h1", "zero-bubble:batched", 3, 3)[1] == (
        "x(recvF0) x(recvF1) F0 x(recvF2, sendF0) F1 X(sendF1, recvB0) B0 x(sendB0, recvB1) F2 x(sendF2) B1"
        " x(sendB1) W0 X(recvB2) B2 x(sendB2) W1 W2"
    )


@pytest.mark.parametrize("engine", [engine for engine in ENGINES.values() if engine.name != "ideal"], ids=str)
def test_every_engine_names_the_file_function_and_release_it_was_read_in(engine: Engine):
    assert ".py" in engine.source
    assert any(word in engine.source for word in ("megatron-core 0.", "torch 2.", "deepspeed 0.", "zero-bubble"))


def test_megatron_with_overlap_refuses_1f1b_as_megatron_does():
    with pytest.raises(InputError, match="2 chunks a rank or more, and 1f1b has 1"):
        lower(build("1f1b", Shape(4, 8)), ENGINES["megatron-overlap"])


@pytest.mark.parametrize("line", ["F B sF", "F B [sF rX]", "F B [] ()"])
def test_a_line_that_is_no_step_is_refused(line):
    with pytest.raises(ValueError, match="not"):
        steps_of(line)


def test_a_table_reads_as_it_is_written():
    (line,) = steps_of("w f (sF rF+1) [s|r] [s/r]; [rB]")
    assert [str(batch) for batch in line.batches] == ["(sF rF+1)", "[s|r]", "[s/r]"]
    assert [str(batch) for batch in line.leading or ()] == ["[rB]"]


@pytest.mark.parametrize(
    ("flags", "framework", "engine"),
    [
        # Megatron-Core's arguments.py: overlap_p2p_comm is on where a rank has several chunks, and off elsewhere.
        ("--pipeline-model-parallel-size 4 --num-layers 32", "megatron", "megatron"),
        (
            "--pipeline-model-parallel-size 4 --num-layers 32 --num-layers-per-virtual-pipeline-stage 4",
            "megatron",
            "megatron-overlap",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers 32 --num-layers-per-virtual-pipeline-stage 4 "
            "--overlap-p2p-communication-warmup-flush",
            "megatron",
            "megatron-overlap:warmup-flush",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers 32 --num-layers-per-virtual-pipeline-stage 4 "
            "--no-overlap-p2p-communication",
            "megatron",
            "megatron",
        ),
        ("--num-layers 32", "megatron", None),
        ("--parallelism.pipeline_parallel_degree 4", "torchtitan", "torch-1f1b"),
        (
            "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule ZBVZeroBubble",
            "torchtitan",
            "torch",
        ),
    ],
)
def test_a_configuration_implies_its_engine_and_its_switches(flags, framework, engine):
    assert debubble.check(*flags.split(), framework=framework).engine == engine


def test_a_job_with_hops_is_executed_as_its_framework_would(tmp_path):
    said = 'pipeline = 4\nmicrobatches = 8\nforward = "10ms"\nbackward = "20ms"\ntransfer = "2-3=15ms"\ngpus = 4\n'
    plain, launched = tmp_path / "plain.toml", tmp_path / "launched.toml"
    plain.write_text(f'name = "plain"\n{said}')
    launched.write_text(f'name = "launched"\nframework = "deepspeed"\n{said}')
    found = debubble.why(plain, launched)
    assert (found.a.makespan_ms, found.b.makespan_ms) == (450, 570)
