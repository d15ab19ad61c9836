"""Re-simulation: the makespan of rows under an engine, in one pass over plain arrays, compiled if numba is installed.

Rows are classes: row ``r`` lists, for each op of rank r, ``kind x stages + stage``; micro-batches are dealt out first
in, first out. So whatever a search does to a row stays a schedule, and only three things can be wrong: an op before its
input (then ranks wait for ever), a wrong order on a rank (the same), too many activations. All three give ``WRONG``.

The rules of three engines are written out here, for searches that ask a million times; others are asked through
``lower``. Whatever a search returns has been simulated by ``core.simulate`` as well (see ``problem.Problem.measured``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.engine import IDEAL, Engine, Lane, Posting
from ..core.instance import Instance

Rows = NDArray[np.int32]
Times = NDArray[np.int64]
_Loop = TypeVar("_Loop", bound=Callable[..., Any])

WRONG = np.int64(2**62)
LATENCY, BATCHES, PLACED = 0, 1, 2
MAKESPAN, SPAN = 0, 1


def _njit(loop: _Loop) -> _Loop:
    """Compiled when it is first called; the plain loop without the extra ``solve``, some hundred times slower."""
    try:
        from numba import njit
    except ImportError:
        return loop
    made: _Loop = njit(cache=True, nogil=True)(loop)
    return made


def mode_of(engine: Engine, instance: Instance) -> int | None:
    """Which of the rules below an engine follows; None if its rule is not written out here."""
    if engine == IDEAL:
        return LATENCY
    sends_first = tuple(map(str, engine.steps)) and [str(batch) for batch in engine.steps[0].batches] == ["[s|r]"]
    one_chunk = bool((instance.chunks == 1).all()) and instance.ranks > 1
    no_sender = instance.costs.sender is None
    if engine.posting is Posting.STEPS and sends_first and len(engine.steps) == 1 and one_chunk and no_sender:
        return BATCHES if engine.lane is Lane.NONE else None
    if engine.posting is Posting.PLACED and engine.lane is Lane.PAIR and not engine.two_ways and no_sender:
        return PLACED
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """An instance as flat arrays; a class is ``kind x stages + stage``, an op ``class x microbatches + micro-batch``.

    Args:
        spent: duration of each op, int64[ops].
        hop: how long its input is on its way from another rank, int64[ops].
        source: class that makes the input of each class, int32[classes]; -1 at the start of the pipeline.
        sink: class on another rank that takes in what each class makes, int32[classes]; -1 where none does.
        home: rank of each class, int32[classes].
        gain: half activations that an op of each class adds, int64[classes].
        room: half activations that each rank may hold, int64[ranks].
        rule: mode, objective and micro-batches, int64[3].
    """

    spent: Times
    hop: Times
    source: Rows
    sink: Rows
    home: Rows
    gain: Times
    room: Times
    rule: Times

    def columns(self) -> tuple[Any, ...]:
        """All of it, as loops take it."""
        return (self.spent, self.hop, self.source, self.sink, self.home, self.gain, self.room, self.rule)

    def scratch(self) -> tuple[Any, ...]:
        """Room in which one evaluation works; one for each thread."""
        classes, ranks, ops = len(self.source), len(self.room), len(self.spent)
        return (
            np.zeros(ops, np.int64),  # end of each op
            np.zeros(ops, np.int64),  # when its input has come, or its send is posted
            np.zeros(ops, np.int64),  # when its receive is posted
            np.zeros(classes, np.int64),  # ops done of each class
            np.zeros((5, ranks), np.int64),  # of each rank: now, place, held, first start, phase of the gap
            np.zeros((ranks, ranks), np.int64),  # when each lane is free
        )


def tables_of(instance: Instance, mode: int, objective: int = MAKESPAN) -> Tables:
    """The arrays of an instance under one of the rules."""
    kinds, stages, m = len(instance.kinds), instance.stages, instance.microbatches
    home = np.tile(instance.placement, kinds).astype(np.int32)
    source, sink = np.full(kinds * stages, -1, np.int32), np.full(kinds * stages, -1, np.int32)
    stage = np.arange(stages)
    source[1:stages] = stage[:-1]
    source[stages : 2 * stages - 1] = stages + stage[1:]
    source[2 * stages - 1] = stages - 1
    source[2 * stages :] = stages + stage[: len(source) - 2 * stages]
    crosses = np.flatnonzero((source >= 0) & (home[source] != home))
    sink[source[crosses]] = crosses
    hop = np.zeros((kinds, stages, m), np.int64)
    hop[:2] = instance.hop
    return Tables(
        spent=instance.spent.ravel(),
        hop=hop.ravel(),
        source=source,
        sink=sink,
        home=home,
        gain=np.repeat(instance.frees, stages),
        room=instance.room.astype(np.int64),
        rule=np.array([mode, objective, m], np.int64),
    )


@_njit
def evaluate(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """The makespan of rows (or the longest rank's own time), or ``WRONG``."""
    rule, state, done = columns[7], scratch[4], scratch[3]
    state[:] = 0
    done[:] = 0
    if rule[0] == 0:
        fine = _latency(rows, columns, scratch)
    elif rule[0] == 1:
        fine = _batches(rows, columns, scratch)
    else:
        fine = _placed(rows, columns, scratch)
    if not fine:
        return WRONG
    longest = np.int64(0)
    for rank in range(rows.shape[0]):
        begun = state[3, rank] if rule[1] else np.int64(0)
        longest = max(longest, state[0, rank] - begun)
    return longest


@_njit
def _latency(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """An op starts when the one before it on its rank has ended and its input has come; nothing else waits."""
    spent, hop, source, _, _, gain, room, rule = columns
    end, _, _, done, state, _ = scratch
    ranks, length, m, left = rows.shape[0], rows.shape[1], rule[2], rows.shape[0]
    while left:
        moved = False
        for rank in range(ranks):
            now, place, held = state[0, rank], state[1, rank], state[2, rank]
            begun = place
            while place < length:
                kind = rows[rank, place]
                turn, maker = done[kind], source[kind]
                op, ready = kind * m + turn, np.int64(0)
                if maker >= 0:
                    if done[maker] <= turn:
                        break
                    ready = end[maker * m + turn] + hop[op]
                held += gain[kind]
                if held > room[rank]:
                    return False
                start = max(now, ready)
                if place == 0:
                    state[3, rank] = start
                now = start + spent[op]
                end[op] = now
                done[kind] = turn + 1
                place += 1
            if place > begun:
                moved = True
                state[0, rank], state[1, rank], state[2, rank] = now, place, held
                if place == length:
                    left -= 1
        if not moved:
            return False
    return True


@_njit
def _batches(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """Megatron's 1F1B: in each gap one batch where send and receive go to the same rank, else the send, then the receive.

    The rank stands still until a batch has ended; each transfer ends a hop after both of its sides are posted.
    """
    spent, hop, source, sink, home, gain, room, rule = columns
    end, sent, received, done, state, _ = scratch
    ranks, length, m, left = rows.shape[0], rows.shape[1], rule[2], rows.shape[0]
    sent[:] = -1
    received[:] = -1
    while left:
        moved = False
        for rank in range(ranks):
            while state[1, rank] <= length:
                place, now, phase = state[1, rank], state[0, rank], state[4, rank]
                give, take = np.int64(-1), np.int64(-1)  # transfers by their consumers
                if place > 0:
                    last = rows[rank, place - 1]
                    if sink[last] >= 0:
                        give = sink[last] * m + done[last] - 1
                if place < length:
                    following = rows[rank, place]
                    maker = source[following]
                    if maker >= 0 and home[maker] != rank:
                        take = following * m + done[following]
                together = give >= 0 and take >= 0 and home[sink[rows[rank, place - 1]]] == home[source[rows[rank, place]]]
                if phase == 0:  # post what comes first
                    if give >= 0:
                        sent[give] = now
                    if take >= 0 and (together or give < 0):
                        received[take] = now
                    moved = True
                    state[4, rank] = phase = 1
                if phase == 1:  # wait for it
                    if give >= 0:
                        if received[give] < 0:
                            break
                        now = max(now, max(sent[give], received[give]) + hop[give])
                    if take >= 0 and (together or give < 0):
                        if sent[take] < 0:
                            break
                        now = max(now, max(sent[take], received[take]) + hop[take])
                    state[0, rank] = now
                    moved = True
                    state[4, rank] = phase = 2
                    if take >= 0 and give >= 0 and not together:
                        received[take] = now
                if take >= 0 and give >= 0 and not together:
                    if sent[take] < 0:
                        break
                    now = max(now, max(sent[take], received[take]) + hop[take])
                if place == length:
                    state[1, rank] = length + 1
                    left -= 1
                    moved = True
                    break
                kind = rows[rank, place]
                turn = done[kind]
                maker = source[kind]
                if maker >= 0 and home[maker] == rank and done[maker] <= turn:
                    return False
                state[2, rank] += gain[kind]
                if state[2, rank] > room[rank]:
                    return False
                if place == 0:
                    state[3, rank] = now
                now += spent[kind * m + turn]
                end[kind * m + turn] = now
                state[0, rank], state[1, rank], state[4, rank] = now, place + 1, 0
                done[kind] = turn + 1
                moved = True
        if not moved:
            return False
    for rank in range(ranks):  # sends behind the last op are no part of the window
        last = rows[rank, length - 1]
        state[0, rank] = end[last * m + done[last] - 1]
    return True


@_njit
def _placed(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """torch's runtime: ranks take turns and place an op each; both sides of what it makes are posted then.

    A transfer starts when both sides have come to it and its lane, one a pair of ranks, is free.
    """
    spent, hop, source, sink, home, gain, room, rule = columns
    end, arrived, turn_of, done, state, lane = scratch
    ranks, length, m, left = rows.shape[0], rows.shape[1], rule[2], rows.shape[0] * rows.shape[1]
    lane[:] = 0
    arrived[:] = -1
    turn = 0
    while left:
        turn += 1
        before = left
        for rank in range(ranks):
            place = state[1, rank]
            if place == length:
                continue
            kind = rows[rank, place]
            number, maker = done[kind], source[kind]
            op, ready = kind * m + number, np.int64(0)
            if maker >= 0:
                if done[maker] <= number:
                    continue
                if home[maker] != rank:
                    if home[maker] > rank and turn_of[maker * m + number] == turn:
                        continue
                    ready = arrived[op]
            state[2, rank] += gain[kind]
            if state[2, rank] > room[rank]:
                return False
            start = max(state[0, rank], ready)
            if place == 0:
                state[3, rank] = start
            state[0, rank] = start + spent[op]
            end[op] = state[0, rank]
            turn_of[op] = turn
            done[kind] = number + 1
            state[1, rank] = place + 1
            left -= 1
            if sink[kind] >= 0:
                user = sink[kind] * m + number
                other = home[sink[kind]]
                near, far = min(rank, other), max(rank, other)
                arrived[user] = max(max(end[op], state[0, other]), lane[near, far]) + hop[user]
                lane[near, far] = arrived[user]
        if left == before:
            return False
    return True
