"""The bound on how many transfers end together is never below what any offset joins, and tells most strangers apart."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from debubble.reconstruct import coincidence
from debubble.reconstruct.coincidence import crowd_of, most_together
from debubble.reconstruct.matching import TOGETHER

UNIT = TOGETHER // 4
times = st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(lambda n: UNIT * np.sort(np.array(n)))


def joined(mine, theirs, offset):
    """How many ends have one of the other's at an offset, at most ``TOGETHER`` away."""
    return int((np.abs(theirs[None] - mine[:, None] - offset) <= TOGETHER).any(axis=1).sum())


@given(times, st.lists(times, min_size=1, max_size=4), st.integers(0, 40))
def test_no_offset_within_reach_joins_more(mine, others, reach):
    most = most_together([(mine, crowd_of(others))], reach * UNIT)
    for bound, theirs in zip(most.tolist(), others, strict=True):
        assert bound >= max(joined(mine, theirs, UNIT * offset) for offset in range(-reach, reach + 1))


@given(times, times, times, times, st.integers(0, 20), st.integers(-4, 4))
def test_nor_do_two_ways_whose_offsets_are_together(sent, received, their_receives, their_sends, reach, apart):
    ways = [(sent, crowd_of([their_receives])), (received, crowd_of([their_sends]))]
    (bound,) = most_together(ways, reach * UNIT).tolist()
    for offset in range(-reach, reach + 1):
        if abs(offset + apart) <= reach:
            both = joined(sent, their_receives, UNIT * offset) + joined(received, their_sends, UNIT * (offset + apart))
            assert bound >= both


def test_of_strangers_few_ends_are_together_and_of_a_partner_all():
    random = np.random.default_rng(20)
    mine, *others = np.cumsum(random.integers(5_000_000, 15_000_000, (40, 200)), axis=1)
    most = most_together([(mine, crowd_of([mine + 2_000_000, *others]))], 3_000_000)
    assert most[0] == 200
    assert most[1:].max() < 60


def test_differences_that_are_too_many_at_once_are_counted_in_parts(monkeypatch):
    mine = np.arange(50) * TOGETHER
    ways = [(mine, crowd_of([mine, mine + 3]))]
    whole = most_together(ways, 10 * TOGETHER)
    monkeypatch.setattr(coincidence, "_AT_ONCE", 7)
    np.testing.assert_array_equal(most_together(ways, 10 * TOGETHER), whole)


def test_a_reach_of_hours_takes_no_memory():
    mine = np.arange(50) * TOGETHER
    assert most_together([(mine, crowd_of([mine] * 8))], 3600 * 10**9).tolist() == [2500] * 8


def test_an_owner_without_ends_has_none_together():
    empty = np.empty(0, np.int64)
    assert most_together([(np.array([5]), crowd_of([empty, np.array([7])]))], 10).tolist() == [0, 1]
    assert most_together([(empty, crowd_of([empty]))], 10).tolist() == [0]
