"""Figures: a value and its unit as text, the same in the terminal, in Markdown and on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from ..core.units import duration, percent

EXACT = 1e-9  # what is nearer to its rounded value is that value

Cell = str | int | float | None


class Unit(Enum):
    """What a number is, and so how it is written."""

    TEXT = "text"
    COUNT = "4,096"
    NUMBER = "3.142"  # four digits, as many as a measured time deserves
    TIME = "35 us"  # of milliseconds; the unit that suits it
    MILLISECONDS = "33.0"  # the unit is in the column's title
    SHARE = "27.3 %"
    GAIN = "1.31x"
    RATIO = "1.286"
    GIGABYTES = "68.2"  # of bytes; the unit is in the column's title


def shown(value: Cell, unit: Unit = Unit.TEXT, digits: int = 1) -> str:
    """A value as text: text as it is, nothing as ``-``.

    Args:
        value: what to write.
        unit: what it is.
        digits: after the point, of milliseconds.
    """
    if value is None:
        return "-"
    # Text of a column of numbers is a word for a number that there is not: as it is.
    if isinstance(value, str) or unit is Unit.TEXT:
        return str(value)
    if unit is Unit.SHARE:
        return percent(value)
    if not math.isfinite(value):
        return "-"
    return _number(value, unit, digits)


def span(time_ms: float) -> str:
    """Milliseconds in the unit that suits them, as in ``35 us``."""
    return duration(1e6 * time_ms)


def milliseconds(value: float, digits: int = 1) -> str:
    """Milliseconds without their unit; nothing is never below nothing."""
    return f"{round(value, digits) or 0.0:,.{digits}f}"


def decimals(values: Sequence[float], least: int = 0) -> int:
    """Decimals that show all of these values exactly, if few do, else four digits of the largest."""
    largest = max((abs(value) for value in values), default=0.0)
    # 1e-3: below a thousandth of the unit further decimals are noise, and the logarithm of 0 is none.
    enough = max(least, 3 - int(math.log10(max(largest, 1e-3))))
    # Whole numbers and halves need no zeros behind them.
    for few in range(least, enough):
        if all(abs(round(value, few) - value) <= EXACT for value in values):
            return few
    return enough


def _number(value: float, unit: Unit, digits: int) -> str:
    match unit:
        case Unit.TIME:
            return span(value)
        case Unit.MILLISECONDS:
            return milliseconds(value, digits)
        case Unit.GAIN:
            return f"{value:.2f}x"
        case Unit.RATIO:
            return f"{value:.3f}"
        case Unit.GIGABYTES:
            return f"{value / 1e9:.1f}"
        case Unit.COUNT:
            return f"{value:,.0f}"
    return f"{value:.4g}"
