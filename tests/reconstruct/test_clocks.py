"""Clocks from pairs of ends: offsets and rates that were poured in come back, and none is invented."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.reconstruct.clocks import align, clocks_of
from debubble.reconstruct.device_ops import RankOps, Transfers
from debubble.reconstruct.pairing import pair_in_order, sides_of

MS, SECOND = 1_000_000, 1_000_000_000


def line_of(ranks, offset, rate, *, late, seed=0, steps=10, each=12):
    """Ranks in a line whose messages end together or up to ``late`` ns later at the receiver, on clocks of their own.

    Args:
        ranks: how many.
        offset: of each clock at the beginning, nanoseconds.
        rate: of each, ppm.
        late: most nanoseconds by which a receive ends after its send.
        seed: of the noise.
        steps: as many, half a second each.
        each: messages of a step, hop and way.
    """
    noise = np.random.default_rng(seed)
    rows = [[] for _ in range(ranks)]
    for step in range(steps):
        for hop in range(ranks - 1):
            ends = np.sort(noise.uniform(0, 0.4, 2 * each)) * SECOND + step * SECOND / 2
            for i, end in enumerate(ends):
                source, target = (hop, hop + 1) if i % 2 else (hop + 1, hop)
                rows[source].append((True, target, step, end))
                rows[target].append((False, source, step, end + late * noise.random()))
    return [_device(rank, rows[rank], offset[rank], rate[rank]) for rank in range(ranks)]


def _device(rank, rows, offset, rate):
    send, peer, step, end = zip(*rows, strict=True)
    zero = 1_790_857_026_000_000_000
    shown = zero + np.rint(np.array(end) * (1 + rate * 1e-6) + offset).astype(np.int64)
    transfers = Transfers(
        step=np.array(step),
        send=np.array(send),
        forward=np.full(len(rows), -1, np.int8),
        peer=np.array(peer, np.int32),
        start=shown - MS,
        end=shown,
    )
    moments = np.array([shown[np.array(step) == s].min() for s in range(max(step) + 1)])
    return RankOps(
        rank=rank,
        source=f"rank{rank}",
        step=np.arange(len(moments)),
        kind=np.zeros(len(moments), np.uint8),
        start=moments,
        end=moments + MS,
        transfers=transfers,
    )


def told(devices):
    sides = sides_of(devices)
    return clocks_of(devices, sides, pair_in_order(sides))


clocks = st.lists(st.tuples(st.floats(-10 * SECOND, 10 * SECOND), st.floats(-100, 100)), min_size=2, max_size=8)


@given(clocks, st.sampled_from([0, MS // 10, MS]), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_offsets_to_10_s_and_rates_to_100_ppm_come_back(drawn, late, seed):
    offset, rate = (np.array(column) for column in zip(*drawn, strict=True))
    found = told(line_of(len(drawn), offset, rate, late=late, seed=seed))
    first = (1 + rate[0] * 1e-6) - 1
    true_rate = (1 + rate * 1e-6) / (1 + first) - 1
    reached = found.since[0] - 1_790_857_026_000_000_000 - offset[0]
    true_offset = offset - offset[0] + true_rate * reached
    assert np.abs(found.offset - true_offset).max() <= 50_000 + late
    assert (np.abs(found.offset - true_offset) <= found.uncertainty + 50_000).all()
    assert np.abs(found.rate - true_rate).max() <= 5e-6 + 2 * late / (4.5 * SECOND)


@given(st.integers(2, 8), st.sampled_from([0, MS // 10]), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_no_rate_and_no_disagreement_is_invented_for_clocks_that_are_one(ranks, late, seed):
    found = told(line_of(ranks, np.zeros(ranks), np.zeros(ranks), late=late, seed=seed))
    assert not found.drifts().any()
    assert not found.disagree().any()


def test_each_end_of_a_message_is_moved_onto_the_clock_of_the_first_device():
    devices = line_of(3, [0, 2e9, -5e9], [0, 80, -40], late=0)
    found = told(devices)
    plain = line_of(3, [0, 0, 0], [0, 0, 0], late=0)
    for i, device in enumerate(devices):
        moved = found.shared(i, device.transfers.end)
        assert np.abs(moved - plain[i].transfers.end).max() <= 10


def test_devices_that_no_message_joins_have_clocks_of_their_own():
    apart = [*line_of(2, [0, 3 * MS], [0, 0], late=0), *line_of(2, [0, 9 * MS], [0, 0], late=0)]
    numbered = [_renumbered(device, 2 * (i // 2)) for i, device in enumerate(apart)]
    found = told(numbered)
    assert found.part.tolist() == [0, 0, 2, 2]
    assert found.offset.tolist() == pytest.approx([0, 3 * MS, 0, 9 * MS], abs=2)


def _renumbered(device, by):
    from dataclasses import replace

    moves = replace(device.transfers, peer=device.transfers.peer + by)
    return replace(device, rank=device.rank + by, transfers=moves)


def bounds(*rows):
    """Least offsets of column against row, ms; None for none."""
    return np.array([[-np.inf if cell is None else 1e6 * cell for cell in row] for row in rows])


def test_two_clocks_are_set_to_the_middle_of_what_both_ways_allow():
    """What goes asks for 3 ms at least, what comes back for 5 at most: 4, and 1 of doubt either way."""
    found = align(bounds((None, 3), (-5, None)), trust=False)
    assert found.offsets.tolist() == [0, 4_000_000]
    assert (found.width, found.violation, found.consistent) == (2_000_000, 3_000_000, True)


def test_bounds_of_neighbours_add_up_along_a_line_of_three():
    """1 <= b <= 3 and b + 2 <= c <= b + 6: c lies between 3 and 9."""
    found = align(bounds((None, 1, None), (-3, None, 2), (None, -6, None)), trust=False)
    assert found.offsets.tolist() == [0, 2_000_000, 6_000_000]
    assert found.width == 4_000_000  # of the wider hop


def test_where_one_side_is_open_the_other_is_the_best_there_is():
    assert align(bounds((None, 3), (None, None)), trust=False).offsets.tolist() == [0, 3_000_000]
    assert align(bounds((None, None), (-5, None)), trust=False).offsets.tolist() == [0, 5_000_000]
    assert align(bounds((None, None), (None, None)), trust=False).offsets.tolist() == [0, 0]


def test_clocks_that_no_op_contradicts_stay_as_they_are_if_they_are_trusted():
    quiet = bounds((None, -2), (-5, None))
    assert align(quiet, trust=True).offsets.tolist() == [0, 0]
    assert align(quiet, trust=False).offsets.tolist() == [0, 1_500_000]  # between -2 and 5
    assert align(bounds((None, 3), (-5, None)), trust=True).offsets.tolist() == [0, 4_000_000]


def test_a_clock_that_would_have_to_be_ahead_of_itself_is_a_contradiction():
    """At least 5 ms ahead and at most 3."""
    found = align(bounds((None, 5), (-3, None)), trust=False)
    assert not found.consistent
    assert found.offsets.tolist() == [0, 0]
