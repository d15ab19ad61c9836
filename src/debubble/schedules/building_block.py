"""Building blocks: one micro-batch laid out in unit slots, repeated, and packed without more memory.

Source: Qi et al., Pipeline Parallelism with Controllable Memory, https://arxiv.org/abs/2405.15362, section 3; how it
is packed, as in sail-sg/zero-bubble, ``zbv_greedy``.

Rank r holds stages r (chunk 0) and 2p-1-r (chunk 1); in front of the letter stands the chunk. A slot is one F, I or W
of a chunk. Steps:
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
from collections.abc import Callable
from itertools import accumulate

from ..core.errors import Fault
from ..core.op import Kind
from ..core.schedule import Shape
from .entry import op_by_op
from .rows import LANE

_MOST_CELLS = 100_000
_MOST_RANKS = 256  # steps (2) and (4) take time with the cube of the ranks
_PERIOD = 6
_FREE = -1
_CHANGE = (1, 0, -1)  # of the chunks held, by kind

Block = Callable[[int], tuple[int, int, int, int]]


def too_large(name: str, shape: Shape) -> list[Fault]:
    """The faults of a shape for which packing takes longer than a minute."""
    faults = [op_by_op(name, shape, _MOST_CELLS)]
    if shape.ranks > _MOST_RANKS:
        rule = f"{name} is packed rank by rank, for up to {_MOST_RANKS} of them"
        faults.append(Fault(f"ranks = {shape.ranks}", rule, f"give {_MOST_RANKS} or less"))
    return [fault for fault in faults if fault is not None]


def packed(p: int, m: int, block: Block) -> list[bytes]:
    """A building block repeated m times and packed, as rows.

    Args:
        p: ranks.
        m: micro-batches.
        block: first slots of 0F, 1F, 1I and 0I on a rank; they differ modulo 6.
    """
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
    the same op of the micro-batch before.
    """

    __slots__ = ("m", "p", "rows", "slot")

    def __init__(self, p: int, m: int) -> None:
        self.p, self.m = p, m
        self.slot = [_FREE] * (6 * p * m)  # of each op
        self.rows: list[list[int]] = [[] for _ in range(p)]  # the op of each slot

    def kind(self, op: int) -> int:
        """F, I or W."""
        return op // (2 * self.p * self.m)

    def phases(self) -> tuple[int, int]:
        """Where the warm-up ends and behind which place the cool-down begins."""
        steady = self.slot[2 * self.p * self.m] * self.p  # rank 0's first 0I
        last = (self.slot[rank * self.m + self.m - 1] * self.p + rank for rank in range(self.p))  # last 0F of each rank
        return steady, min((place for place in last if place > steady), default=len(self.slot) * self.p)

    def rank(self, op: int) -> int:
        """Where the stage of an op lives."""
        stage = op // self.m % (2 * self.p)
        return min(stage, 2 * self.p - 1 - stage)

    def ready(self, op: int) -> int:
        """The slot behind the input of an op and behind the same op of the micro-batch before."""
        kind, stage = divmod(op // self.m, 2 * self.p)
        ready = self.slot[op - 1] + 1 if op % self.m else 0
        if kind == Kind.F:
            source = op - self.m if stage else _FREE
        elif kind == Kind.I and stage < 2 * self.p - 1:
            source = op + self.m
        else:
            source = op - 2 * self.p * self.m
        return max(ready, self.slot[source] + 1) if source != _FREE else ready

    def walk(self) -> list[tuple[int, int]]:
        """Ops with their places, slot x p + rank, in the order of places."""
        return sorted((slot * self.p + self.rank(op), op) for op, slot in enumerate(self.slot) if slot != _FREE)

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
        self.rows = [[] for _ in range(self.p)]
        for place, op in self.walk():
            slot, rank = divmod(place, self.p)
            row = self.rows[rank]
            row += [_FREE] * (slot - len(row)) + [op]

    def peak(self) -> int:
        """The most chunks that any rank holds."""
        return max(max(held) for held in self.held())

    def held(self) -> list[list[int]]:
        """Chunks that each rank holds behind each slot."""
        changes = ([0 if op == _FREE else _CHANGE[self.kind(op)] for op in row] for row in self.rows)
        return [list(accumulate(row)) for row in changes]

    def put(self, op: int, slot: int) -> None:
        """Move an op of a row to an earlier slot, which is free."""
        row = self.rows[self.rank(op)]
        row[self.slot[op]] = _FREE
        row[slot] = op
        self.slot[op] = slot

    def squeeze(self) -> None:
        """Start every op as soon as the op before it on its rank has ended and its input is there."""
        free = [0] * self.p
        for place, op in self.walk():
            rank = place % self.p
            self.slot[op] = max(free[rank], self.ready(op))
            free[rank] = self.slot[op] + 1
        self._lay_rows()

    def take_w_out(self) -> None:
        """Leave the slots of all W free."""
        first = 4 * self.p * self.m
        self.slot[first:] = [_FREE] * (len(self.slot) - first)
        self.rows = [[op if op < first else _FREE for op in row] for row in self.rows]

    def put_w(self, *, chunk_1_first: bool) -> None:
        """Give each W the first slot that is free behind its I, in the order of I or those of chunk 1 first."""
        for row in self.rows:
            self._put_w_of(row, chunk_1_first)

    def _put_w_of(self, row: list[int], chunk_1_first: bool) -> None:
        chunks = deque[int](), deque[int]()
        to_w = 2 * self.p * self.m
        for slot in range(len(row) + len(row)):
            if slot == len(row):
                if not any(chunks):
                    return
                row.append(_FREE)
            op = row[slot]
            if op != _FREE:
                if self.kind(op) == Kind.I:
                    chunks[chunk_1_first and op // self.m % (2 * self.p) < self.p].append(op + to_w)
            elif queue := chunks[0] or chunks[1]:
                row[slot] = queue.popleft()
                self.slot[row[slot]] = slot

    def codes(self) -> list[bytes]:
        """The order of each rank, a byte an op."""
        to_code = [kind + LANE * (stage >= self.p) for kind in (Kind.F, Kind.I, Kind.W) for stage in range(2 * self.p)]
        return [bytes(to_code[op // self.m] for op in row if op != _FREE) for row in self.rows]


class _Held:
    """Moves while all ops, W too, have slots: what a rank holds behind each slot changes only on the way."""

    def __init__(self, grid: _Grid, peak: int) -> None:
        self._grid, self._peak, self._held = grid, peak, grid.held()

    def move(self, op: int, ready: int) -> None:
        """Put an op into the first free slot from ``ready`` on in which the rank's peak allows it."""
        grid = self._grid
        rank, slot, change = grid.rank(op), grid.slot[op], _CHANGE[grid.kind(op)]
        held, row = self._held[rank], grid.rows[rank]
        first = ready
        if change > 0:  # not before a slot behind which the rank is full
            first = slot
            while first > ready and held[first - 1] < self._peak:
                first -= 1
        while first < slot and row[first] != _FREE:
            first += 1
        if first < slot:
            grid.put(op, first)
            for between in range(first, slot):
                held[between] += change


class _Promised:
    """Moves while W have no slots: memory is counted as if each free slot took a W, if one waits."""

    def __init__(self, grid: _Grid, peak: int) -> None:
        self._grid, self._peak = grid, peak
        self._before = [[(0, 0)] for _ in range(grid.p)]  # chunks held and W that wait, before each slot
        for rank, before in enumerate(self._before):
            before += self._count(rank, 0) or []

    def _count(self, rank: int, first: int) -> list[tuple[int, int]] | None:
        """What is held and what waits behind each slot from ``first`` on; None where the peak is exceeded."""
        grid, row = self._grid, self._grid.rows[rank]
        held, waiting = self._before[rank][first]
        counts = []
        for slot in range(first, len(row)):
            op = row[slot]
            if op == _FREE:
                if waiting:
                    held, waiting = held - 1, waiting - 1
            elif grid.kind(op) == Kind.F:
                held += 1
                if held > self._peak:
                    return None
            else:
                waiting += 1
            counts.append((held, waiting))
        return counts

    def move(self, op: int, ready: int) -> None:
        """Put an op into the first free slot from ``ready`` on in which the rank's peak allows it."""
        grid = self._grid
        rank, slot = grid.rank(op), grid.slot[op]
        row = grid.rows[rank]
        for first in range(ready, slot):
            if row[first] != _FREE:
                continue
            grid.put(op, first)
            counts = self._count(rank, first)
            if counts is not None:
                self._before[rank][first + 1 :] = counts
                return
            grid.put(op, slot)
