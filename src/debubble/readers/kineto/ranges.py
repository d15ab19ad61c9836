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

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import UNKNOWN, Ints, Mask
from ..op_names import read_name
from .messages import Posts, Sense
from .names import Role, Way, ops_of
from .tables import Tables
from .work import Pieces, marks

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Ops of one file, in the order of their launch.

    Args:
        kind: uint8[ops].
        stage: int32[ops]; -1 if the file does not say, as with the next two.
        chunk: index of the stage among those of its rank, int32[ops].
        unit: micro-batch, int32[ops]; -1 if only the order tells.
        launched: the moment on the CPU by which steps are told, int64[ops], nanoseconds.
        worked: when the first piece of work of each was launched, int64[ops]; what was posted before it came first.
        start: int64[ops], nanoseconds.
        end: int64[ops], nanoseconds.
        remarks: what was left out, a clause each.
        counted: whether ``unit`` is the index of an op among those of its kind, and no label.
        first_end: if no direction is told, where the first of two ops would end, int64[ops]; -1 if nothing tells.
        second_start: likewise where the second of two would begin.
    """

    kind: NDArray[np.uint8]
    stage: NDArray[np.int32]
    chunk: NDArray[np.int32]
    unit: NDArray[np.int32]
    launched: Ints
    worked: Ints
    start: Ints
    end: Ints
    remarks: tuple[str, ...] = ()
    counted: bool = False
    first_end: Ints | None = None
    second_start: Ints | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def only(self, keep: Mask) -> Found:
        """Some of the ops."""
        columns = ("kind", "stage", "chunk", "unit", "launched", "worked", "start", "end", "first_end", "second_start")
        kept = {name: column[keep] for name in columns if (column := getattr(self, name)) is not None}
        return replace(self, **kept)


def named_ops(tables: Tables, pieces: Pieces, posts: Posts) -> Found:
    """Every op that a range names, once for each time it comes."""
    word, begin, stop = marks(tables, Role.LABEL)
    rows = _rows(tables, word)
    range_of, kind, stage, chunk, unit = rows
    start, end = begin[range_of], stop[range_of]
    pairs = np.flatnonzero(np.diff(range_of) == 0)
    if len(pairs):
        middle = _first_engine(pieces, start[pairs], end[pairs])
        end[pairs] = start[pairs + 1] = middle
    launched = start.copy()
    worked = _first_launch(pieces, start, end)
    whole = np.ones(len(start), np.bool_)
    if pieces.device:
        start, end, whole = _extents(pieces, start, end)
    else:
        end[pairs] = _last_end(pieces, start[pairs], end[pairs])
        start = after_receive(marks(tables, Role.RECEIVE)[2], start, end)
        sent = posts.moment[posts.sense == Sense.SEND]
        end = _before_send(sent, _first_end(pieces, start, end), end)
    lost = int((~whole).sum())
    return Found(
        kind=kind[whole].astype(np.uint8),
        stage=stage[whole].astype(np.int32),
        chunk=chunk[whole].astype(np.int32),
        unit=unit[whole].astype(np.int32),
        launched=launched[whole],
        worked=worked[whole],
        start=start[whole],
        end=end[whole],
        remarks=(f"{lost:,} named ops launched no kernel that is in the file, and were left out",) if lost else (),
    )


def after_receive(received: Ints, start: Ints, end: Ints) -> Ints:
    """Where the last receive that ends inside each span ends, or the span's start."""
    received = np.sort(received)
    at = np.searchsorted(received, end, side="right") - 1
    last = np.concatenate([[np.iinfo(np.int64).min], received])[at + 1]
    later: Ints = np.maximum(start, last)
    return later


def _rows(tables: Tables, word: NDArray[np.int32]) -> NDArray[np.int64]:
    """Index of the range, kind, stage, chunk and micro-batch of each op that a range names, int64[5, ops]."""
    named = {}
    for number in np.unique(word).tolist():
        name = tables.names[number]
        chunk = read_name(name).chunk
        named[number] = [(kind, stage, chunk, unit) for kind, stage, unit in ops_of(name)]
    rows = [(i, *op) for i, number in enumerate(word.tolist()) for op in named[number]]
    return np.array(rows, np.int64).T if rows else np.empty((5, 0), np.int64)


def _before_send(sent: Ints, worked: Ints, end: Ints) -> Ints:
    """Where the first send after the first work of each span is posted, or the span's end.

    Args:
        sent: when sends were posted, nanoseconds.
        worked: when the first piece of work inside each span was done.
        end: of each span.
    """
    first = np.append(np.sort(sent), _NEVER)[np.searchsorted(np.sort(sent), worked)]
    earlier: Ints = np.minimum(end, first)
    return earlier


def _first_engine(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """Launch of the first backward work inside each span, or the span's end."""
    backward = pieces.launched[pieces.way == Way.BACKWARD]
    found: Ints = np.minimum(np.append(backward, _NEVER)[np.searchsorted(backward, start)], end)
    return found


def _first_launch(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """Launch of the first work inside each span, or the span's start if there is none."""
    if not len(pieces):
        return start
    at = np.searchsorted(pieces.launched, start)
    launched = pieces.launched[np.minimum(at, len(pieces) - 1)]
    return np.where((at < len(pieces)) & (launched <= end), launched, start)


def _first_end(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """End of the first work that begins inside each span, or the span's end if none does."""
    first = np.searchsorted(pieces.start, start)
    begun, done = (np.append(column, _NEVER)[first] for column in (pieces.start, pieces.end))
    return np.where(begun < end, done, end)


def _last_end(pieces: Pieces, start: Ints, end: Ints) -> Ints:
    """End of the last work that begins inside each span, or the span's end if none does."""
    first, behind = np.searchsorted(pieces.start, start), np.searchsorted(pieces.start, end)
    return np.where(behind > first, pieces.end[np.maximum(behind - 1, 0)], end) if len(pieces) else end


def _extents(pieces: Pieces, start: Ints, end: Ints) -> tuple[Ints, Ints, Mask]:
    """First start and last end of the kernels launched in each span, and whether there are any."""
    work = pieces.way != Way.NEITHER
    first, behind = np.searchsorted(pieces.launched, start), np.searchsorted(pieces.launched, end, side="right")
    whole = _any(work, first, behind)
    bounds = np.stack([first, behind], 1)[whole].ravel()
    if not len(bounds):
        return start, end, whole
    begin, stop = start.copy(), end.copy()
    # One column at a time: these are as long as the trace has kernels.
    begin[whole] = np.minimum.reduceat(_padded(pieces.start, work, _NEVER), bounds)[::2]
    stop[whole] = np.maximum.reduceat(_padded(pieces.end, work, np.iinfo(np.int64).min), bounds)[::2]
    return begin, stop, whole


def _any(work: Mask, first: Ints, behind: Ints) -> Mask:
    """Whether there is work from a row to before another, for each pair of them."""
    done = np.zeros(len(work) + 1, np.int32)
    np.cumsum(work, dtype=np.int32, out=done[1:])
    found: Mask = done[behind] > done[first]
    return found


def _padded(times: Ints, work: Mask, pad: int) -> Ints:
    """The times with ``pad`` where there is no work, and after the last."""
    padded = np.full(len(times) + 1, pad)
    np.copyto(padded[:-1], times, where=work)
    return padded


def column(values: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """A column, or None if no row of it is known."""
    return None if not len(values) or (values == UNKNOWN).all() else values
