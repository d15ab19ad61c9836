"""Peak memory against micro-batches: what each activation in flight takes, and whether something else grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..schedules.catalog import CATALOG
from ..schedules.closed_form import Even, activations

_GROWS = 1.05  # beyond m = p 1F1B holds no more: a peak this much higher is something else


@dataclass(frozen=True, slots=True, eq=False)
class MemoryFit:
    """Peak memory as base + in flight x each, on the first rank under 1F1B.

    Args:
        in_flight: micro-batches in flight of each row, min(m, p - rank), int64[rows].
        base: bytes that do not depend on them.
        each: bytes of one micro-batch in flight; None where all rows have equally many.
        grows: whether memory still grows where the number in flight does not.
        verdict: in plain words.
    """

    in_flight: NDArray[np.int64]
    base: float
    each: float | None
    grows: bool
    verdict: str

    def bytes(self, in_flight: int) -> float | None:
        """The peak with so many in flight; None where the rows do not tell."""
        return None if self.each is None else self.base + in_flight * self.each


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """The peak memory of a number of micro-batches; ``fits`` is None if nobody said how much there is."""

    microbatches: float
    in_flight: int
    peak_bytes: float | None
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMemory:
    """Peak memory as base + in flight x each; ``bytes_per_in_flight`` is None if all rows have equally many."""

    in_flight: tuple[int, ...]
    base_bytes: float
    bytes_per_in_flight: float | None
    grows_beyond_in_flight: bool
    forecast: tuple[MemoryForecast, ...]


def in_flight(microbatches: NDArray[np.float64], ranks: int, rank: int = 0) -> NDArray[np.int64]:
    """Micro-batches that a rank holds at most under 1F1B: min(m, p - rank) (https://arxiv.org/abs/2006.09503)."""
    return activations(CATALOG["1f1b"], Even(ranks, microbatches), rank).astype(np.int64)


def fit_memory(microbatches: NDArray[np.float64], peak: NDArray[np.float64], ranks: int) -> MemoryFit:
    """Fit the peak of the first rank.

    Args:
        microbatches: per pipeline and step, float64[rows].
        peak: bytes, float64[rows]; infinite where a run died of it.
        ranks: positions in the pipeline.

    Raises:
        InputError: no row with a finite peak.
    """
    lived = np.isfinite(peak)
    if not lived.any():
        raise InputError(Fault("memory", "no row has a finite peak", "give at least one run that lived"))
    held = in_flight(microbatches, ranks)
    beyond = microbatches >= ranks
    ends = np.argsort(microbatches[beyond], kind="stable")
    tail = peak[beyond][ends]
    grows = bool(len(tail) > 1 and tail[-1] > _GROWS * tail[0])
    x, y = held[lived].astype(np.float64), peak[lived]
    each, base = None, float(np.median(y))
    if len(np.unique(x)) > 1:
        away = x - x.mean()
        each = float((away * y).sum() / (away**2).sum())
        base = float(y.mean()) - each * float(x.mean())
    return MemoryFit(held, base, each, grows, _verdict(each, grows=grows, ranks=ranks))


def _verdict(each: float | None, *, grows: bool, ranks: int) -> str:
    if grows:
        return (
            f"grows with m beyond p = {ranks}, where 1F1B holds no more micro-batches: "
            "per-micro-batch buffers are retained (a bug), or the batch grew"
        )
    if each is None:
        return "all rows have equally many micro-batches in flight: what each takes cannot be told"
    return (
        f"1F1B in-flight growth until m = p = {ranks}, not a leak: {each / 1e9:.2f} GB for each micro-batch in flight"
    )


def growth(memory: MemoryFit, ranks: int, asked: Sequence[float], capacity: int | None) -> FittedMemory:
    """A fit with forecasts, as results hold it.

    Args:
        memory: the fit.
        ranks: positions in the pipeline.
        asked: numbers of micro-batches to foretell.
        capacity: bytes of a device; None if nobody said.
    """
    held = in_flight(np.array(asked, np.float64), ranks)
    forecast = []
    for m, flying in zip(asked, held.tolist(), strict=True):
        peak = memory.bytes(flying)
        fits = None if capacity is None or peak is None else peak <= capacity
        forecast.append(MemoryForecast(m, flying, peak, fits))
    return FittedMemory(
        in_flight=tuple(memory.in_flight.tolist()),
        base_bytes=memory.base,
        bytes_per_in_flight=memory.each,
        grows_beyond_in_flight=memory.grows,
        forecast=tuple(forecast),
    )
