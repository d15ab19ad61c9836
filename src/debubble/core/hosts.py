"""Hosts: what happens on each rank, one item behind the other, which transfers each waits for, and who waits for ever.

Items of a rank are its slots, and its *stops*: moments at which it waits for transfers before it posts another one
(or, with one launch queue, before it launches anything else). The *clock* of a side of a transfer is the item behind
which it is posted. A transfer is done once both sides are posted: what is in front of it on a lane between two ranks
was posted earlier on both. Only a lane that a rank shares among all its peers is a host of its own, with an item for
each batch:

    rank 0            0F0           0F1     stop     0B0 ..
    lane of rank 0        {S 0F0}       {S 0F1}  {R 0B0} ..

Where hosts are stuck, the circle is told by name: a rank that stands before an op waits for its input, ``0B0 waits for
1B0 on rank 1``; one that stands still until it has sent or received waits for the other side, ``S 0F1 waits for R 0F1
on rank 1``. Both sides are named by the op whose output is carried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .engine import Engine, Lane, Occupies
from .errors import Deadlock, Violation
from .kernels import Stuck
from .posts import Flags, Index, Order, Posts
from .schedule import NOTHING

Lines = NDArray[np.int32]

_NO_LANE = np.iinfo(np.int32).min
_FEW = 1000
_FAN = 4  # posts behind one item; a stop that waits for nothing carries the next four
SENDER, RECEIVER = 0, 1


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Neighbours on lanes between two ranks, pair by pair.

    Args:
        first: the post in front, int64[pairs].
        second: the post behind it, int64[pairs].
        in_front: the transfer in front of each side, int32[sides]; ``NOTHING`` of the first on its lane.
    """

    first: Index
    second: Index
    in_front: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Hosts:
    """Ranks, and behind them their lanes, with items in order.

    A *side* is ``2 x transfer`` for the sender's, ``2 x transfer + 1`` for the receiver's.

    Args:
        offsets: host ``h`` runs items ``offsets[h]`` to ``offsets[h + 1]``, int64[hosts + 1].
        slot: the slot that each item is, int64[items]; ``NOTHING`` of stops and items of lanes.
        row: row at which each item stands, int64[items]; ``NOTHING`` of items of lanes.
        launches: transfer that each item launches, int64[items]; ``NOTHING`` of the others.
        posts: all sends and receives.
        lanes: their neighbours on lanes between two ranks; None where there are no such lanes.
        side: of each post, int64[posts].
        clock: item behind which each side is posted, int64[sides]; ``NOTHING`` before the first.
        hold: item of the side's rank that cannot start before the transfer has ended, int64[sides], or ``NOTHING``.
        waits: what must have ended before each item starts, int32[width, items]: an item, or ``base`` + side.
        needs: items that must have run before each, int32[needs, items]; ``NOTHING`` where none.
        late: how many of the last lines of ``waits`` name transfers that arrive only some time after they have ended.
    """

    offsets: NDArray[np.int64]
    slot: Index
    row: Index
    launches: Index
    posts: Posts
    lanes: Lanes | None
    side: Index
    clock: Index
    hold: Index
    waits: Lines
    needs: Lines
    late: int

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def base(self) -> int:
        """What is added to sides in ``waits``."""
        return _base(len(self))

    def post_of_sides(self) -> Index:
        """The post of each side, int64[sides]; ``NOTHING`` of receivers that always have room."""
        post = np.full(len(self.clock), NOTHING)
        post[self.side] = np.arange(len(self.side))
        return post


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """The items of ranks, as in ``Hosts``, and those of each post; int64[items], int64[ranks + 1], int64[posts]."""

    row: Index
    slot: Index
    offsets: NDArray[np.int64]
    launches: Index
    clock: Index
    hold: Index


