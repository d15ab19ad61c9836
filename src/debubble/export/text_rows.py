"""Lines of text made from columns, thousands at once: a file of a million events without a Python object for each.

A line is a sequence of parts, laid out side by side in a table of bytes with a row a line:

    b'{"ts":'   Digits(start)   b',"name":"'   Words(("F", "B"), kind)   b'"}'

Every part is as wide as its widest text; what a shorter one leaves free stays a zero byte, and zero bytes are taken out
of the whole table at the end in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

BATCH = 1 << 15  # lines laid out at once: some megabytes, which stay in a processor's cache
_GROUP = 10_000  # four digits are looked up together: a division for each digit would cost three times as much
_DIGITS = np.array([f"{number:04}" for number in range(_GROUP)], "S4").view(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Whole numbers in decimal, at least 0.

    Args:
        values: integers[lines].
        width: digits that are always written, with zeros in front; by default as many as a number has.
    """

    values: NDArray[np.integer]
    width: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """One of some words.

    Args:
        words: ASCII, each without a zero byte.
        which: integers[lines], the number of the word.
    """

    words: Sequence[str]
    which: NDArray[np.integer]


Part = bytes | Digits | Words


def microseconds(nanoseconds: NDArray[np.int64]) -> tuple[Part, ...]:
    """Microseconds with three decimals, exact to the nanosecond."""
    whole = nanoseconds // 1000
    return Digits(whole), b".", Digits(nanoseconds - 1000 * whole, 3)


def lines(parts: Sequence[Part], count: int) -> Iterator[bytes]:
    """The text of so many lines, a batch at a time; a line ends where its parts do."""
    for first in range(0, count, BATCH):
        rows = slice(first, min(first + BATCH, count))
        tables = [_table(part, rows) for part in parts]
        laid = np.empty((rows.stop - first, sum(table.shape[1] for table in tables)), np.uint8)
        left = 0
        for table in tables:
            laid[:, left : left + table.shape[1]] = table
            left += table.shape[1]
        yield laid.tobytes().translate(None, b"\0")


def _table(part: Part, rows: slice) -> Bytes:
    """One part of each line, uint8[lines or 1, width]."""
    if isinstance(part, bytes):
        return np.frombuffer(part, np.uint8)[None]
    if isinstance(part, Words):
        words = np.array([word.encode("ascii") for word in part.words], "S")
        letters: Bytes = words.view(np.uint8).reshape(len(words), -1)[part.which[rows]]
        return letters
    return _decimal(part.values[rows], part.width)


def _decimal(values: NDArray[np.integer], width: int) -> Bytes:
    """Numbers as digits, right-aligned; a zero byte for each leading zero that is not asked for."""
    longest = max(len(str(int(values.max(initial=0)))), width)
    groups = -(-longest // 4)
    fours = np.empty((len(values), groups), np.uint32)
    rest = values.astype(np.uint64)
    for column in range(groups - 1, -1, -1):
        above = rest // _GROUP
        fours[:, column] = _DIGITS[rest - above * _GROUP]
        rest = above
    digits = fours.view(np.uint8)[:, 4 * groups - longest :]
    for column in range(longest - width):
        digits[:, column] *= values >= 10 ** (longest - 1 - column)
    return digits
