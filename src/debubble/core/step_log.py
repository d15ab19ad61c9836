"""A log of steps: what a run said of itself, step by step, whatever framework wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FORWARD = ("forward-compute", "fwd_microstep", "forward_microstep", "forward", "fwd", "pipe_fwd")
BACKWARD = ("backward-compute", "bwd_microstep", "backward_microstep", "backward", "bwd", "pipe_bwd")


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a log: seconds a step, over ranks, the median of its lines.

    Timers are sums over the micro-batches of a step without any order: enough for an imbalance and for a bound of the
    idle share, not for a timeline.

    Args:
        name: as in the log.
        low: on the rank with least, if the log says; else equal to ``high``.
        high: on the rank with most.
    """

    name: str
    low: float
    high: float


def _none() -> NDArray[np.float64]:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """Step times of a log or table, as columns in the order of the file; NaN where a row does not say.

    Args:
        source: the path.
        seconds: of each step (or of a mean of steps), float64[rows].
        batch: samples of all replicas in a step, float64[rows].
        microbatches: per pipeline and step, float64[rows].
        memory: peak bytes, float64[rows]; infinite if the run died of it.
        step: number of the (last) step of a row, float64[rows]; likewise the columns below may be empty.
        ordered: whether rows follow each other as the steps did; those of a table may not.
        tflops: model TFLOP/s of a GPU, float64[rows].
        mfu: model FLOP utilisation, 0 to 1, float64[rows].
        tokens_per_second: of the whole run, float64[rows].
        tokens_per_gpu: tokens per second of a GPU, float64[rows].
        timers: what timers the log holds.
        remarks: what was left out, and how times were told.
    """

    source: str
    seconds: NDArray[np.float64]
    batch: NDArray[np.float64]
    microbatches: NDArray[np.float64]
    memory: NDArray[np.float64]
    step: NDArray[np.float64] = field(default_factory=_none)
    ordered: bool = True
    tflops: NDArray[np.float64] = field(default_factory=_none)
    mfu: NDArray[np.float64] = field(default_factory=_none)
    tokens_per_second: NDArray[np.float64] = field(default_factory=_none)
    tokens_per_gpu: NDArray[np.float64] = field(default_factory=_none)
    timers: tuple[Timer, ...] = ()
    remarks: tuple[str, ...] = ()

    def timer(self, names: Iterable[str]) -> Timer | None:
        """The first timer of one of these names."""
        by_name = {timer.name: timer for timer in self.timers}
        return next((by_name[name] for name in names if name in by_name), None)
