"""Where a search begins: named schedules of the catalog, list schedules, warm-up profiles of 1F1B."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, Refusal
from ..core.schedule import Schedule, Shape
from ..schedules.catalog import TRAINING, build, entry_of
from .problem import WRONG, Problem
from .resimulate import Rows, njit

_MOST_PLACED = 60_000  # of a step for which searched schedules of the catalog are asked; they place op by op in Python


def seeds(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Schedules of the catalog with the problem's placement, and their names, quick ones first.

    Searched ones are made with the problem's costs, cap and release. Whether a schedule is legal, fits and runs under
    the engine is for whoever takes it to ask.
    """
    instance = problem.instance
    chunks = int(instance.chunks.max())
    cap = [float(room) for room in np.minimum(instance.room / (2 * instance.chunks), instance.microbatches)]
    for name in sorted(TRAINING, key=lambda name: entry_of(name).search is not None):
        entry = entry_of(name)
        # With one chunk a rank interleaving is 1F1B in another order: it is asked only where chunks are.
        if chunks != entry.chunks and not (entry.any_chunks and chunks > 1):
            continue
        if entry.search is not None and instance.ops > _MOST_PLACED:
            continue
        shape = Shape(instance.ranks, instance.microbatches, chunks)
        try:
            if entry.search is None:
                schedule = build(name, shape)
            else:
                schedule = build(name, shape, instance.costs, cap=cap, release=instance.release)
        except (InputError, Refusal, IndexError):
            continue  # it does not suit the shape, or finds nothing under this cap
        if np.array_equal(schedule.placement, instance.placement[None, :]):
            yield name, schedule


def best_seed(problem: Problem, found: Iterator[tuple[str, Schedule]]) -> tuple[str, int]:
    """The name of the best legal schedule among some, and its objective; an empty name if none is legal."""
    best, least = "", int(WRONG)
    for name, schedule in found:
        value = problem.measured(schedule)
        if value < least:
            best, least = name, value
    return best, least


# List schedules: ranks take, event by event, the op that matters most of those that can start; many rules, many tries.
#
# A rank decides when it is free and something can start. Forwards and gradients compete by priority; a W fills a gap,
# makes room under memory pressure, or waits. A forward of chunk c leaves room for one activation of each deeper chunk
# (v - 1 - c), as a banker keeps enough to finish one client: then no order of two chunks deadlocks under a cap.

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
    # TAILS come first: they alone know how much work is still behind an op.
    rules = list(product((TAILS, GRADIENTS, FORWARDS), _GAPS, _limits(problem)))
    none = np.zeros(instance.ops)
    for rule, gap, limit in rules:
        settings = np.array([rule, gap, 0.0])
        rows = _listed(columns, (tail.ravel(), np.minimum(instance.room, limit), settings, none))
        if rows is not None:
            yield rows
    while True:
        rule, gap, limit = rules[draw.integers(len(rules))]
        # One micro-batch more or less than the rule, on each rank by itself; never too few for a single one.
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
    # The rank whose next op starts first decides: nothing that is placed later can start before that.
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
        # Whoever takes in what was made chooses again: its input is known now.
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


# Warm-up profiles: 1F1B with a number of warm-up forwards of its own on each rank, and a place for W.
#
# Under an engine that waits, moves of single ops break what two ranks do in step; these moves keep it. With full
# backwards there is the first pattern alone, without the W:
#
#     warm-up 2, W behind I     F F  F I W  F I W  ..  I W  I W       the rank sends a gradient, then works on
#     warm-up 2, W behind F     F F  F I  F W I  F W I  ..  W  I W    the next F comes in while the gradient goes out
#
# Where a link is slow fewer warm-ups are better, since no gradient travels with their sends: by Little's law rank r
# needs the time of a micro-batch from its F there to its I, over the time from one micro-batch to the next (less one).

