"""Ops that no range names: runs of work, cut where its direction changes and where a rank talks to another.

    launches   F F F   F F F   B B B B   F F        F from the main thread, B from the autograd engine (or by name)
    posts            ^       ^         ^            a send or receive ends a run
    ops        F0      F1      B0        F2         in the order of their kind

Flows from forward to backward ops, if the profiler writes them, tell which F a B belongs to, and that a run after the
last B (the scaling of gradients, say) is no F. Without them the order tells: first in, first out.

    launches   k k k    k k k    k k k k k k    k k k      if nothing tells a direction, the other ranks' messages will;
    posts            s        r              s r     s     a run with a receive before it and a send after it may be
    runs       -----    -----    ?????????               two ops, and where it could be cut is found here

Weight gradients that run one after the other, or right after the input's, are one run. A stage launches the same
kernels for each micro-batch, so their counts tell how many ops such a run is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.op import Kind
from ...reconstruct.device_ops import UNKNOWN, UNTOLD, Ints, Mask
from .messages import Posts, Sense
from .names import Role, Way
from .ranges import Found, after_receive
from .tables import Tables
from .work import Pieces, Steps, marks

_COMPARABLE = 4  # times fewer kernels than a gradient of the input that a gradient of weights may launch


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Pieces that are work of the pipeline, in the order of their launch, and the first of each run of them.

    Args:
        pieces: all pieces of the file.
        use: which of them are meant, bool[all pieces].
        forward: whether each is a forward's, bool[pieces]; means nothing if no direction is told.
        step: int64[pieces].
        launched: int64[pieces], nanoseconds.
        first: index of the first piece of each run, int64[runs].
    """

    pieces: Pieces
    use: Mask
    forward: Mask
    step: Ints
    launched: Ints
    first: Ints

    @property
    def count(self) -> Ints:
        """How many pieces each run has, int64[runs]."""
        return np.diff(np.append(self.first, len(self.launched)))

    @property
    def start(self) -> Ints:
        """When each piece began, int64[pieces]; made anew each time, because it is as long as the trace."""
        return self.pieces.start[self.use]

    @property
    def end(self) -> Ints:
        """When each piece ended, int64[pieces]; likewise."""
        return self.pieces.end[self.use]


def runs_of(tables: Tables, pieces: Pieces, steps: Steps, posts: Posts) -> Found | None:
    """Every op that runs of work show; None if this rank never sends to or receives from another, or does no work."""
    told = (pieces.way == Way.FORWARD) | (pieces.way == Way.BACKWARD)
    if told.any():
        work = _cut(pieces, told, steps, posts)
        return None if work is None else _directed(tables, pieces, work, posts)
    if not pieces.device:
        return None
    work = _cut(pieces, pieces.way == Way.UNTOLD, steps, posts)
    return None if work is None else _undirected(tables, work, posts)


def _cut(pieces: Pieces, use: Mask, steps: Steps, posts: Posts) -> _Work | None:
    step = steps.of(pieces.launched)
    use = use & ((step >= 0) | (not len(steps.number)))
    if not len(posts) or not use.any():
        return None
    launched, step, forward = pieces.launched[use], step[use], pieces.way[use] == Way.FORWARD
    part = np.searchsorted(posts.moment, launched, side="right")
    changes = (np.diff(forward) != 0) | (np.diff(part) != 0) | (np.diff(step) != 0)
    first = np.flatnonzero(np.concatenate([[True], changes]))
    return _Work(pieces, use, forward, step, launched, first)


def _around(work: _Work, posts: Posts) -> tuple[Mask, Mask]:
    """Whether a receive was posted right before each run, and whether a send was right after it, bool[runs] each."""
    begun, done = work.launched[work.first], work.launched[np.append(work.first[1:], len(work.launched)) - 1]

    def between(sense: Sense, low: Ints, high: Ints) -> Mask:
        moments = posts.moment[posts.sense == sense]
        some: Mask = np.searchsorted(moments, high, side="right") > np.searchsorted(moments, low, side="right")
        return some

    before, after = np.concatenate([[begun[0] - _DAY], done[:-1]]), np.append(begun[1:], done[-1] + _DAY)
    return between(Sense.RECEIVE, before, begun), between(Sense.SEND, done, after)


