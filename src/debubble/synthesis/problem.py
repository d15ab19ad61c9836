"""A problem: an instance and an objective, rows as schedules, and what rows cost, re-simulated fast or by the engine.

Re-simulation is one pass over plain arrays, compiled if numba is installed. Rows are classes: row ``r`` lists, for each
op of rank r, ``kind x stages + stage``; micro-batches are dealt out first in, first out. So whatever a search does to a
row stays a schedule, and only three things can be wrong: an op before its input (then ranks wait for ever), a wrong
order on a rank (the same), too many activations. All three give ``WRONG``.

The rules of three engines are written out here, for searches that ask a million times; others are asked through
``lower``. Whatever a search returns has been simulated by ``core.simulate`` as well (see ``problem.Problem.measured``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.bounds import Instance, Windows, span_bound, windows
from ..core.engine import IDEAL, Engine, Lane, Posting
from ..core.errors import Refusal
from ..core.lower import lower
from ..core.schedule import Kind, Schedule, peak_activations
from ..core.simulate import simulate

Rows = NDArray[np.int32]
Times = NDArray[np.int64]

WRONG = np.int64(2**62)
LATENCY, BATCHES, PLACED = 0, 1, 2
MAKESPAN, SPAN = 0, 1


def njit(loop: Callable[..., Any]) -> Any:
    """Compiled when it is first called; the plain loop without the extra ``solve``, some hundred times slower."""
    try:
        import numba
    except ImportError:
        return loop
    return numba.njit(cache=True, nogil=True)(loop)


def mode_of(engine: Engine, instance: Instance) -> int | None:
    """Which of the rules below an engine follows; None if its rule is not written out here."""
    if engine == IDEAL:
        return LATENCY
    sends_first = tuple(map(str, engine.steps)) and [str(batch) for batch in engine.steps[0].batches] == ["[s|r]"]
    # `_batches` is of engines that post the send and the receive of a gap together; others are asked through `lower`.
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
    # F from the stage before, I from the stage after, the last stage's I from its own F, W from its own I.
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


@njit
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


# Each rule is one loop without calls: a call would count a reference to every array, which costs more than an op.
# ``stuck`` counts ranks in a row that could not go on; once all of them could not, nobody ever will.


@njit
def _latency(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """An op starts when the one before it on its rank has ended and its input has come; nothing else waits."""
    spent, hop, source, _, _, gain, room, rule = columns
    end, _, _, done, state, _ = scratch
    (ranks, length), m = rows.shape, rule[2]
    rank, stuck, left = 0, 0, rows.size
    while stuck < ranks:
        place = state[1, rank]
        kind = rows[rank, min(place, length - 1)]
        turn, maker = done[kind], source[kind]
        if place == length or (maker >= 0 and done[maker] <= turn):
            stuck, rank = stuck + 1, rank + 1
            if rank == ranks:
                rank = 0
            continue
        op, start = kind * m + turn, state[0, rank]
        if maker >= 0:
            start = max(start, end[maker * m + turn] + hop[op])
        if place == 0:
            state[3, rank] = start
        state[2, rank] += gain[kind]
        if state[2, rank] > room[rank]:
            return False
        state[0, rank] = end[op] = start + spent[op]
        state[1, rank], done[kind] = place + 1, turn + 1
        left -= 1
        stuck = 0
    return left == 0


@njit
def _placed(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """Torch's runtime: ranks take turns and place an op each; both sides of what it makes are posted then.

    A transfer starts when both sides have come to it and its lane, one a pair of ranks, is free.
    """
    spent, hop, source, sink, home, gain, room, rule = columns
    end, arrived, turn_of, done, state, lane = scratch
    (ranks, length), m = rows.shape, rule[2]
    lane[:] = 0
    turn, rank, stuck, left = 1, -1, 0, rows.size
    while stuck < ranks:
        stuck += 1
        rank += 1
        if rank == ranks:
            rank, turn = 0, turn + 1
        place = state[1, rank]
        if place == length:
            continue
        kind = rows[rank, place]
        number, maker = done[kind], source[kind]
        op, start = kind * m + number, state[0, rank]
        if maker >= 0 and done[maker] <= number:
            continue
        if maker >= 0 and home[maker] != rank:
            if home[maker] > rank and turn_of[maker * m + number] == turn:
                continue
            start = max(start, arrived[op])
        state[2, rank] += gain[kind]
        if state[2, rank] > room[rank]:
            return False
        if place == 0:
            state[3, rank] = start
        state[0, rank] = end[op] = start + spent[op]
        turn_of[op] = turn
        done[kind], state[1, rank] = number + 1, place + 1
        stuck = 0
        left -= 1
        if sink[kind] >= 0:
            user, other = sink[kind] * m + number, home[sink[kind]]
            near, far = min(rank, other), max(rank, other)
            arrived[user] = max(max(end[op], state[0, other]), lane[near, far]) + hop[user]
            lane[near, far] = arrived[user]
    return left == 0


@njit
def _batches(rows, columns, scratch):  # type: ignore[no-untyped-def]
    """Megatron's 1F1B: in a gap one batch where send and receive go to the same rank, else the send, then the receive.

    The rank stands still until a batch has ended; each transfer ends a hop after both of its sides are posted. Row 4
    of the state counts steps in a gap: 0 nothing is posted, 1 the first batch is, 2 a receive of its own is.
    """
    spent, hop, source, sink, home, gain, room, rule = columns
    end, sent, received, done, state, _ = scratch
    (ranks, length), m = rows.shape, rule[2]
    sent[:] = -1
    received[:] = -1
    rank, stuck, left = 0, 0, ranks
    while stuck < ranks:
        place, now = state[1, rank], state[0, rank]
        give, take, to, by = np.int64(-1), np.int64(-1), -1, -1  # transfers by their consumers, and the other rank
        if 0 < place <= length and sink[rows[rank, place - 1]] >= 0:
            last = rows[rank, place - 1]
            give, to = sink[last] * m + done[last] - 1, home[sink[last]]
        if place < length and source[rows[rank, place]] >= 0 and home[source[rows[rank, place]]] != rank:
            kind = rows[rank, place]
            take, by = kind * m + done[kind], home[source[kind]]
        together = give < 0 or to == by
        if state[4, rank] == 0 and place <= length:
            stuck = 0
            state[4, rank] = 1
            if give >= 0:
                sent[give] = now
            if take >= 0 and together:
                received[take] = now
        waits = place > length or (state[4, rank] == 1 and give >= 0 and received[give] < 0)
        waits = waits or (take >= 0 and (together or state[4, rank] == 2) and sent[take] < 0)
        if waits:
            stuck, rank = stuck + 1, (rank + 1) % ranks
            continue
        stuck = 0
        if give >= 0 and state[4, rank] == 1:
            now = max(now, max(sent[give], received[give]) + hop[give])
        if take >= 0 and not together and state[4, rank] == 1:
            received[take] = now
            state[0, rank], state[4, rank] = now, 2
            continue
        if take >= 0:
            now = max(now, max(sent[take], received[take]) + hop[take])
        state[1, rank], state[4, rank] = place + 1, 0
        if place == length:  # sends behind the last op are no part of the window
            left -= 1
            continue
        kind = rows[rank, place]
        state[2, rank] += gain[kind]
        op, maker = kind * m + done[kind], source[kind]
        if state[2, rank] > room[rank] or (maker >= 0 and done[maker] <= done[kind]):
            return False
        if place == 0:
            state[3, rank] = now
        state[0, rank] = end[op] = now + spent[op]
        done[kind] += 1
    return left == 0


__all__ = ["WRONG", "Problem", "Rows"]


class Problem:
    """What a search is given.

    Args:
        instance: ops, costs, memory and engine.
        span: whether the longest rank's own time counts, from its first op to its last; else the makespan.
    """

    def __init__(self, instance: Instance, *, span: bool = False) -> None:
        self.instance, self.span = instance, span

    @cached_property
    def mode(self) -> int | None:
        """The compiled rule of the engine; None if every evaluation has to ask ``lower``."""
        return mode_of(self.instance.engine, self.instance)

    @cached_property
    def tables(self) -> Tables:
        """The instance as loops take it."""
        mode = LATENCY if self.mode is None else self.mode
        return tables_of(self.instance, mode, SPAN if self.span else MAKESPAN)

    @cached_property
    def ideal(self) -> Problem:
        """The same under the ideal engine, which a list schedule and heads and tails are made for."""
        return self if self.mode == LATENCY else Problem(self.instance.but(engine=IDEAL), span=self.span)

    @cached_property
    def windows(self) -> Windows:
        """Heads, tails and the propagation bound."""
        return windows(self.instance)

    @cached_property
    def bound(self) -> int:
        """What no order is below, nanoseconds."""
        return span_bound(self.instance) if self.span else self.windows.bound

    @cached_property
    def scratch(self) -> tuple[NDArray[np.int64], ...]:
        """Room for one evaluation."""
        return self.tables.scratch()

    def value(self, rows: Rows) -> int:
        """The objective of rows, nanoseconds, or ``WRONG`` where they cannot run or hold too much."""
        if self.mode is not None:
            return int(evaluate(rows, self.tables.columns(), self.scratch))
        # What deadlocks or holds too much on the ideal engine does so on every other: ask that quickly first.
        if evaluate(rows, self.tables.columns(), self.scratch) == WRONG:
            return int(WRONG)
        return self.measured(self.schedule(rows))

    def begins(self, rows: Rows) -> NDArray[np.int64]:
        """When each op of legal rows starts under a compiled rule, int64 of the shape of ``rows``, nanoseconds."""
        evaluate(rows, self.tables.columns(), self.scratch)
        op = rows * self.instance.microbatches + turns(rows)
        begun: NDArray[np.int64] = self.scratch[0][op] - self.tables.spent[op]
        return begun

    def measured(self, schedule: Schedule) -> int:
        """The objective by the engine's own simulation; ``WRONG`` where a schedule deadlocks or holds too much."""
        if schedule.splits and not self.instance.split:
            return int(WRONG)  # what the halves of a backward take was not said
        # Peaks come in micro-batches of a rank, room in half activations of a chunk.
        share = 2 * schedule.slices * schedule.chunks_of().max(axis=0)
        held = np.rint(peak_activations(schedule, self.instance.release) * share)
        if (held > self.instance.room).any():
            return int(WRONG)
        try:
            timeline = simulate(lower(schedule, self.instance.engine), self.instance.costs)
        except Refusal:
            return int(WRONG)
        start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
        if not self.span:
            return int(end.max() - start.min())
        first, last = schedule.offsets[:-1], schedule.offsets[1:] - 1
        return int((end[last] - start[first]).max())

    def schedule(self, rows: Rows, name: str = "synth", source: str = "synthesised") -> Schedule:
        """Rows as a schedule."""
        instance = self.instance
        length = rows.shape[1]
        kind, stage = np.divmod(rows.ravel(), instance.stages)
        return Schedule(
            name=name,
            source=source,
            microbatches=instance.microbatches,
            placement=instance.placement[None, :].copy(),
            offsets=np.arange(0, rows.size + 1, length, dtype=np.int64),
            kind=np.array(instance.kinds, np.uint8)[kind],
            stage=stage.astype(np.int32),
            unit=turns(rows).ravel(),
        )

    def rows(self, schedule: Schedule) -> Rows | None:
        """The rows of a schedule; None if it is none of this problem.

        That is: another placement, pairs, slices, or micro-batches not first in, first out. A full backward becomes an
        I with its W behind it where this problem splits them.
        """
        instance = self.instance
        fits = np.array_equal(schedule.placement, instance.placement[None, :]) and schedule.joined is None
        same = schedule.microbatches == instance.microbatches and schedule.slices == 1 and not schedule.forward_only
        if not (fits and same) or (schedule.splits and not instance.split):
            return None
        number = np.zeros(max(Kind) + 1, np.int32)
        number[list(instance.kinds)] = np.arange(len(instance.kinds))
        kind, stage, unit = schedule.kind, schedule.stage, schedule.unit
        if instance.split and not schedule.splits:
            # Each B becomes two rows: `second` marks the latter, which is its W.
            back = kind == Kind.B
            again = np.where(back, 2, 1)
            second = np.zeros(int(again.sum()), np.bool_)
            second[np.cumsum(again)[back] - 1] = True
            kind = np.where(second, Kind.W, np.where(np.repeat(back, again), Kind.I, Kind.F)).astype(np.uint8)
            stage, unit = np.repeat(stage, again), np.repeat(unit, again)
        code = (number[kind] * instance.stages + stage).astype(np.int32)
        if len(code) != instance.ops or len(np.unique(np.bincount(instance.placement))) > 1:
            return None
        rows = code.reshape(instance.ranks, -1)
        return rows if np.array_equal(turns(rows).ravel(), unit) else None


def turns(rows: Rows) -> NDArray[np.int32]:
    """The micro-batch of each op of rows, first in, first out, int32 of the shape of ``rows``."""
    found = np.empty(rows.shape, np.int32)
    for row, out in zip(rows, found, strict=True):
        # A stable sort by class keeps places in order: the k-th of a class is k behind where its class begins.
        order = np.argsort(row, kind="stable")
        sorted_row = row[order]
        fresh = np.flatnonzero(np.diff(sorted_row, prepend=-1))
        out[order] = np.arange(len(row)) - np.repeat(fresh, np.diff(np.append(fresh, len(row))))
    return found
