"""Where the sliders of a page start: the mean duration of each kind and stage, and the mean hop, of one run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.costs import Costs
from ..core.lower import needs_of
from ..core.op import KINDS, Kind
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from .measured_costs import present, stage_means
from .recognise import recognise

MOST_OPS = 200_000  # that a page simulates at once
_HALVES = "A schedule that splits the backward takes half of it for each part: state or measure I and W to know better."


@dataclass(frozen=True, slots=True)
class Sliders:
    """What a page simulates from.

    Args:
        run: number of the run on the page.
        schedule: name of its order, or the nearest to a name that there is.
        ranks: of its pipeline.
        microbatches: per step.
        chunks: most stages on a rank.
        slices: of a sequence.
        stages: of the model.
        table: nanoseconds of each kind and stage.
        transfer: nanoseconds of a hop.
        pair_scale: duration of an overlapped pair over the sum of its two ops.
        note: where the durations come from, a sentence.
    """

    run: int
    schedule: str
    ranks: int
    microbatches: int
    chunks: int
    slices: int
    stages: int
    table: tuple[tuple[int, ...], ...]
    transfer: int
    pair_scale: float
    note: str


def sliders(timeline: Timeline, costs: Costs, note: str, run: int = 0) -> Sliders | None:
    """Where the sliders start; None if the run has too many ops for a page to simulate.

    Args:
        timeline: of the run.
        costs: of its ops.
        note: on where the durations come from.
        run: its number on the page.
    """
    schedule = timeline.program.schedule
    if len(schedule) > MOST_OPS:
        return None
    return Sliders(
        run=run,
        schedule=recognise(schedule).name or schedule.name,
        ranks=schedule.ranks,
        microbatches=schedule.microbatches,
        chunks=int(schedule.chunks_of().max()),
        slices=schedule.slices,
        stages=schedule.stages,
        table=tuple(tuple(row) for row in stage_table(costs, schedule).tolist()),
        transfer=_hop(costs, schedule),
        pair_scale=costs.pair_scale,
        note=note if schedule.splits or schedule.forward_only else f"{note} {_HALVES}",
    )


def stage_table(costs: Costs, schedule: Schedule) -> NDArray[np.int64]:
    """The mean duration of each kind and stage, int64[kinds, stages]; a backward and its halves from each other."""
    there = present(schedule).any(axis=2)
    said = np.rint(costs.durations.mean(axis=2)).astype(np.int64)  # of kinds that the order does not have
    table = np.where(there, stage_means(costs, schedule).durations[:, :, 0], said)
    if not table[[Kind.I, Kind.W]].any():
        table[Kind.I] = table[Kind.B] // 2
        table[Kind.W] = table[Kind.B] - table[Kind.I]
    elif not table[Kind.B].any():
        table[Kind.B] = table[Kind.I] + table[Kind.W]
    return table


def _hop(costs: Costs, schedule: Schedule) -> int:
    """The mean delay of all hops between ranks, nanoseconds."""
    crossing = needs_of(schedule)[0] >= 0
    delays = np.broadcast_to(costs.hops(), (KINDS, schedule.stages, schedule.units))
    mine = delays[schedule.kind[crossing], schedule.stage[crossing], schedule.unit[crossing]]
    return round(float(mine.mean())) if mine.size else 0
