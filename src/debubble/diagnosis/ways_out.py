"""Ways out: what would make a run faster at the global batch it has, each simulated on its own costs."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ..schedules.catalog import CATALOG
from .edits import (
    balanced_stages,
    fewer_stages,
    finer_microbatches,
    more_microbatches,
    other_schedule,
    without_transfer,
)
from .replay import Replay, WhatIf, tried

GOOD_IDLE_SHARE = 0.1  # what "enough micro-batches" means here
WORTH = 1.01  # less is not worth a row
OTHERS_SHOWN = 2  # other schedules, the best; interleaving always, because every framework has it
COMMON = "interleaved with"


def ways_out(run: Replay) -> list[WhatIf]:
    """Changes that hold the global batch, the best first; those that gain less than a hundredth are left out."""
    recut, reordered, mended = (
        [answer for answer in tried(run, list(changes(run))) if answer.speedup >= WORTH]
        for changes in (_recut, _reordered, _mended)
    )
    reordered = list({answer.change: answer for answer in reordered}.values())
    shown = reordered[:OTHERS_SHOWN] + [each for each in reordered[OTHERS_SHOWN:] if each.change.startswith(COMMON)][:1]
    return sorted([*recut, *shown, *mended], key=lambda answer: -answer.speedup)


def enough_microbatches(run: Replay) -> int:
    """The fewest micro-batches that bring the order's idle share to a tenth, by bubble ratio ~ 1/m."""
    now = run.schedule.microbatches
    again = run.again()
    return ceil(round(now * again.bubble_ratio * (1 - GOOD_IDLE_SHARE) / GOOD_IDLE_SHARE, 6))


def _recut(run: Replay) -> Iterator[Replay]:
    """The same batch cut another way."""
    now, enough = run.schedule.microbatches, enough_microbatches(run)
    for microbatches in sorted({2 * now, 4 * now, enough}):
        if microbatches > now and (finer := finer_microbatches(run, microbatches)) is not None:
            yield finer
        elif microbatches == enough > now and (more := more_microbatches(run, microbatches)) is not None:
            yield more
    if (fewer := fewer_stages(run)) is not None:
        yield fewer


def _reordered(run: Replay) -> Iterator[Replay]:
    """The same batch in another order."""
    chunks = run.schedule.stages // run.schedule.ranks
    for name in CATALOG:
        for parts in sorted({chunks, 1, 2}):
            if run.schedule.ranks > 1 and (other := other_schedule(run, name, parts)) is not None:
                yield other


def _mended(run: Replay) -> Iterator[Replay]:
    """The same order with a fault of the run removed."""
    yield balanced_stages(run)
    yield without_transfer(run)
