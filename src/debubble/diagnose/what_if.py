"""What if: changes tried on a measured run, per sample, the best first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedules.catalog import CATALOG
from .causes import Causes
from .edits import balanced_stages, cured_rank, more_microbatches, other_schedule, without_transfer
from .replay import Replay, WhatIf, tried

TRUSTED = 0.1  # no what-if where simulating the run again misses its window by more than this share
SMALL = 0.01  # causes below this share of the window are not worth a what-if
HEAVY = 1.05  # a rank with more than this times the mean work of the others stands out
SHOWN = 3  # other schedules


def what_ifs(run: Replay, causes: Causes) -> list[WhatIf]:
    """Every change that is worth a line, the best first; none where the replay cannot be trusted."""
    if abs(causes.resim_ratio - 1) > TRUSTED:
        return []
    mends = tried(run, list(_mended(run, causes)))
    recut = tried(run, list(_recut(run)))
    orders = _distinct(answer for answer in tried(run, list(_reordered(run))) if answer.speedup > 1 + SMALL)
    return sorted([*mends, *recut, *orders[:SHOWN], *_best_two(run, causes)], key=lambda answer: -answer.speedup)


def heaviest(run: Replay) -> tuple[int, float]:
    """The rank with most work, and its work over the mean of the others (1 where there are none)."""
    spent = run.tables[0][run.schedule.kind, run.schedule.stage, run.schedule.unit]
    work = np.bincount(run.schedule.rank_of(), spent, run.schedule.ranks)
    rank = int(work.argmax())
    others = np.delete(work, rank)
    return rank, float(work[rank] / others.mean()) if others.size and others.any() else 1.0


def _mended(run: Replay, causes: Causes) -> Iterator[Replay]:
    rank, factor = heaviest(run)
    if causes.imbalance > SMALL * causes.window:
        yield balanced_stages(run)
        if factor > HEAVY and (cured := cured_rank(run, rank)) is not None:
            yield cured
    if causes.transfer > SMALL * causes.window:
        yield without_transfer(run)


def _recut(run: Replay) -> Iterator[Replay]:
    for times in (2, 4):
        if (more := more_microbatches(run, times * run.schedule.microbatches)) is not None:
            yield more


def _reordered(run: Replay) -> Iterator[Replay]:
    chunks = run.schedule.stages // run.schedule.ranks
    for name in CATALOG:
        for parts in sorted({chunks, 1, 2}):
            if run.schedule.ranks > 1 and (other := other_schedule(run, name, parts)) is not None:
                yield other


def _best_two(run: Replay, causes: Causes) -> list[WhatIf]:
    """The dearest fault mended, with four times the micro-batches."""
    if max(causes.imbalance, causes.transfer) <= SMALL * causes.window:
        return []
    mended = balanced_stages(run) if causes.imbalance >= causes.transfer else without_transfer(run)
    both = more_microbatches(mended, 4 * run.schedule.microbatches)
    return tried(run, [both]) if both is not None else []


def _distinct(answers: Iterator[WhatIf]) -> list[WhatIf]:
    """One answer for each change; of orders that are equally fast and equally large only the first."""
    seen: dict[tuple[float, float], WhatIf] = {}
    for answer in answers:
        seen.setdefault((round(answer.speedup, 4), round(answer.activations_ratio, 2)), answer)
    return list(seen.values())
