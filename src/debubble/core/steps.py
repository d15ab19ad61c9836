"""By table: a table of steps says what a rank posts between two ops, by what they are.

Phases of a rank: *warm-up* forwards ``w`` come before the last forward in front of its first backward; from that one on
forwards are steady, ``f``, and so are backwards, ``b``, up to the one behind its last forward; what follows is
*cool-down*, ``c``. Where no forward follows the first backward, all forwards are warm-up and all backwards cool-down
(unless Megatron counts one pair as steady).

    w  w  f  b  f  b  c  c          rank 1 of interleaved 1F1B with p = 2, v = 2, m = 2
    F  F  F  B  F  B  B  B
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, EngineBatch, EngineItem, EngineStep, WaitUntil, steps_of
from .posts import Index, Order, Posts, in_gaps
from .schedule import NOTHING, Kind

_PHASES = "-wfbc."  # start or end, then the four, then W, which sends and receives nothing
_BY_KIND = np.array([_PHASES.index(letter) for letter in "wb.b"], np.int8)  # of F, I, W, B, where no phase is asked for
_FITS = {"any": _PHASES, "F": "wf", "B": "bc"} | {phase: phase for phase in "-wfbc"}
_REGULAR = {"ww", "wf", "fb", "bf", "bc", "cc", "wc"}  # what follows what in an interleaved order
_SENDS, _AT_ONCE, _TURNS, _AHEAD, _BATCH = 1, 2, 4, 8, 16  # flags of a post; what is above counts batches of its gap
# Nobody runs overlapped pairs by kinds: what is next to them is posted next to them.
_OF_PAIRS = steps_of("any any (s r)")

Batches = tuple[EngineBatch, ...]
Table = tuple[EngineStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The forwards of all ranks, or their backwards.

    Args:
        ops: in order, int64[of that kind].
        behind: how many come before each gap, over all ranks, int64[gaps].
        first: how many come before each rank, int64[ranks + 1].
    """

    ops: Index
    behind: Index
    first: Index

    def at(self, index: Index, rank: Index) -> Index:
        """The ops at an index, where that is one of the same rank; ``NOTHING`` elsewhere."""
        found = np.full(len(index), NOTHING)
        inside = (index >= self.first[rank]) & (index < self.first[rank + 1])
        found[inside] = self.ops[index[inside]]
        return found