def hosts_of(order: Order, posts: Posts, engine: Engine, *, occupied: bool) -> Hosts:
    """Lay out what each rank does, and what its items wait for.

    Args:
        order: the schedule.
        posts: what each rank sends and receives.
        engine: what lies in front of what.
        occupied: whether transfers take up time of their senders.
    """
    if not engine.meets:  # the receiver always has room: where it receives changes nothing
        posts = _sends_alone(posts)
    act = 2 * posts.op.astype(np.int64) + posts.sends  # a row of tables by op and act, which spare a choice by post
    side = _sides(order).take(act)
    lanes = _lanes(order, posts, engine, act, side)
    if engine.queue:
        posts = _queued(posts, lanes)
    items = _items(posts, side, launching=engine.queue and occupied)
    clock, hold = np.full((2, 2 * len(order.consumer)), NOTHING)
    clock[side], hold[side] = items.clock, items.hold
    if not engine.meets:  # nothing is received: the consumer waits
        hold[RECEIVER::2] = np.flatnonzero(items.slot >= 0)[order.slot[order.consumer]]
        edges = _held_alone(items, side, hold)
    else:
        edges = _held(posts, lanes, items, side)
    edges.append(_in_turn(items.offsets, edges))
    offsets = items.offsets
    if engine.lane is Lane.GROUP and not engine.queue:  # a queue makes the rank itself wait for its lane
        shared = _shared(order, posts, len(items.row))
        edges += _along(shared, items, side)
        offsets = np.concatenate([offsets, shared.offsets[1:]])
        clock[side] = shared.item  # both sides have come when the batches that hold them have their turns
    total = int(offsets[-1])
    apart = not engine.meets and engine.occupies is Occupies.NOBODY
    waits, late = _waits(edges, total, apart=apart)
    return Hosts(
        offsets=offsets,
        slot=_longer(items.slot, total),
        row=_longer(items.row, total),
        launches=_longer(items.launches, total),
        posts=posts,
        lanes=lanes,
        side=side,
        clock=clock,
        hold=hold,
        waits=waits,
        needs=_needs(waits, clock, engine, offsets),
        late=late,
    )


def _sides(order: Order) -> Index:
    """The side that is received, and the one that is sent, of each op; int64[2 x ops], side by side."""
    moves = len(order.consumer)
    sides = np.zeros((len(order.source), 2), np.int64)
    sides[order.consumer, 0] = np.arange(RECEIVER, 2 * moves, 2)
    sides[order.producer, 1] = np.arange(SENDER, 2 * moves, 2)
    return sides.ravel()


def _sends_alone(posts: Posts) -> Posts:
    """Sends without receives, where the receiver always has room; rows stay as they are."""
    kept = posts.sends
    return replace(
        posts,
        op=posts.op[kept],
        sends=posts.sends[kept],
        rank=posts.rank[kept],
        row=posts.row[kept],
        opens=posts.opens[kept],
        until=posts.until[kept],
    )


def _lanes(order: Order, posts: Posts, engine: Engine, act: Index, side: Index) -> Lanes | None:
    """Neighbours on lanes between two ranks. Of parts of one batch that go together, none is on such a lane."""
    if engine.lane not in (Lane.WAY, Lane.PAIR) or not len(posts.op):
        return None
    one_way = engine.lane is Lane.WAY or (engine.two_ways and order.schedule.ranks == 2)
    # Posts that go equally far (and the same way) share a lane if they are of one rank. A pipeline has two distances,
    # or four where it closes to a ring, so this needs no sort.
    far = np.stack([order.receives_from, order.sends_to], axis=1)
    far -= order.rank[:, None]
    key = far.ravel().take(act)
    if one_way:
        key = 2 * key + posts.sends
    if engine.coalesced:  # parts of one batch have no order among themselves, so none can be in front of another
        alone = posts.opens.copy()
        alone[:-1] &= posts.opens[1:]
        np.putmask(key, ~alone, _NO_LANE)
    firsts, seconds = [], []
    for value in _distances(order, one_way=one_way):
        lane = np.flatnonzero(key == value)
        rank = posts.rank.take(lane)
        same = np.flatnonzero(rank[1:] == rank[:-1])
        firsts.append(lane.take(same))
        seconds.append(lane.take(same + 1))
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    in_front = np.full(2 * len(order.consumer), NOTHING, np.int32)
    in_front[side.take(second)] = side.take(first) >> 1
    return Lanes(first, second, in_front)


