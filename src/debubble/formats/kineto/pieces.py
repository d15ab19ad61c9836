"""Pieces of work in the order of their launch: kernels where the file has any, else calls on the CPU.

A kernel belongs to the moment at which the CPU launched it, not to the moment at which it ran: the two lie
milliseconds apart, and only the first lies inside the range that names the op.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .names import Role, Way
from .tables import Ints, Tables, outermost


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Work as columns, ordered by launch.

    Args:
        launched: when the CPU launched (or, without a device, started) it, int64[pieces], nanoseconds.
        start: int64[pieces], nanoseconds.
        end: int64[pieces], nanoseconds.
        way: int8[pieces], a ``Way``.
        device: whether these are kernels.
        unlaunched: kernels whose launch is not in the file, and that were left out.
    """

    launched: Ints
    start: Ints
    end: Ints
    way: NDArray[np.int8]
    device: bool
    unlaunched: int = 0

    def __len__(self) -> int:
        return len(self.launched)


def pieces_of(tables: Tables) -> Pieces:
    """All compute work of one file; communication is none."""
    return _kernels(tables) if len(tables.columns["kernels"]["start"]) else _calls(tables)


def _kernels(tables: Tables) -> Pieces:
    table = tables.columns["kernels"]
    start = table["start"]
    end = np.minimum(table["end"], _stream_bound(table))
    launched, lane = launches_of(tables, table["correlation"])
    if (lane < 0).all():  # a file without calls of the runtime: the order on the device is all there is
        launched = start
    known = launched >= 0
    way = _way_of_launches(tables, launched, lane, tables.ways[table["word"]])
    order = np.flatnonzero(known)[np.argsort(launched[known], kind="stable")]
    return Pieces(launched[order], start[order], end[order], way[order], True, int((~known).sum()))


def launches_of(tables: Tables, correlation: Ints) -> tuple[Ints, Ints]:
    """When and on which lane each kernel was launched, int64[kernels]; -1 where the file does not say."""
    table = tables.columns["launches"]
    order = np.argsort(table["correlation"], kind="stable")
    keys = table["correlation"][order]
    at = np.minimum(np.searchsorted(keys, correlation), max(len(keys) - 1, 0))
    if not len(keys):
        return np.full(len(correlation), -1), np.full(len(correlation), -1)
    found = (keys[at] == correlation) & (correlation >= 0)
    row = order[at]
    return np.where(found, table["start"][row], -1), np.where(found, table["lane"][row], -1)


def _stream_bound(table: dict[str, NDArray[np.generic]]) -> Ints:
    """The latest moment at which each kernel can have ended: when a later one of its stream had ended, int64[kernels].

    A stream runs in order, so a kernel that "ends" seconds after its successors is a fault of the tracer.
    """
    lane, start, end = (table[name] for name in ("lane", "start", "end"))
    order = np.lexsort((start, lane))
    bound = np.empty(len(order), np.int64)
    for rows in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        bound[rows] = np.minimum.accumulate(end[rows][::-1])[::-1]
    return bound


def _calls(tables: Tables) -> Pieces:
    table = tables.columns["calls"]
    lane, start, end = (table[name] for name in ("lane", "start", "end"))
    rows = outermost(lane, start, end)  # once more: a call may have come in another chunk than those inside it
    lane, start, end = lane[rows], start[rows], end[rows]
    engine = tables.roles[table["word"][rows]] == Role.ENGINE
    way = np.where(engine, Way.BACKWARD, Way.FORWARD).astype(np.int8)
    way[~np.isin(lane, _working_lanes(tables))] = Way.NEITHER  # data loaders compute too
    way[inside(start, *marks(tables, Role.OPTIMIZER)[1:])] = Way.NEITHER
    order = np.argsort(start, kind="stable")
    return Pieces(start[order], start[order], end[order], way[order], False)


def _working_lanes(tables: Tables) -> NDArray[np.int64]:
    """Threads that talk to other ranks or run the autograd engine."""
    calls, told, spans = tables.columns["calls"], tables.columns["comms"], tables.columns["marks"]
    engine = calls["lane"][tables.roles[calls["word"]] == Role.ENGINE]
    moves = spans["lane"][np.isin(tables.roles[spans["word"]], [Role.SEND, Role.RECEIVE, Role.POST, Role.LABEL])]
    return np.unique(np.concatenate([engine, told["lane"], moves]).astype(np.int64))


def _way_of_launches(tables: Tables, launched: Ints, lane: Ints, named: NDArray[np.int8]) -> NDArray[np.int8]:
    """Ranges of the user tell first, then the autograd engine, then the names of kernels."""
    way = named.copy()
    calls = tables.columns["calls"]
    engine = tables.roles[calls["word"]] == Role.ENGINE
    if engine.any():
        way = np.where(named == Way.NEITHER, named, np.int8(Way.FORWARD))
        for thread in np.unique(calls["lane"][engine]).tolist():
            mine = engine & (calls["lane"] == thread)
            spans = calls["start"][mine], calls["end"][mine]
            way[(lane == thread) & inside(launched, *spans) & (way != Way.NEITHER)] = Way.BACKWARD
    word, begin, stop = marks(tables, Role.RANGE)
    for direction in (Way.FORWARD, Way.BACKWARD):
        mine = tables.ways[word] == direction
        way[inside(launched, begin[mine], stop[mine])] = direction
    way[inside(launched, *marks(tables, Role.OPTIMIZER)[1:])] = Way.NEITHER
    return way


def marks(tables: Tables, role: Role) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Word, start and end of all marks of a role, by start."""
    table = tables.columns["marks"]
    rows = np.flatnonzero(tables.roles[table["word"]] == role)
    rows = rows[np.argsort(table["start"][rows], kind="stable")]
    return table["word"][rows], table["start"][rows], table["end"][rows]


def inside(moment: Ints, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Whether each moment lies in any of some spans, bool[moments]."""
    if not len(start):
        return np.zeros(len(moment), np.bool_)
    order = np.argsort(start, kind="stable")
    latest = np.maximum.accumulate(end[order])
    at = np.searchsorted(start[order], moment, side="right") - 1
    return (at >= 0) & (moment <= latest[np.maximum(at, 0)])