BEHIND_I, BEHIND_F = 0, 1
_PROFILE_HEATS = (2e-2, 1e-2, 5e-3)
_RUN = 600  # changes in one run of annealing
_WARM_UPS = 0.7  # share of changes that are of warm-ups, and not of the place of W
Profile = NDArray[np.int64]


def profiles(problem: Problem, seed: int = 0) -> Generator[Rows, int, None]:
    """Rows without end, by annealing: whoever takes one sends back its objective.

    Args:
        problem: of one stage a rank.
        seed: of the draws.
    """
    draw, m = np.random.default_rng(seed), problem.instance.microbatches
    starts = _starts(problem)
    turn = 0
    while True:
        warm_up = starts[turn % len(starts)]
        place = np.full(len(warm_up), BEHIND_F)  # the next F comes in while the gradient goes out
        value = yield _rows_of(problem, warm_up, place)
        heat = _PROFILE_HEATS[turn // len(starts) % len(_PROFILE_HEATS)]
        for step in range(_RUN):
            other, moved = _changed(warm_up, place, draw)
            np.clip(other, 0, m, out=other)
            found = yield _rows_of(problem, other, moved)
            # Metropolis' rule, colder with every step of the run.
            if found <= value * (1 - heat * (1 - step / _RUN) * np.log(1 - draw.random())):
                warm_up, place, value = other, moved, found
        turn += 1


def _changed(warm_up: Profile, place: Profile, draw: np.random.Generator) -> tuple[Profile, Profile]:
    """The same with one to three ranks changed: other warm-ups, or the other place of W."""
    other, moved = warm_up.copy(), place.copy()
    for _ in range(1 + draw.integers(3)):
        rank = draw.integers(len(other))
        if draw.random() < _WARM_UPS:
            other[rank] += draw.integers(-2, 3)
        else:
            moved[rank] = 1 - moved[rank]
    return other, moved


def _starts(problem: Problem) -> list[Profile]:
    """1F1B, and as many warm-ups as Little's law asks for, with and without one to spare."""
    instance = problem.instance
    behind = instance.ranks - 1 - np.arange(instance.ranks)
    spent, hop = instance.spent.mean(axis=2), instance.hop.mean(axis=2).sum(axis=0)
    order = np.argsort(instance.placement)
    onward = np.append(instance.hop.mean(axis=2)[0, 1:], 0.0) + instance.hop.mean(axis=2)[1]
    # Little's law: in flight = time in the system x rate, one micro-batch a period of the slowest stage and its hops.
    there_and_back = np.cumsum((spent[0] + spent[1] + onward)[::-1])[::-1]
    period = float((spent.sum(axis=0) + hop).max()) or 1.0
    needed = np.ceil(there_and_back / period).astype(np.int64)[order]
    lists = [behind, np.maximum(needed - 1, 0), needed, 2 * behind]
    return [np.minimum(each, instance.microbatches) for each in lists]


def _rows_of(problem: Problem, warm_up: Profile, place: Profile) -> Rows:
    instance = problem.instance
    stage = np.argsort(instance.placement)
    rows = [
        _row(int(many), instance.microbatches, int(where), split=instance.split) * instance.stages + stage[rank]
        for rank, (many, where) in enumerate(zip(warm_up, place, strict=True))
    ]
    return np.stack(rows).astype(np.int32)


def _row(warm_up: int, microbatches: int, place: int, *, split: bool) -> NDArray[np.int64]:
    """Kinds of one rank: 0 for F, 1 for the gradient, 2 for W."""
    steady = microbatches - warm_up
    gradient = [1, 2] if split else [1]
    if place == BEHIND_I or not split or not steady:
        kinds = [0] * warm_up + ([0, *gradient]) * steady + gradient * warm_up
    else:
        kinds = [0] * warm_up + [0, 1] + [0, 2, 1] * (steady - 1) + [2] + gradient * warm_up
    return np.array(kinds, np.int64)
