"""Idle shares of schedules whose stages are even: by closed form where there is one, else by simulation."""

from __future__ import annotations

from functools import lru_cache

from ..core.account import account
from ..core.costs import Rates, costs_of
from ..core.errors import InputError
from ..core.lower import lower
from ..core.schedule import Shape
from ..core.simulate import simulate
from ..schedules.catalog import build

MOST_OPS = 400_000  # half a second of simulation
MOST_ROUNDS = 16  # times as many micro-batches as ranks: 1F1B idles for 6 %
_PLAIN = ("1f1b", "gpipe", "eager-1f1b")


@lru_cache(maxsize=4096)
def idle_share(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> float | None:
    """Idle over ranks x window with B = 2 F, even stages and free transfers.

        gpipe, 1f1b     (p-1)/(m+p-1)
        interleaved     (p-1)/(v m+p-1), m a multiple of p

    Returns:
        0 to 1; None where the schedule does not suit the shape, or would take too long to simulate.
    """
    if ranks == 1:
        return 0.0
    if schedule in _PLAIN and chunks == 1:
        return (ranks - 1) / (microbatches + ranks - 1)
    if schedule == "interleaved" and microbatches % ranks == 0:
        return (ranks - 1) / (chunks * microbatches + ranks - 1)
    return _simulated(schedule, ranks, microbatches, chunks)


def exact(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> bool:
    """Whether ``idle_share`` is a closed form."""
    return (
        ranks == 1 or (schedule in _PLAIN and chunks == 1) or (schedule == "interleaved" and not microbatches % ranks)
    )


def _simulated(schedule: str, ranks: int, microbatches: int, chunks: int) -> float | None:
    if 2 * ranks * microbatches * chunks > MOST_OPS:
        return None
    group = _group(ranks, microbatches) if schedule == "interleaved" else None
    if schedule == "interleaved" and group is None:
        return None
    try:
        order = build(schedule, Shape(ranks, microbatches, chunks, group=group))
    except InputError:
        return None
    return account(simulate(lower(order), costs_of(Rates(), order))).idle_share


def _group(ranks: int, microbatches: int) -> int | None:
    """The smallest group of micro-batches that Megatron-LM takes."""
    return next((n for n in range(ranks, microbatches + 1) if not 0 < microbatches % n < ranks), None)


@lru_cache(maxsize=4096)
def enough(schedule: str, ranks: int, share: float, chunks: int = 1) -> int | None:
    """Least micro-batches at which a schedule of even stages idles for ``share`` or less.

    By closed form where there is one; else the first that does in a search that doubles multiples of the ranks, then
    halves: more micro-batches never idle for longer.

    Returns:
        None where ``MOST_ROUNDS`` times as many as ranks do not suffice, or cannot be simulated.
    """
    if ranks == 1 or (schedule in _PLAIN and chunks == 1) or schedule == "interleaved":
        return least_microbatches(ranks, share, chunks if schedule == "interleaved" else 1)

    def idles(many: int) -> bool:
        found = idle_share(schedule, ranks, many, chunks)
        return found is None or found > share

    high = ranks
    while idles(high):
        high *= 2
        if high > MOST_ROUNDS * ranks:
            return None
    low = high // 2 if high > ranks else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if idles(middle) else (low, middle)
    return high


def least_microbatches(ranks: int, share: float, chunks: int = 1) -> int:
    """Micro-batches at which 1F1B, or interleaved with chunks, idles for ``share`` or less: 27 for p=4, 10 %."""
    if ranks == 1:
        return 1
    exact_number = (ranks - 1) * (1 - share) / share / chunks
    least = max(1, -int(-exact_number // 1)) if exact_number % 1 > 1e-9 else max(1, round(exact_number))
    return -(-least // ranks) * ranks if chunks > 1 else least
