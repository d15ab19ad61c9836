"""Schedules laid out as a V, two chunks a rank: ZB-V, 1F1B-V, V-Half and V-Min.

Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1). A micro-batch holds its place on a rank from F to W (or B): the
closer its way down the V and back up, the fewer are in flight. V-Half and V-Min take half and a third of the memory of
1F1B; they are made of building blocks: one micro-batch laid out in unit slots, repeated, and packed.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3; how it
is packed, as in sail-sg/zero-bubble, ``zbv_greedy``.

In front of the letter stands the chunk. A slot is one F, I or W of a chunk. Steps of packing a building block:
    (1) repeat the block every 6 slots, for 0F, 1F, 1I, 0I and two W; the W of finished I take the first free slots,
        first in, first out
    (2) reorder: in the order of slots (and of ranks within a slot), move each op of the warm-up (before rank 0's first
        0I) and of the cool-down (after the next last 0F of a rank, mostly rank 0's) to the first free slot behind its
        input and behind the same op of the micro-batch before; an F only as far as its rank stays within the worst
        peak of (1)
    (3) squeeze: run the ops in this order, each as soon as it can
    (4) take W out and reorder the cool-down again; the peak is counted as if W took the free slots
    (5) put W back into the first free slots, those of chunk 1 first

Memory is counted from F to W, in chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault
from ..core.schedule import Kind, Schedule, Shape, v_placement
from .entry import Entry, check
from .rows import F1, I1, LANE, W1, Clocked, F, I, W, by_slot, v_shaped

_MOST_BUILT = 300_000_000  # bytes of rows, one an op: above 5,000 ranks, whatever micro-batches are kept of them


# ZB-V: two chunks a rank, laid out as a V, and a split backward: no bubble without a barrier, in 1F1B's memory.
#
# Source: Qi et al., Zero Bubble Pipeline Parallelism, https://arxiv.org/abs/2401.10241 (ZB-V); the order made
# by hand for F = I = W, as PyTorch's ``ScheduleZBVZeroBubble`` also runs it.
#
# Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1); in front of the letter stands the chunk. The order is built for
# N = max(m, 2p-1) micro-batches, and those from m on are dropped. Steps, on rank r of p:
#     (1) 2(p-r)-1 × 0F
#     (2) r × (1F 0F)
#     (3) p-r × (1F 1I 1W)
#     (4) until 0F and 1F have reached N: (0F if any is left) 0I 0W 1F 1I 1W
#     (5) r × (0I 1I)
#     (6) p-r × (0I 0W)
#     (7) the r × 1W that are left, then the r × 0W
#
# p = 3, m = 5, F = I = W; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 F3 F4 f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1 f4 i4 w4 I2 W2 I3 W3 I4 W4  .  .
#     rank 1   . F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 F4 I0 W0 f3 i2 w2 I1 W1 f4 i3 w3 I2 i4 I3 W2 I4 W3 w4 W4  .
#     rank 2   .  . F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 F4 I1 W1 f4 i2 w2 I2 i3 I3 i4 I4 W2 w3 w4 W3 W4
def zb_v(shape: Shape) -> Schedule:
    """ZB-V for any p and m (its full effect from m = 2p-1); every rank holds at most p micro-batches.

    Raises:
        InputError: more than the order of all 2p-1 micro-batches may take.
    """
    p, m = shape.ranks, shape.microbatches
    n = max(m, 2 * p - 1)
    rule = (
        f"zb-v is cut from the order of 2p-1 micro-batches or more, here {6 * p * n:,} ops of at most {_MOST_BUILT:,}"
    )
    many = Fault(f"ranks = {p:,}", rule, "give fewer ranks")
    check("zb-v", shape, many if 6 * p * n > _MOST_BUILT else None, chunks=2)
    return v_shaped("zb-v", shape, [_row_of_zb_v(p, r, n) for r in range(p)], last=m)


ZB_V = Entry(
    name="zb-v",
    build=zb_v,
    other_names=("V-ZB",),
    torch="ZBVZeroBubble",
    paper="arXiv:2401.10241",
    placement="V",
    chunks=2,
    needs="v = 2",
    splits=True,
    bubble="(p-1)F/2",
    bubble_holds="F = I = W, m >= 2p-1",
    activations="min(p, m)",
)


def _row_of_zb_v(p: int, r: int, n: int) -> bytes:
    return (
        (2 * (p - r) - 1) * F  # (1)
        + r * (F1 + F)  # (2)
        + (p - r) * (F1 + I1 + W1)  # (3)
        + (n - 2 * p + 1 + r) * (F + I + W + F1 + I1 + W1)  # (4)
        + (p - 1 - r) * (I + W + F1 + I1 + W1)  # (4), no 0F left
        + r * (I + I1)  # (5)
        + (p - r) * (I + W)  # (6)
        + r * W1  # (7)
        + r * W
    )


_MOST_CELLS = 200_000  # about ten seconds
_MOST_RANKS_OF_1F1B = 1000  # a table has a row for each, and as many columns as a micro-batch takes to pass them: 6 p
_PERIOD_OF_1F1B = 6  # slots in which a rank works on each micro-batch: F and B, of one and two slots, of two chunks


# 1F1B-V: a V with full backwards, in two thirds of 1F1B's memory.
#
# Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362 (its building
# block "1F1B-V"); the offsets as in sail-sg/zero-bubble.
#
# Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1). A slot is one F of a chunk, B takes two. Steps:
#     (1) building block: the F of stage s in slot s; the j-th B (of stage 2p-1-j) from slot
#         2p + 3 [p mod 3 = 0] + 2j + 3 ((j + c) div 3) on, with c = -(p+2) mod 3: three hops, then a pause of three
#         slots, so that the blocks of all ranks fit together
#     (2) repeat it every 6 slots
#     (3) reorder: in the order of slots, move each op to the first free slot behind what it needs and behind the same
#         op of the micro-batch before; an F only as far as the rank's memory stays within the peak of (2)
#     (4) squeeze: run the ops in this order, each as soon as it can
#
# p = 3, m = 4, B = 2F; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 F3  . f0 b0--- f1 b1--- f2 b2---  .  .  . f3 B0--- b3--- B1---  .  . B2---  .  . B3---
#     rank 1   . F0 F1 F2 f0 F3 f1  . b0--- f2 b1---  . B0--- f3 b2---  . B1--- b3--- B2---  .  . B3---  .  .
#     rank 2   .  . F0 f0 F1 f1 F2 f2  .  . b0--- B0--- F3 f3 b1--- B1--- b2--- B2--- b3--- B3---  .  .  .  .
def one_f_one_b_v(shape: Shape) -> Schedule:
    """1F1B-V for any p and m; the worst rank holds 2p div 3 + 1 micro-batches.

    Raises:
        InputError: p x m is beyond what step (3), which goes op by op, does in reasonable time.
    """
    cells = shape.ranks * shape.microbatches
    rule = f"1f1b-v is laid out op by op, for up to {_MOST_CELLS:,} of them on {_MOST_RANKS_OF_1F1B:,} ranks"
    many = Fault(
        f"ranks x microbatches = {cells:,}", rule, f"give {_MOST_CELLS // shape.ranks:,} micro-batches or less"
    )
    check("1f1b-v", shape, many if cells > _MOST_CELLS or shape.ranks > _MOST_RANKS_OF_1F1B else None, chunks=2)
    home = v_placement(shape.ranks)
    ops = _repeated_ops(home[0], shape.microbatches)
    return by_slot("1f1b-v", shape, _reordered(ops, shape), home)


ONE_F_ONE_B_V = Entry(
    name="1f1b-v",
    build=one_f_one_b_v,
    other_names=("V1F1B",),
    paper="arXiv:2405.15362",
    placement="V",
    chunks=2,
    needs="v = 2",
    bubble="<= (p-1)(F+B)",
    bubble_holds="B = 2F",
    activations="min(2p div 3 + 1, m)",
)


def _repeated_ops(home: NDArray[np.int32], m: int) -> Clocked:
    """(1) and (2): rows by kind, stage and micro-batch."""
    stages = len(home)
    p = stages // 2
    j = np.arange(stages, dtype=np.int32)
    back = stages + 3 * (p % 3 == 0) + 2 * j + 3 * ((j + -(p + 2) % 3) // 3)
    slot = np.stack([j, back[::-1]])[:, :, None] + _PERIOD_OF_1F1B * np.arange(m)
    kind = np.array([Kind.F, Kind.B], np.uint8)[:, None, None]
    columns = np.broadcast_arrays(home[:, None], kind, j[:, None], np.arange(m, dtype=np.int32), slot)
    rank, kinds, stage, unit = (column.ravel() for column in columns[:4])
    return Clocked(slot.ravel(), rank, kinds, stage, unit)


def _reordered(ops: Clocked, shape: Shape) -> Clocked:
    """(3)."""
    length = np.where(ops.kind == Kind.F, 1, 2)
    slot = ops.slot.tolist()
    needs = _needs(shape)
    rooms = _Rooms(ops, length, shape.ranks)
    ranks, lengths = ops.rank.tolist(), length.tolist()
    for row in np.argsort(ops.slot, kind="stable").tolist():
        ready = max((slot[need] + lengths[need] for need in needs[row] if need >= 0), default=0)
        slot[row] = rooms.move(ranks[row], slot[row], ready, lengths[row])
    return replace(ops, slot=np.array(slot))


def _needs(shape: Shape) -> list[list[int]]:
    """Of each row of ``_repeated_ops`` the row of its input and that of the micro-batch before; -1 for none."""
    stages, m = shape.stages, shape.microbatches
    row = np.arange(2 * stages * m).reshape(2, stages, m)
    earlier = np.where(np.arange(m) > 0, row - 1, -1)
    source = np.full_like(row, -1)
    source[0, 1:], source[1, :-1], source[1, -1] = row[0, :-1], row[1, 1:], row[0, -1]
    result: list[list[int]] = np.stack([earlier.ravel(), source.ravel()], axis=1).tolist()
    return result


class _Rooms:
    """Which slots of each rank are taken, and how many chunks it holds behind each slot."""

    def __init__(self, ops: Clocked, length: NDArray[np.int64], ranks: int) -> None:
        horizon = int(ops.slot.max()) + 3
        taken = np.zeros((ranks, horizon), np.uint8)
        taken[ops.rank, ops.slot] = taken[ops.rank, ops.slot + length - 1] = 1
        change = np.zeros((ranks, horizon), np.int64)
        change[ops.rank, ops.slot] = np.where(ops.kind == Kind.F, 1, -1)
        held = change.cumsum(axis=1)
        self._taken = [bytearray(row) for row in taken]
        self._held = held.tolist()
        self._peak = int(held.max())

    def move(self, rank: int, slot: int, ready: int, length: int) -> int:
        """Move an op to the first slot in which it may stand, at best ``ready``, and say which one that is."""
        taken, held = self._taken[rank], self._held[rank]
        taken[slot : slot + length] = bytes(length)
        change = 1 if length == 1 else -1
        first = ready
        if change > 0:  # not beyond a slot behind which the rank is full
            first = slot
            while first > ready and held[first - 1] < self._peak:
                first -= 1
        while any(taken[first : first + length]):
            first += 1
        taken[first : first + length] = b"\1" * length
        for between in range(first, slot):
            held[between] += change
        return first


# V-Half: a V whose steps up and down are spaced so that ranks hold half of 1F1B's activations.
#
# Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3
# ("V-Half").
#
# Steps:
#     (1) building block: first slots on rank r, with d = 3 if p is even, else 0
#             0F  2r        1F  3p-2-r        1I  3p-1+d+2r        0I  6p-2+d-r
#     (2) repeat and pack it, as above
#
# p = 4, m = 4, F = I = W; small letters are chunk 1:
#
#     rank 0  F0 F1 F2 F3  .  .  . f0 i0 w0 f1 i1 w1 f2  .  . I0 i2 w2 f3 W0  . I1 i3 w3 W1  . I2 W2  .  .  . I3 W3
#     rank 1   . F0 F1 F2 F3  . f0  . f1 i0 w0 f2 i1 w1  . I0 W0  . f3 i2 w2 I1 W1  . i3 w3 I2 W2  .  .  . I3 W3  .
#     rank 2   .  . F0 F1 F2 f0  . f1  . f2 i0 w0 F3 i1 I0 w1 W0 f3  .  . I1 i2 w2 W1  . I2 i3 w3 W2  . I3 W3  .  .
#     rank 3   .  .  . F0 f0 F1 f1 F2 f2  .  . i0 w0 I0 W0 F3 f3 i1 w1 I1 W1  . i2 w2 I2 W2  . i3 w3 I3 W3  .  .  .
def v_half(shape: Shape) -> Schedule:
    """V-Half for any p and m; every rank holds at most min(p div 2 + 1, m) micro-batches from F to W.

    Raises:
        InputError: chunks other than 2, or more ops than can be packed in a minute.
    """
    check("v-half", shape, *too_large("v-half", shape), chunks=2)
    p = shape.ranks
    d = 0 if p % 2 else 3

    def block(r: int) -> tuple[int, int, int, int]:  # (1)
        return 2 * r, 3 * p - 2 - r, 3 * p - 1 + d + 2 * r, 6 * p - 2 + d - r

    return v_shaped("v-half", shape, packed(p, shape.microbatches, block))  # (2)


V_HALF = Entry(
    name="v-half",
    build=v_half,
    paper="arXiv:2405.15362",
    placement="V",
    chunks=2,
    needs="v = 2",
    splits=True,
    bubble="(3p-7)F/2",
    bubble_holds="F = I = W, p % 2 = 0, p >= 4, m >= p+2",
    activations="min(p div 2 + 1, m)",
)


# V-Min: a V with no space between its steps: ranks hold a third of 1F1B's activations, and idle more.
#
# Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3
# ("V-Min").
#
# Steps:
#     (1) building block: first slots on rank r, with d = 2 if p is a multiple of 3, else 0
#             0F  r        1F  2p-1-r        1I  2p+d+r        0I  4p-1+d-r
#     (2) repeat and pack it, as above
#
# Every micro-batch idles anew as soon as F, I and W differ or a transfer takes time.
#
# p = 4, m = 4, F = I = W; small letters are chunk 1:
#
#     rank 0  F0 F1 F2  .  .  .  . f0 i0 w0 f1 i1 w1  .  . I0 W0 F3  . f2 i2 I1 w2 W1  . f3 i3 I2 w3 W2  .  .  . I3 W3
#     rank 1   . F0 F1  .  .  . f0  . f1 i0 w0 F2  .  . I0 i1 w1 W0 f2 F3 I1 i2 w2 W1 f3  . I2 i3 w3 W2  .  . I3 W3  .
#     rank 2   .  . F0 F1  . f0  . f1  .  . i0 w0 F2 I0 W0  . i1 f2 w1 I1 F3 W1 i2 f3 w2 I2 W2  . i3 w3  . I3 W3  .  .
#     rank 3   .  .  . F0 f0 F1 f1  .  .  .  . i0 I0 w0 W0 F2 f2 i1 I1 w1 W1 F3 f3 i2 I2 w2 W2  .  . i3 I3 w3 W3  .  .
def v_min(shape: Shape) -> Schedule:
    """V-Min for any p and m; every rank holds at most min((p+4) div 3, m) micro-batches from F to W.

    Raises:
        InputError: chunks other than 2, or more ops than can be packed in a minute.
    """
    check("v-min", shape, *too_large("v-min", shape), chunks=2)
    p = shape.ranks
    d = 0 if p % 3 else 2

    def block(r: int) -> tuple[int, int, int, int]:  # (1)
        return r, 2 * p - 1 - r, 2 * p + d + r, 4 * p - 1 + d - r

    return v_shaped("v-min", shape, packed(p, shape.microbatches, block))  # (2)


V_MIN = Entry(
    name="v-min",
    build=v_min,
    paper="arXiv:2405.15362",
    placement="V",
    chunks=2,
    needs="v = 2",
    splits=True,
    bubble="(4p-5)F/2",
    bubble_holds="F = I = W, p % 3 > 0, p >= 4, m >= p",
    activations="min((p+4) div 3, m)",
)


_MOST_RANKS = 256  # steps (2) and (4) take time with the cube of the ranks
# From p + 2 micro-batches on one more adds a period of six ops to each row, in the same place, and moves nothing else:
# the steady state has no free slot, so warm-up and cool-down are packed each by itself. Found for all p up to 20.
_SETTLED = 3
_PERIOD = 6
_FREE = -1
_CHANGE = (1, 0, -1)  # of the chunks held, by kind

Block = Callable[[int], tuple[int, int, int, int]]
Counts = NDArray[np.int32]


def too_large(name: str, shape: Shape) -> list[Fault]:
    """The faults of a shape for which packing takes longer than a minute."""
    if shape.ranks <= _MOST_RANKS:
        return []
    rule = f"{name} is packed rank by rank, for up to {_MOST_RANKS} of them"
    return [Fault(f"ranks = {shape.ranks}", rule, f"give {_MOST_RANKS} or less")]


def packed(p: int, m: int, block: Block) -> list[bytes]:
    """A building block repeated m times and packed, as rows.

    Args:
        p: ranks.
        m: micro-batches.
        block: first slots of 0F, 1F, 1I and 0I on a rank; they differ modulo 6.
    """
    if m <= p + _SETTLED + 1:
        return _laid_out(p, m, block)
    short, longer = (_laid_out(p, p + _SETTLED + more, block) for more in (0, 1))
    times = m - p - _SETTLED
    return [_repeated(*rows, times) for rows in zip(short, longer, strict=True)]


def _repeated(short: bytes, longer: bytes, times: int) -> bytes:
    """A row with what a row of one micro-batch more has beside it, so many times.

    short    F F f F f i w | I W f i I w W
    longer   F F f F f i w | F I W f i w | I W f i I w W
    """
    there = np.frombuffer(short, np.uint8)
    differs = np.flatnonzero(there != np.frombuffer(longer, np.uint8)[: len(there)])
    same = int(differs[0]) if len(differs) else len(short)
    return short[:same] + longer[same : same + len(longer) - len(short)] * times + short[same:]


def _laid_out(p: int, m: int, block: Block) -> list[bytes]:
    """Steps (1) to (5)."""
    grid = _Grid(p, m)
    grid.repeat(block)  # (1)
    peak = grid.peak()
    _reorder(grid, _Held(grid, peak).move, *grid.phases())  # (2)
    grid.squeeze()  # (3)
    grid.take_w_out()
    _reorder(grid, _Promised(grid, peak).move, 0, grid.phases()[1])  # (4)
    grid.put_w(chunk_1_first=True)  # (5)
    return grid.codes()


def _reorder(grid: _Grid, move: Callable[[int, int], None], until: int, after: int) -> None:
    """Move the ops before and behind two places of the walk; a place is slot x p + rank."""
    for place, op in grid.walk():
        if place < until or place > after:
            move(op, grid.ready(op))


class _Grid:
    """Ops in slots, one row a rank, while they are moved about.

    An op is a number, (kind x 2p + stage) x m + micro-batch, with kinds F, I, W. So the op before it in number is
    the same op of the micro-batch before. What follows from the number alone is looked up in lists, because the moves
    depend on each other and go op by op; everything else is done for all ops at once.
    """

    __slots__ = ("_before", "_source", "kind", "m", "p", "rank", "rows", "slot", "taken")

    def __init__(self, p: int, m: int) -> None:
        self.p, self.m = p, m
        op = np.arange(6 * p * m)
        kind, stage = np.divmod(op // m, 2 * p)
        to_i = 2 * p * m
        source = np.where(kind == Kind.F, op - m, op - to_i)  # W from its I, the last stage's I from its F
        source[(kind == Kind.F) & (stage == 0)] = _FREE
        source[(kind == Kind.I) & (stage < 2 * p - 1)] += to_i + m  # I from the stage behind
        self.kind: list[int] = kind.tolist()
        self.rank: list[int] = np.minimum(stage, 2 * p - 1 - stage).tolist()
        self._source: list[int] = source.tolist()
        self._before: list[int] = np.where(op % m > 0, op - 1, _FREE).tolist()
        self.slot = [_FREE] * (len(op) + 1)  # of each op; the last one is looked up where there is no input
        self.rows: list[list[int]] = [[] for _ in range(p)]  # the op of each slot
        self.taken: list[bytearray] = []  # whether a slot has one: bytes, because these are searched fast

    def phases(self) -> tuple[int, int]:
        """Where the warm-up ends and behind which place the cool-down begins."""
        steady = self.slot[2 * self.p * self.m] * self.p  # rank 0's first 0I
        last = (self.slot[rank * self.m + self.m - 1] * self.p + rank for rank in range(self.p))  # last 0F of each rank
        return steady, min((place for place in last if place > steady), default=len(self.slot) * self.p)

    def ready(self, op: int) -> int:
        """The slot behind the input of an op and behind the same op of the micro-batch before."""
        return max(self.slot[self._source[op]], self.slot[self._before[op]]) + 1

    def walk(self) -> Iterator[tuple[int, int]]:
        """Ops with their places, slot x p + rank, in the order of places."""
        slot = np.array(self.slot[:-1])
        ops = np.flatnonzero(slot != _FREE)
        places = slot[ops] * self.p + np.array(self.rank)[ops]
        order = np.argsort(places)
        return zip(places[order].tolist(), ops[order].tolist(), strict=True)

    def repeat(self, block: Block) -> None:
        """Lay out all micro-batches, W included."""
        m, stages = self.m, 2 * self.p
        for rank in range(self.p):
            homes = ((Kind.F, rank), (Kind.F, stages - 1 - rank), (Kind.I, stages - 1 - rank), (Kind.I, rank))
            for (kind, stage), begin in zip(homes, block(rank), strict=True):
                op = (kind * stages + stage) * m
                self.slot[op : op + m] = range(begin, begin + _PERIOD * m, _PERIOD)
        self._lay_rows()
        self.put_w(chunk_1_first=False)

    def _lay_rows(self) -> None:
        slot = np.array(self.slot[:-1])
        ops = np.flatnonzero(slot != _FREE)
        rank = np.array(self.rank)[ops]
        grid = np.full((self.p, int(slot.max()) + 1), _FREE)
        grid[rank, slot[ops]] = ops
        length = np.zeros(self.p, np.int64)
        np.maximum.at(length, rank, slot[ops] + 1)
        self.rows = [row[:end].tolist() for row, end in zip(grid, length, strict=True)]
        self._mark()

    def _mark(self) -> None:
        self.taken = [bytearray((np.array(row) != _FREE).astype(np.uint8).tobytes()) for row in self.rows]

    def peak(self) -> int:
        """The most chunks that any rank holds."""
        return max(int(held.max()) for held in self.held())

    def held(self) -> list[Counts]:
        """Chunks that each rank holds behind each slot, int32[slots] a rank."""
        change = np.append(np.array(_CHANGE)[self.kind], 0)  # nothing changes in a slot without an op
        return [np.cumsum(change[row], dtype=np.int32) for row in self.rows]

    def put(self, op: int, slot: int) -> None:
        """Move an op of a row to an earlier slot, which is free."""
        rank = self.rank[op]
        row, taken, old = self.rows[rank], self.taken[rank], self.slot[op]
        row[old], row[slot] = _FREE, op
        taken[old], taken[slot] = 0, 1
        self.slot[op] = slot

    def squeeze(self) -> None:
        """Start every op as soon as the op before it on its rank has ended and its input is there."""
        free = [0] * self.p
        slot, source, before = self.slot, self._source, self._before
        for place, op in self.walk():
            rank = place % self.p
            slot[op] = start = max(free[rank], slot[source[op]] + 1, slot[before[op]] + 1)
            free[rank] = start + 1
        self._lay_rows()

    def take_w_out(self) -> None:
        """Leave the slots of all W free."""
        first = 4 * self.p * self.m
        self.slot[first:] = [_FREE] * (len(self.slot) - first)
        self.rows = [[op if op < first else _FREE for op in row] for row in self.rows]
        self._mark()

    def put_w(self, *, chunk_1_first: bool) -> None:
        """Give each W the first slot that is free behind its I, in the order of I or those of chunk 1 first."""
        for row, taken in zip(self.rows, self.taken, strict=True):
            self._put_w_of(row, taken, chunk_1_first)

    def _put_w_of(self, row: list[int], taken: bytearray, chunk_1_first: bool) -> None:
        first, second = deque[int](), deque[int]()  # W that wait
        m, p, kind = self.m, self.p, self.kind
        to_w = 2 * p * m
        slot = taken.find(1)
        while slot >= 0:
            if slot == len(row):
                row.append(_FREE)
                taken.append(0)
            op = row[slot]
            if op == _FREE:
                row[slot] = op = (first or second).popleft()
                self.slot[op] = slot
                taken[slot] = 1
            elif kind[op] == Kind.I:
                later = chunk_1_first and op // m % (2 * p) < p
                (second if later else first).append(op + to_w)
            slot += 1
            if not first and not second:
                slot = taken.find(1, slot)  # nothing waits: on to the next op

    def codes(self) -> list[bytes]:
        """The order of each rank, a byte an op."""
        stage = np.arange(2 * self.p)
        code = np.add.outer([Kind.F, Kind.I, Kind.W], LANE * (stage >= self.p)).ravel().astype(np.uint8)
        rows = (np.array(row) for row in self.rows)
        return [code[row[row != _FREE] // self.m].tobytes() for row in rows]


class _Held:
    """Moves while all ops, W too, have slots: what a rank holds behind each slot changes only on the way."""

    def __init__(self, grid: _Grid, peak: int) -> None:
        self._grid, self._peak, self._held = grid, peak, grid.held()

    def move(self, op: int, ready: int) -> None:
        """Put an op into the first free slot from ``ready`` on in which the rank's peak allows it."""
        grid = self._grid
        rank, slot, change = grid.rank[op], grid.slot[op], _CHANGE[grid.kind[op]]
        held, first = self._held[rank], ready
        if change > 0 and ready < slot:  # not before a slot behind which the rank is full
            full = np.flatnonzero(held[ready:slot] >= self._peak)
            if len(full):
                first = ready + int(full[-1]) + 1
        first = grid.taken[rank].find(0, first, slot)
        if first >= 0:
            grid.put(op, first)
            if change:
                held[first:slot] += change


