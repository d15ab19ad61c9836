"""Seeds: named schedules of the catalog that answer a problem, to begin with and to be no worse than."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.errors import InputError, Refusal
from ..core.schedule import Schedule, Shape
from ..schedules.catalog import TRAINING, build, entry_of
from .problem import WRONG, Problem

MOST_OPS = 60_000  # of a step for which searched schedules of the catalog are asked; they place op by op in Python


def seeds(problem: Problem) -> Iterator[tuple[str, Schedule]]:
    """Schedules of the catalog with the problem's placement, and their names, quick ones first.

    Searched ones are made with the problem's costs, cap and release. Whether a schedule is legal, fits and runs under
    the engine is for whoever takes it to ask.
    """
    instance = problem.instance
    chunks = int(instance.chunks.max())
    cap = [float(room) for room in np.minimum(instance.room / (2 * instance.chunks), instance.microbatches)]
    for name in sorted(TRAINING, key=lambda name: entry_of(name).search is not None):
        entry = entry_of(name)
        if chunks != entry.chunks and not (entry.any_chunks and chunks > 1):
            continue
        if entry.search is not None and instance.ops > MOST_OPS:
            continue
        shape = Shape(instance.ranks, instance.microbatches, chunks)
        try:
            if entry.search is None:
                schedule = build(name, shape)
            else:
                schedule = build(name, shape, instance.costs, cap=cap, release=instance.release)
        except (InputError, Refusal, IndexError):
            continue  # it does not suit the shape, or finds nothing under this cap
        if np.array_equal(schedule.placement, instance.placement[None, :]):
            yield name, schedule


def best_seed(problem: Problem, found: Iterator[tuple[str, Schedule]]) -> tuple[str, int]:
    """The name of the best legal schedule among some, and its objective; an empty name if none is legal."""
    best, least = "", int(WRONG)
    for name, schedule in found:
        value = problem.measured(schedule)
        if value < least:
            best, least = name, value
    return best, least
