"""The account of a timeline: each part of each rank's window, on grids that were worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.engine import BLOCKING, IDEAL, LINK, RENDEZVOUS
from debubble.core.lower import lower
from debubble.core.program import Timeline
from debubble.core.schedule import Op, Shape, from_rows
from debubble.core.simulate import simulate
from debubble.schedules.catalog import build
from strategies import schedules


def parts(rates, *rows, placement=(0, 1), m=1, sends=IDEAL):
    """Per rank: compute, warm-up, waiting, transfer, cool-down."""
    schedule = from_rows("hand", [[Op.parse(cell) for cell in row.split()] for row in rows], placement, m)
    return columns(account(simulate(lower(schedule, sends), costs_of(rates, schedule))))


def columns(spent):
    return np.stack([spent.compute, spent.warm_up, spent.waiting, spent.transfer, spent.cool_down], 1).tolist()


def test_1f1b_at_p4_m8_with_f1_b2_wastes_9_on_each_rank_in_three_ways():
    """DESIGN's example: rank 0 waits 9, rank 3 warms up 3 and cools down 6."""
    schedule = build("1f1b", Shape(4, 8))
    spent = account(simulate(lower(schedule), costs_of(Rates(forward=1, backward=2), schedule)))
    assert columns(spent) == [[24, 0, 9, 0, 0], [24, 1, 6, 0, 2], [24, 2, 3, 0, 4], [24, 3, 0, 0, 6]]
    assert (spent.idle_share, spent.bubble_ratio) == (pytest.approx(3 / 11), pytest.approx(3 / 8))


def test_an_input_on_its_way_is_transfer_and_one_not_yet_made_is_waiting():
    #  rank 0  F F . . . . . . . . . . B B     waits 7 until 1B0 ends, then 3 on the way back
    #  rank 1  . . . . . F F B B . . . . .     the way there is part of its warm-up
    assert parts(Rates(forward=2, backward=2, transfer=3), "0F0 0B0", "1F0 1B0") == [
        [4, 0, 7, 3, 0],
        [4, 5, 0, 0, 5],
    ]


def test_a_blocking_send_counts_as_transfer_of_its_sender():
    #  rank 0  F F S S S . . . . . . . B B
    #  rank 1  . . . . . F F B B S S S
    assert parts(Rates(forward=2, backward=2, transfer=3), "0F0 0B0", "1F0 1B0", sends=BLOCKING) == [
        [4, 0, 4, 6, 0],
        [4, 5, 0, 3, 2],
    ]


def test_a_rendezvous_counts_as_transfer_of_both_sides():
    #  rank 0  F F S S S . . . . R R R B B
    #  rank 1  . . R R R F F B B S S S
    assert parts(Rates(forward=2, backward=2, transfer=3), "0F0 0B0", "1F0 1B0", sends=RENDEZVOUS) == [
        [4, 0, 4, 6, 0],
        [4, 2, 0, 6, 2],
    ]


def test_time_in_the_queue_of_a_link_is_transfer():
    #  rank 0  F F F F
    #  link    . . S S S S S S S S S S     5 each
    #  rank 1  . . . . . . . F . . . . F
    rates = Rates(forward=2, stage_scale=(1, 0.5), payload=50, link=10)
    assert parts(rates, "0F0 0F1", "1F0 1F1", m=2, sends=LINK)[1] == [2, 7, 0, 4, 0]


def test_an_overlapped_pair_counts_once():
    schedule = from_rows(
        "pair",
        [list(map(Op.parse, ("0F0", "0F1", "0B0", "0B1")))],
        [0],
        2,
        joined=[[False, False, True, False]],
    )
    spent = account(simulate(lower(schedule), costs_of(Rates(forward=1, backward=2, pair=2), schedule)))
    assert spent.compute.tolist() == [1 + 2 + 2]


def test_a_rank_without_ops_only_warms_up():
    spent = parts(Rates(forward=2), "0F0", "", placement=(0,), m=1)
    assert spent == [[2, 0, 0, 0, 0], [0, 2, 0, 0, 0]]


def test_the_span_of_zb_h2_has_no_bubble_where_the_window_has_one():
    """arXiv:2401.10241, section 5.3: only without the barrier is the bubble zero."""
    schedule = build("zb-h2", Shape(4, 8))
    spent = account(simulate(lower(schedule), costs_of(Rates(forward=10, input=10, weight=10), schedule)))
    assert spent.span_idle_share == 0
    assert spent.idle_share == pytest.approx(1 / 9, abs=1e-4)  # .1111 in the published table


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 2**32 - 1), st.sampled_from([-(10**18), 0, 10**18]))
def test_a_measured_timeline_with_jitter_on_any_clock_is_accounted_for_to_the_nanosecond(schedule, seed, epoch):
    """Ops that start late, overlap a little, or end out of order: the five parts still sum to the window."""
    dice = np.random.default_rng(seed)
    ideal = simulate(lower(schedule), costs_of(Rates(forward=100, backward=200, transfer=10), schedule))
    start = ideal.start + dice.integers(0, 40, len(schedule)) + epoch
    spent = account(Timeline(ideal.program, start, ideal.end + dice.integers(0, 40, len(schedule)) + epoch, "measured"))
    assert {sum(rank) for rank in columns(spent)} == {spent.window}
    assert spent.evidence == "measured"
