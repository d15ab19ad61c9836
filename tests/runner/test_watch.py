"""A watch that paces plays a device: durations, hops and what is made up for, against a clock that the test holds."""

import numpy as np
import pytest

from debubble.recorder.tape import BOTH, SEND
from debubble.runner import watch as module
from debubble.runner.watch import CpuWatch

MS = 1_000_000


class Clock:
    """Time that passes only when told to, or when somebody sleeps, who then wakes ``late``."""

    def __init__(self) -> None:
        self.now, self.late = 1_000 * MS, 0

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9) + self.late

    def passes(self, ms: float) -> None:
        self.now += round(ms * MS)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def op(watch: CpuWatch, clock: Clock, work: float = 1) -> None:
    watch.begin()
    clock.passes(work)
    watch.end()


def starts_and_lengths(watch: CpuWatch, clock_start: int) -> list[tuple[float, float]]:
    start, end = watch.times()[:2]
    return [((s - clock_start) / MS, (e - s) / MS) for s, e in zip(start, end, strict=True)]


def test_without_a_pace_ops_are_timed_as_they_are(clock):
    watch, first = CpuWatch(2), clock.now
    op(watch, clock, 3)
    clock.passes(2)
    op(watch, clock, 4)
    assert starts_and_lengths(watch, first) == [(0, 3), (5, 4)]


def test_a_pace_stretches_ops_and_takes_in_what_the_host_does_between_them(clock):
    watch, first = CpuWatch(2, np.array([20, 40]) * MS), clock.now
    op(watch, clock)
    clock.passes(1.5)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 20), (20, 40)]


def test_late_wake_ups_do_not_add_up(clock):
    watch, first = CpuWatch(50, np.full(50, 20) * MS), clock.now
    clock.late = MS
    for _ in range(50):
        op(watch, clock)
    assert watch.last_end() - first == 50 * 20 * MS + MS


def test_an_op_that_outlasts_its_pace_is_made_up_for_by_a_tenth_at_most(clock):
    watch, first = CpuWatch(2, np.array([20, 20]) * MS), clock.now
    op(watch, clock, 30)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 30), (30, 18)]


def test_a_host_that_comes_far_too_late_starts_its_op_late(clock):
    watch, first = CpuWatch(2, np.array([20, 20]) * MS), clock.now
    op(watch, clock)
    clock.passes(7)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 20), (25, 20)]


def test_a_hop_is_waited_for_from_when_the_output_was_made(clock):
    watch, first = CpuWatch(1, np.array([20]) * MS, np.array([5]) * MS), clock.now
    made = clock.now - 2 * MS
    watch.receive([], lambda: made)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(3, 20)]
    assert watch.times()[2].tolist() == [3 * MS]


def test_each_op_has_the_hop_of_its_own_link(clock):
    watch, first = CpuWatch(2, np.array([20, 20]) * MS, np.array([0, 9]) * MS), clock.now
    watch.receive([], lambda: first)
    op(watch, clock)
    made = clock.now
    watch.receive([], lambda: made)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 20), (29, 20)]


def test_an_input_made_long_ago_is_not_delayed_again(clock):
    watch, first = CpuWatch(1, hops=np.array([5 * MS])), clock.now
    watch.receive([], lambda: first - 100 * MS)
    op(watch, clock, 2)
    assert starts_and_lengths(watch, first) == [(0, 2)]


def test_a_paced_op_starts_when_its_input_was_due_not_when_the_message_was_read(clock):
    watch, first = CpuWatch(2, np.array([20, 20]) * MS), clock.now
    op(watch, clock)
    made = first + 30 * MS
    clock.passes(11)  # the message is read one millisecond after it was made
    watch.receive([], lambda: made)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 20), (30, 20)]


def test_a_new_step_forgets_the_old_one(clock):
    watch = CpuWatch(1, np.array([20]) * MS)
    op(watch, clock)
    clock.passes(500)
    watch.begin_step()
    first = clock.now
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 20)]


def test_a_wait_for_a_send_holds_the_next_op_until_the_link_has_carried_it(clock):
    watch, first = CpuWatch(2, np.array([10, 10]) * MS), clock.now
    op(watch, clock)
    assert watch.moment() == first + 10 * MS  # posted when the op was due
    watch.stand(lambda: first + 25 * MS, SEND)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 10), (25, 10)]
    assert (watch.times()[2:, 1] / MS).tolist() == [0, 15, 0]


def test_a_transfer_that_ended_while_the_rank_computed_holds_nothing_up(clock):
    watch, first = CpuWatch(2, np.array([10, 10]) * MS), clock.now
    op(watch, clock)
    watch.stand(lambda: first + 4 * MS, BOTH)
    op(watch, clock)
    assert starts_and_lengths(watch, first) == [(0, 10), (10, 10)]
    assert not watch.times()[2:].any()
