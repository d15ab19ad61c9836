"""Cells of a table as integers: counts, and times in nanoseconds that keep every digit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXACT = 2.0**53  # whole numbers beyond this need more than a float
_MOST = 2.0**61  # nanoseconds (73 years) that still can be added up


def whole_numbers(column: NDArray[Any], blank: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read a column of text or numbers as whole numbers.

    Args:
        column: any type, [rows].
        blank: what an empty cell counts as.

    Returns:
        int64[rows], and bool[rows] with True where a cell is something else than a whole number.
    """
    if column.dtype.kind in "iub":
        return column.astype(np.int64), np.zeros(len(column), bool)
    values = _floats(column)
    empty = np.isnan(values) & _is_blank(column)
    bad = ~empty & ~((np.abs(values) < _EXACT) & (values == np.rint(values)))
    return np.where(empty | bad, blank, np.where(bad | empty, 0, values)).astype(np.int64), bad


def nanoseconds_of(column: NDArray[Any], scale: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read a column of times, to the nanosecond even where they count from 1970.

    Args:
        column: text or numbers, [rows].
        scale: nanoseconds in one unit.

    Returns:
        int64[rows], and bool[rows] with True where a cell is empty, not a number, or beyond 73 years.
    """
    if column.dtype.kind in "iu":
        bad = (column > _MOST / scale) | (column < -_MOST / scale)
        return np.where(bad, 0, column).astype(np.int64) * int(scale), bad
    values = _floats(column) * scale
    bad = ~(np.abs(values) < _MOST)
    whole = np.rint(np.where(bad, 0, values)).astype(np.int64)
    if column.dtype.kind in "UO":
        for row in np.flatnonzero(~bad & (np.abs(values) >= _EXACT)):
            whole[row] = int((Decimal(str(column[row]).strip()) * int(scale)).to_integral_value())
    return whole, bad


def _floats(column: NDArray[Any]) -> NDArray[np.float64]:
    """Cells as floats, NaN where they are none."""
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        return np.array([_float(cell) for cell in column.tolist()], np.float64)


def _float(cell: object) -> float:
    try:
        return float(str(cell))
    except ValueError:
        return np.nan


def _is_blank(column: NDArray[Any]) -> NDArray[np.bool_]:
    if column.dtype.kind == "f":
        return np.ones(len(column), bool)  # a NaN among numbers is how tables write nothing
    return np.array([cell is None or not str(cell).strip() for cell in column.tolist()], bool)
