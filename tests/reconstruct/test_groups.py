"""Rows that belong together: numbered in the order of their values, counted, and cut where values change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from debubble.reconstruct.device_ops import group_of, parted, place_within

SMALL = st.integers(-3, 3)


def test_rows_alike_in_every_column_have_one_number():
    steps, kinds = np.array([7, 5, 7, 5, 7]), np.array([1, 0, 0, 0, 1], np.uint8)
    assert group_of(steps, kinds).tolist() == [2, 0, 1, 0, 2]
    assert place_within(group_of(steps, kinds)).tolist() == [0, 0, 0, 1, 1]


@given(st.lists(st.tuples(SMALL, SMALL), max_size=30))
def test_numbers_and_places_are_those_of_plain_python(rows):
    one, other = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    order = sorted(set(rows))
    assert group_of(one, other).tolist() == [order.index(row) for row in rows]
    assert place_within(group_of(one, other)).tolist() == [rows[:i].count(row) for i, row in enumerate(rows)]


def test_rows_are_cut_where_any_column_changes():
    steps, peers = np.array([0, 0, 0, 1, 1]), np.array([4, 4, 5, 5, 5])
    assert [part.tolist() for part in parted(np.array([1, 0, 2, 3, 4]), steps, peers)] == [[1, 0], [2], [3, 4]]
    assert parted(np.array([], np.int64), steps) == []
