"""What if: changes tried on a measured run, per sample, the best first, and the best of two kinds together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..schedules.catalog import CATALOG
from .causes import Causes
from .edits import (
    balanced_stages,
    cured_rank,
    faster_rank,
    like_lengths,
    more_microbatches,
    other_schedule,
    without_transfer,
)
from .evidence.slow import Slow
from .replay import Replay, WhatIf, tried

TRUSTED = 0.1  # no what-if where simulating the run again misses its window by more than this share
SMALL = 0.01  # causes below this share of the window are not worth a what-if
HEAVY = 1.05  # a rank with more than this times the mean work of the others stands out
TOGETHER = 2  # pairs of changes that are shown

Edit = Callable[[Replay], Replay | None]


def what_ifs(run: Replay, causes: Causes, slow: Sequence[Slow] = ()) -> list[WhatIf]:
    """Every change that is worth a line, the best first; none where the replay cannot be trusted.

    Args:
        run: the median window.
        causes: of it.
        slow: ranks that were found to be slow in the replica of that window.
    """
    if abs(causes.resim_ratio - 1) > TRUSTED:
        return []
    alone = [_answers(run, kind) for kind in (_mends(run, causes, slow), _orders(run), _cuts(run))]
    orders = _distinct(answer for _, answer in alone[1] if answer.speedup > 1 + SMALL)
    rest = [answer for kind in (alone[0], alone[2]) for _, answer in kind]
    found = [*rest, *orders, *_together(run, alone)]
    return sorted(found, key=lambda answer: -answer.speedup)


def _answers(run: Replay, edits: Iterator[Edit]) -> list[tuple[Edit, WhatIf]]:
    """Each edit that can be made, with what it brings."""
    changed = [(edit, replay) for edit in edits if (replay := edit(run)) is not None]
    return [(edit, tried(run, [replay])[0]) for edit, replay in changed]


def heaviest(run: Replay) -> tuple[int, float]:
    """The rank with most work, and its work over the mean of the others (1 where there are none)."""
    work = work_of_ranks(run)
    rank = int(work.argmax())
    others = np.delete(work, rank)
    return rank, float(work[rank] / others.mean()) if others.size and others.any() else 1.0


def work_of_ranks(run: Replay) -> NDArray[np.float64]:
    """F, I, W and B work of each rank, float64[ranks], nanoseconds."""
    spent = run.tables[0][run.schedule.kind, run.schedule.stage, run.schedule.unit]
    return np.bincount(run.schedule.rank_of(), spent, run.schedule.ranks).astype(np.float64)


def _mends(run: Replay, causes: Causes, slow: Sequence[Slow]) -> Iterator[Edit]:
    rank, factor = heaviest(run)
    yield from (partial(faster_rank, rank=each.rank, factor=each.factor) for each in slow[:1])
    if causes.imbalance > SMALL * causes.window:
        yield balanced_stages
        if factor > HEAVY:
            yield partial(cured_rank, rank=rank)
    if causes.variation > SMALL * causes.window:
        yield like_lengths
    if causes.transfer > SMALL * causes.window:
        yield without_transfer


def _orders(run: Replay) -> Iterator[Edit]:
    """Every schedule of the catalog that is legal there."""
    chunks = run.schedule.stages // run.schedule.ranks
    for name in CATALOG if run.schedule.ranks > 1 else ():
        for parts in sorted({chunks, 1, 2}):
            yield partial(other_schedule, name=name, chunks=parts)


def _cuts(run: Replay) -> Iterator[Edit]:
    for times in (2, 4):
        yield partial(more_microbatches, microbatches=times * run.schedule.microbatches)


def _together(run: Replay, alone: Sequence[Sequence[tuple[Edit, WhatIf]]]) -> list[WhatIf]:
    """The best change of each kind that can be done, two by two; pairs that beat both of their parts."""
    can = [[each for each in kind if not each[1].bound and each[1].speedup > 1 + SMALL] for kind in alone]
    best = [max(kind, key=lambda each: each[1].speedup) for kind in can if kind]
    found = []
    for (first, one), (second, other) in combinations(best, 2):
        changed = first(run)
        both = second(changed) if changed is not None else None
        if both is not None:
            found += [each for each in tried(run, [both]) if each.speedup > max(one.speedup, other.speedup)]
    return sorted(found, key=lambda answer: -answer.speedup)[:TOGETHER]


def _distinct(answers: Iterator[WhatIf]) -> list[WhatIf]:
    """One answer for each change; of orders that are equally fast and equally large only the first."""
    seen: dict[tuple[float, float], WhatIf] = {}
    for answer in answers:
        seen.setdefault((round(answer.speedup, 4), round(answer.activations_ratio, 2)), answer)
    return list(seen.values())
