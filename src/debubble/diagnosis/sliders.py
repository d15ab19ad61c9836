"""Where the sliders of a page start: the replay of one run, and every other order that its ranks and batch allow.

The page changes it by the rules of ``edits.slide``, in JavaScript; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.results import HIDDEN
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from ..schedules.catalog import CATALOG
from .edits import recast
from .measured_costs import fitted, present, stage_means
from .recognise import recognise
from .replay import Replay

MOST_OPS = 200_000  # that a page simulates at once
_HALVES = "A schedule that splits the backward takes half of it for each part: state or measure I and W to know better."


@dataclass(frozen=True, slots=True, eq=False)
class Sliders:
    """What a page simulates from.

    Args:
        run: number of the run on the page.
        replay: its order and costs.
        orders: other schedules of the catalog that its ranks, micro-batches and slices allow, each built.
        note: where the durations come from, a sentence.
    """

    run: int
    replay: Replay = field(metadata=HIDDEN)
    orders: tuple[Schedule, ...]
    note: str


def sliders(replay: Replay, note: str, run: int = 0) -> Sliders | None:
    """Where the sliders start; None if the run has too many ops for a page to simulate.

    Args:
        replay: of the run.
        note: on where the durations come from.
        run: its number on the page.
    """
    schedule = replay.schedule
    if len(schedule) > MOST_OPS:
        return None
    halves = not schedule.splits and not schedule.forward_only and replay.input_share == 0.5
    return Sliders(run, replay, _orders(replay), f"{note} {_HALVES}" if halves else note)


def simulated_sliders(timeline: Timeline, costs: Costs, note: str, run: int = 0) -> Sliders | None:
    """Those of a timeline that was simulated with these costs."""
    schedule = timeline.program.schedule
    return sliders(Replay(schedule, costs, recognise(schedule).name), note, run)


def measured_sliders(replay: Replay, resim_ratio: float, run: int = 0) -> Sliders | None:
    """Those of a measured window.

    Args:
        replay: of the window.
        resim_ratio: simulated again over measured.
        run: its number on the page.
    """
    fit = f"the run simulated again takes {100 * resim_ratio:.1f} % of its window"
    return sliders(replay, f"Simulated from the time of each op and hop; {fit}.", run)


def _orders(replay: Replay) -> tuple[Schedule, ...]:
    """Every schedule of the catalog, with one chunk, two, or as many as there are."""
    ranks, microbatches = replay.schedule.ranks, replay.schedule.microbatches
    found: dict[tuple[str, int], Schedule] = {}
    for name in CATALOG:
        for chunks in sorted({1, 2, replay.chunks}):
            changed = recast(replay, name, ranks=ranks, microbatches=microbatches, chunks=chunks)
            if changed is not None and not changed.schedule.same_order(replay.schedule):
                found.setdefault((name, changed.chunks), changed.schedule)
    return tuple(found.values())


def stage_table(timeline: Timeline) -> NDArray[np.int64]:
    """The mean duration of each kind and stage of a window, int64[kinds, stages]; 0 if there is no such op."""
    schedule = timeline.program.schedule
    there = present(schedule).any(axis=2)
    means = stage_means(fitted(timeline), schedule).durations[:, :, 0]
    table: NDArray[np.int64] = np.where(there, means, 0)
    return table
