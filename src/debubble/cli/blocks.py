"""Blocks: tables and sentences that print as plain text or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from textwrap import indent, wrap

from ..drawing.tables import table


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headers; the first ``left`` columns lie to the left."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True, slots=True)
class Sentences:
    """A list of sentences under a title."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Picture:
    """Text that keeps its shape."""

    title: str
    text: str


Block = Table | Sentences | Picture

MARGIN = "  "
_UNIT = re.compile(r"(\d) (%|ms\b|us\b|s\b)")


def text(blocks: Sequence[Block], width: int) -> str:
    """Plain text; sentences are wrapped to ``width`` columns, tables that are wider stand closer."""
    return "\n\n".join(_text(block, width) for block in blocks)


def markdown(blocks: Sequence[Block]) -> str:
    """Markdown for a pull request."""
    return "\n\n".join(_markdown(block) for block in blocks)


def _text(block: Block, width: int) -> str:
    title = [block.title] if block.title else []
    if isinstance(block, Picture):
        return "\n".join([*title, block.text])
    if isinstance(block, Table):
        lines = table(block.headers, block.rows, left=block.left, columns=width - len(MARGIN))
        return "\n".join([*title, indent(lines, MARGIN)])
    return "\n".join([*title, *chain.from_iterable(wrapped(line, width, "  - ", "    ") for line in block.lines)])


def wrapped(line: str, width: int, first: str = "", rest: str = "  ") -> list[str]:
    """Lines of at most ``width`` columns behind these indents; none ends between a number and its unit."""
    bound = _UNIT.sub("\\1\u00a0\\2", line)
    lines = wrap(bound, width, initial_indent=first, subsequent_indent=rest)
    return [part.replace("\u00a0", " ") for part in lines]


def _markdown(block: Block) -> str:
    title = [f"**{_escape(block.title)}**", ""] if block.title else []
    if isinstance(block, Picture):
        return "\n".join([*title, "```", block.text, "```"])
    if isinstance(block, Sentences):
        return "\n".join([*title, *(f"- {_escape(line)}" for line in block.lines)])
    sides = ["---" if column < block.left else "---:" for column in range(len(block.headers))]
    rows = [block.headers, sides, *block.rows]
    return "\n".join([*title, *("| " + " | ".join(map(_escape, row)) + " |" for row in rows)])


def _escape(cell: str) -> str:
    """A name of a run is text, whatever it holds."""
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
