"""The loops that must run at memory speed: the rounds in which lanes step together, and one sweep over a program.

Each exists three times, and all three find the same integers: over lists for small and for narrow pipelines, where a
call of NumPy costs more than the work; whole rounds in NumPy; and compiled, where numba is installed and the program is
large.

*Rounds*: all lanes step together, and in each round every lane whose next item is ready runs it. An item is ready when
all that it needs has run in earlier rounds. So the rounds, one after the other, are a topological order, items of one
round do not depend on each other, and the items of neighbouring lanes lie next to each other in memory (which matters
more than the language, see benchmarks/bench_simulate.py). It is linear: a lane is looked at again only if it has moved
or if what it waits for has run.

*The sweep* is the longest path in that order:

    start = the latest end of what the row waits for (+ its lag);  end = start + duration

Row 0 is the start of the step, which ends at time 0. Durations and lags are looked up: ``table[key]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .schedule import NOTHING

SMALL = 3_000  # rows; below, a loop over lists beats NumPy, whose every call costs a microsecond
NARROW = 6  # rows a round; below, the same holds for any number of rounds: at p=2 lists are five times faster
LONG = 2_000_000  # rows; above, lists, which take 160 bytes a row, are not made
LARGE = 8_000_000  # rows; above, importing numba (.5 s) and loading what it compiled (.3 s) is paid back
WIDE = 2048  # lanes; below, asking all of them costs less than keeping a list of those to ask

Times = NDArray[np.int64]
Keys = NDArray[np.int32]


@cache
def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """A plain loop, compiled; kept on disk, so that only the first process ever compiles it.

    Raises:
        ImportError: the extra ``fast`` is not installed.
    """
    import numba  # half a second: only for programs that win it back

    made: Callable[..., Any] = numba.njit(cache=True, nogil=True)(loop)
    return made


def worth_compiling(rows: int) -> bool:
    """Whether a pass over so many rows is faster compiled, all included: always once this process has numba loaded."""
    return rows > SMALL and has_numba() and (rows > LARGE or compiled.cache_info().currsize > 0)


def over_lists(rows: int, width: float) -> bool:
    """Whether a loop over lists beats a pass over arrays.

    Args:
        rows: of the program.
        width: rows that one call of NumPy handles.
    """
    return rows <= SMALL or (width <= NARROW and rows <= LONG)


@cache
def has_numba() -> bool:
    """Whether the extra ``fast`` is installed."""
    return find_spec("numba") is not None


def as_list(column: NDArray[Any]) -> list[Any]:
    """A column as a list, which plain Python reads several times faster than an array."""
    found: list[Any] = column.tolist()
    return found


class Stuck(Exception):
    """No lane can go on.

    Args:
        here: the item at which each lane stands, or the end of the lane, int64[lanes].
        done: whether each item has run, bool[items].
    """

    def __init__(self, here: NDArray[np.int64], done: NDArray[np.bool_]) -> None:
        super().__init__("no lane can go on")
        self.here, self.done = here, done


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """Items in an order in which all that they need comes first.

    Args:
        order: items, round after round, int32[items].
        first: index in ``order`` at which each round begins, int64[rounds + 1].
    """

    order: NDArray[np.int32]
    first: NDArray[np.int64]

    def of_items(self) -> NDArray[np.int32]:
        """The round of each item, int32[items]."""
        found = np.empty(len(self.order), np.int32)
        item = self.order.astype(np.int64)  # at once, which NumPy else does piece by piece
        found[item] = np.repeat(np.arange(len(self.first) - 1, dtype=np.int32), np.diff(self.first))
        return found


def rounds(offsets: NDArray[np.int64], needs: NDArray[np.int32]) -> Rounds:
    """Let all lanes step together.

    Args:
        offsets: lane ``l`` runs the items ``offsets[l]`` to ``offsets[l + 1]``, in that order, int64[lanes + 1].
        needs: items that must have run before, int32[needs, items]; ``NOTHING`` where none.

    Raises:
        Stuck: in some round no lane is ready.
    """
    items = needs.shape[1]
    lanes = len(offsets) - 1
    if worth_compiling(items):
        return _looped(offsets, needs, compiled(_step_lanes), np.ascontiguousarray)
    if over_lists(items, lanes):
        return _looped(offsets, needs, _step_lanes, as_list)
    if lanes > WIDE:
        return _woken(offsets, needs)
    return _together(offsets, needs)


def users(needs: NDArray[np.int32]) -> NDArray[np.int32]:
    """The items that need each item, int32[most that need one, items]; ``NOTHING`` behind the last.

    Without a sort: each round of the loop gives every item one more of its users.
    """
    items = needs.shape[1]
    user = np.tile(np.arange(items, dtype=np.int32), len(needs))
    need = needs.ravel()
    left = need >= 0
    user, need = user[left], need[left]
    lines = []
    while len(need):
        line = np.full(items, NOTHING, np.int32)
        line[need] = user
        lines.append(line)
        left = line[need] != user
        user, need = user[left], need[left]
    return np.array(lines, np.int32).reshape(len(lines), items)


def _looped(
    offsets: NDArray[np.int64],
    needs: NDArray[np.int32],
    loop: Callable[..., int],
    column: Callable[[NDArray[Any]], Any],
) -> Rounds:
    """Run the loop over lists, or compiled over arrays."""
    (count, items), lanes = needs.shape, len(offsets) - 1
    used = users(needs)
    lane_of = np.repeat(np.arange(lanes, dtype=np.int32), np.diff(offsets))
    lanes_used = np.append(lane_of, NOTHING)[used]  # NOTHING finds the last
    here, order = column(offsets[:-1].astype(np.int64)), column(np.empty(items, np.int32))
    made = column(np.full(items, items + 1, np.int64))  # the round of each item; later than all until it has run
    first = column(np.zeros(items + 2, np.int64))
    scratch = (column(np.arange(lanes + 1)), column(np.zeros(lanes + 1, np.int64)), column(np.full(lanes + 1, NOTHING)))
    structure = (
        column(offsets[1:].astype(np.int64)),
        column(needs.ravel()),
        column(lanes_used.ravel().astype(np.int32)),
    )
    found = loop(structure, (items, count, len(used)), (here, made), (order, first), scratch)
    if found < 0:
        raise Stuck(np.array(here, np.int64), np.array(made) <= items)
    return Rounds(np.array(order, np.int32), np.array(first[: found + 1], np.int64))


def _step_lanes(structure, sizes, state, answer, scratch):  # type: ignore[no-untyped-def]
    """Rounds that were needed, or -1 where no lane can go on; plain loops, so that numba can compile them."""
    (stop, needs, wakes), (items, count, wakers) = structure, sizes
    (here, made), (order, first), (active, following, asked) = state, answer, scratch
    waiting, now, filled = len(stop), 0, 0
    while filled < items:
        begun, coming = filled, 0
        for turn in range(waiting):
            lane = active[turn]
            at = here[lane]
            if at >= stop[lane]:
                continue
            ready = True
            for line in range(count):
                need = needs[line * items + at]
                ready = ready and (need < 0 or made[need] < now)
            if not ready:
                continue
            made[at] = now
            order[filled] = at
            filled += 1
            here[lane] = at + 1
            following[coming] = lane
            coming += asked[lane] != now
            asked[lane] = now
            for line in range(wakers):  # lanes that may have waited for this item
                other = wakes[line * items + at]
                following[coming] = other  # overwritten by the next one if it has been asked already
                coming += other >= 0 and asked[other] != now
                asked[other] = now  # the last place is that of nobody
        if filled == begun:
            return -1
        active, following = following, active
        waiting = coming
        now += 1
        first[now] = filled
    return now


def _together(offsets: NDArray[np.int64], needs: NDArray[np.int32]) -> Rounds:
    """Ask all lanes in every round."""
    here, stop = offsets[:-1].copy(), offsets[1:]
    done = np.zeros(needs.shape[1] + 1, np.bool_)
    done[NOTHING] = True
    active = np.flatnonzero(here < stop)
    order, sizes = [], [0]
    while len(active):
        at = here.take(active)
        ready = done.take(needs[0].take(at))
        for line in needs[1:]:
            ready &= done.take(line.take(at))
        now = at[ready]
        if not len(now):
            raise Stuck(here, done[:-1])
        done[now] = True
        order.append(now)
        sizes.append(len(now))
        lane = active[ready]
        here[lane] = now + 1
        if (now + 1 == stop.take(lane)).any():
            active = active[here.take(active) < stop.take(active)]
    return _gathered(order, sizes)


def _woken(offsets: NDArray[np.int64], needs: NDArray[np.int32]) -> Rounds:
    """Ask only the lanes that have moved, and those that may have waited for what has just run."""
    lanes = len(offsets) - 1
    here, stop = offsets[:-1].copy(), offsets[1:]
    done = np.zeros(needs.shape[1] + 1, np.bool_)
    done[NOTHING] = True
    lane_of = np.repeat(np.arange(lanes), np.diff(offsets))
    wakes = [np.where(line >= 0, lane_of[line], NOTHING) for line in users(needs)]
    asked = np.empty(lanes, np.int64)  # scratch: where in the round each lane is asked for the last time
    active, left = np.flatnonzero(here < stop), needs.shape[1]
    order, sizes = [], [0]
    while left:
        at = here.take(active)
        ready = done.take(needs[0].take(at))
        for line in needs[1:]:
            ready &= done.take(line.take(at))
        now, lane = at[ready], active[ready]
        if not len(now):
            raise Stuck(here, done[:-1])
        done[now] = True
        order.append(now)
        sizes.append(len(now))
        left -= len(now)
        here[lane] = now + 1
        found = np.concatenate([lane, *(line.take(now) for line in wakes)])
        found = found[found >= 0]
        turn = np.arange(len(found))
        asked[found] = turn
        active = found[asked.take(found) == turn]
        active = active[here.take(active) < stop.take(active)]
    return _gathered(order, sizes)


def _gathered(order: list[NDArray[np.int64]], sizes: list[int]) -> Rounds:
    items = np.concatenate([*order, np.empty(0, np.int64)])
    return Rounds(items.astype(np.int32), np.cumsum(sizes, dtype=np.int64))


def sweep(waits: Keys, firsts: Times, key: Keys, lag: Keys | None, table: Times) -> tuple[Times, Times]:
    """Start and end of each row, int64[rows] both, in the order of the program's rows.

    Args:
        waits: rows that must have ended before each row starts, int32[width, rows].
        firsts: first row of each round, int64[rounds + 1].
        key: line of the table with the duration of each row, int32[rows].
        lag: lines with what is added to the last lines of ``waits``, int32[lagged, rows]; None for nothing.
        table: nanoseconds, int64[lines].
    """
    rows = len(key)
    if worth_compiling(rows):
        start, end = np.empty(rows, np.int64), np.empty(rows, np.int64)
        if lag is None:  # numba compiles once for each combination of types, so nothing is an array as well
            lag = np.empty((0, rows), np.int32)
        compiled(_sweep_rows)(waits, key, lag, table, (start, end))
        return start, end
    if over_lists(rows, rows / len(firsts)):
        return _small(waits, key, lag, table)
    return _large(waits, firsts, key, lag, table)


def _sweep_rows(waits, key, lag, table, times):  # type: ignore[no-untyped-def]
    """One row after the other, for numba."""
    start, end = times
    free = waits.shape[0] - lag.shape[0]
    start[0] = end[0] = 0
    for row in range(1, key.size):
        begin = np.int64(0)
        for line in range(free):
            begin = max(begin, end[waits[line, row]])
        for line in range(lag.shape[0]):
            begin = max(begin, end[waits[free + line, row]] + table[lag[line, row]])
        start[row] = begin
        end[row] = begin + table[key[row]]


def _small(waits: Keys, key: Keys, lag: Keys | None, table: Times) -> tuple[Times, Times]:
    """The same over lists, several lines at once."""
    columns = waits.tolist()
    lags = []
    if lag is not None:
        lags = table[lag].tolist()
    free = columns[: len(columns) - len(lags)]
    lagged = list(zip(columns[len(free) :], lags, strict=True))
    end = [0] * len(key)
    start = end.copy()
    for row, spent in enumerate(table[key].tolist()):
        if not row:
            continue
        begin = 0
        for column in free:
            if (arrived := end[column[row]]) > begin:
                begin = arrived
        for column, late in lagged:
            if (arrived := end[column[row]] + late[row]) > begin:
                begin = arrived
        start[row] = begin
        end[row] = begin + spent
    return np.array(start, np.int64), np.array(end, np.int64)


def _large(waits: Keys, firsts: Times, key: Keys, lag: Keys | None, table: Times) -> tuple[Times, Times]:
    """The same round by round."""
    duration = table.take(key)
    free, lagged = len(waits), []
    if lag is not None:
        free -= len(lag)
        lagged = [(line, table.take(late)) for line, late in zip(waits[free:], lag, strict=True)]
    start, end = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    for first, last in pairwise(firsts.tolist()):
        begin = start[first:last]
        if free:
            end.take(waits[0, first:last], out=begin, mode="clip")  # clip: the indices are right, and out needs no copy
        for line in waits[1:free]:
            np.maximum(begin, end.take(line[first:last]), out=begin)
        for line, delay in lagged:
            arrived = end.take(line[first:last])
            arrived += delay[first:last]
            np.maximum(begin, arrived, out=begin)
        np.add(begin, duration[first:last], out=end[first:last])
    return start, end
