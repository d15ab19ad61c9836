"""Cells of a table as integers: counts, and times in nanoseconds that keep every digit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any] | list[str]  # numbers of a binary table, or the text of a CSV

_EXACT = 2.0**53  # whole numbers beyond this need more than a float
_SCALED = 2.0**51  # and products of a float, which was rounded itself, beyond this
_MOST = 2.0**61  # nanoseconds (73 years) that still can be added up


def whole_numbers(column: Column, blank: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read a column of text or numbers as whole numbers.

    Args:
        column: [rows].
        blank: what an empty cell counts as.

    Returns:
        int64[rows], and bool[rows] with True where a cell is something else than a whole number.
    """
    whole = _integers(column)
    if whole is not None:
        return whole, np.zeros(len(whole), bool)
    values = _floats(column)
    empty = np.isnan(values) & _is_blank(column)
    bad = ~empty & ~((np.abs(values) < _EXACT) & (values == np.rint(values)))
    return np.where(empty | bad, blank, np.where(bad | empty, 0, values)).astype(np.int64), bad


def nanoseconds_of(column: Column, scale: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read a column of times, to the nanosecond even where they count from 1970.

    Args:
        column: text or numbers, [rows].
        scale: nanoseconds in one unit.

    Returns:
        int64[rows], and bool[rows] with True where a cell is empty, not a number, or beyond 73 years.
    """
    whole = _integers(column)
    if whole is not None:
        bad = (whole > _MOST / scale) | (whole < -_MOST / scale)
        return np.where(bad, 0, whole) * int(scale), bad
    values = _floats(column) * scale
    bad = ~(np.abs(values) < _MOST)
    nanoseconds = np.rint(np.where(bad, 0, values)).astype(np.int64)
    if isinstance(column, list):
        for row in np.flatnonzero(~bad & (np.abs(values) >= _SCALED)):
            nanoseconds[row] = int((Decimal(column[row].strip()) * int(scale)).to_integral_value())
    return nanoseconds, bad


def _integers(column: Column) -> NDArray[np.int64] | None:
    """A column of nothing but integers; None for any other."""
    if not isinstance(column, list):
        return column.astype(np.int64) if column.dtype.kind in "iub" else None
    try:
        return np.fromiter(map(int, column), np.int64, len(column))
    except (ValueError, OverflowError):
        return None


def _floats(column: Column) -> NDArray[np.float64]:
    """Cells as floats, NaN where they are none."""
    if not isinstance(column, list):
        return column.astype(np.float64) if column.dtype.kind == "f" else np.full(len(column), np.nan)
    try:
        return np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        return np.array([_float(cell) for cell in column], np.float64)


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _is_blank(column: Column) -> NDArray[np.bool_]:
    if not isinstance(column, list):
        return np.ones(len(column), bool)  # a NaN among numbers is how tables write nothing
    return np.array([not cell.strip() for cell in column], bool)
