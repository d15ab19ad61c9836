"""The tape: what is put on it comes off as columns, and a step that is not whole is told."""

from itertools import count

import numpy as np
import pytest

from debubble.core.schedule import Kind, Shape
from debubble.readers.recording_file import NOT_SENT
from debubble.recorder.tape import BOTH, RECEIVE, SEND, Tape
from debubble.schedules.catalog import build

F, I, W, B = Kind  # noqa: E741 - PyTorch's letters


def ticking() -> Tape:
    """A tape whose clock shows 0, 1, 2, .."""
    return Tape(count().__next__)


def played(ops) -> Tape:
    tape = ticking()
    tape.begin()
    for kind, stage, unit in ops:
        tape.close(tape.open(kind, stage, unit))
    return tape


def test_ops_come_off_in_order_with_their_times():
    tape = ticking()
    tape.begin()  # 0
    first = tape.open(F, 3, 0)  # 1
    tape.close(first)  # 2
    tape.post(F, 3, 0)  # 3
    second = tape.open(B, 3, 0)  # 4
    tape.close(second)  # 5
    tape.close(second)  # 6: the loss, say, belongs to it
    step = tape.read(tape.begun, tape.now())
    assert (step.kind.tolist(), step.stage.tolist(), step.unit.tolist()) == ([F, B], [3, 3], [0, 0])
    assert (step.times.start.tolist(), step.times.end.tolist()) == ([1, 4], [2, 6])
    assert step.times.posted.tolist() == [3, NOT_SENT]
    assert (step.begun, step.finished) == (0, 7)


def test_waits_are_summed_before_the_op_that_follows_by_what_they_were_for():
    tape = ticking()
    tape.begin()
    tape.wait(RECEIVE, 10, 14)
    tape.wait(RECEIVE, 20, 21)
    tape.wait(SEND, 30, 37)
    tape.close(tape.open(F, 0, 0))
    tape.wait(BOTH, 40, 42)
    tape.close(tape.open(F, 0, 1))
    tape.wait(SEND, 50, 53)
    times = tape.read(0, 99).times
    assert times.waits.tolist() == [[5, 0], [7, 0], [0, 2]]
    assert times.tail == (0, 3, 0)


def test_a_tape_grows_beyond_its_room_and_forgets_the_step_before():
    many = [(F, stage, unit) for stage in range(3) for unit in range(3000)]
    tape = played(many)
    for unit in range(9000):
        tape.wait(SEND, unit, unit + 1)
    step = tape.read(0, 1)
    assert list(zip(step.kind.tolist(), step.stage.tolist(), step.unit.tolist(), strict=True)) == many
    assert step.times.tail == (0, 9000, 0)
    tape.begin()
    assert len(tape.read(0, 1).kind) == 0


def test_the_largest_stage_and_unit_survive_the_code():
    step = played([(W, (1 << 20) - 1, 1 << 30)]).read(0, 1)
    assert (step.kind.tolist(), step.stage.tolist(), step.unit.tolist()) == ([W], [(1 << 20) - 1], [1 << 30])


def test_a_slot_of_two_ops_is_joined():
    tape = ticking()
    tape.begin()
    tape.open(F, 0, 1)
    tape.open(B, 0, 0, joined=True)
    assert tape.read(0, 1).joined.tolist() == [False, True]
    assert played([(F, 0, 0)]).read(0, 1).joined is None


def test_readings_of_another_clock_are_resolved_with_their_posts():
    tape = ticking()
    tape.begin()  # 0
    tape.wait(RECEIVE, tape.now())  # 1, 2
    tape.close(tape.open(F, 0, 0))  # 3, 4
    tape.post(F, 0, 0)  # 5
    step = tape.read(0, 6, lambda readings: readings * 1000)
    assert (step.times.start.tolist(), step.times.end.tolist(), step.times.posted.tolist()) == ([3000], [4000], [5000])
    assert step.times.waits[RECEIVE].tolist() == [1000]
    assert step.finished == 6000


def test_an_op_that_comes_again_is_of_another_step():
    tape = played([(F, 0, 0)])
    assert tape.repeats(F, 0, 0)
    assert not tape.repeats(F, 0, 1)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v"])
def test_every_rank_of_a_legal_schedule_is_whole(name):
    order = build(name, Shape(2, 4, 2) if name in ("interleaved", "zb-v", "dualpipe-v") else Shape(2, 4))
    for rank in range(2):
        rows = slice(order.offsets[rank], order.offsets[rank + 1])
        ops = list(zip(order.kind[rows].tolist(), order.stage[rows].tolist(), order.unit[rows].tolist(), strict=True))
        stages = np.flatnonzero(order.placement[0] == rank).tolist()
        assert played(ops).read(0, 1).missing(stages, 4) == ""


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ([], "0 of 2 forwards were seen"),
        ([(F, 0, 0)], "1 of 2 forwards were seen"),
        ([(F, 0, 0), (F, 0, 0)], "an op ran twice"),
        ([(F, 0, 0), (F, 0, 1), (B, 0, 0)], "1 of 2 backwards and 0 weight gradients were seen"),
        ([(F, 0, 0), (F, 0, 1), (I, 0, 0), (I, 0, 1)], "2 of 2 backwards and 0 weight gradients were seen"),
        ([(F, 0, 0), (F, 0, 1), (F, 0, 2)], "3 of 2 forwards were seen"),
    ],
)
def test_what_is_not_whole_is_told(ops, why):
    assert played(ops).read(0, 1).missing([0], 2) == why


def test_forwards_alone_are_whole_and_an_evaluation():
    step = played([(F, 0, 0), (F, 0, 1)]).read(0, 1)
    assert step.missing([0], 2) == ""
    assert not step.trains
