"""How many transfers of one rank can end together with those of each other at most, for all others at once.

    ends of one rank       |       |      |       differences to all ends within reach, counted in bins for each other
    ends of all others   | |||   || |   | || |    rank: what ends together at one offset lies in two adjacent bins

Matching two ranks costs a thousand times as much, and of a thousand ranks few need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .matching import TOGETHER

_BIN = 3 * TOGETHER  # nanoseconds: two ways whose offsets differ by TOGETHER, and ends that differ as much from either
_MOST_BINS = 1024
_AT_ONCE = 1 << 20  # differences that are held
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """Ends of all ranks together.

    Args:
        end: int64[ends], nanoseconds, ascending.
        owner: of each, an index, int64[ends].
        owners: how many there are.
    """

    end: Ints
    owner: Ints
    owners: int


def crowd_of(ends: Sequence[Ints]) -> Crowd:
    """The ends of several owners as one crowd."""
    end = np.concatenate([np.empty(0, np.int64), *ends])
    owner = np.repeat(np.arange(len(ends)), [len(one) for one in ends])
    order = np.argsort(end, kind="stable")
    return Crowd(end[order], owner[order], len(ends))


def most_together(ways: Sequence[tuple[Ints, Crowd]], reach: int) -> Ints:
    """For each owner, at most how many ends have one of its own at one offset, int64[owners].

    Args:
        ways: ends, and the crowd among which their other side is; offsets of several ways may differ by ``TOGETHER``.
        reach: nanoseconds by which an offset may differ from 0.
    """
    far = reach + TOGETHER
    width = max(_BIN, 2 * far // _MOST_BINS + 1)  # wider bins bound less closely, and what waits for hours fits too
    bins = 2 * far // width + 1
    counts = np.zeros(ways[0][1].owners * bins, np.int64)
    for mine, crowd in ways:
        low = np.searchsorted(crowd.end, mine - far)
        many = np.searchsorted(crowd.end, mine + far, side="right") - low
        for part in _parts(many):
            row = np.repeat(np.arange(len(many))[part], many[part])
            begin = np.cumsum(many[part]) - many[part]
            at = np.arange(len(row)) + np.repeat(low[part] - begin, many[part])
            number = (crowd.end[at] - mine[row] + far) // width
            counts += np.bincount(crowd.owner[at] * bins + number, minlength=len(counts))
    table = np.pad(counts.reshape(-1, bins), ((0, 0), (0, 1)))
    most: Ints = (table[:, :-1] + table[:, 1:]).max(axis=1)
    return most


def _parts(many: Ints) -> list[slice]:
    """Rows one after the other, each part with ``_AT_ONCE`` differences and those of one more row at most."""
    first = np.flatnonzero(np.diff(np.cumsum(many) // _AT_ONCE, prepend=-1))
    return [slice(a, b) for a, b in pairwise([*first.tolist(), len(many)])]
