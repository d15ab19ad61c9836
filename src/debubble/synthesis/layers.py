"""Layers with the schedule: which stage holds which layers, and in which order ranks work, searched together.

All contiguous splits are ordered by a cheap bound (the work of the heaviest rank, the way there and back); the first
few are solved, and of splits with the same heaviest stage the schedule decides. With more splits than can be listed,
only those next to the lightest heaviest stage are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import combinations, pairwise, product
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.results import Result
from ..core.schedule import KINDS, Kind, Schedule
from .problem import Problem
from .search import Budget
from .synthesis import Engines, Progress, Synthesis, synthesised

SOLVED = 5  # splits that get a search of their own
MOST_SPLITS = 200_000  # that are listed one by one
_WINDOW = 2  # layers by which a boundary may lie off the even split where there are more

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Joint(Result):
    """A split of layers and a schedule, found together.

    Args:
        title: a line.
        split: how many layers each stage holds.
        weights: their weight, stage by stage.
        even_split: as even a number of layers as can be.
        makespan_ms: of the step.
        even_ms: of the even split with a schedule that was searched for it.
        even_known_ms: of the even split with the best schedule of the catalog; None if none is legal.
        split_gain_ratio: what the split gives: ``even_ms`` over ``makespan_ms``.
        schedule_gain_ratio: what the schedule gives on this split: the catalog's best over ``makespan_ms``.
        tried: splits that were solved, and what they took, ms.
        synthesis: the schedule.
        evidence: ``simulated``.
    """

    schema: ClassVar[str] = "synth-layers/1"

    title: str
    split: Blocks
    weights: tuple[float, ...]
    even_split: Blocks
    makespan_ms: float
    even_ms: float
    even_known_ms: float | None
    split_gain_ratio: float
    schedule_gain_ratio: float | None
    tried: tuple[tuple[Blocks, float], ...]
    synthesis: Synthesis
    evidence: str = "simulated"


def jointly(
    layers: tuple[float, ...],
    of_a_layer: tuple[float, float, float],
    shape: Schedule,
    problem: Callable[[NDArray[np.int64]], Problem],
    asked: tuple[Budget, Engines, Progress | None],
) -> Synthesis | Joint:
    """Search a split and a schedule.

    Args:
        layers: their weights, in order.
        of_a_layer: F, I and W of weight 1, nanoseconds.
        shape: placement and micro-batches.
        problem: the problem of durations of each kind and stage.
        asked: budget for all splits together, engines by name, and who is told of progress.

    Returns:
        Both; the refusal of the search where no order fits.

    Raises:
        InputError: fewer layers than stages.
    """
    stages, (budget, engines, progress) = shape.stages, asked
    if len(layers) < stages:
        rule = f"{stages} stages hold one at least"
        raise InputError(Fault(f"split-layers has {len(layers)} layers", rule, "give more, or fewer ranks"))
    even = _even(len(layers), stages)
    # The even split is always solved too: it is what both contributions are counted from.
    first = nsmallest(SOLVED, _splits(len(layers), stages), key=lambda split: _bound(split, layers, of_a_layer, shape))
    solved = list(dict.fromkeys([*first, even]))
    share = None if budget.evaluations is None else max(1, budget.evaluations // len(solved))
    each = Budget(budget.seconds / len(solved), share, budget.solver)
    found: dict[Blocks, Synthesis] = {}
    for split in solved:
        answer = synthesised(problem(_durations(split, layers, of_a_layer)), each, engines, progress=progress)
        if answer.makespan_ms is None:
            return answer
        found[split] = answer
    best = min(first, key=lambda split: found[split].makespan_ms or 0.0)
    synthesis, base = found[best], found[even]
    spent, even_spent = synthesis.makespan_ms or 0.0, base.makespan_ms or 0.0
    if even_spent < spent:  # the cheap bound may mislead; what was solved decides
        best, synthesis, spent = even, base, even_spent
    return Joint(
        title=f"{len(layers)} layers on {stages} stages, with the schedule",
        split=best,
        weights=tuple(_weights(best, layers)),
        even_split=even,
        makespan_ms=spent,
        even_ms=even_spent,
        even_known_ms=base.best_known_ms,
        split_gain_ratio=even_spent / spent,
        schedule_gain_ratio=None if synthesis.best_known_ms is None else synthesis.best_known_ms / spent,
        tried=tuple((split, answer.makespan_ms or 0.0) for split, answer in found.items()),
        synthesis=synthesis,
    )


def _even(layers: int, stages: int) -> Blocks:
    """As even as can be, the larger stages in the middle, where neither embedding nor head is."""
    small, more = divmod(layers, stages)
    first = (stages - more) // 2
    return tuple(small + (first <= stage < first + more) for stage in range(stages))


def _splits(layers: int, stages: int) -> Iterator[Blocks]:
    """Every contiguous split; of too many to list those near the even one."""
    if comb(layers - 1, stages - 1) <= MOST_SPLITS:
        for cuts in combinations(range(1, layers), stages - 1):
            edges = (0, *cuts, layers)
            yield tuple(stop - start for start, stop in pairwise(edges))
        return
    even = _even(layers, stages)
    for source, target, many in product(range(stages), range(stages), range(1, _WINDOW + 1)):
        moved = list(even)
        moved[source] -= many
        moved[target] += many
        if min(moved) > 0:
            yield tuple(moved)


def _weights(split: Blocks, layers: tuple[float, ...]) -> list[float]:
    edges = np.cumsum([0, *split])
    return [float(sum(layers[start:stop])) for start, stop in pairwise(edges)]


def _bound(split: Blocks, layers: tuple[float, ...], of_a_layer: tuple[float, float, float], shape: Schedule) -> float:
    """Way there + all work of a rank + a way back, the largest over ranks; of equals the lighter sum of squares."""
    forward, gradient, weight = of_a_layer
    weights = np.array(_weights(split, layers))
    home = shape.placement[0]
    way = np.cumsum(weights) - weights
    work = np.bincount(home, weights) * (forward + gradient + weight) * shape.microbatches
    there = np.full(shape.ranks, np.inf)
    np.minimum.at(there, home, way * forward)
    # The way back carries gradients alone; only the first stage's W must follow the last I.
    without_w = work - np.bincount(home, weights) * weight * shape.microbatches
    back = np.full(shape.ranks, np.inf)
    np.minimum.at(back, home, way * gradient + weights[0] * weight)
    longest = max((there + work).max(), (there + without_w + back).max())
    # The tie-break is about a billionth of the bound: it decides between equal ones alone.
    return float(longest * (1 + 1e-9 * float(weights @ weights)))


def _durations(split: Blocks, layers: tuple[float, ...], of_a_layer: tuple[float, float, float]) -> NDArray[np.int64]:
    """Nanoseconds of each kind and stage, int64[kinds, stages, 1]."""
    table = np.zeros((KINDS, len(split), 1), np.int64)
    weights = np.array(_weights(split, layers))
    for kind, spent in zip((Kind.F, Kind.I, Kind.W), of_a_layer, strict=True):
        table[kind, :, 0] = np.rint(weights * spent)
    table[Kind.B] = table[Kind.I] + table[Kind.W]
    return table
