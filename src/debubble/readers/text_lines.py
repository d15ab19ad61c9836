"""The lines of a text file, plain or gzip, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from .stream import blocks

LONGEST = 1 << 20  # characters of a line that are kept; no table and no log has longer ones


def lines(path: Path, remarks: list[str]) -> Iterator[str]:
    """Yield each line without its end; bytes that are no UTF-8 become the replacement character.

    Args:
        path: what to read.
        remarks: gets a sentence where a gzip file is cut off.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8-sig")("replace"), ""
    for block in blocks(path, remarks):
        *whole, rest = (rest + decoder.decode(block)).split("\n")
        yield from (line.rstrip("\r")[:LONGEST] for line in whole)
        rest = rest[:LONGEST]
    if rest:
        yield rest
