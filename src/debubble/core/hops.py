"""Hops: how long each link of a pipeline takes, one value for all or some links by name.

2ms              every hop
1ms,6-7=30ms     every hop but those between ranks 6 and 7, in both directions
6-7=30ms         those alone; the others are free
0,0,5ms          one for each boundary of stages, from the first on (p v - 1 of them)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from .errors import Fault, InputError
from .units import duration

_PAIR = re.compile(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*=(.*)")
_MOST = 1_000_000  # values that anybody writes out


@dataclass(frozen=True, slots=True)
class Hops:
    """A value for each link, in nanoseconds or in the unit of whoever reads it.

    Args:
        default: of every link that is not named.
        pairs: two ranks and the value of the link between them, in both directions.
        boundaries: one value for each boundary of stages, from the first on; empty where links are named by ranks.
    """

    default: float = 0.0
    pairs: tuple[tuple[int, int, float], ...] = ()
    boundaries: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        """Whether any link has another value than 0."""
        return any(self.values())

    def values(self) -> tuple[float, ...]:
        """Every value that occurs."""
        return self.boundaries or (self.default, *(value for *_, value in self.pairs))

    def __str__(self) -> str:
        """As people write durations of links, ``1 ms, 6-7 30 ms``."""
        if self.boundaries:
            return ", ".join(map(duration, self.boundaries))
        named = [f"{one}-{other} {duration(value)}" for one, other, value in self.pairs]
        return ", ".join(([duration(self.default)] if self.default or not named else []) + named)

    def with_pair(self, one: int, other: int, value: float) -> Hops:
        """The same with another value for the link between two ranks."""
        kept = tuple(pair for pair in self.pairs if {*pair[:2]} != {one, other})
        return Hops(self.default, (*kept, (one, other, value)))


def hops(value: float | Hops) -> Hops:
    """One value as that of every link."""
    return value if isinstance(value, Hops) else Hops(value)


def read_hops(text: str, name: str, read: Callable[[str, str], float]) -> float | Hops:
    """Read the grammar above.

    Args:
        text: what was given.
        name: whose value it is, for the error.
        read: reads one value, and names what is wrong with it.

    Returns:
        A number where every hop takes the same, else the value of each link.

    Raises:
        InputError: with every fault that it has.
    """
    parts = text.split(",")
    named = [match for part in parts if (match := _PAIR.fullmatch(part))]
    plain = [part for part in parts if not _PAIR.fullmatch(part)]
    faults: list[Fault] = []
    if len(parts) > _MOST:
        faults.append(Fault(f"{name} = {text[:40]}..", f"at most {_MOST:,} values are read", "give fewer"))
        raise InputError(*faults)
    values = [_value(part, name, read, faults) for part in plain]
    pairs = [_named(match, name, read, faults) for match in named]
    if named and len(plain) > 1:
        rule = "one value is that of all links that are not named"
        faults.append(Fault(f"{name} = {text[:60]}", rule, "write it as in 1ms,6-7=30ms"))
    twice = {frozenset(pair[:2]) for pair in pairs}
    if len(twice) < len(pairs):
        faults.append(Fault(f"{name} = {text[:60]}", "each link is named once, for both directions", "leave one out"))
    if faults:
        raise InputError(*faults)
    if named:
        return Hops(values[0] if values else 0.0, tuple(pairs))
    return values[0] if len(values) == 1 else Hops(boundaries=tuple(values))


def _value(text: str, name: str, read: Callable[[str, str], float], faults: list[Fault]) -> float:
    try:
        return read(text.strip(), name)
    except InputError as error:
        faults += error.faults
        return math.nan


def _named(
    match: re.Match[str], name: str, read: Callable[[str, str], float], faults: list[Fault]
) -> tuple[int, int, float]:
    one, other = int(match[1]), int(match[2])
    link = f"{name} {one}-{other}"
    if one == other:
        faults.append(Fault(link, "a link joins two ranks", "write it as in 6-7=30ms"))
    return one, other, _value(match[3], link, read, faults)
