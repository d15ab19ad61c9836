"""Better orders from good ones: annealing by moves of single ops, and long runs from short ones, stretched.

Annealing moves an op of a rank earlier or later, simulates again, and keeps what is not much worse.

Most moves pick an op of the critical path, since no other move can shorten the step at once: the path runs back from
what ends last, over the op in front of it where the rank was busy, over the maker of its input where it waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.instance import Instance
from .problem import Problem
from .resimulate import Rows, Times, evaluate, njit

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
