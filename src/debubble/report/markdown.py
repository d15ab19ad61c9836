"""Reports as Markdown, for a pull request or an issue; whatever is a name in the data stays a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..drawing.terminal import timeline_text
from .sections import MOST_RANKS, Figures, Parts, Paste, Picture, Ranks, Report, Section, Sentences, Table

WIDTH = 100  # columns of pictures: what a pull request shows without a scroll bar
_MARKS = re.compile(r"([\\`*\[\]|])")
# A block of code ends at a fence as long as its own.
_FENCE = re.compile(r"`{3,}")


def markdown(report: Report) -> str:
    """A report as Markdown."""
    blocks = [_bold(report.title), _listed(report.verdict)]
    for section in report.filled:
        blocks += _blocks(section)
    return "\n\n".join(block for block in blocks if block)


def escaped(text: str) -> str:
    """Text that renders as itself: no tag, no link, no emphasis, no cell of a table ends in it."""
    # One line: a line break would end a cell or begin a heading. & goes first, or it would escape the escapes.
    return _MARKS.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def _blocks(section: Section) -> list[str]:
    """Title and body of a section; those that are empty are left out."""
    match section:
        case Figures():
            figures = (*section.figures, *section.beside)
            rows = [[figure.name, figure.text, figure.what, figure.evidence] for figure in figures]
            return [_table(["", "", "", "evidence"], rows, left=(0, 2, 3))]
        case Table():
            left = [number for number, column in enumerate(section.columns) if column.left]
            blocks = [_table(section.head, section.cells(), left), _listed(section.notes)]
            return blocks if section.untitled else [_bold(section.name or section.title), *blocks]
        case Parts():
            return [_bold(section.title), _table(section.head, section.cells(), left=(0, 3))]
        case Ranks():
            body = _table(section.head, section.cells(MOST_RANKS), left=(0,))
            return [_bold(section.title), body, escaped(section.note(MOST_RANKS))]
        case Sentences():
            return [_bold(section.title), _listed(section.lines)]
        case Picture(of_page=True):
            return []
        case Picture():
            return [_bold(section.title), _code(timeline_text(section.timeline, WIDTH, axis=section.axis))]
        case Paste():
            if not section.text:  # what a page makes from its ops
                return []
            return [_bold(section.title), _code(section.text)]


def _bold(title: str) -> str:
    if not title:
        return ""
    return f"**{escaped(title)}**"


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    sides = ["---:"] * len(head)
    for column in left:
        sides[column] = "---"
    lines = [_row(head), f"| {' | '.join(sides)} |"]
    for row in rows:
        lines.append(_row(row))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def _code(text: str) -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max(map(len, _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"
