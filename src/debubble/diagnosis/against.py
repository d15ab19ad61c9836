"""Two schedules with the same links, each under its engine: which is faster, by what, and where that turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ..core.costs import Rates, costs_of
from ..core.errors import Fault, InputError
from ..core.program import Program
from ..core.results import HIDDEN, Result
from ..core.schedule import Schedule
from ..core.simulate import simulate_many
from ..core.units import MILLISECOND, duration, hops, percent
from .simulated import Show

_CLOSE_NS = 1_000  # to which the hop is told at which two schedules are as fast as each other
_EVEN = 5e-4  # shares that differ by less are written alike


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Both schedules with one hop on the link.

    Args:
        transfer_ms: of the link that is swept.
        makespan_ms: of the first schedule.
        against_ms: of the other.
    """

    transfer_ms: float
    makespan_ms: float
    against_ms: float


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Against(Result):
    """Two schedules side by side.

    Args:
        schedule: name of the first.
        against: name of the other.
        engine: who executes both, or one and the other, as in ``megatron,zero-bubble``.
        makespan_ms: of the first, with the hops that were given.
        against_ms: of the other.
        speedup: the other over the first: above 1 the first is faster.
        link: that is swept, as in ``6-7``; None if none is.
        sweep: both for each hop on that link.
        crossover_ms: the least hop of the sweep from which on the other one is the faster; None if it never changes.
        differences: what differs, a sentence each.
        first: all that is said of the first.
        other: all that is said of the other.
    """

    schema: ClassVar[str] = "show-against/1"

    schedule: str
    against: str
    engine: str
    makespan_ms: float
    against_ms: float
    speedup: float | None
    link: str | None
    sweep: tuple[SweepPoint, ...]
    crossover_ms: float | None
    differences: tuple[str, ...]
    first: Show = field(metadata=HIDDEN)
    other: Show = field(metadata=HIDDEN)


def against(first: Show, other: Show, link: tuple[int, int] | None = None, swept: Sequence[float] = ()) -> Against:
    """Hold one schedule against another.

    Args:
        first: simulated.
        other: simulated, at the same rates.
        link: two ranks, the hop between which is swept.
        swept: hops to try, nanoseconds, ascending.

    Raises:
        InputError: the link is none of either schedule, or hops were given by boundary.
    """
    if link is not None and hops(first.rates.transfer).boundaries:
        rule = "a sweep changes the hop of one link, named by its ranks"
        raise InputError(Fault(f"transfer = {first.rates.transfer} beside --sweep", rule, "give transfers by link"))
    points: tuple[SweepPoint, ...] = ()
    crossover = None
    if link is not None:
        sides = (_windows(first, link), _windows(other, link))
        mine, theirs = (window(swept) for window in sides)
        points = tuple(
            SweepPoint(hop / MILLISECOND, one / MILLISECOND, two / MILLISECOND)
            for hop, one, two in zip(swept, mine, theirs, strict=True)
        )
        crossover = _crossover(swept, mine, theirs, sides)
    return Against(
        schedule=first.schedule,
        against=other.schedule,
        engine=",".join(dict.fromkeys([first.engine, other.engine])),
        makespan_ms=first.makespan_ms,
        against_ms=other.makespan_ms,
        speedup=other.makespan_ms / first.makespan_ms if first.makespan_ms else None,
        link=None if link is None else f"{link[0]}-{link[1]}",
        sweep=points,
        crossover_ms=None if crossover is None else crossover / MILLISECOND,
        differences=tuple(_differences(first, other)),
        first=first,
        other=other,
    )


Windows = Callable[[Sequence[float]], list[int]]


def _windows(shown: Show, link: tuple[int, int]) -> Windows:
    """The window of a schedule for each of some hops on a link, nanoseconds; all in one sweep."""

    def windows(swept: Sequence[float]) -> list[int]:
        return _simulated(shown.timeline.program, shown.order, shown.rates, link, swept)

    return windows


def _simulated(
    program: Program, order: Schedule, rates: Rates, link: tuple[int, int], swept: Sequence[float]
) -> list[int]:
    costs = [costs_of(replace(rates, transfer=hops(rates.transfer).with_pair(*link, hop)), order) for hop in swept]
    found: list[int] = simulate_many(program, costs).tolist()
    return found


def _crossover(
    swept: Sequence[float], mine: Sequence[int], theirs: Sequence[int], sides: tuple[Windows, Windows]
) -> float | None:
    """The first hop at which the order of the two turns, to a microsecond; windows are continuous in the hop."""
    ahead = np.sign(np.array(theirs) - np.array(mine))
    known = np.flatnonzero(ahead)
    turns = np.flatnonzero(ahead[known[1:]] != ahead[known[:-1]])
    if not len(turns):
        return None
    low, high = swept[int(known[turns[0]])], swept[int(known[turns[0] + 1])]
    side = ahead[known[turns[0]]]
    while high - low > _CLOSE_NS:
        middle = (low + high) / 2
        one, two = (window([middle])[0] for window in sides)
        low, high = (middle, high) if np.sign(two - one) == side else (low, middle)
    return high


def _differences(first: Show, other: Show) -> Iterator[str]:
    """What differs between two schedules, the most telling first."""
    ratio = other.makespan_ms / first.makespan_ms if first.makespan_ms else 1.0
    if abs(ratio - 1) < _EVEN:
        yield f"{first.schedule} and {other.schedule} take the same time."
    else:
        faster, slower = (first, other) if ratio > 1 else (other, first)
        share = slower.makespan_ms / faster.makespan_ms - 1
        if first.engine == other.engine:
            yield f"{faster.schedule} is {percent(share)} faster than {slower.schedule} under {first.engine}."
        else:
            than = f"{slower.schedule} under {slower.engine}"
            yield f"{faster.schedule} under {faster.engine} is {percent(share)} faster than {than}."
    if abs(first.idle_share - other.idle_share) >= _EVEN:
        yield f"Idle share: {first.schedule} {percent(first.idle_share)}, {other.schedule} {percent(other.idle_share)}."
    moved = [sum(rank.transfer_ms for rank in shown.per_rank) / shown.ranks for shown in (first, other)]
    if max(moved) > _EVEN * first.makespan_ms:
        one, two = (duration(each * MILLISECOND) for each in moved)
        yield f"Transfers that a rank waits for, on average: {first.schedule} {one}, {other.schedule} {two}."
    peaks = [max(rank.peak_activations for rank in shown.per_rank) for shown in (first, other)]
    if peaks[0] != peaks[1]:
        yield f"Most activations on a rank: {first.schedule} {peaks[0]:g}, {other.schedule} {peaks[1]:g} micro-batches."