def _distances(order: Order, *, one_way: bool) -> list[int]:
    """How far transfers go, in ranks; by way, ``2 x distance`` of what is received and one more of what is sent."""
    steps = np.diff(order.schedule.placement, axis=1).ravel()
    far = sorted({*steps.tolist(), *(-steps).tolist()} - {0})
    if one_way:
        return [2 * each + sent for each in far for sent in (0, 1)]
    return far


def _queued(posts: Posts, lanes: Lanes | None) -> Posts:
    """With one launch queue, what comes behind a post is launched behind what its lane carries in front of it."""
    until = posts.until.copy()
    if lanes is not None:
        blocked, behind = lanes.first, posts.row.take(lanes.second)
    else:  # one lane: behind each batch comes the next one
        opens = np.flatnonzero(posts.opens)
        following = np.append(opens[1:], 0)[np.cumsum(posts.opens) - 1]
        blocked = np.flatnonzero(posts.rank[following] == posts.rank)
        blocked = blocked[following[blocked] > blocked]
        behind = posts.row[following[blocked]]
    until[blocked] = np.minimum(until[blocked], behind)
    return replace(posts, until=until)


def _items(posts: Posts, side: Index, *, launching: bool) -> _Items:
    # An item stands at the row of each slot, and wherever a rank waits; what it waits for is posted in front of it.
    stands = np.zeros(int(posts.rows[-1]) + 1, np.bool_)
    stands[posts.until] = True
    stands[posts.rows[1:]] = False  # nothing waits at the end of a rank; the row there is the next rank's first
    if launching:  # a send takes up its rank before it begins, so it has a row of its own with that duration
        stands[posts.row[posts.sends]] = True
    stands[posts.slot_row] = True
    _spread(posts, stands)
    before = np.zeros(len(stands), np.int32)  # items before each row, on all ranks
    np.cumsum(stands[:-1].astype(np.int32), out=before[1:])
    row = np.flatnonzero(stands)
    offsets = before[posts.rows].astype(np.int64)
    slot = np.full(len(row), NOTHING)
    slot[before.take(posts.slot_row)] = np.arange(len(posts.slot_row))
    clock = before.take(posts.row + 1)
    clock -= 1
    first_row = np.append(row, posts.rows[-1])[offsets[:-1]]  # of the first item of each rank
    first_post, behind = np.searchsorted(posts.row, np.stack([posts.rows[:-1], np.minimum(first_row, posts.rows[1:])]))
    for early in np.flatnonzero(first_post < behind).tolist():
        clock[first_post[early] : behind[early]] = NOTHING  # posted before all items of its rank
    before[posts.rows[1:]] = NOTHING  # only who waits for nothing waits until the end of a rank
    hold = before.take(posts.until)
    launches = np.full(len(row), NOTHING)
    if launching:
        launches[clock[posts.sends]] = side[posts.sends] // 2
        last = np.flatnonzero(np.append(posts.opens[1:], True))
        # A batch is launched behind all that takes up its sender.
        clock = clock[last][np.cumsum(posts.opens) - 1]
    return _Items(row, slot, offsets, launches, clock, hold)


