"""Layouts as columns, and the idle time of their even stages: closed where a form holds, else simulated or bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ..config.config import MODULES, PRECISIONS, RECOMPUTE, Layout
from ..config.plan import Layouts
from ..core.account import account
from ..core.costs import Rates, costs_of
from ..core.errors import InputError
from ..core.lower import lower
from ..core.schedule import Shape
from ..core.simulate import simulate
from ..schedules import closed_form
from ..schedules.catalog import CATALOG, TRAINING, build, entry_of
from ..schedules.closed_form import Even
from ..schedules.entry import Entry
from ..schedules.loops import smallest_group

SCHEDULES = TRAINING  # the column ``schedule`` of ``Layouts`` holds positions in it
_CODES = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "precision": PRECISIONS}
_WORKED_OUT = (*_CODES, "first", "most", "last", "recompute_layers", "recompute_modules", "expert_tensor")


def columns(layouts: Sequence[Layout], layers: int) -> Layouts:
    """The columns of a list of layouts of a model with so many layers.

    Where ``recompute_layers`` is None, every layer is recomputed: infinity in the column.
    """
    table: dict[str, NDArray[np.float64]] = {}
    for column in fields(Layouts):
        if column.name not in (*_WORKED_OUT, "gradient_bytes"):
            table[column.name] = np.array(list(map(attrgetter(column.name), layouts)), np.float64)
    for name, words in _CODES.items():
        table[name] = np.array([words.index(getattr(layout, name)) for layout in layouts], np.float64)
    table["expert_tensor"] = np.array(list(map(attrgetter("expert_shards"), layouts)), np.float64)
    # Copies lie beside the gradients that are reduced: nanotron's fp32 sum beside DDP's buckets.
    table["gradient_bytes"] = np.array([layout.reduced_bytes + layout.gradient_copies for layout in layouts])
    table["recompute_modules"] = np.array([_bits(layout.recompute_modules) for layout in layouts], np.float64)
    limits = [np.inf if layout.recompute_layers is None else layout.recompute_layers for layout in layouts]
    table["recompute_layers"] = np.array(limits, np.float64)
    # Ends differ by embedding and loss, and of the stages in between the heaviest sets the pace.
    splits = [layout.split(layers) for layout in layouts]
    ends = np.array([(s[0], max(s[1:-1], default=0), s[-1]) for s in splits], np.float64).reshape(-1, 3)
    return Layouts(**table, first=ends[:, 0], most=ends[:, 1], last=ends[:, 2])


def _bits(modules: Sequence[str]) -> int:
    """A bit for each part that is run again; the attention core if none is named."""
    return sum(1 << MODULES.index(module) for module in set(modules or MODULES[:1]))


Column = NDArray[np.float64]

MOST_OPS = 400_000  # half a second of simulation
MOST_ROUNDS = 16  # times as many micro-batches as ranks: 1F1B idles for 6 %


@lru_cache(maxsize=4096)
def idle_share(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> float | None:
    """Idle over ranks x window with B = 2 F, even stages and free transfers.

    Returns:
        0 to 1; None where the schedule does not suit the shape, or would take too long to simulate.
    """
    if ranks == 1:
        return 0.0
    entry, shape = _shape(schedule, ranks, microbatches, chunks)
    share = _by_formula(entry, shape)
    if share is None:
        return _simulated(entry, shape)
    return share


def exact(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> bool:
    """Whether ``idle_share`` is a closed form."""
    return ranks == 1 or _by_formula(*_shape(schedule, ranks, microbatches, chunks)) is not None


def evidence(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> str:
    """Where ``idle_share`` comes from: ``exact`` or ``simulated``."""
    return "exact" if exact(schedule, ranks, microbatches, chunks) else "simulated"


def _shape(schedule: str, ranks: int, microbatches: int, chunks: int) -> tuple[Entry, Shape]:
    """With the group that Megatron-LM has to be given where micro-batches are no multiple of the ranks."""
    entry = entry_of(schedule)
    group = None
    if entry.name == "interleaved":
        group = smallest_group(ranks, microbatches)
    return entry, entry.shape(Shape(ranks, microbatches, chunks, group=group))


def _by_formula(entry: Entry, shape: Shape) -> float | None:
    pipeline = Even(shape.ranks, shape.microbatches, shape.chunks, group=shape.group)
    if not closed_form.takes(entry, pipeline):
        return None
    return closed_form.idle_share(entry, pipeline)


def _simulated(entry: Entry, shape: Shape) -> float | None:
    if 2 * shape.stages * shape.units > MOST_OPS:
        return None
    try:
        order = build(entry.name, shape)
    except InputError:
        return None
    return account(simulate(lower(order), costs_of(Rates(), order))).idle_share


@lru_cache(maxsize=4096)
def enough(schedule: str, ranks: int, share: float, chunks: int = 1) -> int | None:
    """Least micro-batches at which a schedule of even stages idles for ``share`` or less.

    By closed form where one holds for fewer micro-batches too; else the first that does in a search that doubles
    multiples of the ranks, then halves: more micro-batches never idle for longer.

    Returns:
        None where ``MOST_ROUNDS`` times as many as ranks do not suffice, or cannot be simulated.
    """
    entry, shape = _shape(schedule, ranks, 1, chunks)
    least = closed_form.least_microbatches(entry, Even(ranks, 1, shape.chunks), share)
    if least is not None and (least == 1 or exact(schedule, ranks, least - 1, chunks)):
        return least

    def idles(many: int) -> bool:
        found = idle_share(schedule, ranks, many, chunks)
        return found is None or found > share

    # More micro-batches never idle for longer, so a search by halves finds the least.
    high = ranks
    while idles(high):
        high *= 2
        if high > MOST_ROUNDS * ranks:
            return least
    low = high // 2 if high > ranks else 0
    while high - low > 1:
        middle = (low + high) // 2
        if idles(middle):
            low = middle
        else:
            high = middle
    return high


def bubbles(layouts: Layouts, forward: Column, backward: Column, weight: Column) -> Column:
    """Idle time of a rank with even stages and free transfers, of each layout: the screen's view of its schedule.

    Where no formula holds (costs or shape beyond its conditions), it is the least that any order of the same placement
    idles: a screen may pass a layout on that simulation then turns down, but never turns a good one down.

    Args:
        layouts: n of them.
        forward: F of a micro-batch on a rank, all its chunks, float64[n].
        backward: B likewise.
        weight: W, a part of B.
    """
    found = np.zeros(len(layouts))
    for entry, rows in _by_schedule(layouts):
        times = (forward[rows], (backward - weight)[rows], weight[rows])
        pipelines = _even(layouts, rows, *times)
        idle = closed_form.idle_times(entry, pipelines)
        # NaN: the formula's conditions do not hold at these costs (F, I and W unequal, say).
        found[rows] = np.where(np.isnan(idle), closed_form.least_idle(entry, pipelines), idle)
    return found


def in_flight(layouts: Layouts) -> tuple[Column, Column]:
    """Micro-batches of a rank whose activations first and last rank hold at once, float64[n] each."""
    first, last = np.zeros(len(layouts)), np.zeros(len(layouts))
    for entry, rows in _by_schedule(layouts):
        pipelines = _even(layouts, rows)
        first[rows] = closed_form.activations(entry, pipelines, 0)
        last[rows] = closed_form.activations(entry, pipelines, layouts.pipeline[rows] - 1)
    return first, last


def _by_schedule(layouts: Layouts) -> Iterator[tuple[Entry, NDArray[np.intp]]]:
    """Each schedule that occurs, with the rows of its layouts."""
    for code in np.unique(layouts.schedule):
        yield CATALOG[SCHEDULES[int(code)]], np.flatnonzero(layouts.schedule == code)


def _even(layouts: Layouts, rows: NDArray[np.intp], *times: Column) -> Even:
    sizes = (layouts.pipeline[rows], layouts.microbatches[rows], layouts.chunks[rows])
    return Even(*sizes, **dict(zip(("forward", "input", "weight"), times, strict=False)))
