"""Mending JSON that profilers write and no parser takes: NaN, control characters, bad escapes, log lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_NOT_A_NUMBER = re.compile(rb"(?<=[:\[,])\s*[-+]?(?:NaN|nan|Infinity|inf|Inf)\b")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LOG_LINE = re.compile(rb"(?m)^(?:INFO|WARN|WARNING|ERROR|DEBUG|STAGE)[ :][^\n]*$")
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_NESTED = 8  # pieces that are tried as one event, where lists of objects stand inside it


def mended(text: bytes) -> bytes:
    """The same JSON without what parsers refuse; what it says stays the same, but for the unreadable characters.

    NaN and infinities become null, control characters spaces, bytes that are no UTF-8 the replacement character,
    backslashes that escape nothing plain backslashes, and log lines between events go.
    """
    text = _LOG_LINE.sub(b"", text).translate(_CONTROL).decode("utf-8", "replace").encode()
    text = rb"\\".join(_BAD_ESCAPE.sub(rb"\\\\", part) for part in text.split(rb"\\"))
    return _NOT_A_NUMBER.sub(b"null", text)


def pieces(text: bytes) -> list[bytes]:
    """Cut a run of events at what looks like the end of one and the start of the next."""
    return _BETWEEN.split(text)


def joins(parts: Sequence[bytes], first: int) -> Iterator[tuple[bytes, int]]:
    """What may be the event that begins at a piece: it alone, it with the next, ..; and the piece behind it."""
    for last in range(first + 1, min(first + _NESTED, len(parts)) + 1):
        yield b",".join(parts[first:last]), last
