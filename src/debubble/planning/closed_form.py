"""Closed form: the bubble, the steady state and the activations in flight of each schedule, for many layouts at once.

Bubbles as in the catalog of schedules, with F, B and W of the slowest rank and v chunks; they hold for even stages, and
uneven ones are taken in by counting a pass of every stage once and the slowest rank for all micro-batches but one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.layout import SCHEDULES, Layouts

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RankTime:
    """Seconds of one micro-batch on a rank, all its chunks: F, B (I + W) and W, float64[n] each."""

    forward: Column
    backward: Column
    weight: Column

    @property
    def slot(self) -> Column:
        """One micro-batch forward and backward."""
        return self.forward + self.backward


def bubble(layouts: Layouts, mean: RankTime) -> Column:
    """Idle seconds of a rank with even stages and free transfers, by schedule."""
    p, v = layouts.pipeline, layouts.chunks
    f, b, w = mean.forward, mean.backward, mean.weight
    i = b - w
    plain = (p - 1) * (f + b)
    forms = {
        "interleaved": plain / v,
        "looped-bfs": plain / v,
        "hanayo": plain / v,
        "zb-h1": (p - 1) * np.maximum(f + i - w, 0),
        "zb-h2": (p - 1) * np.maximum(f, f + i - 2 * w),
        "interleaved-zb": (p - 1) * f / v,
        "zb-v": (p - 1) * f / 2,
        "zb-auto": (p - 1) * np.maximum(f + i - 2 * w, 0),
        "v-half": (p - 1) * (f + b) / 2,
        "dualpipe": np.maximum(p / 2 - 1, 0) * np.maximum(f + b - 2 * w + f, f),
        "dualpipe-v": (p - 1) / 2 * np.maximum(f + b - 2 * w + f, f),
        "chimera": np.maximum(p / 2 - 1, 0) * (f + b),
    }
    table = np.stack([forms.get(name, plain) for name in SCHEDULES])
    found: Column = table[layouts.schedule.astype(np.int64), np.arange(len(layouts))]
    return np.where(p > 1, found, 0.0)


def period(layouts: Layouts, mean: Column, slowest: Column, hop: Column) -> Column:
    """Seconds from one micro-batch to the next once all ranks are busy, hops included.

    Where F and B alternate, ranks wait for their neighbours on both sides: a chain of k of them takes the mean of its
    slots and 2 (k-1)/k hops. So hops cost nothing where one rank is slower than its neighbour by more than they take.
    The chains that count: the slowest rank alone, with one other, and all. Schedules that run far ahead wait for none.
    """
    p, v = layouts.pipeline, layouts.chunks
    ahead = np.isin(layouts.schedule, [SCHEDULES.index(n) for n in ("gpipe", "looped-bfs", "eager-1f1b", "zb-h2")])
    one = np.where(ahead | (p == 1), 0.0, hop * v)
    other = (p * mean - slowest) / np.maximum(p - 1, 1)
    pair = np.where(p > 1, (slowest + other) / 2 + one, 0.0)
    found: Column = np.maximum(np.maximum(slowest, pair), mean + 2 * (p - 1) / p * one)
    return found


def in_flight(layouts: Layouts) -> tuple[Column, Column]:
    """Micro-batches of a rank whose activations first and last rank hold at once."""
    p, v, m = layouts.pipeline, layouts.chunks, layouts.microbatches
    plain = np.minimum(p, m)
    looped = np.minimum(2 * (p - 1) + (v - 1) * p + 1, m * v) / v
    forms = {
        "gpipe": m,
        "looped-bfs": m,
        "eager-1f1b": np.minimum(2 * p - 1, m),
        "zb-h2": np.minimum(2 * p - 1, m),
        "zb-auto": np.minimum(2 * p - 1, m),
        "interleaved": looped,
        "interleaved-zb": looped,
        "1f1b-v": np.minimum(np.floor(2 * p / 3) + 1, m),
        "v-half": np.minimum(np.ceil(p / 2) + 1, m),
        "v-min": np.minimum(np.ceil(p / 3) + 1, m),
        "dualpipe": p + 1,
        "dualpipe-v": p + 1,
    }
    code, row = layouts.schedule.astype(np.int64), np.arange(len(layouts))
    first = np.stack([forms.get(name, plain) for name in SCHEDULES])[code, row]
    one = np.isin(layouts.schedule, [SCHEDULES.index("1f1b")])
    ends = np.where(one, 1.0, first)
    return first, np.where(np.isin(layouts.schedule, [SCHEDULES.index("interleaved")]), np.minimum(looped, p), ends)
