"""Tables for people: rows under headers, columns as wide as their widest cell, and no wrapping."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..core.units import duration

__all__ = ["duration", "table"]

GAP, NARROW = 2, 1  # columns between two columns; where the table is too wide for the terminal


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
    room = GAP if columns is None else (columns - sum(widths)) / max(len(widths) - 1, 1)
    # Closer only if that makes it fit: a table that is too wide even then stands as it would without a terminal.
    gap = " " * (NARROW if NARROW <= room < GAP else GAP)
    laid = []
    for line in lines:
        cells = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            cells.append(cell.ljust(width) if column in to_the_left else cell.rjust(width))
        laid.append(gap.join(cells).rstrip())
    return "\n".join(laid)
