"""By time: three rules that put both sides of a transfer where its producer's round, turn or planned end falls.

    ROUNDS   all ranks step together; what a round makes is sent and received right behind it
    PLACED   ranks take turns and place a slot each; what is placed in a turn is posted on both sides then
    PLANNED  a timetable says when each op ends; both sides post at that time

Where a rank's own op is placed or planned at that very time, the rule says which comes first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .costs import Costs
from .engine import Engine, Occupies
from .laws import needs_of
from .posts import Column, Exchange, Flags, Index, Order, Posts, as_exchange, in_gaps
from .program import Program
from .schedule import KINDS, Kind
from .simulate import run, simulate

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
