"""Ops that ranges name: ``PP:2F0`` of torch's runtime, ``Forward 3`` of its GPipe, with waiting cut off.

    Forward 3 |------------------------------|      on the CPU: the engine waits for its receive inside the range, so
    gloo:recv ----------------------|               the op starts where the last receive that ends inside ends; and it
    gloo:send                             |------   ends where a send is posted (torch's runtime posts it outside)
    op                              |-----|

    PP:1F0    |-----|                               with a device: from the first to the last kernel that was launched
    kernels           |--| |---| |----|             inside the range, whenever it ran

The two halves of ``PP:(0F7;7B3)OVERLAP_F_B`` are told apart by the first work of the autograd engine inside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .names import Role, Way, ops_of
from .ops import Found, after_receive, before_send
from .pieces import Pieces, marks
from .tables import Ints, Tables


def labelled(tables: Tables, pieces: Pieces) -> Found:
    """Every op that a range names, once for each time it comes."""
    word, begin, stop = marks(tables, Role.LABEL)
    named = {int(w): ops_of(tables.names[w]) for w in np.unique(word)}
    rows = [(i, kind, stage, unit) for i, w in enumerate(word.tolist()) for kind, stage, unit in named[w]]
    range_of, kind, stage, unit = (np.array(c) for c in zip(*rows, strict=True)) if rows else np.empty((4, 0), np.int64)
    start, end = begin[range_of], stop[range_of]
    pairs = np.flatnonzero(np.diff(range_of) == 0)
    if len(pairs):
        middle = _first_engine(pieces, start[pairs], end[pairs])
        end[pairs] = start[pairs + 1] = middle
    launched = start.copy()
    whole = np.ones(len(start), np.bool_)
    if pieces.device:
        start, end, whole = _extents(pieces, start, end)
    else:
        end[pairs] = _last_end(pieces, start[pairs], end[pairs])
        start = after_receive(marks(tables, Role.RECEIVE)[2], start, end)
        end = before_send(_sent(tables), _first_end(pieces, start, end), end)
    lost = int((~whole).sum())
    return Found(
        kind=kind[whole].astype(np.uint8),
        stage=stage[whole].astype(np.int32),
        unit=unit[whole].astype(np.int32),
        launched=launched[whole],
        start=start[whole],
        end=end[whole],
        remarks=(f"{lost:,} named ops launched no kernel that is in the file, and were left out",) if lost else (),
    )


def _sent(tables: Tables) -> Ints:
    """When sends were posted; the call begins before gloo's own range of it does."""
    word, posted, _ = marks(tables, Role.POST)
    calls = np.array(["send" in tables.names[w] for w in word.tolist()], np.bool_)
    return np.concatenate([marks(tables, Role.SEND)[1], posted[calls]])


def _first_engine(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """Launch of the first backward work inside each span, or the span's end."""
    backward = pieces.launched[pieces.way == Way.BACKWARD]
    at = np.searchsorted(backward, start)
    found: Ints = np.minimum(np.append(backward, np.iinfo(np.int64).max)[at], end)
    return found


def _first_end(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """End of the first work that begins inside each span, or the span's end where none does."""
    first = np.searchsorted(pieces.start, start)
    begun, done = (np.append(column, np.iinfo(np.int64).max)[first] for column in (pieces.start, pieces.end))
    return np.where(begun < end, done, end)


def _last_end(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """End of the last work that begins inside each span, or the span's end where none does."""
    first, behind = np.searchsorted(pieces.start, start), np.searchsorted(pieces.start, end)
    return np.where(behind > first, pieces.end[np.maximum(behind - 1, 0)], end) if len(pieces) else end


def _extents(pieces: Pieces, start: Ints, end: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """First start and last end of the kernels launched in each span, and whether there are any."""
    work = pieces.way != Way.NEITHER
    first, behind = np.searchsorted(pieces.launched, start), np.searchsorted(pieces.launched, end, side="right")
    whole = _any(work, first, behind)
    bounds = np.stack([first, behind], 1)[whole].ravel()
    if not len(bounds):
        return start, end, whole
    begin, stop = start.copy(), end.copy()
    pad = np.iinfo(np.int64)
    # One column at a time: these are as long as the trace has kernels.
    begin[whole] = np.minimum.reduceat(_padded(pieces.start, work, pad.max), bounds)[::2]
    stop[whole] = np.maximum.reduceat(_padded(pieces.end, work, pad.min), bounds)[::2]
    return begin, stop, whole


def _any(work: NDArray[np.bool_], first: Ints, behind: Ints) -> NDArray[np.bool_]:
    """Whether there is work from a row to before another, for each pair of them."""
    done = np.zeros(len(work) + 1, np.int32)
    np.cumsum(work, dtype=np.int32, out=done[1:])
    found: NDArray[np.bool_] = done[behind] > done[first]
    return found


def _padded(times: Ints, work: NDArray[np.bool_], pad: int) -> Ints:
    """The times with ``pad`` where there is no work, and behind the last."""
    padded = np.full(len(times) + 1, pad)
    np.copyto(padded[:-1], times, where=work)
    return padded