_DAY = 86_400_000_000_000  # nanoseconds


# Runs whose direction is told.


def _directed(tables: Tables, pieces: Pieces, work: _Work, posts: Posts) -> Found:
    first = np.union1d(work.first, _weight_cuts(work, *_around(work, posts)))
    start = np.minimum.reduceat(work.start, first)
    end = np.maximum.reduceat(work.end, first)
    if not pieces.device:
        start = after_receive(marks(tables, Role.RECEIVE)[2], start, end)
    forward, step, launched = work.forward[first], work.step[first], work.launched[first]
    partner = _partners(tables, forward, launched)
    keep = _real(forward, step, partner)
    row = np.cumsum(keep) - 1
    partner = np.where(partner >= 0, row[partner], UNKNOWN)[keep]
    forward, step, launched = forward[keep], step[keep], launched[keep]
    unit = occurrences(step, forward)
    unit = np.where(~forward & (partner >= 0), unit[partner], unit)
    nothing = np.full(len(unit), UNKNOWN, np.int32)
    return Found(
        kind=np.where(forward, Kind.F, Kind.B).astype(np.uint8),
        stage=nothing,
        chunk=nothing,
        unit=unit.astype(np.int32),
        launched=launched,
        worked=launched,
        start=start[keep],
        end=end[keep],
        counted=True,
    )


def _weight_cuts(work: _Work, received: Mask, sent: Mask) -> Ints:
    """Pieces at which a further gradient of weights begins inside a run, int64[cuts]; none if counts do not fit.

    A backward run that no message belongs to is gradients of weights alone; one that a message belongs to begins with
    the gradient of an input. In all there is one gradient of weights a forward.
    """
    forward, count, step = work.forward[work.first], work.count, work.step[work.first]
    messaged = received | sent
    inputs = ~forward & messaged
    if not inputs.any():
        return np.empty(0, np.int64)
    base = int(count[inputs].min())
    weights = np.where(forward, 0, np.where(messaged, count - base, count))
    cuts = []
    for number in np.unique(step).tolist():
        rows = np.flatnonzero(step == number)
        size, rest = divmod(int(weights[rows].sum()), max(int(forward[rows].sum()), 1))
        if rest or size * _COMPARABLE < base or (weights[rows] % size).any():
            continue
        for row in rows[weights[rows] > 0].tolist():
            skipped = base if messaged[row] else size
            cuts.append(work.first[row] + np.arange(skipped, count[row], size))
    return np.concatenate(cuts) if cuts else np.empty(0, np.int64)


def _partners(tables: Tables, forward: Mask, launched: Ints) -> Ints:
    """For each B the F that most of its flows come from, for each such F its B, int64[runs]; -1 if no flow tells."""
    partner = np.full(len(launched), UNKNOWN, np.int64)
    ends = _flows(tables)
    if not len(ends) or not len(partner):
        return partner
    forwards, backwards = np.flatnonzero(forward), np.flatnonzero(~forward)
    of = np.searchsorted(launched[forwards], ends[:, 0], side="right") - 1
    to = np.searchsorted(launched[backwards], ends[:, 1], side="right") - 1
    inside = (of >= 0) & (to >= 0)
    votes, count = np.unique(np.stack([to[inside], of[inside]], 1), axis=0, return_counts=True)
    for vote in votes[np.argsort(count, kind="stable")].tolist():  # the most votes come last, and stay
        partner[backwards[vote[0]]] = forwards[vote[1]]
    told = backwards[partner[backwards] >= 0]
    partner[partner[told]] = told
    return partner


def _flows(tables: Tables) -> Ints:
    """When each flow begins and ends, int64[flows, 2]; an id that comes again is another flow."""
    table = tables.columns["flows"]
    order = np.lexsort((table["ends"], table["start"], table["link"]))
    link, start, ends = (table[name][order] for name in ("link", "start", "ends"))
    first = np.flatnonzero((link[:-1] == link[1:]) & ~ends[:-1] & ends[1:])
    return np.stack([start[first], start[first + 1]], 1)