class _Gaps:
    """All gaps of all ranks, and what lies on their two sides; each column is made when it is first asked for."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._next_to: dict[tuple[str, int], NDArray[np.int32]] = {}

    @cached_property
    def rank(self) -> Index:
        """The rank of each gap, int64[gaps]."""
        return np.repeat(np.arange(self.order.schedule.ranks), np.diff(self.order.offsets) + 1)

    @cached_property
    def slots_before(self) -> Index:
        """Slots before each gap, over all ranks, int64[gaps]."""
        return np.arange(len(self.rank)) - self.rank

    @cached_property
    def runs(self) -> dict[str, _Run]:
        """Forwards and backwards."""
        schedule = self.order.schedule
        behind = np.append(self.order.first, np.int32(len(schedule)))[self.slots_before]  # the first op behind each gap
        runs = {}
        for letter, kinds in (("F", (Kind.F,)), ("B", (Kind.B, Kind.I))):
            mine = np.isin(schedule.kind, kinds)
            until = np.zeros(len(mine) + 1, np.int64)
            np.cumsum(mine.astype(np.int64), out=until[1:])
            runs[letter] = _Run(np.flatnonzero(mine), until[behind], until[schedule.offsets])
        return runs

    @cached_property
    def phases(self) -> NDArray[np.int8]:
        """Phases of the ops behind and before each gap, indices into ``_PHASES``, int8[2, gaps]."""
        return self._on_both_sides(_phases(self.order, self.runs))

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        """The same where it matters only which way they go: all forwards as warm-up, all backwards as steady."""
        return self._on_both_sides(_BY_KIND.take(self.order.schedule.kind))

    def next_to(self, act: str, side: int) -> NDArray[np.int32]:
        """The op behind each gap, for sends, or before it, for receives; of a pair the first, or the second by itself.

        ``NOTHING`` where that has no partner on another rank, int32[gaps].
        """
        if (act, side) not in self._next_to:
            self._next_to[act, side] = self._found_next_to(act, side)
        return self._next_to[act, side]

    def _found_next_to(self, act: str, side: int) -> NDArray[np.int32]:
        order, partner, gap = self.order, self.order.source, self.order.gap
        if act == "s":
            partner, gap = order.sink, gap + 1
        end = order.first
        if side:
            end = order.last
        has = partner.take(end) >= 0
        if side:
            has &= end != order.first
        found = np.full(len(end) + order.schedule.ranks, NOTHING, np.int32)
        found[gap] = np.where(has, end, np.int32(NOTHING))
        return found

    def _on_both_sides(self, phase: NDArray[np.int8]) -> NDArray[np.int8]:
        order = self.order
        behind, before = sides = np.zeros((2, len(order.gap) + order.schedule.ranks), np.int8)
        behind[order.gap + 1] = phase.take(order.last)
        before[order.gap] = phase.take(order.first)
        return sides


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """What the table says of each gap, post by post: ops, int32, and flags, uint8; both [most posts of a gap, gaps]."""

    op: NDArray[np.int32]
    flags: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Column:
    """One post of a line of the table: ``side`` tells apart the two ops of a pair next to the gap."""

    item: EngineItem
    side: int
    flags: int


def by_steps(order: Order, engine: Engine) -> Posts:
    """What each rank sends and receives under an engine that has a table of steps."""
    gaps = _Gaps(order)
    if engine.chunked and _interleaved(order, gaps):  # its table presumes that, and may still leave an output unsent
        cells = _filled(order, gaps, engine.chunked, wrap=True)
        if np.count_nonzero(cells.op >= 0) == 2 * len(order.consumer):
            return _posts(order, engine, gaps, cells)
    by_kind = any(item.kind for step in engine.steps for item in step.items())
    table = _OF_PAIRS if by_kind and order.schedule.joined is not None else engine.steps
    cells = _filled(order, gaps, table, wrap=False)
    if np.count_nonzero(cells.op >= 0) != 2 * len(order.consumer):
        raise ValueError(f"the table of {engine} does not send and receive each output of {order.schedule.name} once")
    return _posts(order, engine, gaps, cells)


def _phases(order: Order, runs: dict[str, _Run]) -> NDArray[np.int8]:
    """The phase of each op, an index into ``_PHASES``, int8[ops]."""
    forward, backward = runs["F"], runs["B"]
    forwards = np.diff(forward.first)
    ahead = forwards.copy()  # forwards of each rank before its first backward
    some = np.flatnonzero(np.diff(backward.first) > 0)
    first = backward.ops[backward.first[some]]
    ahead[some] = np.searchsorted(forward.ops, first) - forward.first[some]
    all_warm = (ahead == forwards) & (forwards != _megatrons_warm_up(order, forward) + 1)
    warm = forward.first[:-1] + np.where(all_warm, forwards, ahead - 1)
    cool = backward.first[:-1].copy()  # the first cool-down backward of each rank, over all ranks
    steady = np.flatnonzero(~all_warm)
    cool[steady] = np.searchsorted(backward.ops, forward.ops[forward.first[steady + 1] - 1]) + 1
    phase = np.full(len(order.schedule), _PHASES.index("."), np.int8)
    for run, until, letters in ((forward, warm, "wf"), (backward, cool, "bc")):
        early = np.arange(len(run.ops)) < until[order.rank[run.ops]]
        phase[run.ops] = np.where(early, *map(_PHASES.index, letters))
    return phase


def _megatrons_warm_up(order: Order, forward: _Run) -> Index:
    """How many forwards of each rank Megatron counts as warm-up where stages go round the ranks, if not all.

    Only this tells a rank whose steady phase is a single pair from one that has none.
    """
    schedule = order.schedule
    first = schedule.stage[forward.ops[: forward.first[1]]]
    group = int((first == 0).argmin()) if len(first) and (first != 0).any() else len(first)
    chunks = schedule.stages // schedule.ranks
    # get_pp_rank_microbatches of Megatron-Core: (p - rank - 1) * 2 + (chunks - 1) * group.
    return 2 * np.arange(schedule.ranks)[::-1] + (chunks - 1) * group


def _interleaved(order: Order, gaps: _Gaps) -> bool:
    """Whether stages go round the ranks more than once, and forwards and backwards alternate between the phases."""
    schedule = order.schedule
    round_ranks = np.arange(schedule.stages) % schedule.ranks
    if schedule.stages < 2 * schedule.ranks or not np.array_equal(schedule.placement, round_ranks[None, :]):
        return False
    behind, before = gaps.phases.astype(np.int64)
    code = (behind * len(_PHASES) + before)[(behind > 0) & (before > 0)]
    found = (divmod(pair, len(_PHASES)) for pair in np.flatnonzero(np.bincount(code)).tolist())
    return {_PHASES[behind] + _PHASES[before] for behind, before in found} <= _REGULAR


def _filled(order: Order, gaps: _Gaps, table: Table, *, wrap: bool) -> _Cells:
    """Fill the gaps, line by line of the table.

    Args:
        order: the schedule.
        gaps: its gaps.
        table: what is posted in which.
        wrap: whether the leading rank receives what the trailing one made p - 1 steps of that direction ago, as
            Megatron does where stages go round the ranks; else it receives what it needs next.
    """
    lines = [(where, _columns(order, batches)) for where, batches in _lines(order, gaps, table)]
    shape = (max((len(columns) for _, columns in lines), default=0), len(gaps.rank))
    cells = _Cells(np.full(shape, NOTHING, np.int32), np.zeros(shape, np.uint8))
    for where, columns in lines:
        for number, column in enumerate(columns):
            op, flags = cells.op[number], cells.flags[number]
            op[where], flags[where] = _ops(order, gaps, column, where, wrap=wrap), column.flags
    for mark, settle in (("neighbours", _split_neighbours), ("turns", _in_turn)):
        if any(getattr(batch, mark) for step in table for batch in step.batches):
            settle(order, cells)
    return cells


def _lines(order: Order, gaps: _Gaps, table: Table) -> Iterator[tuple[Index | slice, Batches]]:
    """Each line of the table with the gaps that it is for; gaps of which the table says nothing have no posts."""
    if table[0].behind == table[0].before == "any":  # the same everywhere, so no need to know what lies where
        yield slice(None), table[0].batches
        return
    kinds, last = len(_PHASES), order.schedule.ranks - 1
    line_of = np.full((kinds, kinds), len(table), np.uint8)
    for number, step in reversed(list(enumerate(table))):
        fits = ([_PHASES.index(letter) for letter in _FITS[side]] for side in (step.behind, step.before))
        line_of[np.ix_(*fits)] = number
    asked = {side for step in table for side in (step.behind, step.before)}
    behind, before = gaps.phases if asked & set("wfbc") else gaps.kinds
    line = line_of.ravel().take(behind * np.int8(kinds) + before)
    leads = np.zeros(0, np.bool_)
    if any(step.leading is not None for step in table):
        direction = np.where(behind > 0, behind, before)  # of the op behind; at the start of a rank, of that before
        leads = np.where(direction <= _PHASES.index("f"), gaps.rank == 0, gaps.rank == last)
    for number, step in enumerate(table):
        mine = line == number
        if step.leading is not None:
            yield np.flatnonzero(mine & leads), step.leading
            mine &= ~leads
        yield np.flatnonzero(mine), step.batches


def _columns(order: Order, batches: Batches) -> list[_Column]:
    """The posts of a line, in order; an item without a kind stands for both ops of a pair."""
    sides = 1 if order.schedule.joined is None else 2
    columns = []
    number = 0
    for batch in batches:
        for item in batch.items:
            apart = batch.turns and item.act == "r"
            flags = _SENDS * (item.act == "s") + _AT_ONCE * batch.at_once + _TURNS * batch.turns
            flags += _AHEAD * (item.ahead > 0) + _BATCH * (number + apart)
            columns += [_Column(item, side, flags) for side in range(1 if item.kind else sides)]
        number += 2  # a batch that is split takes the next number as well
    return columns


def _ops(order: Order, gaps: _Gaps, column: _Column, where: Index | slice, *, wrap: bool) -> Index:
    """Whose output is sent, or whose input received, in each of some gaps; ``NOTHING`` where no op fits."""
    item = column.item
    if not item.kind:
        return gaps.next_to(item.act, column.side)[where]
    rank, run = gaps.rank[where], gaps.runs[item.kind]
    behind = run.behind[where]
    if item.act == "s":
        return _with_partner(order.sink, run.at(behind - 1, rank))
    coming = _with_partner(order.source, run.at(behind + item.ahead, rank))
    if not wrap:
        return coming
    last = order.schedule.ranks - 1
    leading, trailing = (0, last) if item.kind == "F" else (last, 0)
    leads = rank == leading
    step = behind - 1 - run.first[leading] - last  # of the trailing rank, whose output arrives now
    made = run.at(np.where(leads & (step >= 0), run.first[trailing] + step, NOTHING), np.full(len(rank), trailing))
    arriving = np.where(made >= 0, order.sink.take(made), NOTHING)
    return np.where(leads, _with_partner(order.source, arriving), coming)


def _with_partner(partner: NDArray[np.int32], op: Index) -> Index:
    """The ops that have a partner on another rank; ``NOTHING`` in place of the others."""
    return np.where((op >= 0) & (partner.take(op) >= 0), op, NOTHING)


def _split_neighbours(order: Order, cells: _Cells) -> None:
    """Where the posts of a gap go to different ranks, receives are a batch of their own behind the sends."""
    least = np.full(cells.op.shape[1], order.schedule.ranks, np.int32)
    most = np.zeros(cells.op.shape[1], np.int32)
    receives = (cells.flags[:, 0] & _SENDS) == 0  # the same in every gap: such a table has one line
    for op, received in zip(cells.op, receives, strict=True):
        peers = order.sends_to
        if received:
            peers = order.receives_from
        peer = peers.take(op)
        np.maximum(most, peer, out=most)  # NOTHING is less than any rank
        peer[op < 0] = order.schedule.ranks
        np.minimum(least, peer, out=least)
    cells.flags[receives] += np.where(most > least, np.uint8(_BATCH), np.uint8(0))


def _in_turn(order: Order, cells: _Cells) -> None:
    """Where a gap has a send and a receive with one rank, the receive comes first if that rank sends first."""
    for column in range(len(cells.op) - 1):
        send, receive = cells.op[column : column + 2]
        turns = (cells.flags[column] & (_SENDS | _TURNS)) == (_SENDS | _TURNS)
        turns &= (cells.flags[column + 1] & _SENDS) == 0  # of a pair, two sends stand side by side
        both = np.flatnonzero(turns & (send >= 0) & (receive >= 0))
        there, here = order.sink.take(send[both]), order.source.take(receive[both])
        swap = both[(order.rank.take(there) == order.rank.take(here)) & (here < there)]
        cells.op[column : column + 2, swap] = cells.op[column : column + 2, swap][::-1]
        cells.flags[column : column + 2, swap] ^= _SENDS


def _posts(order: Order, engine: Engine, gaps: _Gaps, cells: _Cells) -> Posts:
    """The cells that are filled, each with the row before which the rank waits for it."""
    filled = cells.op >= 0
    count = np.zeros(filled.shape[1], np.int64)
    for column in filled:
        count += column
    first = np.cumsum(count)
    op, flags = np.empty(first[-1], np.int32), np.zeros(first[-1], np.uint8)
    first -= count
    opens = np.zeros(len(op) + 1, np.bool_)
    opens[first] = True  # of a gap without posts, that is the first of the next one
    for column, ops, marks in zip(filled, cells.op, cells.flags, strict=True):  # gap by gap, in each column by column
        gap = np.flatnonzero(column)
        post = first.take(gap)
        op[post], flags[post] = ops.take(gap), marks.take(gap)
        first += column
    opens[1:-1] |= (flags[1:] ^ flags[:-1]) >= _BATCH
    posts = in_gaps(order, count, op, (flags & _SENDS) > 0, opens[:-1])
    until = posts.behind_batch()
    later = np.flatnonzero((flags & _AT_ONCE) == 0)
    if len(later):
        ahead = posts.row.compress((flags & _AHEAD) > 0)
        until[later] = _waits(order, engine, gaps, posts, ahead=ahead, later=later)
    return replace(posts, until=until)


def _waits(order: Order, engine: Engine, gaps: _Gaps, posts: Posts, *, ahead: Index, later: Index) -> Index:
    """The row before which a rank waits for what it does not wait for at once.

    What a slot waits for is waited for before the rank posts anything for the slot after it, at the rows ``ahead``.
    ``later`` are the posts that are meant, int64[later], as is what comes back.
    """
    stands = posts.slot_row
    if len(ahead):
        stands = stands.copy()
        stands[np.searchsorted(posts.slot_row, ahead)] = ahead
    ops, ranks = posts.op.take(later), posts.rank.take(later)
    is_send = posts.sends.take(later)
    until = posts.rows[1:].take(ranks)
    received, sends = np.flatnonzero(~is_send), np.flatnonzero(is_send)
    until[received] = stands.take(order.slot_of(ops.take(received)))
    if engine.until is WaitUntil.END:
        return until
    op, rank = ops.take(sends), ranks.take(sends)
    if engine.until is WaitUntil.BACKWARD:
        row = _first_backward(order, gaps, posts).take(rank)
        until[sends] = np.where(row > posts.row.take(later.take(sends)), row, until.take(sends))
        return until
    if engine.until is WaitUntil.NEXT:
        slot = order.slot_of(op) + 1
    else:
        again = np.full(len(order.schedule), NOTHING)
        for run in gaps.runs.values():
            again[run.ops] = run.at(np.arange(len(run.ops)) + 1, order.rank[run.ops])
        slot = np.where(again[op] >= 0, order.slot[again[op]] + 1, len(order.first))
    inside = slot < order.offsets[1:].take(rank)
    slot = slot.compress(inside)
    if engine.until is WaitUntil.NEXT:
        behind = posts.slot_row.take(slot) + 1
        if order.schedule.joined is not None:
            behind += order.last[slot] - order.first[slot]
    else:
        behind = stands.take(slot)
    until[sends.compress(inside)] = behind
    return until


def _first_backward(order: Order, gaps: _Gaps, posts: Posts) -> Index:
    """The row of the first backward of each rank, or of a receive in front of it; the end of a rank without one."""
    run = gaps.runs["B"]
    first = run.at(run.first[:-1], np.arange(order.schedule.ranks))
    row = posts.slot_row[order.slot[first]]
    in_front = np.searchsorted(posts.row, row) - 1
    received = (in_front >= 0) & (posts.row[in_front] == row - 1) & ~posts.sends[in_front]
    return np.where(first >= 0, row - received, posts.rows[1:])
