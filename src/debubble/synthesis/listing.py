"""List schedules: ranks take, event by event, the op that matters most of those that can start; many rules, many tries.

A rank decides when it is free and something can start. Forwards and gradients compete by priority; a W fills a gap,
makes room under memory pressure, or waits. A forward of chunk c leaves room for one activation of each deeper chunk
(v - 1 - c), as a banker keeps enough to finish one client: then no order of two chunks deadlocks under a cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .problem import Problem
from .resimulate import Rows, njit

# What decides between ops that can start: gradients first, forwards first, the longest way to the end of the step.
GRADIENTS, FORWARDS, TAILS = 0, 1, 2
_GAPS = (1.0, 0.5, 0.0)  # share of a W that must fit before the next known arrival
_NOISE = (0.0, 0.02, 0.06)  # of the longest tail, added to each priority
_FAR = np.int64(2**62)


def portfolio(problem: Problem, seed: int = 0) -> Iterator[Rows]:
    """List schedules without end: each rule once, then the same rules with drawn limits and noise.

    Args:
        problem: what for; its engine counts as ideal here.
        seed: of the draws.
    """
    instance, tail = problem.instance, problem.windows.tail
    columns, draw = problem.ideal.tables.columns(), np.random.default_rng(seed)
    rules = list(product((TAILS, GRADIENTS, FORWARDS), _GAPS, _limits(problem)))
    none = np.zeros(instance.ops)
    for rule, gap, limit in rules:
        settings = np.array([rule, gap, 0.0])
        rows = _listed(columns, (tail.ravel(), np.minimum(instance.room, limit), settings, none))
        if rows is not None:
            yield rows
    while True:
        rule, gap, limit = rules[draw.integers(len(rules))]
        limit = np.maximum(limit + 2 * draw.integers(-1, 2, len(limit)), 2 * instance.chunks)
        settings = np.array([rule, 2 * gap * draw.random(), draw.choice(_NOISE) * tail.max()])
        room = np.minimum(instance.room, limit)
        rows = _listed(columns, (tail.ravel(), room, settings, draw.random(instance.ops)))
        if rows is not None:
            yield rows


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


def _listed(columns: tuple[Any, ...], rule: tuple[Any, ...]) -> Rows | None:
    """One list schedule; None where its limits leave a rank without an op that it may start."""
    ranks, classes, m = len(rule[1]), len(columns[2]), int(columns[7][2])
    rows = np.empty((ranks, classes * m // ranks), np.int32)
    fine = _list(rows, columns, rule, _state(columns, ranks))
    return rows if fine else None


def _state(columns: tuple[Any, ...], ranks: int) -> tuple[Any, ...]:
    ops, classes = len(columns[0]), len(columns[2])
    home = columns[4]
    deeper = np.zeros(classes, np.int64)  # half activations that a forward leaves free for deeper chunks
    forwards = np.flatnonzero(columns[5] > 0)
    for place in forwards:
        deeper[place] = 2 * int((home[forwards[forwards > place]] == home[place]).sum())
    of_rank = np.argsort(home, kind="stable").astype(np.int32)
    first = np.searchsorted(home[of_rank], np.arange(ranks + 1)).astype(np.int64)
    return np.zeros(ops, np.int64), np.zeros(classes, np.int64), np.zeros((3, ranks), np.int64), deeper, of_rank, first


@njit
def _list(rows, columns, rule, state):  # type: ignore[no-untyped-def]
    """Fill rows; False where no rank can go on."""
    spent, source, home, gain = columns[0], columns[2], columns[4], columns[5]
    end, done, (now, place, held) = state[:3]
    m, classes, ranks = columns[7][2], len(source), rows.shape[0]
    choice, when = np.full(ranks, -1, np.int64), np.full(ranks, _FAR, np.int64)
    for rank in range(ranks):
        choice[rank], when[rank] = _choose(rank, columns, rule, state)
    for _ in range(rows.size):
        rank = int(np.argmin(when))
        kind = choice[rank]
        if kind < 0:
            return False
        op = kind * m + done[kind]
        now[rank] = end[op] = when[rank] + spent[op]
        held[rank] += gain[kind]
        rows[rank, place[rank]] = kind
        place[rank] += 1
        done[kind] += 1
        choice[rank], when[rank] = _choose(rank, columns, rule, state)
        for other in range(classes):
            if source[other] == kind and home[other] != rank:
                choice[home[other]], when[home[other]] = _choose(home[other], columns, rule, state)
    return True


@njit
def _choose(rank, columns, rule, state):  # type: ignore[no-untyped-def]
    """The class of the op that a rank would start next, and when; -1 where it has none."""
    spent, gain, m = columns[0], columns[5], columns[7][2]
    tail, room, settings, noise = rule
    _, done, (now, _, held), deeper, of_rank, first = state
    stages = np.sum(gain > 0)  # forwards come first, one class a stage
    best, start, top, weight, blocked = np.int64(-1), _FAR, -1.0, np.int64(-1), False
    for pick in range(first[rank], first[rank + 1]):
        kind = of_rank[pick]
        ready = _ready(kind, now[rank], columns, state)
        if ready == _FAR:
            continue
        op = kind * m + done[kind]
        worth = settings[2] * noise[op] + tail[op]
        if kind >= 2 * stages:
            if weight < 0 or tail[op] > tail[weight * m + done[weight]]:
                weight = kind
            continue
        if gain[kind] > 0 and held[rank] + gain[kind] + deeper[kind] > room[rank]:
            blocked = True
            continue
        if (settings[0] == GRADIENTS and kind >= stages) or (settings[0] == FORWARDS and kind < stages):
            worth += 1.0e18
        if ready < start or (ready == start and worth > top):
            best, start, top = kind, ready, worth
    if weight < 0:
        return best, start
    op = weight * m + done[weight]
    gap = start - now[rank]
    fits = gap > 0 and (blocked or gap >= settings[1] * spent[op])
    # The tails of W count what the room that it frees lets in: with full memory it may go before a gradient.
    if best < 0 or fits or (settings[0] == TAILS and settings[2] * noise[op] + tail[op] > top):
        return weight, now[rank]
    return best, start


@njit
def _ready(kind, now, columns, state):  # type: ignore[no-untyped-def]
    """When the next op of a class could start, ``_FAR`` if its input has not been made or none is left."""
    hop, source, m = columns[1], columns[2], columns[7][2]
    end, done = state[0], state[1]
    turn, maker = done[kind], source[kind]
    if turn >= m or (maker >= 0 and done[maker] <= turn):
        return _FAR
    if maker < 0:
        return now
    return max(now, end[maker * m + turn] + hop[kind * m + turn])
