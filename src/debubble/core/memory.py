"""Memory: how many micro-batches' activations each rank holds, read off the order alone."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .op import Kind
from .schedule import Schedule


class Release(Enum):
    """When the activations of a split backward are freed; a full backward always frees them at its end.

    The V papers free them at W; the zero-bubble scheduler frees half at I and half at W; I alone is the optimist.
    """

    W = "w"
    HALF = "half"
    I = "i"  # noqa: E741 - PyTorch's letter


# Change in half activations at the end of I and of W.
FREED = {Release.W: (0, -2), Release.HALF: (-1, -1), Release.I: (-2, 0)}


def peak_activations(schedule: Schedule, release: Release = Release.W) -> NDArray[np.float64]:
    """The most activations that each rank holds at once, in micro-batches of that rank, float64[ranks].

    A chunk counts as 1/chunks of a micro-batch, a slice of a sequence as 1/slices.
    """
    held = np.concatenate([[0], np.cumsum(changes(schedule, release))])  # over all ranks; differences are per rank
    first = schedule.offsets[:-1]
    top = np.zeros(schedule.ranks, np.int64)
    full = np.diff(schedule.offsets) > 0
    if full.any():
        top[full] = np.maximum.reduceat(held[1:], first[full]) - held[first[full]]
    share = 2 * schedule.slices * schedule.chunks_of().max(axis=0)
    peak: NDArray[np.float64] = top / np.maximum(share, 1)
    return peak


def changes(schedule: Schedule, release: Release) -> NDArray[np.int64]:
    """Change in half activations of a chunk (or slice of one) at each op, int64[ops]."""
    if schedule.forward_only:  # inference keeps nothing for a backward
        return np.zeros(len(schedule), np.int64)
    at_i, at_w = FREED[release]
    by_kind = {Kind.F: 2, Kind.I: at_i, Kind.W: at_w, Kind.B: -2}
    return np.array([by_kind[kind] for kind in Kind], np.int64)[schedule.kind]
