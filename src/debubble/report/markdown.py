"""Reports as Markdown, for a pull request or an issue; whatever is a name in the data stays a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.units import percent
from ..drawing.terminal import timeline_text
from .figures import milliseconds
from .rank_table import ranks_table
from .sections import Figure, Figures, Parts, Paste, Picture, Ranks, Report, Section, Sentences, Table

WIDTH = 100  # columns of pictures
_MARKS = re.compile(r"([\\`*\[\]|])")
_FENCE = re.compile(r"`{3,}")


def markdown(report: Report) -> str:
    """A report as Markdown."""
    blocks = [_bold(report.title), _listed(report.verdict), *map(_section, report.sections)]
    return "\n\n".join(block for block in blocks if block)


def escaped(text: str) -> str:
    """Text that renders as itself: no tag, no link, no emphasis, no cell of a table ends in it."""
    return _MARKS.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def _section(section: Section) -> str:
    match section:
        case Figures():
            rows = [_figure(figure) for figure in (*section.figures, *section.beside)]
            return _table(["", "", "", "evidence"], rows, left=(0, 2, 3))
        case Table():
            return _typed(section)
        case Parts():
            return _parts(section)
        case Ranks():
            headers, rows, note = ranks_table(section)
            return _titled(section.title, _table(headers, rows), escaped(note))
        case Sentences():
            return _titled(section.title, _listed(section.lines))
        case Picture(of_page=True):
            return ""
        case Picture():
            return _titled(section.title, _code(timeline_text(section.timeline, WIDTH)))
        case Paste():
            return _titled(section.title, _code(section.text)) if section.text else ""


def _figure(figure: Figure) -> list[str]:
    return [figure.name, figure.text, figure.what, figure.evidence]


def _typed(section: Table) -> str:
    if not section.rows:
        return ""
    left = [n for n, column in enumerate(section.columns) if column.left]
    body = _table([column.title for column in section.columns], section.cells(), left)
    return _titled("" if section.untitled else section.name or section.title, body, _listed(section.notes))


def _parts(section: Parts) -> str:
    digits = section.digits
    rows = [[part.name, milliseconds(part.cost_ms, digits), percent(part.share), part.what] for part in section.parts]
    rows.append([section.whole, milliseconds(section.whole_ms, digits), "100.0 %", section.note])
    return _titled(section.title, _table(["", "ms", f"of {section.whole}", ""], rows, left=(0, 3)))


def _titled(title: str, *blocks: str) -> str:
    return "\n\n".join(block for block in (_bold(title), *blocks) if block)


def _bold(title: str) -> str:
    return f"**{escaped(title)}**" if title else ""


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    sides = ["---" if column in left else "---:" for column in range(len(headers))]
    lines = [[escaped(cell) for cell in line] for line in (headers, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], sides, *lines[1:]))


def _code(text: str) -> str:
    """A block of code whose fence is longer than any in it."""
    fence = "`" * max([3, *(len(found) + 1 for found in _FENCE.findall(text))])
    return f"{fence}\n{text}\n{fence}"