def _real(forward: Mask, step: Ints, partner: Ints) -> Mask:
    """Leave out what only looks like a forward: by flows, every run without a backward; else what ends a step."""
    keep = np.ones(len(forward), np.bool_)
    for number in np.unique(step).tolist():
        rows = np.flatnonzero(step == number)
        here = forward[rows]
        if (partner[rows] >= 0).any():
            keep[rows] = ~here | (partner[rows] >= 0)
        elif not here.all():
            last = int(np.flatnonzero(~here)[-1])
            surplus = int(here.sum() - (~here).sum())
            keep[rows[last + 1 :]] = surplus < len(rows) - last - 1
    return keep


def occurrences(*columns: NDArray[np.generic]) -> Ints:
    """How many rows with the same values stand before each row, int64[rows]."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    same = np.unique(np.stack([column.astype(np.int64) for column in columns]), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(same, kind="stable")
    fresh = np.flatnonzero(np.diff(same[order], prepend=-1))
    count = np.arange(len(order)) - np.repeat(fresh, np.diff(np.append(fresh, len(order))))
    result = np.empty(len(order), np.int64)
    result[order] = count
    return result


# Runs whose direction nothing in their own file tells.


def _undirected(tables: Tables, work: _Work, posts: Posts) -> Found:
    first, launched = work.first, work.launched[work.first]
    cut = _double(work, _lanes(tables, work.launched), *_around(work, posts))
    sure = cut > 0
    second = np.where(sure, first + cut, first)
    start, end = work.start, work.end
    upto, onward = np.maximum.accumulate(end), np.minimum.accumulate(start[::-1])[::-1]
    nothing = np.full(len(first), UNKNOWN, np.int32)
    return Found(
        kind=np.full(len(first), UNTOLD, np.uint8),
        stage=nothing,
        chunk=nothing,
        unit=nothing,
        launched=launched,
        worked=launched,
        start=np.minimum.reduceat(start, first),
        end=np.maximum.reduceat(end, first),
        first_end=np.where(sure, upto[np.maximum(second - 1, 0)], UNKNOWN),
        second_start=np.where(sure, onward[second], UNKNOWN),
    )


def _double(work: _Work, lane: NDArray[np.int32], received: Mask, sent: Mask) -> Ints:
    """How many launches belong to the first op of each run, if it is two; 0 if nothing tells, int64[runs].

    The cut lies between its only two launches, or where the thread that launches changes once. Runs with only a receive
    and runs with only a send are single ops (warm-up and cool-down): if all of each kind launch equally many kernels
    and a run launches the sum, it is one of each.
    """
    count = work.count
    cut = np.where(count == 2, 1, _turns(lane, work.first, count))
    alone = [np.unique(count[one & ~other]) for one, other in ((received, sent), (sent, received))]
    if all(len(counts) == 1 for counts in alone):
        both = received & sent & (cut == 0) & (count == int(alone[0][0] + alone[1][0]))
        cut[both] = int(alone[0][0])
    return cut


def _lanes(tables: Tables, launched: Ints) -> NDArray[np.int32]:
    """The thread of each launch, int32[launches]; -1 if its moment is no launch of the file's."""
    table = tables.columns["launches"]
    if not len(table["start"]):
        return np.full(len(launched), UNKNOWN, np.int32)
    order = np.argsort(table["start"], kind="stable")
    at = np.minimum(np.searchsorted(table["start"][order], launched), len(order) - 1)
    lane = table["lane"][order[at]]
    return np.where(table["start"][order[at]] == launched, lane, UNKNOWN).astype(np.int32)


def _turns(lane: NDArray[np.int32], first: Ints, count: Ints) -> Ints:
    """How many launches of each run come before its thread changes, if it does so once; else 0, int64[runs]."""
    change = np.concatenate([[False], np.diff(lane) != 0])
    change[first] = False
    times = np.add.reduceat(change.astype(np.int64), first)
    at = np.flatnonzero(change)
    run = np.repeat(np.arange(len(first)), count)[at]
    turns = np.zeros(len(first), np.int64)
    turns[run] = at - first[run]
    return np.where(times == 1, turns, 0)
