"""Both sides of messages: their order pairs them whatever the clocks, and what was lost costs itself."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.reconstruct.clocks import clocks_of
from debubble.reconstruct.device_ops import RankOps, Transfers
from debubble.reconstruct.pairing import nearest, pair_by_pile, pair_by_time, pair_in_order, sides_of, split

MS = 1_000_000


def device(rank, moves):
    """A device that did nothing but send and receive: rows of (sends, peer, step, start, end) in ms."""
    send, peer, step, start, end = zip(*moves, strict=True)
    times = [np.rint(np.array(column) * MS).astype(np.int64) for column in (start, end)]
    transfers = Transfers(
        step=np.array(step, np.int64),
        send=np.array(send, bool),
        forward=np.full(len(moves), -1, np.int8),
        peer=np.array(peer, np.int32),
        start=times[0],
        end=times[1],
    )
    none = np.empty(0, np.int64)
    return RankOps(rank, f"rank{rank}", none, none.astype(np.uint8), none, none, transfers=transfers)


def two_ranks(ends, *, ahead=0.0, steps=1):
    """Rank 0 sends what ends then (ms), and gets each back 2.5 ms later; the clock of rank 1 is ahead."""
    step = np.arange(len(ends)) * steps // len(ends)
    back = [end + 2.5 for end in ends]
    there = [(True, 1, s, end - 1, end) for s, end in zip(step, ends, strict=True)]
    there += [(False, 1, s, end - 2, end) for s, end in zip(step, back, strict=True)]
    here = [(False, 0, s, end - 2 + ahead, end + ahead) for s, end in zip(step, ends, strict=True)]
    here += [(True, 0, s, end - 1 + ahead, end + ahead) for s, end in zip(step, back, strict=True)]
    return [device(0, there), device(1, here)]


def without(one, lost):
    """A device that lost one of its transfers."""
    return replace(one, transfers=one.transfers.only(np.arange(len(one.transfers)) != lost))


def mates(devices, pairs):
    """Rows of both devices' own transfers that were paired, by (sender, row, receiver, row)."""
    sides = sides_of(devices)
    return {
        (int(sides.device[a]), int(sides.row[a]), int(sides.device[b]), int(sides.row[b]))
        for a, b in zip(pairs.send, pairs.receive, strict=True)
    }


irregular = np.cumsum(np.random.default_rng(5).integers(4 * MS, 15 * MS, 60)) / MS


@given(st.floats(-1e7, 1e7), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_the_k_th_send_is_the_k_th_receive_whatever_the_clocks(ahead, steps):
    devices = two_ranks(irregular, ahead=ahead, steps=steps)
    found = pair_in_order(sides_of(devices))
    assert mates(devices, found) == {(0, i, 1, i) for i in range(60)} | {(1, 60 + i, 0, 60 + i) for i in range(60)}


@pytest.mark.parametrize("ahead", [0.0, -7.0, 5_000.0])
def test_a_step_that_lost_a_message_is_paired_by_time_and_the_others_tell_the_clocks(ahead):
    devices = two_ranks(irregular, ahead=ahead, steps=4)
    devices = [without(devices[0], 5), devices[1]]
    sides = sides_of(devices)
    pairs = pair_in_order(sides)
    assert len(pairs) == 120 - 15  # a fourth of one way
    clocks = clocks_of(devices, sides, pairs)
    level = np.concatenate([clocks.shared(i, sides.end[sides.device == i]) for i in (0, 1)])
    found = pair_by_time(sides, pairs, level, clocks.part, 0.2 * MS)
    assert (len(found), found.by_time) == (119, 14)
    assert all(b == (a if a < 60 and a < 5 else a + 1) for s, a, _, b in mates(devices, found) if s == 0)


@pytest.mark.parametrize("ahead", [0.0, -7.0, 5_000.0])
def test_where_no_step_is_whole_ends_pile_up_at_the_offset_of_the_clocks(ahead):
    devices = two_ranks(irregular, ahead=ahead)
    devices = [without(devices[0], 5), without(devices[1], 100)]
    sides = sides_of(devices)
    found = pair_by_pile(sides, pair_in_order(sides))
    assert (len(found), found.by_time) == (118, 118)
    assert clocks_of(devices, sides, found).offset.tolist() == pytest.approx([0, ahead * MS], abs=1)


def test_communicators_are_paired_apart_and_a_peer_that_is_not_here_is_none():
    """Two sends at once on two communicators arrive the other way round."""
    one = device(0, [(True, 1, 0, 0, 5), (True, 1, 0, 0, 3), (True, 7, 0, 6, 8)])
    other = device(1, [(False, 0, 0, 0, 3), (False, 0, 0, 0, 5)])
    group = [
        replace(d, transfers=replace(d.transfers, group=np.array(g))) for d, g in ((one, [4, 6, 4]), (other, [6, 4]))
    ]
    assert mates(group, pair_in_order(sides_of(group))) == {(0, 0, 1, 1), (0, 1, 1, 0)}
    assert (sides_of(group).peer[:3] == [1, 1, -2]).all()


def test_differences_of_years_between_many_ends_fill_no_memory():
    far = irregular + 3e11
    devices = [
        device(0, [(True, 1, 0, e - 1, e) for e in np.tile(irregular, 50)]),
        device(1, [(False, 0, 0, 0, e) for e in far]),
    ]
    sides = sides_of(devices)
    pairs = pair_in_order(sides)
    tracemalloc.start()
    pair_by_pile(sides, pairs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


# What a receive was: waiting, and at most so much transfer.


@pytest.mark.parametrize(
    ("sent", "posted", "end", "waiting", "transfer"),
    [
        (25, 5, 30, 20, 5),  # case C52: a send of 25 to 30, a receive of 5 to 30
        (5, 25, 30, 0, 5),  # a late receive has waited for nothing
        (31, 5, 30, 25, 0),  # on clocks that are not quite one
    ],
)
def test_a_receive_waits_until_its_send_begins(sent, posted, end, waiting, transfer):
    found = split(*(np.array([time * MS]) for time in (sent, posted, end)))
    assert [int(part[0]) for part in found] == [waiting * MS, transfer * MS]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=20))
def test_waiting_and_transfer_are_the_receive_and_none_is_below_zero(rows):
    sent, posted, length = np.array(rows).T
    waiting, transfer = split(sent, posted, posted + length)
    assert (waiting >= 0).all()
    assert (transfer >= 0).all()
    assert (waiting + transfer == length).all()


@pytest.mark.parametrize(
    ("mine", "theirs", "within", "pairs"),
    [
        ([0, 10, 20], [1, 9, 30], 2, [(0, 0), (1, 1)]),  # 20 and 30 are further apart than 2
        ([0, 10, 20], [1, 9, 30], 10, [(0, 0), (1, 1), (2, 2)]),  # the bound itself is near enough
        ([0, 1], [0.6], 5, [(1, 0)]),  # 0 is nearest to .6 too, which is nearer to 1
        ([5, 1], [1.5, 4.5, 9], 1, [(0, 1), (1, 0)]),  # in no order
        ([], [1], 5, []),
        ([1], [], 5, []),
        ([3], [3], 0, [(0, 0)]),
    ],
)
def test_times_are_paired_that_are_each_others_nearest(mine, theirs, within, pairs):
    found = nearest(np.array(mine, float), np.array(theirs, float), within)
    assert list(zip(*(rows.tolist() for rows in found), strict=True)) == pairs
