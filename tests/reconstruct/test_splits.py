"""Receives split by their sends: waiting and transfer make up the receive, whatever the clocks and order of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.reconstruct.device_ops import Transfers
from debubble.reconstruct.matching import match
from debubble.reconstruct.receive_splits import links, split

MS = 1_000_000


def transfers(*rows):
    """From (sends, forward, start, end) in ms, all of step 0."""
    send, forward, start, end = zip(*rows, strict=True)
    return Transfers(
        step=np.zeros(len(rows), np.int64),
        send=np.array(send, bool),
        forward=np.array(forward, np.int8),
        peer=np.full(len(rows), -1, np.int32),
        start=np.rint(np.array(start) * MS).astype(np.int64),
        end=np.rint(np.array(end) * MS).astype(np.int64),
    )


def splits(first, second, reach=2 * MS):
    return split(first, second, match(first, second, reach), (0, 1))


@pytest.mark.parametrize("ahead", [0, -1.5, 1.5])
def test_a_receive_waits_until_its_send_begins_on_whichever_clock(ahead):
    """Case C52: a send of 25 to 30, a receive of 5 to 30."""
    sender, receiver = transfers((True, 1, 25, 30)), transfers((False, 1, 5 + ahead, 30 + ahead))
    (found,) = splits(sender, receiver)
    assert (found.sender, found.receiver) == (0, 1)
    assert (found.waiting.tolist(), found.transfer.tolist()) == ([20 * MS], [5 * MS])
    (back,) = split(receiver, sender, match(receiver, sender, 2 * MS), (3, 2))
    assert (back.sender, back.receiver, back.waiting.tolist()) == (2, 3, [20 * MS])


def test_a_late_receive_has_waited_for_nothing():
    (found,) = splits(transfers((True, 1, 5, 30)), transfers((False, 1, 25, 30)))
    assert (found.waiting.tolist(), found.transfer.tolist()) == ([0], [5 * MS])


def test_two_ways_at_once_are_told_apart_by_who_sends():
    """Both ranks send and receive at the same time, as in a batch."""
    here = transfers((True, 1, 10, 20), (False, 0, 2, 20))
    there = transfers((False, 1, 4, 20), (True, 0, 12, 20))
    down, up = splits(here, there)
    assert (down.sender, down.receiver, down.waiting.tolist()) == (0, 1, [6 * MS])
    assert (up.sender, up.receiver, up.waiting.tolist()) == (1, 0, [10 * MS])


def test_links_add_up_by_way():
    one = splits(transfers((True, 1, 25, 30)), transfers((False, 1, 5, 30)))
    (link,) = links([*one, *one])
    assert (link.receives, link.waiting_ns, link.transfer_ns, link.usual_ns) == (2, 40 * MS, 10 * MS, 5 * MS)
    assert links([]) == ()


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.1, 50)), min_size=1, max_size=20), st.floats(-1.9, 1.9))
def test_waiting_and_transfer_are_the_receive_and_none_is_below_zero(lengths, ahead):
    ends = [100.0 * (i + 1) for i in range(len(lengths))]
    sends = transfers(*[(True, 1, end - send, end) for end, (send, _) in zip(ends, lengths, strict=True)])
    receives = transfers(
        *[(False, 1, end - receive + ahead, end + ahead) for end, (_, receive) in zip(ends, lengths, strict=True)]
    )
    (found,) = splits(sends, receives)
    assert len(found.waiting) == len(lengths)
    assert (found.waiting >= 0).all()
    assert (found.transfer >= 0).all()
    whole = found.waiting + found.transfer
    assert np.allclose(np.sort(whole), np.sort([receive * MS for _, receive in lengths]), atol=2)
    least = np.sort([min(pair) * MS for pair in lengths])
    assert np.allclose(np.sort(found.transfer), least, atol=2)
