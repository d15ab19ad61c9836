"""Text for a terminal: timelines as boxes, as exact shares where boxes do not fit, or as plain grids; and tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from string import ascii_lowercase, ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.program import Timeline
from ..core.schedule import Kind
from ..core.units import duration
from .scene import Scene, chunk_of_stage, scene, shares

MOST_ROWS = 64  # more ranks than this share rows: a screenful
GAP, NARROW = 2, 1  # columns between two columns; where the table is too wide for the terminal

_WORDS = {Kind.F: "forward", Kind.I: "input gradient", Kind.W: "weight gradient", Kind.B: "backward"}
_IDLE = len(Kind)

# Colours that eyes with every kind of colour blindness tell apart, of a 256-colour terminal; the second of each pair
# is for the later chunks of a rank.
_COLOURS = {Kind.F: (32, 75), Kind.I: (220, 228), Kind.W: (36, 79), Kind.B: (208, 215)}


@dataclass(frozen=True, slots=True)
class _Glyphs:
    """Characters that a picture is drawn with.

    Args:
        kinds: one for each of F, I, W, B.
        idle: for idle time.
        scale: of shares, from nearly nothing to all.
    """

    kinds: str
    idle: str
    scale: str


_BLOCKS = _Glyphs("█▓░▒", "·", "▁▂▃▄▅▆▇█")
_LETTERS = _Glyphs("FIWB", ".", "0123456789#")


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a picture.

    Args:
        text: a character for each column.
        paint: for each its kind, whether it is a label, and its shade.
    """

    text: list[str]
    paint: list[tuple[int, bool, int]]


