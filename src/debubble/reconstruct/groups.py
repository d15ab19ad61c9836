"""Rows that belong together by the values of their columns: numbered, counted, parted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device_ops import Ints


def group_of(*columns: NDArray[Any]) -> Ints:
    """A number for each row, from 0, int64[rows]: the same where all columns are, in the order of their values.

    Args:
        columns: of integers, one element a row; the first orders before the second.
    """
    # Sorting the columns one after the other is far cheaper than np.unique(axis=1), which compares whole rows.
    order = np.lexsort(columns[::-1])
    fresh = np.zeros(len(order), np.bool_)
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(fresh)
    return number


def place_within(group: NDArray[np.integer[Any]]) -> Ints:
    """How many rows of the same group come before each one, int64[rows]."""
    # Rows of a group lie together once sorted, so a row's place is how far it lies from where its group begins.
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    fresh = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(fresh, np.diff(fresh, append=len(group)))
    return place


def parted(rows: Ints, *columns: NDArray[Any]) -> list[Ints]:
    """Rows cut wherever a column changes from one to the next; an empty list of no rows.

    Args:
        rows: in an order in which those of a group lie together.
        columns: one element for each row of the whole table.
    """
    if not len(rows):
        return []
    changed = np.zeros(len(rows) - 1, np.bool_)
    for column in columns:
        changed |= column[rows[1:]] != column[rows[:-1]]
    return np.split(rows, np.flatnonzero(changed) + 1)