def _spread(posts: Posts, stands: Flags) -> None:
    """Let an item stand at every fourth post of a long gap."""
    if len(posts.row) <= _FAN or (posts.row[_FAN:] - posts.row[:-_FAN]).min() > _FAN:
        return
    # Rounds wake whoever waits for an item, by a table as wide as the item that most wait for (`kernels.users`).
    rows = np.arange(len(stands))
    distance = rows - np.maximum.accumulate(np.where(stands, rows, 0))
    stands[posts.row[distance[posts.row] % _FAN == 0]] = True


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Items that wait, int64, and what must have ended before: a side of a transfer, or an item.

    ``behind`` is whether the side is posted behind the item in front of the one that waits: then that has ended, too.
    """

    item: Index
    ends: Index
    sides: bool
    behind: Flags


def _held(posts: Posts, lanes: Lanes | None, items: _Items, side: Index) -> list[_Edges]:
    """Items that wait for transfers of their rank; what is waited for no later on the same lane stands for them."""
    held = items.hold >= 0
    if lanes is not None:  # what is behind it on the lane ends later, so who waits for that has waited for this
        later = posts.until.take(lanes.second) <= posts.until.take(lanes.first)
        held[lanes.first.compress(later)] = False
    post = np.flatnonzero(held)
    hold = items.hold.take(post)
    return [_Edges(hold, side.take(post), True, items.clock.take(post) == hold - 1)]


def _held_alone(items: _Items, side: Index, hold: Index) -> list[_Edges]:
    """Senders that wait until all is handed over, and consumers."""
    post = np.flatnonzero(items.hold >= 0)
    receivers = np.arange(RECEIVER, len(hold), 2)
    return [
        _Edges(hold[receivers], receivers, True, np.zeros(len(receivers), np.bool_)),
        _Edges(items.hold[post], side[post], True, np.ones(len(post), np.bool_)),
    ]


def _in_turn(offsets: Index, edges: list[_Edges]) -> _Edges:
    """Each item behind the one in front of it on its host, unless it waits for that anyway."""
    alone = np.ones(int(offsets[-1]) + 1, np.bool_)  # one more, for the offset behind the last host
    for held in edges:
        alone[held.item.compress(held.behind)] = False
    alone[offsets] = False
    item = np.flatnonzero(alone)
    return _Edges(item, item - 1, False, item < 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """One lane a rank, whose items are batches.

    Args:
        offsets: int64[ranks + 1], counted on from the items of ranks.
        item: of each post, int64[posts].
        last: last post of each batch, behind which all of it is launched, int64[batches].
    """

    offsets: Index
    item: Index
    last: Index


def _shared(order: Order, posts: Posts, items: int) -> _Shared:
    last = np.flatnonzero(np.append(posts.opens[1:], True))
    size = np.bincount(posts.rank.take(last), minlength=order.schedule.ranks)
    batch = np.cumsum(posts.opens.astype(np.int64))
    return _Shared(items + np.concatenate([[0], np.cumsum(size)]), items - 1 + batch, last)


def _along(shared: _Shared, items: _Items, side: Index) -> list[_Edges]:
    """A batch has its turn when it is posted and the batch in front of it has ended."""
    posted = items.clock.take(shared.last)
    leads = np.zeros(int(shared.offsets[-1]) + 1, np.bool_)  # the first batch of a rank, or what is behind its last
    leads[shared.offsets] = True
    inside = np.flatnonzero(~leads.take(shared.item + 1))
    following = shared.item.take(inside) + 1
    return [
        _Edges(shared.item.take(shared.last), posted, False, posted < NOTHING),
        _Edges(following, side.take(inside), True, following >= 0),
    ]


def _longer(column: Index, total: int) -> Index:
    return column if len(column) == total else np.append(column, np.full(total - len(column), NOTHING))


def _waits(edges: list[_Edges], total: int, *, apart: bool) -> tuple[Lines, int]:
    """Lines of what items wait for, transfers in lines of their own if ``apart``, and how many these are."""
    if not apart:
        return _lines(edges, total), 0
    own, carried = (_lines([each for each in edges if each.sides is sides], total) for sides in (False, True))
    return np.concatenate([own, carried]), len(carried)


def _lines(edges: list[_Edges], total: int) -> Lines:
    """For each item what it waits for, side by side, int32[most that one has, items]; without a sort.

    Each turn writes one of the values that are left into a line of its own, or into the last one where that is free.
    """
    lines = [np.full(total, NOTHING, np.int32)]
    for each in edges:
        item, value = each.item, (each.ends + _base(total) * each.sides).astype(np.int32)
        if (lines[-1].take(item) >= 0).any():
            lines.append(np.full(total, NOTHING, np.int32))
        while True:
            lines[-1][item] = value
            left = lines[-1].take(item) != value  # of several values for one item, NumPy keeps the last: others go on
            if not left.any():
                break
            item, value = item.compress(left), value.compress(left)
            lines.append(np.full(total, NOTHING, np.int32))
    return np.stack(lines)


def _base(items: int) -> int:
    """The first even number behind all items, so that the two sides of a transfer differ in the last bit alone."""
    return items + items % 2


def _needs(waits: Lines, clock: Index, engine: Engine, offsets: NDArray[np.int64]) -> Lines:
    """Items on other hosts that must have run: where the other side of what is waited for is posted.

    The own side is posted earlier on the same host; not so on a lane that all share, which is a host of its own.
    """
    base = _base(waits.shape[1])
    items, none = np.full(base, NOTHING, np.int32), np.full(2, NOTHING, np.int32)
    if not engine.meets:
        clock = np.repeat(clock[SENDER::2], 2)
    of_side = np.concatenate([items, clock.astype(np.int32), none])
    # ^ 1: the other side; of an item a neighbour, which has no side
    lines = [of_side.take(line ^ 1) for line in waits if (line >= base).any()]
    if engine.lane is Lane.GROUP:
        of_side[:base] = np.arange(base)
        lines += [of_side.take(line) for line in waits]
    kept = lines[:1] or [np.full(waits.shape[1], NOTHING, np.int32)]
    for line in lines[1:]:
        if _same_hosts(kept[-1], line, offsets):
            kept[-1] = np.maximum(kept[-1], line)
        else:
            kept.append(line)
    return np.stack(kept)


def _same_hosts(first: NDArray[np.int32], second: NDArray[np.int32], offsets: NDArray[np.int64]) -> bool:
    """Whether each item needs at most one host by two lines: then the later item there stands for both.

    Each line is asked in every round, so one less is worth much.
    """
    both = np.flatnonzero((first >= 0) & (second >= 0) & (first != second))
    for some in (both[:_FEW], both):  # a few that differ spare the rest
        host = np.searchsorted(offsets, np.stack([first.take(some), second.take(some)]), side="right")
        if not np.array_equal(*host):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Standing:
    """A rank that cannot go on: where it stands, and what it waits for on which other rank."""

    rank: int
    position: int
    text: str
    wanted: str
    other: int


def of_computations(order: Order, needs: NDArray[np.int32], stuck: Stuck) -> Deadlock:
    """The deadlock of an order of ops alone.

    Args:
        order: the schedule.
        needs: slots that each slot needs, as ``Order.needs`` yields them.
        stuck: where ranks stand, in slots.
    """
    missing = _missing(order.offsets, needs, stuck)
    rank_of = order.rank[order.first]
    found = []
    for rank, (slot, need) in missing.items():
        ends = [end for end in (order.first[slot], order.last[slot]) if order.source[end] >= 0]
        wanted = next(order.source[end] for end in ends if order.slot[order.source[end]] == need)
        position = int(order.first[slot] - order.schedule.offsets[rank])
        found.append(
            _Standing(rank, position, _text(order, order.first[slot]), _text(order, wanted), int(rank_of[need]))
        )
    return _deadlock(order, found, {rank: int(rank_of[need]) for rank, (_, need) in missing.items()})


def circle(order: Order, hosts: Hosts, stuck: Stuck) -> Deadlock:
    """The deadlock of an engine.

    Args:
        order: the schedule.
        hosts: what ranks do, as items.
        stuck: where hosts stand, in items.
    """
    missing = _missing(hosts.offsets, hosts.needs, stuck)
    ranks = order.schedule.ranks
    host_of = np.repeat(np.arange(len(hosts.offsets) - 1), np.diff(hosts.offsets))
    found = [_standing(order, hosts, rank, item, stuck.done) for rank, (item, _) in missing.items() if rank < ranks]
    return _deadlock(order, found, {host: int(host_of[need]) for host, (_, need) in missing.items()})


def check_lanes(order: Order, hosts: Hosts) -> None:
    """Refuse sends and receives that stand in different orders on the two sides of a lane between two ranks.

    Raises:
        Deadlock: two transfers wait for each other.
    """
    if hosts.lanes is None:
        return
    if len(hosts.side) < len(hosts.clock):  # receivers always have room, so their side has no order
        return
    carried = hosts.lanes.in_front
    crossed = np.flatnonzero(carried[SENDER::2] != carried[RECEIVER::2])
    if not len(crossed):
        return
    post = hosts.post_of_sides()
    rank, row = hosts.posts.rank[post], hosts.posts.row[post]
    for side in np.stack([2 * crossed + SENDER, 2 * crossed + RECEIVER], axis=1).ravel().tolist():
        other = int(carried[side])
        if other < 0:
            continue
        here, there = 2 * other + SENDER, 2 * other + RECEIVER
        if rank[here] != rank[side]:
            here, there = there, here
        if row[there] > row[side ^ 1]:  # in front on this side, behind on the other
            found = [_post_of(order, hosts, here), _post_of(order, hosts, side ^ 1)]
            raise _deadlock(order, found, {found[0].rank: found[1].rank, found[1].rank: found[0].rank})


def _post_of(order: Order, hosts: Hosts, side: int) -> _Standing:
    """A rank that stands still until one side of a transfer has met the other."""
    producer, consumer = int(order.producer[side // 2]), int(order.consumer[side // 2])
    rank, other = int(order.rank[producer]), int(order.rank[consumer])
    if side % 2 == RECEIVER:
        rank, other = other, rank
    post = int(hosts.post_of_sides()[side])
    position = 0
    if post >= 0:
        position = int(hosts.posts.row[post] - hosts.posts.rows[rank])
    name = _text(order, producer)
    return _Standing(rank, position, f"{'SR'[side % 2]} {name}", f"{'RS'[side % 2]} {name}", other)


def _missing(offsets: Index, needs: NDArray[np.int32], stuck: Stuck) -> dict[int, tuple[int, int]]:
    """For each host that cannot go on, the item at which it stands and the first one that it needs and has not run."""
    missing = {}
    for host, (item, stop) in enumerate(zip(stuck.here.tolist(), offsets[1:].tolist(), strict=True)):
        if item < stop:
            needed = [need for need in needs[:, item].tolist() if need >= 0 and not stuck.done[need]]
            missing[host] = (item, needed[0])
    return missing


def _standing(order: Order, hosts: Hosts, rank: int, item: int, done: NDArray[np.bool_]) -> _Standing:
    """Where a rank stands, by the first transfer it waits for whose other side has not been posted."""
    posted = (hosts.clock < 0) | done[hosts.clock]
    sides = np.flatnonzero((hosts.hold == item) & ~(posted & posted[np.arange(len(posted)) ^ 1]))
    side = int(sides[0])
    standing, post = _post_of(order, hosts, side), int(hosts.post_of_sides()[side])
    at_once = post >= 0 and hosts.posts.until[post] == hosts.posts.behind_batch()[post]
    if hosts.slot[item] < 0 or at_once:
        return standing
    position = int(hosts.row[item] - hosts.posts.rows[rank])
    return replace(standing, position=position, text=_text(order, order.first[hosts.slot[item]]))


def _deadlock(order: Order, found: list[_Standing], waits_for: dict[int, int]) -> Deadlock:
    """Follow who waits for whom from any rank until one repeats: that is the circle."""
    path = [next(iter(waits_for))]  # each waits for exactly one other, so every way ends in a circle
    while (following := waits_for[path[-1]]) not in path:
        path.append(following)
    standing = {one.rank: one for one in found}
    around = [standing[host] for host in path[path.index(following) :] if host in standing]
    return Deadlock(
        order.schedule.name,
        [f"{one.text} (rank {one.rank})" for one in around],
        [_for_ever(one) for one in found],
    )


def _for_ever(one: _Standing) -> Violation:
    sentence = f"{one.text} waits for {one.wanted} on rank {one.other} for ever"
    return Violation(one.rank, one.position, sentence, "let it come later, or what it waits for earlier")


def _text(order: Order, op: int) -> str:
    return order.schedule.op(int(op)).text(order.schedule.slices)
