"""Who holds a run up: the notes of all ranks, read through the order that they follow.

1F1B, p=3, m=3                      rows of each rank, from 0
rank 0   0F0 0F1 0F2 0B0 0B1 0B2
rank 1   1F0 1F1 1B0 1F2 1B1 1B2
rank 2   2F0 2B0 2F1 2B1 2F2 2B2
"""

import numpy as np
import pytest

from debubble import Shape
from debubble.runner.heartbeat import Beat, Pulse, State, beats_of, held_up, table
from debubble.schedules.catalog import build

SECOND = 1_000_000_000
ORDER = build("1f1b", Shape(3, 3))


def held(*beats: Beat, limit: float = 10, stopped=lambda _pid: "", replicas: int = 1):
    """The one who holds the others up at second 100."""
    name = "rank {}".format if replicas == 1 else (lambda k: f"rank {k % 3} of replica {k // 3}")
    return held_up(beats, ORDER, limit, 100 * SECOND, name=name, stopped=stopped)


def beat(state: State, row: int = 0, *, step: int = 4, age: float = 31, pid: int = 7) -> Beat:
    return Beat(pid, state, step, row, round((100 - age) * SECOND))


def test_a_rank_that_stands_in_an_op_is_named_with_those_who_wait_for_it():
    found = held(beat(State.RECEIVE, 3, age=30), beat(State.RECEIVE, 2, age=31), beat(State.OP, 1, age=32))
    assert found.process == 2
    assert found.sentence == "rank 2 has been in 2B0 for 32 s; rank 0 and rank 1 wait for it"


def test_the_trail_is_followed_from_rank_to_rank_not_to_whoever_waits_longest():
    # rank 2 waits longest, for 1F1 of rank 1, which waits for 0F1 of rank 0, which works.
    found = held(beat(State.OP, 1, age=11), beat(State.RECEIVE, 1, age=40), beat(State.RECEIVE, 2, age=50))
    assert found.process == 0
    assert found.sentence == "rank 0 has been in 0F1 for 11 s; rank 1 and rank 2 wait for it"


def test_a_rank_that_stands_in_a_receive_whose_input_was_made_is_named():
    # 1F0 was made: rank 1 is behind it. So rank 2 has its input, and does not take it.
    found = held(beat(State.RECEIVE, 3), beat(State.RECEIVE, 2), beat(State.RECEIVE, 0))
    assert found.process == 2
    assert "in the receive before 2F0" in found.sentence


def test_a_send_that_nobody_takes_waits_for_whoever_needs_what_it_carries():
    # rank 0 has made 0F2 and stands in its send: 1F2 needs it, and rank 1 is in 1B0, before that.
    found = held(beat(State.SEND, 3, age=40), beat(State.OP, 2, age=30), beat(State.RECEIVE, 4, age=12))
    assert found.process == 1
    assert found.sentence == "rank 1 has been in 1B0 for 30 s; rank 0 and rank 2 wait for it"
    # Where its taker is past it, the send itself is what stands still; and it is called a send.
    found = held(beat(State.SEND, 3, age=40), beat(State.BETWEEN, 6, age=1), beat(State.BETWEEN, 6, age=1))
    assert (found.process, found.sentence) == (0, "rank 0 has been in the send after 0F2 for 40 s")


def test_a_wait_for_both_sides_waits_for_both():
    # rank 1 has made 1F1 and waits for the gradient 2B0: rank 2 is in 2B0, which comes before its 2F1.
    found = held(beat(State.RECEIVE, 3), beat(State.BOTH, 2, age=35), beat(State.OP, 1, age=32))
    assert found.process == 2
    assert found.sentence == "rank 2 has been in 2B0 for 32 s; rank 0 and rank 1 wait for it"
    found = held(beat(State.OP, 5), beat(State.BOTH, 2, age=35), beat(State.DONE))
    assert found.sentence.startswith("rank 1 has been in a send and receive before 1B0 for 35 s")


def test_what_the_system_says_of_a_process_goes_first():
    found = held(
        beat(State.RECEIVE, 3, pid=1),
        beat(State.RECEIVE, 2, pid=2),
        beat(State.OP, 1, pid=3),
        stopped=lambda pid: "its process is stopped by a signal" if pid == 2 else "",
    )
    assert found.process == 1
    assert "(its process is stopped by a signal)" in found.sentence


def test_at_an_exchange_all_wait_for_who_is_not_there():
    end = 7
    found = held(beat(State.TOGETHER, end), beat(State.BETWEEN, 5, age=33), beat(State.TOGETHER, end))
    assert found.process == 1
    assert found.sentence == "rank 1 has been between ops of step 4 for 33 s; rank 0 and rank 2 wait for it"


def test_a_rank_that_never_came_up_is_counted_from_when_the_first_did():
    absent = Beat(0, State.ABSENT, 0, 0, 0)
    found = held(beat(State.START, age=25), absent, beat(State.START, age=12))
    assert found.process == 1
    assert found.sentence == "rank 1 has been absent for 25 s; rank 0 and rank 2 wait for it"


def test_a_replica_waits_for_another_at_the_exchange_alone():
    ends = [beat(State.TOGETHER, 6)] * 3
    behind = [beat(State.RECEIVE, 3), beat(State.OP, 2, age=40), beat(State.RECEIVE, 4)]
    found = held(*ends, *behind, replicas=2)
    assert found.process == 4
    assert found.sentence.startswith("rank 1 of replica 1 has been in 1B0 for 40 s; 5 others wait for it")


@pytest.mark.parametrize(
    "beats",
    [
        [Beat(0, State.ABSENT, 0, 0, 0)] * 3,  # nobody is up yet
        [beat(State.OP, age=9)] * 3,  # within the limit
        [beat(State.DONE, age=99)] * 3,
    ],
)
def test_nobody_is_named_while_the_run_may_go_on(beats):
    assert held(*beats) is None


def test_notes_lie_in_a_file_that_outlives_who_wrote_them(tmp_path):
    notes = table(tmp_path / "beats", 2)
    pulse = Pulse(notes[1])
    pulse.begin_step(3)
    pulse.enter(State.OP, 5)
    absent, mine = beats_of(np.array(table(tmp_path / "beats", 2)))
    assert (mine.state, mine.step, mine.row) == (State.OP, 3, 5)
    assert mine.pid > 0
    assert absent.state == State.ABSENT
