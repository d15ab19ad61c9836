"""Orders: those that a search begins with, named, listed, by warm-up profiles; and better ones from good ones.

Annealing moves an op of a rank earlier or later, simulates again, and keeps what is not much worse.

Most moves pick an op of the critical path, since no other move can shorten the step at once: the path runs back from
what ends last, over the op in front of it where the rank was busy, over the maker of its input where it waited. Long
runs are made from short ones, stretched.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.bounds import Instance
from ..core.errors import InputError, Refusal
from ..core.schedule import Schedule, Shape
from ..schedules.catalog import TRAINING, build, entry_of
from .problem import WRONG, Problem, Rows, Times, evaluate, njit

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


# Found by trial; none of these figures decides whether an answer is legal.
ROUND = 2_000  # moves between two looks at the clock
_PLAIN = 100  # the same where each evaluation asks ``lower``
_REACH = 12.0  # places that a move may span
_CRITICAL = 0.8  # share of moves that pick from the critical path


@dataclass(frozen=True, slots=True)
class Repeats:
    """The part of each row that a long run repeats.

    Args:
        first: place where the first copy begins, int64[ranks].
        length: ops of a copy.
        copies: one behind the other.
    """

    first: NDArray[np.int64]
    length: int
    copies: int


class Climber:
    """One run of annealing, round after round.

    Args:
        problem: what is searched.
        rows: where it begins.
        seed: of its draws.
        repeats: what is moved in all its copies at once; None for nothing.
    """

    def __init__(self, problem: Problem, rows: Rows, seed: int = 0, repeats: Repeats | None = None) -> None:
        self.problem = problem
        if repeats is None:  # all of a row is what comes before the first of no copies
            repeats = Repeats(np.full(len(rows), rows.shape[1]), 1, 0)
        self._repeats = (repeats.first, repeats.length, repeats.copies)
        self.rows = rows.copy()
        self.value = problem.value(rows)
        self.best, self.best_rows = self.value, rows.copy()
        self._draw = np.random.default_rng(seed)

    def round(self, heat: float, moves: int = ROUND) -> int:
        """Try some moves; ``best`` and ``best_rows`` are the best ever met.

        Args:
            heat: temperature as a share of the objective.
            moves: how many; each is one evaluation.

        Returns:
            Evaluations that were made.
        """
        if self.problem.mode is None:
            return self._asked(heat, min(moves, _PLAIN))
        draws = self._draw.random((moves, 5))
        best_rows = self.best_rows
        found = _anneal(
            self.rows,
            best_rows,
            self.problem.tables.columns(),
            self.problem.scratch,
            (draws, heat, self.value, self.best, self._repeats),
        )
        self.value, self.best = int(found[0]), int(found[1])
        return moves

    def restart(self) -> None:
        """Go on from the best."""
        self.rows, self.value = self.best_rows.copy(), self.best

    def _asked(self, heat: float, moves: int) -> int:
        """The same for an engine whose rule is not written out: one ``lower`` and ``simulate`` a move."""
        draws = self._draw.random((moves, 5))
        path = np.empty((self.rows.size, 2), np.int64)
        columns, scratch = self.problem.tables.columns(), self.problem.scratch
        evaluate(self.rows, columns, scratch)
        critical = _critical(self.rows, columns, scratch, path)
        for draw in draws:
            rank, start, stop = _picked(self.rows, draw, path, critical, self._repeats)
            if start == stop:
                continue
            _shift_copies(self.rows, rank, start, stop, self._repeats)
            value = self.problem.value(self.rows)
            # Metropolis' rule: what is worse by less than heat x Exp(1) of the objective is let through.
            if value <= self.value * (1.0 - heat * np.log(draw[4])):
                self.value = value
                critical = _critical(self.rows, columns, scratch, path)
                if value < self.best:
                    self.best, self.best_rows = value, self.rows.copy()
            else:
                _shift_copies(self.rows, rank, stop, start, self._repeats)
        return moves


@njit
def _anneal(rows, best_rows, columns, scratch, settings):  # type: ignore[no-untyped-def]
    """Change rows in place, and ``best_rows`` when something better is met; the last and the best objective."""
    draws, heat, value, best, repeats = settings
    path = np.empty((rows.size, 2), np.int64)
    evaluate(rows, columns, scratch)
    critical = _critical(rows, columns, scratch, path)
    for turn in range(draws.shape[0]):
        rank, start, stop = _picked(rows, draws[turn], path, critical, repeats)
        if start == stop:
            continue
        _shift_copies(rows, rank, start, stop, repeats)
        found = evaluate(rows, columns, scratch)
        if found <= value * (1.0 - heat * np.log(draws[turn, 4])):
            # Among equals the old path is mostly still critical, and finding it again costs about an evaluation.
            if found != value or draws[turn, 3] < 0.1:
                critical = _critical(rows, columns, scratch, path)
            value = found
            if value < best:
                best = value
                best_rows[:] = rows
        else:
            _shift_copies(rows, rank, stop, start, repeats)
    return value, best


@njit
def _picked(rows, draw, path, critical, repeats):  # type: ignore[no-untyped-def]
    """A rank, the place of an op and where it moves; the same place twice where nothing would change."""
    length = rows.shape[1]
    if draw[0] < _CRITICAL and critical > 0:
        at = int(draw[1] * critical)
        rank, start = path[at, 0], path[at, 1]
    else:
        at = int(draw[1] * rows.size)
        rank, start = at // length, at % length
    away = 1 + int(draw[2] ** 3 * _REACH)  # the cube: mostly to the next place, now and then a dozen away
    least, most = _confines(rank, start, length, repeats)
    # To pass an op of the same class changes nothing, since micro-batches are dealt out in order.
    if draw[3] < 0.5:
        stop = max(least, start - away)
        while stop < start and rows[rank, stop] == rows[rank, start]:
            stop += 1
    else:
        stop = min(most, start + away)
        while stop > start and rows[rank, stop] == rows[rank, start]:
            stop -= 1
    return rank, start, stop


@njit
def _confines(rank, place, length, repeats):  # type: ignore[no-untyped-def]
    """The first and the last place that an op may move to: it stays before, behind or inside its copy."""
    first, period, copies = repeats[0][rank], repeats[1], repeats[2]
    end = first + period * copies
    if place < first:
        return 0, first - 1
    if place >= end:
        return end, length - 1
    begin = place - (place - first) % period
    return begin, begin + period - 1


@njit
def _shift_copies(rows, rank, start, stop, repeats):  # type: ignore[no-untyped-def]
    """Move an op, in every copy alike where it is in one; with places exchanged that undoes it."""
    first, period, copies = repeats[0][rank], repeats[1], repeats[2]
    if start < first or start >= first + period * copies:
        _shift(rows, rank, start, stop)
        return
    place = first + (start - first) % period
    for _ in range(copies):
        _shift(rows, rank, place, place + stop - start)
        place += period


@njit
def _shift(rows, rank, start, stop):  # type: ignore[no-untyped-def]
    """Move the op at ``start`` to ``stop``; ``_shift`` back undoes it."""
    moved = rows[rank, start]
    if start < stop:
        for place in range(start, stop):
            rows[rank, place] = rows[rank, place + 1]
    else:
        for place in range(start, stop, -1):
            rows[rank, place] = rows[rank, place - 1]
    rows[rank, stop] = moved


@njit
def _critical(rows, columns, scratch, path):  # type: ignore[no-untyped-def]
    """Rank and place of each op of the critical path after an evaluation; how many there are.

    Under an engine it follows ends and inputs alone, which is a guide and no proof.
    """
    spent, _, source, _, home, _, _, rule = columns
    end, state, m = scratch[0], scratch[4], rule[2]
    ranks, length = rows.shape
    place_of = scratch[2]
    seen = scratch[3]
    seen[:] = 0
    for rank in range(ranks):
        for place in range(length):
            kind = rows[rank, place]
            place_of[kind * m + seen[kind]] = place
            seen[kind] += 1
    rank = 0
    for other in range(ranks):
        mine = state[0, rank] - (state[3, rank] if rule[1] else 0)
        theirs = state[0, other] - (state[3, other] if rule[1] else 0)
        if theirs > mine:
            rank = other
    kind = rows[rank, length - 1]
    op, count = kind * m + m - 1, 0
    while True:
        kind = op // m
        rank, place = home[kind], place_of[op]
        path[count, 0], path[count, 1] = rank, place
        count += 1
        before = np.int64(-1)
        if place > 0:
            last = rows[rank, place - 1]
            turn = op % m if last == kind else _turn_before(rows, rank, place, last)
            before = last * m + (turn - 1 if last == kind else turn)
        maker = source[kind]
        # Where the op in front ended just when this one began the rank was busy; else the input decided.
        busy = before >= 0 and end[before] == end[op] - spent[op]
        if not busy and maker >= 0 and home[maker] != rank:
            before = maker * m + op % m
        if before < 0 or count == path.shape[0]:
            return count
        op = before


@njit
def _turn_before(rows, rank, place, kind):  # type: ignore[no-untyped-def]
    """Which micro-batch the op of a kind in front of a place works on."""
    turn = np.int64(-1)
    for earlier in range(place):
        if rows[rank, earlier] == kind:
            turn += 1
    return turn


# Stretch: solve a short run well, then repeat a part of its steady state until the long run is full.
#
# The part has the same number of ops of every kind and stage on every rank, so memory comes out of it as it went in,
# and what fits once fits every time:
#
#     short run, m = 6     F F F I F I W | F I W | F I W  I W W ..
#     part of q = 1                        F I W
#     m = 9                F F F I F I W | F I W   F I W   F I W   F I W | F I W  I W W ..

_CUTS = 48  # moments of the short run at which a part may begin


def short_runs(instance: Instance) -> list[int]:
    """Micro-batches of runs that are long enough for a steady state, two to three times what is in flight."""
    in_flight = int(np.ceil((instance.room / (2 * instance.chunks)).max()))
    in_flight = min(in_flight, 2 * instance.ranks)  # without a cap: what no published schedule exceeds
    return sorted({m for share in (2.0, 3.0) if 2 < (m := round(share * in_flight)) < 0.7 * instance.microbatches})


def stretched(rows: Rows, begin: Times, microbatches: tuple[int, int], classes: int) -> Iterator[tuple[Rows, Repeats]]:
    """Every way to fill a long run from a short one, some of which deadlock.

    Args:
        rows: of the short run.
        begin: when each of its ops starts, int64 of the shape of ``rows``: every rank is cut at about one moment.
        microbatches: of the short run and of the long one.
        classes: kinds x stages, over all ranks.
    """
    short, long = microbatches
    missing = long - short
    for part in range(1, short // 2 + 1):
        if missing % part:  # a part of q micro-batches fills multiples of q alone
            continue
        starts = [_balanced(row, part, classes) for row in rows]
        if min(map(len, starts)) == 0:
            continue
        # Cut at one moment on all ranks: parts that lie apart by whole micro-batches may deadlock when repeated. The
        # first tenth is warm-up and the last fifth cool-down.
        for moment in np.linspace(0.1, 0.8, _CUTS) * begin.max():
            near = [np.abs(begin[rank, found] - moment).argmin() for rank, found in enumerate(starts)]
            at = [int(found[place]) for found, place in zip(starts, near, strict=True)]
            length = part * len(np.unique(rows[0]))
            yield _filled(rows, at, length, missing // part), Repeats(np.array(at), length, 1 + missing // part)


def _balanced(row: NDArray[np.int32], part: int, classes: int) -> NDArray[np.int64]:
    """Places from which on a row holds ``part`` ops of each of its classes, and nothing else, int64[places]."""
    mine = np.unique(row)
    length = part * len(mine)
    index = np.full(classes, -1)
    index[mine] = np.arange(len(mine))
    counts = np.zeros((len(row) + 1, len(mine)), np.int64)
    counts[np.arange(1, len(row) + 1), index[row]] = 1
    counts = counts.cumsum(axis=0)
    return np.flatnonzero((counts[length:] - counts[:-length] == part).all(axis=1))


def _filled(rows: Rows, at: list[int], length: int, times: int) -> Rows:
    """Each row with its part repeated."""
    longer = []
    for row, start in zip(rows, at, strict=True):
        stop = start + length
        longer.append(np.concatenate([row[:stop], np.tile(row[start:stop], times), row[stop:]]))
    return np.stack(longer).astype(np.int32)
