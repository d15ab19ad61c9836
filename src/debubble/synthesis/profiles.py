"""Warm-up profiles: 1F1B with a number of warm-up forwards of its own on each rank, and a place for W.

Under an engine that waits, moves of single ops break what two ranks do in step; these moves keep it. With full
backwards there is the first pattern alone, without the W:

    warm-up 2, W behind I       F F  F I W  F I W  ..  I W  I W         the rank sends a gradient, then works on
    warm-up 2, W behind F       F F  F I  F W I  F W I  ..  W  I W      the next F comes in while the gradient goes out

Where a link is slow fewer warm-ups are better, since no gradient travels with their sends: by Little's law rank r needs
the time of a micro-batch from its F there to its I, over the time from one micro-batch to the next (less one).
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from .problem import Problem, Rows

BEHIND_I, BEHIND_F = 0, 1
_HEATS = (2e-2, 1e-2, 5e-3)
_RUN = 600  # changes in one run of annealing
_WARM_UPS = 0.7  # share of changes that are of warm-ups, and not of the place of W
Profile = NDArray[np.int64]


def profiles(problem: Problem, seed: int = 0) -> Generator[Rows, int, None]:
    """Rows without end, by annealing: whoever takes one sends back its objective.

    Args:
        problem: of one stage a rank.
        seed: of the draws.
    """
    draw, m = np.random.default_rng(seed), problem.instance.microbatches
    starts = _starts(problem)
    turn = 0
    while True:
        warm_up = starts[turn % len(starts)]
        place = np.full(len(warm_up), BEHIND_F)
        value = yield _rows(problem, warm_up, place)
        heat = _HEATS[turn // len(starts) % len(_HEATS)]
        for step in range(_RUN):
            other, moved = _changed(warm_up, place, draw)
            np.clip(other, 0, m, out=other)
            found = yield _rows(problem, other, moved)
            if found <= value * (1 - heat * (1 - step / _RUN) * np.log(1 - draw.random())):
                warm_up, place, value = other, moved, found
        turn += 1


def _changed(warm_up: Profile, place: Profile, draw: np.random.Generator) -> tuple[Profile, Profile]:
    """The same with one to three ranks changed: other warm-ups, or the other place of W."""
    other, moved = warm_up.copy(), place.copy()
    for _ in range(1 + draw.integers(3)):
        rank = draw.integers(len(other))
        if draw.random() < _WARM_UPS:
            other[rank] += draw.integers(-2, 3)
        else:
            moved[rank] = 1 - moved[rank]
    return other, moved


def _starts(problem: Problem) -> list[Profile]:
    """1F1B, and as many warm-ups as Little's law asks for, with and without one to spare."""
    instance = problem.instance
    behind = instance.ranks - 1 - np.arange(instance.ranks)
    spent, hop = instance.spent.mean(axis=2), instance.hop.mean(axis=2).sum(axis=0)
    order = np.argsort(instance.placement)
    onward = np.append(instance.hop.mean(axis=2)[0, 1:], 0.0) + instance.hop.mean(axis=2)[1]
    there_and_back = np.cumsum((spent[0] + spent[1] + onward)[::-1])[::-1]
    period = float((spent.sum(axis=0) + hop).max()) or 1.0
    needed = np.ceil(there_and_back / period).astype(np.int64)[order]
    lists = [behind, np.maximum(needed - 1, 0), needed, 2 * behind]
    return [np.minimum(each, instance.microbatches) for each in lists]


def _rows(problem: Problem, warm_up: Profile, place: Profile) -> Rows:
    instance = problem.instance
    stage = np.argsort(instance.placement)
    rows = [
        _row(int(many), instance.microbatches, int(where), split=instance.split) * instance.stages + stage[rank]
        for rank, (many, where) in enumerate(zip(warm_up, place, strict=True))
    ]
    return np.stack(rows).astype(np.int32)


def _row(warm_up: int, microbatches: int, place: int, *, split: bool) -> NDArray[np.int64]:
    """Kinds of one rank: 0 for F, 1 for the gradient, 2 for W."""
    steady = microbatches - warm_up
    gradient = [1, 2] if split else [1]
    if place == BEHIND_I or not split or not steady:
        kinds = [0] * warm_up + ([0, *gradient]) * steady + gradient * warm_up
    else:
        kinds = [0] * warm_up + [0, 1] + [0, 2, 1] * (steady - 1) + [2] + gradient * warm_up
    return np.array(kinds, np.int64)
