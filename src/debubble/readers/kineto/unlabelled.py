"""Ops that no range names: runs of work of one direction, cut where a rank talks to another.

    launches   F F F   F F F   B B B B   F F        F from the main thread, B from the autograd engine (or by name)
    p2p calls        ^       ^         ^            a send or receive ends a run
    ops        F0      F1      B0        F2         in the order of their kind

Flows from forward to backward ops, where the profiler writes them, tell which F a B belongs to, and that a run after
the last B (the scaling of gradients, say) is no F. Without them the order tells: first in, first out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.op import Kind
from ...reconstruct.device_ops import UNKNOWN
from .names import Role, Way
from .ops import Found, after_receive
from .pieces import Pieces, marks
from .posts import posts_of
from .steps import Steps
from .tables import Ints, Tables


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Runs of work in the order of their launch: columns of the same length."""

    forward: NDArray[np.bool_]
    step: Ints
    launched: Ints
    start: Ints
    end: Ints

    def only(self, rows: NDArray[np.bool_]) -> _Runs:
        return _Runs(self.forward[rows], self.step[rows], self.launched[rows], self.start[rows], self.end[rows])


def unlabelled(tables: Tables, pieces: Pieces, steps: Steps) -> Found:
    """Every F and B that runs of work show; none where this rank never sends to or receives from another."""
    runs = _runs(tables, pieces, steps)
    partner = _partners(tables, runs)
    keep = _real(runs, partner)
    where = np.cumsum(keep) - 1
    partner = np.where(partner >= 0, where[partner], UNKNOWN)[keep]
    runs = runs.only(keep)
    unit = occurrences(runs.step, runs.forward)
    unit = np.where(~runs.forward & (partner >= 0), unit[partner], unit)
    return Found(
        kind=np.where(runs.forward, Kind.F, Kind.B).astype(np.uint8),
        stage=np.full(len(unit), UNKNOWN, np.int32),
        unit=unit.astype(np.int32),
        launched=runs.launched,
        start=runs.start,
        end=runs.end,
    )


def _runs(tables: Tables, pieces: Pieces, steps: Steps) -> _Runs:
    moments = posts_of(tables)
    step = steps.of(pieces.launched)
    use = ((pieces.way == Way.FORWARD) | (pieces.way == Way.BACKWARD)) & ((step >= 0) | (not len(steps.number)))
    if not len(moments) or not use.any():
        nothing = np.empty(0, np.int64)
        return _Runs(nothing.astype(np.bool_), nothing, nothing, nothing, nothing)
    launched, step, forward = pieces.launched[use], step[use], pieces.way[use] == Way.FORWARD
    part = np.searchsorted(moments, launched, side="right")
    changes = (np.diff(forward) != 0) | (np.diff(part) != 0) | (np.diff(step) != 0)
    first = np.flatnonzero(np.concatenate([[True], changes]))
    start = np.minimum.reduceat(pieces.start[use], first)
    end = np.maximum.reduceat(pieces.end[use], first)
    if not pieces.device:
        start = after_receive(marks(tables, Role.RECEIVE)[2], start, end)
    return _Runs(forward[first], step[first], launched[first], start, end)


def _partners(tables: Tables, runs: _Runs) -> NDArray[np.int64]:
    """For each B the F that most of its flows come from, for each such F its B; -1 where no flow tells."""
    partner = np.full(len(runs.launched), UNKNOWN, np.int64)
    sides = _flows(tables)
    if not len(sides) or not len(partner):
        return partner
    forward, backward = np.flatnonzero(runs.forward), np.flatnonzero(~runs.forward)
    of = np.searchsorted(runs.launched[forward], sides[:, 0], side="right") - 1
    to = np.searchsorted(runs.launched[backward], sides[:, 1], side="right") - 1
    inside = (of >= 0) & (to >= 0)
    votes, count = np.unique(np.stack([to[inside], of[inside]], 1), axis=0, return_counts=True)
    for vote in votes[np.argsort(count, kind="stable")].tolist():  # the most votes come last, and stay
        partner[backward[vote[0]]] = forward[vote[1]]
    told = backward[partner[backward] >= 0]
    partner[partner[told]] = told
    return partner


def _flows(tables: Tables) -> Ints:
    """When each flow begins and ends, int64[flows, 2]; an id that comes again is another flow."""
    table = tables.columns["flows"]
    order = np.lexsort((table["ends"], table["start"], table["link"]))
    link, start, ends = (table[name][order] for name in ("link", "start", "ends"))
    first = np.flatnonzero((link[:-1] == link[1:]) & ~ends[:-1] & ends[1:])
    return np.stack([start[first], start[first + 1]], 1)


def _real(runs: _Runs, partner: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Leave out what only looks like a forward: by flows, every run without a backward; else what ends a step."""
    keep = np.ones(len(runs.forward), np.bool_)
    for step in np.unique(runs.step).tolist():
        rows = np.flatnonzero(runs.step == step)
        forward = runs.forward[rows]
        if (partner[rows] >= 0).any():
            keep[rows] = ~forward | (partner[rows] >= 0)
        elif not forward.all():
            last = int(np.flatnonzero(~forward)[-1])
            surplus = int(forward.sum() - (~forward).sum())
            keep[rows[last + 1 :]] = surplus < len(rows) - last - 1
    return keep


def occurrences(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
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