class _Promised:
    """Moves while W have no slots: memory is counted as if each free slot took a W, if one waits."""

    def __init__(self, grid: _Grid, peak: int) -> None:
        self._grid, self._peak = grid, peak
        self._before = [[(0, 0)] for _ in range(grid.p)]  # chunks held and W that wait, before each slot
        for rank, before in enumerate(self._before):
            before += self._count(rank, 0, len(grid.rows[rank])) or []

    def _count(self, rank: int, first: int, until: int) -> list[tuple[int, int]] | None:
        """What is held and what waits behind each slot from ``first`` on; None where the peak is exceeded.

        Behind ``until`` nothing was moved: once a count is there what it was, so are all that follow.
        """
        kind, row, before, peak = self._grid.kind, self._grid.rows[rank], self._before[rank], self._peak
        held, waiting = before[first]
        counts = []
        for slot in range(first, len(row)):
            op = row[slot]
            if op == _FREE:
                if waiting:
                    held, waiting = held - 1, waiting - 1
            elif kind[op] == Kind.F:
                held += 1
                if held > peak:
                    return None
            else:
                waiting += 1
            count = (held, waiting)
            if slot >= until and count == before[slot + 1]:
                break
            counts.append(count)
        return counts

    def move(self, op: int, ready: int) -> None:
        """Put an op into the first free slot from ``ready`` on in which the rank's peak allows it."""
        grid = self._grid
        rank, slot = grid.rank[op], grid.slot[op]
        taken, before = grid.taken[rank], self._before[rank]
        first = taken.find(0, ready, slot)
        while first >= 0:
            grid.put(op, first)
            counts = self._count(rank, first, slot)
            if counts is not None:
                before[first + 1 : first + 1 + len(counts)] = counts
                return
            grid.put(op, slot)
            first = taken.find(0, first + 1, slot)
