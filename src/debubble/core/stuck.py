"""Who waits for whom: the circle of ops, sends and receives in which a schedule or an engine is stuck, by name.

A rank that stands before an op waits for its input, ``0B0 waits for 1B0 on rank 1``; one that stands still until it has
sent or received waits for the other side, ``S 0F1 waits for R 0F1 on rank 1``. Both sides are named by the op whose
output is carried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .errors import Deadlock, Violation
from .hosts import RECEIVER, SENDER, Hosts
from .kernels import Stuck
from .posts import Index, Order


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
        [_waits(one) for one in found],
    )


def _waits(one: _Standing) -> Violation:
    sentence = f"{one.text} waits for {one.wanted} on rank {one.other} for ever"
    return Violation(one.rank, one.position, sentence, "let it come later, or what it waits for earlier")


def _text(order: Order, op: int) -> str:
    return order.schedule.op(int(op)).text(order.schedule.slices)
