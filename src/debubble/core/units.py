"""Quantities as people write them, ``20ms`` and ``16GiB``, and counts and shares as they read them, ``27.3 %``.

A duration of links is one value for all, or some links by name:

    2ms              every hop
    1ms,6-7=30ms     every hop but those between ranks 6 and 7, in both directions
    6-7=30ms         those alone; the others are free
    0,0,5ms          one for each boundary of stages, from the first on (p v - 1 of them)

No arrays here: the command line reads quantities before it needs any.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from .errors import Fault, InputError

MILLISECOND = 1_000_000  # nanoseconds: what all durations are held in, and what people are told

_NANOSECONDS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "": 1e6, "s": 1e9, "min": 60e9}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_QUANTITY = re.compile(r" *([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)? *([a-zµ]*) *", re.IGNORECASE)

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# A small b is a bit and a large one a byte, as network cards and links are sold.
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(bit|bps|b|B)(?:/s|ps)?(?<![kKmMgGtT ]B)")
_PAIR = re.compile(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*=(.*)")
_MOST = 1_000_000  # values that anybody writes out: one for each boundary of the deepest pipeline, and room


def nanoseconds(text: str, name: str = "duration") -> float:
    """Read ``20ms``, ``35us``, ``1.5s``; a bare number is milliseconds.

    Args:
        text: what was given.
        name: whose value it is, for the error.

    Raises:
        InputError: not a finite number of at least 0 with a unit of time.
    """
    value = _quantity(text, _NANOSECONDS)
    if value is None:
        rule = "a duration is a number, not below 0, with ns, us, ms, s or min behind it (alone it is ms)"
        raise InputError(Fault(f"{name} = {text}", rule, "write it as in 20ms"))
    return value


def count_bytes(text: str, name: str = "size") -> int:
    """Read ``80GB`` (powers of 1000) or ``16GiB`` (powers of 1024); a bare number is bytes.

    Args:
        text: what was given.
        name: whose value it is, for the error.

    Raises:
        InputError: not a finite number of at least 0 with a unit of size.
    """
    value = _quantity(text, _BYTES)
    if value is None:
        rule = "a size is a number, not below 0, with kB, MB, GB, TB or KiB, MiB, GiB, TiB behind it"
        raise InputError(Fault(f"{name} = {text}", rule, "write it as in 80GB"))
    return round(value)


def byte_rate(text: str, name: str = "rate") -> float:
    """Read bytes a second from ``10GB/s``, ``400Gb/s`` (bits, of which 8 are a byte), or a size that is meant a second.

    Args:
        text: what was given.
        name: whose value it is, for the error.

    Raises:
        InputError: not a finite number of at least 0 with a unit.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None:
        return float(count_bytes(text, name))
    number, prefix, unit = found.groups()
    given = float(number) * _PREFIXES[prefix.lower()]
    if unit.startswith("b"):  # bit, bps, b
        return given / 8
    return given


def percent(share: float) -> str:
    """A share with one digit behind the point; in words where there is no work of which it could be one."""
    if not math.isfinite(share):
        return "none: no work"
    return f"{round(100 * share, 1) or 0.0:.1f} %"  # `or`: what rounds to -0.0 is printed without its sign


def duration(nanoseconds: float) -> str:
    """A duration in the unit that suits it, to four digits: ``33 ms``, ``4.512 s``, ``17 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{_four_digits(nanoseconds / size)} {unit}"
    if not nanoseconds:
        return "0 ms"  # nothing has no unit of its own; people set durations in ms
    return f"{_four_digits(nanoseconds)} ns"


def counted(number: float, noun: str) -> str:
    """A number with its noun, in the plural but for one: ``4 ranks``, ``1 micro-batch``."""
    if number == 1:
        return f"1 {noun}"
    plural = "es" if noun.endswith("ch") else "s"  # batches, ranks
    return f"{number:g} {noun}{plural}"


def _quantity(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[3].lower() not in units:
        return None
    value = float(match[1] + (match[2] or "")) * units[match[3].lower()]
    if not math.isfinite(value):  # 1e999 matches, and is infinite
        return None
    return value


def _four_digits(number: float) -> str:
    if abs(number) >= 1000:  # .4g would write 1.234e+04
        return f"{number:,.0f}"
    return f"{number:.4g}"


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
        said = [f"{one}-{other} {duration(value)}" for one, other, value in self.pairs]
        if self.default or not said:  # links that are not named are free unless it is said
            said.insert(0, duration(self.default))
        return ", ".join(said)

    def with_pair(self, one: int, other: int, value: float) -> Hops:
        """The same with another value for the link between two ranks."""
        kept = tuple(pair for pair in self.pairs if {*pair[:2]} != {one, other})
        return Hops(self.default, (*kept, (one, other, value)))


def hops(value: float | Hops) -> Hops:
    """One value as that of every link."""
    if isinstance(value, Hops):
        return value
    return Hops(value)


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
    if len(parts) > _MOST:
        raise InputError(Fault(f"{name} = {text[:40]}..", f"at most {_MOST:,} values are read", "give fewer"))
    faults: list[Fault] = []
    values, pairs = [], []
    for part in parts:
        if match := _PAIR.fullmatch(part):
            pairs.append(_named(match, name, read, faults))
        elif "=" in part:
            value = f"{name} = {part.strip()[:60]}"
            faults.append(Fault(value, "a link is two ranks, by their numbers", "write it as in 6-7=30ms"))
        else:
            values.append(_value(part, name, read, faults))
    if pairs and len(values) > 1:
        rule = "one value is that of all links that are not named"
        faults.append(Fault(f"{name} = {text[:60]}", rule, "write it as in 1ms,6-7=30ms"))
    twice = {frozenset(pair[:2]) for pair in pairs}
    if len(twice) < len(pairs):
        faults.append(Fault(f"{name} = {text[:60]}", "each link is named once, for both directions", "leave one out"))
    if faults:
        raise InputError(*faults)
    if pairs:
        default = sum(values)  # of the one value there is, or of none
        return Hops(default, tuple(pairs))
    if len(values) > 1:
        return Hops(boundaries=tuple(values))
    return values[0]


def _value(text: str, name: str, read: Callable[[str, str], float], faults: list[Fault]) -> float:
    try:
        return read(text.strip(), name)
    except InputError as error:
        faults += error.faults  # kept, so that all faults of the list are told at once
        return math.nan


def _named(
    match: re.Match[str], name: str, read: Callable[[str, str], float], faults: list[Fault]
) -> tuple[int, int, float]:
    one, other = int(match[1]), int(match[2])
    link = f"{name} {one}-{other}"
    if one == other:
        faults.append(Fault(link, "a link joins two ranks", "write it as in 6-7=30ms"))
    return one, other, _value(match[3], link, read, faults)
