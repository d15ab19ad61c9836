"""List schedules: ranks take, event by event, the op that matters most of those that can start; many rules, many tries.

A rank decides when it is free and something can start. Forwards and gradients compete by priority; a W fills a gap,
makes room under memory pressure, or waits. A forward of chunk c leaves room for one activation of each deeper chunk
(v - 1 - c), as a banker keeps enough to finish one client: then no order of two chunks deadlocks under a cap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .problem import Problem
from .resimulate import Rows, _njit

# What decides between ops that can start: gradients first, forwards first, the longest way to the end of the step.
GRADIENTS, FORWARDS, TAILS = 0, 1, 2
_GAPS = (1.0, 0.5, 0.0)  # share of a W that must fit before the next known arrival
_NOISE = (0.0, 0.02, 0.06)  # of the longest tail, added to each priority


def portfolio(problem: Problem, seed: int = 0) -> Iterator[Rows]:
    """List schedules without end: each rule once, then the same rules with drawn limits and noise."""
    instance = problem.instance
    tables, tail = problem.ideal.tables, problem.windows.tail
    draw = np.random.default_rng(seed)
    limits = list(_limits(problem))
    turn = 0
    while True:
        for rule in (TAILS, GRADIENTS, FORWARDS):
            for gap in _GAPS:
                for limit in limits:
                    noise = 0.0 if turn == 0 else float(draw.choice(_NOISE))
                    shift = limit if turn == 0 else limit + 2 * draw.integers(-1, 2, len(limit))
                    room = np.minimum(instance.room, np.maximum(shift, 2 * instance.chunks))
                    gap_drawn = gap if turn == 0 else gap * float(draw.random()) * 2
                    settings = np.array([rule, gap_drawn, noise * float(tail.max())], np.float64)
                    rows = _listed(tables.columns(), tail.ravel(), room, settings, _draws(draw, instance.ops, noise))
                    if rows is not None:
                        yield rows
        turn += 1


def _draws(draw: np.random.Generator, ops: int, noise: float) -> NDArray[np.float64]:
    return draw.random(ops) if noise else np.zeros(ops)


def _limits(problem: Problem) -> Iterator[NDArray[np.int64]]:
    """How many half activations each rank lets in: all it can, as 1F1B, one hop more, twice that, one more than p."""
    instance = problem.instance
    ranks, chunks = instance.ranks, instance.chunks
    behind = ranks - np.arange(ranks)
    yield instance.room
    if instance.room.max() > 4 * ranks * chunks.max():
        yield 4 * ranks * chunks
    yield 2 * ranks * chunks
    if (chunks == 1).all():
        yield 2 * behind
        yield 2 * behind + 2
        yield 4 * behind - 2


def _listed(columns, tail, room, settings, noise) -> Rows | None:  # type: ignore[no-untyped-def]
    """One list schedule; None where its limits leave a rank without an op that it may start."""
    ranks, classes, m = len(room), len(columns[2]), int(columns[7][2])
    rows = np.empty((ranks, classes * m // ranks), np.int32)
    stages = len(tail) // m // (classes // int(len(tail) // m))  # kinds x stages classes, one tail an op
    del stages
    fine = _list(rows, columns, (tail, room, settings, noise), _state(columns, ranks))
    return rows if fine else None


def _state(columns, ranks):  # type: ignore[no-untyped-def]
    ops, classes = len(columns[0]), len(columns[2])
    kinds = 3 if (columns[5] < 0).any() and classes else 2
    del kinds
    home = columns[4]
    deeper = np.zeros(classes, np.int64)  # half activations that a forward leaves free for deeper chunks
    forwards = np.flatnonzero(columns[5] > 0)
    for place in forwards:
        deeper[place] = 2 * int((home[forwards[forwards > place]] == home[place]).sum())
    of_rank = np.argsort(home, kind="stable").astype(np.int32)
    first = np.searchsorted(home[of_rank], np.arange(ranks + 1)).astype(np.int64)
    return np.zeros(ops, np.int64), np.zeros(classes, np.int64), np.zeros((3, ranks), np.int64), deeper, of_rank, first


@_njit
def _list(rows, columns, rule, state):  # type: ignore[no-untyped-def]
    """Fill rows; False where no rank can go on."""
    spent, hop, source, _, home, gain, _, sizes = columns
    tail, room, settings, noise = rule
    end, done, (now, place, held), deeper, of_rank, first = state
    m, classes, ranks = sizes[2], len(source), len(room)
    far, stages = np.int64(2**62), np.int64(0)
    while stages < classes and gain[stages] > 0:
        stages += 1
    choice, when = np.full(ranks, -1, np.int64), np.full(ranks, far, np.int64)
    stale = np.ones(ranks, np.bool_)
    left = rows.size
    while left:
        best = -1
        for rank in range(ranks):
            if stale[rank]:
                _choose(rank, (spent, hop, source, gain, tail, noise), (end, done, now, held, room), (of_rank, first, deeper), (choice, when, settings, m, stages))
                stale[rank] = False
            if choice[rank] >= 0 and (best < 0 or when[rank] < when[best]):
                best = rank
        if best < 0:
            return False
        kind = choice[best]
        op = kind * m + done[kind]
        now[best] = when[best] + spent[op]
        end[op] = now[best]
        held[best] += gain[kind]
        rows[best, place[best]] = kind
        place[best] += 1
        done[kind] += 1
        left -= 1
        stale[best] = True
        for other in range(classes):
            if source[other] == kind:
                stale[home[other]] = True
    return True


@_njit
def _choose(rank, costs, now_state, lists, answer):  # type: ignore[no-untyped-def]
    """The op that a rank would start next, and when."""
    spent, hop, source, gain, tail, noise = costs
    end, done, now, held, room = now_state
    of_rank, first, deeper = lists
    choice, when, settings, m, stages = answer
    far = np.int64(2**62)
    soonest, weight, blocked = far, np.int64(-1), False
    for pick in range(first[rank], first[rank + 1]):  # when the first F or gradient can start
        kind = of_rank[pick]
        turn, maker = done[kind], source[kind]
        if turn >= m or (maker >= 0 and done[maker] <= turn):
            continue
        if kind >= 2 * stages:
            if weight < 0 or end[maker * m + turn] < end[source[weight] * m + done[weight]]:
                weight = kind
            continue
        if gain[kind] > 0 and held[rank] + gain[kind] + deeper[kind] > room[rank]:
            blocked = True
            continue
        ready = now[rank]
        if maker >= 0:
            ready = max(ready, end[maker * m + turn] + hop[kind * m + turn])
        soonest = min(soonest, ready)
    choice[rank], when[rank] = -1, far
    if weight >= 0:
        length = spent[weight * m + done[weight]]
        full = blocked and soonest > now[rank]
        if soonest == far or full or soonest - now[rank] >= settings[1] * length and soonest > now[rank]:
            choice[rank], when[rank] = weight, now[rank]
            return
    if soonest == far:
        return
    top = -1.0e300
    for pick in range(first[rank], first[rank + 1]):
        kind = of_rank[pick]
        turn, maker = done[kind], source[kind]
        if turn >= m or (maker >= 0 and done[maker] <= turn) or kind >= 2 * stages:
            continue
        if gain[kind] > 0 and held[rank] + gain[kind] + deeper[kind] > room[rank]:
            continue
        ready = now[rank]
        if maker >= 0:
            ready = max(ready, end[maker * m + turn] + hop[kind * m + turn])
        if ready > soonest:
            continue
        op = kind * m + turn
        worth = settings[2] * noise[op] + tail[op]
        if settings[0] == 0 and kind >= stages:
            worth += 1.0e18
        if settings[0] == 1 and kind < stages:
            worth += 1.0e18
        if worth > top:
            top, choice[rank], when[rank] = worth, kind, ready
    # A rank whose memory is full may have to let a W go first although a gradient could start: that is what the
    # tails say, which count what the freed room lets in.
    if weight >= 0 and settings[0] == 2:
        op = weight * m + done[weight]
        if settings[2] * noise[op] + tail[op] > top:
            choice[rank], when[rank] = weight, now[rank]
