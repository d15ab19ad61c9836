"""Figures of a text, and whether they stand in a document of JSON: by their digits, in the unit that they are in."""

import re
from collections.abc import Iterator

UNITS = {"%": (100, 1), "ms": (1,), "us": (1e3,), "ns": (1e6,), "s": (1e-3,), "GB": (1e-9,), "x": (1,)}
PLAIN = (1, 100, 1e3, 1e-3, 1e-9)  # cells whose unit is in the title of their column
FIGURE = re.compile(
    r"(?<![\w.,])((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)( ?(?:%|ms|us|ns|GB|x|s)\b|%| %)?(?![\w])"
)

OPTION = re.compile(r"--[a-z][\w-]*(?:[ =]\S+)?")


def figures(text: str) -> set[tuple[str, str]]:
    """Digits and unit of each figure of a text; digits in a name, or in an option to be typed, are none."""
    said = OPTION.sub("", text)
    return {(match[1], (match[2] or "").strip()) for match in FIGURE.finditer(said)}


def missing(text: str, document: object) -> set[tuple[str, str]]:
    """Figures of a text that no value of a document rounds to and no string of it holds."""
    values = list(_leaves(document))
    words = " ".join(value for value in values if isinstance(value, str))
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    lengths = {float(len(value)) for value in _lists(document)}
    return {found for found in figures(text) if found[0] not in words and not _held(*found, numbers, lengths)}


def _held(digits: str, unit: str, numbers: list[float], lengths: set[float]) -> bool:
    value = float(digits.replace(",", ""))
    behind = len(digits.partition(".")[2]) if "e" not in digits else 12
    if not unit and value in lengths:
        return True  # a count of rows
    return any(
        round(abs(number) * scale, behind) == value or f"{abs(number) * scale:.4g}" == digits
        for number in numbers
        for scale in UNITS.get(unit, PLAIN)
    )


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _lists(value: object) -> Iterator[list]:
    if isinstance(value, list):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _lists(each)