def timeline_text(
    timeline: Timeline, width: int, *, utf8: bool = True, colour: bool = False, axis: int | None = None
) -> str:
    """A row for each rank, as wide as ``width`` allows, with its busy share; then a legend with scale and makespan.

    Where ops are wide enough they are boxes with the number of their micro-batch, in whole columns per time step if
    that fits. Where they are not, each column shows the exact share of its time that the rank works. More than 64
    ranks share rows, as the mean of neighbours. ``axis`` is the time that the width stands for, nanoseconds, where
    several timelines are held against each other.
    """
    own = scene(timeline)
    laid = own if axis is None else replace(own, window=axis)
    glyphs = _BLOCKS if utf8 else _LETTERS
    ranks = laid.schedule.ranks
    margin = len(f" rank {ranks - 1} ")
    columns = max(8, width - margin - 5)
    boxed = 0
    if ranks <= MOST_ROWS:
        boxed = _columns_for_boxes(laid, columns, stretched=axis is None)
    rows = _boxes(laid, boxed, glyphs) if boxed else _bins(laid, columns, glyphs)
    step = -(-ranks // MOST_ROWS)  # ranks that share a row
    busy = [float(own.busy()[first : first + step].mean()) for first in range(0, ranks, step)]
    lines = []
    for rank, row, share in zip(range(0, ranks, step), rows, busy, strict=True):
        drawn = _painted(row) if colour else "".join(row.text)
        lines.append(f" rank {rank:<{margin - 7}} {drawn} {100 * share:3.0f}%")
    return "\n".join([*lines, _legend(laid, own.window, boxed or columns, glyphs, width, boxes=bool(boxed))])


def grid(timeline: Timeline, column_ns: int) -> list[str]:
    """A timeline as exact rows of one character a column: for docstrings, and for tests that assert the drawing.

    F is the digit of its micro-batch (its last, from 10 on), I and B the letter from ``a``, W the letter from ``A``,
    idle a point. The two ops of a pair take half of their slot each.

        rank 0   012....aa3bb.cc.dd          1F1B, p=3, m=4, F = 1 and B = 2 columns
        rank 1   .01..aa2bb3cc.dd..
        rank 2   ..0aa1bb2cc3dd....

    Raises:
        InputError: an op starts or ends inside a column.
    """
    schedule, begin = timeline.program.schedule, timeline.window[0]
    times = np.concatenate([timeline.start[: len(schedule)], timeline.end[: len(schedule)]]) - begin
    if column_ns < 1 or (times % column_ns).any():
        fault = Fault(f"column_ns = {column_ns}", "ops start or end inside a column", f"try {_tick(times)}")
        raise InputError(fault)
    laid = scene(timeline)
    start, end = (laid.start // column_ns).tolist(), (laid.end // column_ns).tolist()
    rows = [["."] * (laid.window // column_ns) for _ in range(schedule.ranks)]
    columns = (schedule.rank_of().tolist(), schedule.kind.tolist(), schedule.unit.tolist(), start, end)
    for rank, kind, unit, first, last in zip(*columns, strict=True):
        rows[rank][first:last] = _symbol(kind, unit) * (last - first)
    return ["".join(row) for row in rows]


def _symbol(kind: int, unit: int) -> str:
    if kind == Kind.F:
        return str(unit % 10)
    if kind == Kind.W:
        return ascii_uppercase[unit % 26]
    return ascii_lowercase[unit % 26]


def _tick(times: NDArray[np.int64]) -> int:
    """The longest time step that all times are multiples of."""
    return int(np.gcd.reduce(times)) or 1


def _columns_for_boxes(laid: Scene, columns: int, *, stretched: bool) -> int:
    """How many columns to draw boxes in: whole ones a time step if they fit; 0 where boxes would be too narrow.

    On an axis that others share, it is all columns: time steps of two timelines have no common width.
    """
    most = int(np.diff(laid.schedule.offsets).max())
    if not laid.window or most > columns:
        return 0
    steps = laid.window // _tick(np.concatenate([laid.start, laid.end]))
    if stretched and steps <= columns:
        return columns // steps * steps
    if 2 * most > columns:  # an op needs a column for its number and one to be seen
        return 0
    return columns


def _boxes(laid: Scene, columns: int, glyphs: _Glyphs) -> list[_Row]:
    schedule = laid.schedule
    shade = np.minimum(chunk_of_stage(schedule)[schedule.copy_of(schedule.unit), schedule.stage], 1).tolist()
    first, last = (
        np.rint(times * (columns / laid.window)).astype(np.int64).tolist() for times in (laid.start, laid.end)
    )
    rows = []
    for begin, stop in pairwise(schedule.offsets.tolist()):
        row = _Row([glyphs.idle] * columns, [(_IDLE, False, 0)] * columns)
        for op in range(begin, stop):
            _box(row, (first[op], last[op]), glyphs, (int(schedule.kind[op]), shade[op]), str(schedule.unit[op]))
        rows.append(row)
    return rows


def _box(row: _Row, span: tuple[int, int], glyphs: _Glyphs, look: tuple[int, int], label: str) -> None:
    """Fill a span with the glyph of a kind, with the label in front where a glyph still fits behind it."""
    first, last = span
    kind, shade = look
    if len(label) >= last - first:
        label = ""
    row.text[first:last] = (label + glyphs.kinds[kind] * (last - first))[: last - first]
    row.paint[first:last] = [(kind, column < len(label), shade) for column in range(last - first)]


def _bins(laid: Scene, columns: int, glyphs: _Glyphs) -> list[_Row]:
    filled = shares(laid, columns)
    step = -(-laid.schedule.ranks // MOST_ROWS)
    means = [filled[first : first + step].mean(axis=0) for first in range(0, len(filled), step)]
    return [_bin_row(mean, glyphs) for mean in means]


def _bin_row(filled: NDArray[np.float64], glyphs: _Glyphs) -> _Row:
    most = filled.argmax(axis=1).tolist()
    busy = filled.sum(axis=1).tolist()
    row = _Row([], [])
    # One colour a column, of what fills most of it; how much is busy is its height.
    for kind, share in zip(most, busy, strict=True):
        row.text.append(_level(share, glyphs))
        if share <= 0:
            kind = _IDLE  # the largest of no shares is the first kind
        row.paint.append((kind, False, 0))
    return row


def _level(share: float, glyphs: _Glyphs) -> str:
    """The step of the scale for a share: the highest for all of a column only, idle for nothing only."""
    steps = len(glyphs.scale) - 1
    if share >= 1 - 1e-9:  # sums of shares are off by some last bits
        return glyphs.scale[-1]
    if share <= 0:
        return glyphs.idle
    return glyphs.scale[min(int(share * steps), steps - 1)]


def _painted(row: _Row) -> str:
    parts = []
    for (kind, label, shade), run in groupby(zip(row.text, row.paint, strict=True), key=lambda cell: cell[1]):
        text = "".join(character for character, _ in run)
        if kind == _IDLE:
            parts.append(f"\x1b[38;5;244m{text}\x1b[0m")
        else:
            ground = "30;48;5" if label else "38;5"  # a number is black on the colour of its op
            parts.append(f"\x1b[{ground};{_COLOURS[Kind(kind)][shade]}m{text}\x1b[0m")
    return "".join(parts)


def _legend(laid: Scene, window: int, columns: int, glyphs: _Glyphs, width: int, *, boxes: bool) -> str:
    kinds = [kind for kind in (Kind.F, Kind.B, Kind.I, Kind.W) if (laid.schedule.kind == kind).any()]
    parts = [f"{glyphs.kinds[kind]} {_WORDS[kind]}" for kind in kinds]
    if not boxes:
        parts = [f"{glyphs.scale[0]} to {glyphs.scale[-1]} how much of a column is busy"]
    parts.append(f"{glyphs.idle} idle")
    step = -(-laid.schedule.ranks // MOST_ROWS)
    scale = [f"1 column = {duration(laid.window / columns)}"]
    if step > 1:
        scale.append(f"1 row = mean of {step} ranks")
    left, right = " " + "  ".join([*parts, *scale]), f"makespan {duration(window)}"
    if len(left) + len(right) + 2 <= width:
        return left + right.rjust(width - len(left))
    first, second = " " + "  ".join(parts), " " + "  ".join(scale)
    return f"{first}\n{second}{right.rjust(max(width - len(second), len(right) + 2))}"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int | Collection[int] = 1,
    columns: int | None = None,
) -> str:
    """Rows under headers, if any, each column padded to its widest cell.

    Args:
        headers: of the columns, or none.
        rows: as many cells each.
        left: so many columns, the first, lie to the left; or the numbers of those that do.
        columns: of the terminal; a table that is wider stands closer, if that makes it fit.
    """
    to_the_left = range(left) if isinstance(left, int) else left
    lines = [list(line) for line in (headers, *rows) if line]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    gap = GAP
    if columns is not None:
        room = (columns - sum(widths)) / max(len(widths) - 1, 1)
        # Closer only if that makes it fit: a table that is too wide even then is as it would be without a terminal.
        if NARROW <= room < GAP:
            gap = NARROW
    laid = []
    for line in lines:
        cells = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            if column in to_the_left:
                cells.append(cell.ljust(width))
            else:
                cells.append(cell.rjust(width))
        laid.append((" " * gap).join(cells).rstrip())
    return "\n".join(laid)
