"""Stretch: solve a short run well, then repeat a part of its steady state until the long run is full.

The part has the same number of ops of every kind and stage on every rank, so memory comes out of it as it went in, and
what fits once fits every time:

    short run, m = 6     F F F I F I W | F I W | F I W  I W W ..
    part of q = 1                        F I W
    m = 9                F F F I F I W | F I W   F I W   F I W   F I W | F I W  I W W ..
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..core.instance import Instance
from .resimulate import Rows, Times

_CUTS = 48  # moments of the short run at which a part may begin


def short_runs(instance: Instance) -> list[int]:
    """Micro-batches of runs that are long enough for a steady state, two to three times what is in flight."""
    in_flight = int(np.ceil((instance.room / (2 * instance.chunks)).max()))
    in_flight = min(in_flight, 2 * instance.ranks)
    return sorted({m for share in (2.0, 2.5, 3.0) if 2 < (m := round(share * in_flight)) < 0.7 * instance.microbatches})


def stretched(rows: Rows, begin: Times, microbatches: tuple[int, int], classes: int) -> Iterator[Rows]:
    """Every way to fill a long run from a short one, some of which deadlock.

    Args:
        rows: of the short run.
        begin: when each of its ops starts, int64 of the shape of ``rows``: every rank is cut at about one moment.
        microbatches: of the short run and of the long one.
        classes: kinds x stages, over all ranks.
    """
    short, long = microbatches
    missing = long - short
    for part in range(1, short // 2 + 1):
        if missing % part:
            continue
        starts = [_balanced(row, part, classes) for row in rows]
        if min(map(len, starts)) == 0:
            continue
        for moment in np.linspace(0.1, 0.8, _CUTS) * begin.max():
            near = [np.abs(begin[rank, found] - moment).argmin() for rank, found in enumerate(starts)]
            at = [int(found[place]) for found, place in zip(starts, near, strict=True)]
            yield _filled(rows, at, part, missing // part)


def _balanced(row: NDArray[np.int32], part: int, classes: int) -> NDArray[np.int64]:
    """Places from which on a row holds ``part`` ops of each of its classes, and nothing else, int64[places]."""
    mine = np.unique(row)
    length = part * len(mine)
    index = np.full(classes, -1)
    index[mine] = np.arange(len(mine))
    counts = np.zeros((len(row) + 1, len(mine)), np.int64)
    counts[np.arange(1, len(row) + 1), index[row]] = 1
    counts = counts.cumsum(axis=0)
    return np.flatnonzero((counts[length:] - counts[:-length] == part).all(axis=1))


def _filled(rows: Rows, at: list[int], part: int, times: int) -> Rows:
    """Each row with its part repeated."""
    length = part * len(np.unique(rows[0]))
    longer = []
    for row, start in zip(rows, at, strict=True):
        stop = start + length
        longer.append(np.concatenate([row[:stop], np.tile(row[start:stop], times), row[stop:]]))
    return np.stack(longer).astype(np.int32)
