"""Tables for people: rows under headers, columns as wide as their widest cell, and no wrapping."""

from __future__ import annotations

from collections.abc import Sequence

GAP, NARROW = 2, 1  # columns between two columns; where the table is too wide for the terminal


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, columns: int | None = None) -> str:
    """Rows under headers, if any, each column padded to its widest cell.

    Args:
        headers: of the columns, or none.
        rows: as many cells each.
        left: so many columns, the first, lie to the left.
        columns: of the terminal; a table that is wider stands closer, if that makes it fit.
    """
    lines = [list(line) for line in (headers, *rows) if line]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    room = GAP if columns is None else (columns - sum(widths)) / max(len(widths) - 1, 1)
    gap = " " * (NARROW if NARROW <= room < GAP else GAP)
    return "\n".join(
        gap.join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def duration(nanoseconds: float) -> str:
    """A duration in the unit that suits it, to four digits: ``33 ms``, ``4.512 s``, ``17 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{_four_digits(nanoseconds / size)} {unit}"
    return f"{_four_digits(nanoseconds)} ns" if nanoseconds else "0 ms"


def _four_digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
