"""Quantities as people write them, ``20ms`` and ``16GiB``, and counts and shares as they read them, ``27.3 %``."""

from __future__ import annotations

import math
import re

from .errors import Fault, InputError

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
    share = 1 / 8 if unit.startswith("b") else 1.0
    return float(number) * _PREFIXES[prefix.lower()] * share


def percent(share: float) -> str:
    """A share with one digit behind the point; in words where there is no work of which it could be one."""
    return f"{round(100 * share, 1) or 0.0:.1f} %" if math.isfinite(share) else "none: no work"


def duration(nanoseconds: float) -> str:
    """A duration in the unit that suits it, to four digits: ``33 ms``, ``4.512 s``, ``17 us``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{_four_digits(nanoseconds / size)} {unit}"
    return f"{_four_digits(nanoseconds)} ns" if nanoseconds else "0 ms"


def counted(number: float, noun: str) -> str:
    """A number with its noun, in the plural but for one: ``4 ranks``, ``1 micro-batch``."""
    plural = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:g} {noun}{plural}"


def _quantity(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[3].lower() not in units:
        return None
    value = float(match[1] + (match[2] or "")) * units[match[3].lower()]
    return value if math.isfinite(value) else None


def _four_digits(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
