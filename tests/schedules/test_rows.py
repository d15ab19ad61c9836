"""The notation of rows: bytes repeat, ops are counted by lane and kind, pairs are marked."""

import numpy as np

from debubble import Kind, Shape
from debubble.schedules.rows import F1, I1, W1, B, F, I, W, alternate, joined, linear, numbered, v_shaped, weights_of


def letters(row):
    return "".join(Kind(code % 4).name for code in row)


def test_ops_count_up_by_lane_and_kind():
    ops = numbered([2 * F + F1 + F, F1 + F])
    assert ops.turn.tolist() == [0, 1, 0, 2, 0, 0]
    assert ops.lane.tolist() == [0, 0, 1, 0, 1, 0]
    assert ops.rank.tolist() == [0, 0, 0, 0, 1, 1]
    assert ops.joined is None


def test_i_and_b_share_a_count_and_each_w_is_that_of_the_next_i():
    ops = numbered([4 * F + B + I + B + I + 2 * W])
    assert ops.turn.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 1, 3]


def test_a_joined_pair_is_one_slot():
    ops = numbered([F + F1 + joined(F, B)])
    assert ops.joined.tolist() == [False, False, False, True]


def test_the_w_of_a_row_follow_its_i():
    assert weights_of(B + I1 + I + F) == W1 + W


def test_rows_may_drop_the_last_micro_batches():
    schedule = v_shaped("v", Shape(1, 2, 2), [3 * F + 3 * F1], last=2)
    assert schedule.unit.tolist() == [0, 1, 0, 1]
    assert schedule.offsets.tolist() == [0, 4]
    assert schedule.stage.tolist() == [0, 0, 1, 1]


def test_linear_puts_one_stage_on_each_rank():
    schedule = linear("two", Shape(2, 1), [F + B, F + B])
    assert [str(op) for op in schedule.row(1)] == ["1F0", "1B0"]
    assert np.array_equal(schedule.placement, [[0, 1]])


def test_alternating_rows_as_their_docstring_draws_them():
    assert letters(alternate(3, 5)) == "FFFFBFBBBB"
    assert letters(alternate(3, 5, lag=1)) == "FFFFIFIWIWIWIWW"


def test_more_warm_up_than_forwards_is_all_of_them():
    assert letters(alternate(9, 2)) == "FFBB"
    assert letters(alternate(9, 2, lag=9)) == "FFIIWW"


def test_every_lag_keeps_the_number_of_ops_and_the_order_of_w():
    for w in range(6):
        for n in range(1, 6):
            for lag in range(6):
                row = letters(alternate(w, n, lag=lag))
                assert (row.count("F"), row.count("I"), row.count("W")) == (n, n, n)
                waiting = np.cumsum([{"F": 0, "I": 1, "W": -1}[letter] for letter in row])
                assert waiting.min() >= 0
                assert waiting.max() <= lag + 1
