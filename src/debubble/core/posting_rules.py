"""Rules by which engines post: by a table of steps, or where a producer's round, turn or planned end falls in time.

*By table*: a table of steps says what a rank posts between two ops, by what they are.
Phases of a rank: *warm-up* forwards ``w`` come before the last forward in front of its first backward; from that one on
forwards are steady, ``f``, and so are backwards, ``b``, up to the one behind its last forward; what follows is
*cool-down*, ``c``. Where no forward follows the first backward, all forwards are warm-up and all backwards cool-down
(unless Megatron counts one pair as steady).

    w  w  f  b  f  b  c  c          rank 1 of interleaved 1F1B with p = 2, v = 2, m = 2
    F  F  F  B  F  B  B  B

*By time*: both sides of a transfer are put where its producer falls.

    ROUNDS   all ranks step together; what a round makes is sent and received right behind it
    PLACED   ranks take turns and place a slot each; what is placed in a turn is posted on both sides then
    PLANNED  a timetable says when each op ends; both sides post at that time

Where a rank's own op is placed or planned at that very time, the rule says which comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .engine import Engine, EngineBatch, EngineItem, EngineStep, Occupies, WaitUntil, steps_of
from .laws import needs_of
from .posts import Column, Exchange, Flags, Index, Order, Posts, as_exchange, in_gaps
from .program import Program
from .schedule import KINDS, NOTHING, Kind
from .simulate import run, simulate

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
    for kind, until, letters in ((forward, warm, "wf"), (backward, cool, "bc")):
        early = np.arange(len(kind.ops)) < until[order.rank[kind.ops]]
        phase[kind.ops] = np.where(early, *map(_PHASES.index, letters))
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


PLANNED_NS = {Kind.F: 1000, Kind.I: 1000, Kind.W: 1000, Kind.B: 2000}
PLANNED_HOP_NS = 1  # what zero-bubble's scheduler counts for a transfer beside them
_NEVER = np.iinfo(np.int64).max


def exchange(program: Program) -> Exchange:
    """An order of sends and receives that cannot deadlock, even where each stands still until both sides have met.

    What an op of round k makes is sent, and received on the other side, right behind round k: first what even ranks
    send, then what odd ranks send, so that neighbours work in pairs. Each rank's list is a part of that one global
    order. Hence on every pair of ranks the sends of one side meet the receives of the other in the same order (engines
    match first in, first out), and even sends that block until they are received make progress.
    """
    order = Order(program.schedule, needs_of(program.schedule)[0])
    return replace(as_exchange(order, in_rounds(order)), batch=None, until=None)


def in_rounds(order: Order) -> Posts:
    """The order of ``exchange``, where each side stands still until it has sent or received."""
    turn = order.rounds.of_items().astype(np.int64)[order.slot]
    maker, user = _received(order)
    sender = np.arange(order.schedule.ranks)
    even_first = sender + np.where(sender % 2, len(sender), 0)
    posts = _at_turns(order, (maker, user), turn, turn[maker] + 1, even_first)
    return replace(posts, until=posts.behind_batch())


def when_made(order: Order, engine: Engine) -> Posts:
    """Each output is sent behind its op; nothing is received, for the receiver always has room."""
    op = np.flatnonzero(order.sink >= 0).astype(np.int32)
    each = np.ones(len(op), np.bool_)
    posts = in_gaps(order, _count(order, order.slot[op] + order.rank[op] + 1), op, each, each)
    if engine.occupies is Occupies.SENDER:
        return replace(posts, until=posts.behind_batch())
    return replace(posts, until=posts.when_used(order))


def placed(order: Order, plain: Program) -> Posts:
    """Both sides when the producer is placed: rank after rank places its next slot if it can, again and again.

    It can once its input has been placed, in the same turn where a rank with a lower number has placed it. Receives are
    waited for before their consumer, sends when the step ends. (torch lets UNSHARD, RESHARD and REDUCE_GRAD take turns
    as well, which moves a few receives of the last rank, 5 of 80 at p = 4, m = 8, v = 2, by one place.)
    """
    rank = order.rank
    lag = np.where(order.receives_from < rank, -1, 0)  # for what is not received it does not count
    turn, _ = run(plain, np.ones(len(rank), np.int64), lag)
    maker, user = _received(order)
    seen = turn.take(maker) + (rank.take(user) < rank.take(maker))
    posts = _at_turns(order, (maker, user), turn, seen, np.arange(order.schedule.ranks))
    return replace(posts, until=posts.when_used(order))


def planned(order: Order, engine: Engine, plain: Program, timetable: Index | None) -> Posts:
    """Both sides at the planned end of the producer, communication before computation, in the order of the consumers.

    A receive that falls into an op of its rank is posted before that op. What is posted side by side is one flush,
    which ends early where the next op consumes what is received last; it goes out in the order sends and receives of
    the rank before, then of the rank behind. An op waits for all of the flush that held its receive.

    Args:
        order: the schedule.
        engine: whether a flush goes as one.
        plain: the same, lowered for ``IDEAL``.
        timetable: when each op ends by plan, int64[ops]; None for F = I = W with a hop of a thousandth of that.
    """
    end = timetable
    if end is None:
        end = _plan(plain)
    moves = len(order.consumer)
    producer = np.flatnonzero(order.sink >= 0).astype(np.int32)  # sends in the order of their gaps
    consumer = np.concatenate([order.sink.take(producer), order.consumer])
    op = np.concatenate([producer, order.consumer]).astype(np.int32)
    sends = np.arange(2 * moves) < moves
    gap = np.concatenate([order.slot.take(producer) + np.int64(1), _before_planned(order, end)]) + order.rank.take(op)
    sequence = _in_time(order, gap, end.take(order.source.take(consumer)), consumer, sends)
    consumer, op, sends, gap = consumer[sequence], op[sequence], sends[sequence], gap[sequence]
    flush = _flushes(order, gap, sends, consumer)
    onward = _onward(order, sends, consumer)
    # Flushes rise already, so this sort only puts the few posts of each in order.
    sequence = np.argsort(4 * flush + 2 * onward + ~sends, kind="stable")
    op, sends, flush = op[sequence], sends[sequence], flush[sequence]
    opens = np.ones(len(op), np.bool_)
    if engine.coalesced:
        opens[1:] = flush[1:] != flush[:-1]
    posts = in_gaps(order, _count(order, gap), op, sends, opens)
    until = posts.when_used(order)
    closes = np.flatnonzero(np.diff(flush, prepend=-1))
    first_use = np.minimum.reduceat(np.where(sends, _NEVER, until), closes)
    return replace(posts, until=np.minimum(posts.ends(), first_use.take(flush)))


def _in_time(order: Order, gap: Index, end: Index, consumer: Index, sends: Flags) -> Index:
    """The order of posts by gap, by the end of their producer, and by consumer, int64[posts]."""
    times = int(end.max(initial=0)) + 1
    gaps = len(order.first) + order.schedule.ranks
    if order.schedule.joined is not None or 3 * gaps * times > np.iinfo(np.int64).max:
        return np.lexsort((consumer, end, gap))
    # Without pairs, a gap has one send, whose consumer is numbered before those of the receives if it lies on a lower
    # rank. So one number says it all; and it rises already but where receives of two directions meet: a merge.
    turn = np.ones(len(gap), np.int64)
    turn[sends] = 2 * (order.rank.take(consumer[sends]) > order.rank.take(order.source.take(consumer[sends])))
    return np.argsort(3 * (gap * times + end) + turn, kind="stable")


def _plan(plain: Program) -> Index:
    shape = (KINDS, plain.schedule.stages, 1)
    spent = np.empty(shape, np.int64)
    for kind, nanoseconds in PLANNED_NS.items():
        spent[kind] = nanoseconds
    return simulate(plain, Costs(spent, np.full(shape, PLANNED_HOP_NS))).end


def _received(order: Order) -> tuple[Column, Index]:
    """Producer and consumer of each transfer, forwards before backwards, so that times rise rank by rank."""
    forward = order.schedule.kind.take(order.consumer) == Kind.F
    user = np.concatenate([order.consumer.compress(forward), order.consumer.compress(~forward)])
    return order.source.take(user), user


def _at_turns(order: Order, carried: tuple[Column, Index], turn: Index, seen: Index, precedence: Index) -> Posts:
    """Sends behind their op, receives behind all ops of the rank with an earlier turn than that in which they are seen.

    Args:
        order: the schedule.
        carried: producer and consumer of each transfer.
        turn: of each op, int64[ops]; rises along each rank.
        seen: first turn whose ops come behind each receive, int64[transfers].
        precedence: by sender, of what has the same turn, int64[ranks].
    """
    (maker, user), rank = carried, order.rank.astype(np.int64)
    producer = np.flatnonzero(order.sink >= 0)
    turns, ranks = int(turn.max(initial=0)) + 2, order.schedule.ranks
    of_rank = rank * turns
    slots_before = np.searchsorted((of_rank + turn).take(order.first), of_rank.take(user) + seen)
    gap = np.concatenate([order.slot_of(producer) + 1 + rank.take(producer), slots_before + rank.take(user)])
    # By rank, turn of the maker, and precedence: of sends the maker is the op itself.
    of_rank *= 2 * ranks
    of_maker = turn * (2 * ranks) + precedence.take(rank)
    key = np.concatenate([(of_rank + of_maker).take(producer), of_rank.take(user) + of_maker.take(maker)])
    if order.schedule.joined is not None:
        made = np.concatenate([producer, maker])
        key = 2 * key + (made != order.first[order.slot[made]])
    sequence = np.argsort(key, kind="stable")  # of rows that rise already, so that it only merges
    op = np.concatenate([producer, user], dtype=np.int32).take(sequence)
    return in_gaps(order, _count(order, gap), op, sequence < len(producer), np.ones(len(op), np.bool_))


def _count(order: Order, gap: Index) -> Index:
    """Posts of each gap, from the gap of each post: slots before it on all ranks, plus its rank."""
    return np.bincount(gap, minlength=len(order.first) + order.schedule.ranks)


def _before_planned(order: Order, end: Index) -> Index:
    """Slots before each receive: those that have ended when its producer ends, by plan, int64[transfers].

    Of a slot that ends at that very moment, the receive comes first, unless that slot's own send is numbered before.
    """
    rank, user = order.rank.astype(np.int64), order.consumer
    time = int(end.max(initial=0)) + 1
    ends = rank[order.last] * time + end[order.last]
    at = rank[user] * time + end[order.producer]
    slot = np.searchsorted(ends, at)  # the first that does not end before
    inside = np.minimum(slot, len(ends) - 1)
    sink = order.sink[order.last[inside]]
    sent_first = (slot < len(ends)) & (ends[inside] == at) & (sink >= 0) & (sink < user)
    found: Index = slot + sent_first
    return found


def _flushes(order: Order, gap: Index, sends: Flags, consumer: Index) -> Index:
    """Number of the flush of each post: a gap is one, but one ends early behind a receive for the slot before it."""
    closes = np.ones(len(gap), np.bool_)
    closes[:-1] = gap[1:] != gap[:-1]
    closes |= ~sends & (order.slot[consumer] + order.rank[consumer] == gap)
    return np.cumsum(closes) - closes


def _onward(order: Order, sends: Flags, consumer: Index) -> Flags:
    """Whether each post is with the rank behind its own: what goes to the next rank is received from the one before."""
    sender, receiver = order.rank[order.source[consumer]], order.rank[consumer]
    to_next = (sender + 1 == receiver) | ((receiver == 0) & (sender == order.schedule.ranks - 1))
    onward: Flags = to_next == sends
    return onward
