"""Reports for a terminal: as wide as it is, block characters if it has them, letters if not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from textwrap import indent, wrap

from ..core.units import percent
from ..drawing.tables import table
from ..drawing.terminal import timeline_text
from .figures import milliseconds
from .rank_table import ranks_table
from .sections import Figure, Figures, Parts, Paste, Picture, Ranks, Report, Section, Sentences, Table

MARGIN = "  "
LEAST = 16  # columns to which a column of words is broken
BAR = 32  # columns of a bar that is the whole
SMALL = 5e-4  # of a whole drawn as bars: smaller parts share a line
GROUPS = 5  # columns between figures and those beside them
_UNIT = re.compile(r"(\d) (%|ms\b|us\b|s\b)")


def text(report: Report, width: int = 80, *, utf8: bool = True, colour: bool = False) -> str:
    """A report as plain text.

    Args:
        report: what to print.
        width: columns; sentences are wrapped to them, tables that are wider stand closer.
        utf8: whether block characters can be shown.
        colour: whether pictures are coloured.
    """
    head = wrapped(report.title, width) + _listed(report.verdict, width)
    lines = ["\n".join(head)] if head else []
    before: Section | None = None
    for section in report.sections:
        if isinstance(section, Picture) and section.of_page:
            continue
        shown = _picture(section, width, utf8, colour) if isinstance(section, Picture) else _text(section, width, utf8)
        if shown:
            lines += [*([] if _close(before, section) else [""]), shown]
            before = section
    return "\n".join(lines).lstrip("\n").rstrip()


def wrapped(line: str, width: int, first: str = "", rest: str = MARGIN) -> list[str]:
    """Lines of at most ``width`` columns with these indents; none ends between a number and its unit."""
    bound = _UNIT.sub("\\1\u00a0\\2", line)
    lines = wrap(bound, width, initial_indent=first, subsequent_indent=rest, break_long_words=False)
    return [part.replace("\u00a0", " ") for part in lines]


def _close(before: Section | None, section: Section) -> bool:
    """Whether no empty line parts two sections: what the title is about, figures of a picture, further sentences."""
    if isinstance(section, Picture):
        return before is None and not section.title
    if isinstance(section, Sentences) and section.plain and not section.title:
        return before is None or (isinstance(before, Sentences) and not before.title)
    return isinstance(section, Figures) and isinstance(before, Picture)


def _picture(section: Picture, width: int, utf8: bool, colour: bool) -> str:
    title = wrapped(section.title, width) if section.title else []
    return "\n".join([*title, timeline_text(section.timeline, width, utf8=utf8, colour=colour)])


def _text(section: Section, width: int, utf8: bool) -> str:
    match section:
        case Figures():
            return _figures(section, width)
        case Table():
            return _table(section, width)
        case Parts(bars=True):
            return _bars(section, "█" if utf8 else "#")
        case Parts():
            return _parts(section, width)
        case Ranks():
            return _ranks(section, width)
        case Sentences():
            return _sentences(section, width)
        case Paste():
            return _paste(section)
    return ""


def _listed(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in wrapped(line, width, "  - ", "    ")]


def _sentences(section: Sentences, width: int) -> str:
    title = wrapped(section.title, width) if section.title else []
    if section.whole:
        return "\n".join([*title, *(f"{MARGIN}{line}" for line in section.lines)])
    if section.plain:
        first, rest = " " * section.margin, " " * (section.margin + 2)
        return "\n".join([*title, *(part for line in section.lines for part in wrapped(line, width, first, rest))])
    return "\n".join([*title, *_listed(section.lines, width)])


def _figures(section: Figures, width: int) -> str:
    """Names, values and what they are of; those beside them to the right if that fits, else below."""
    left = _group(section.figures)
    right = _group(section.beside)
    wide = max((len(line) for line in left), default=0)
    if wide + GROUPS + max((len(line) for line in right), default=0) + 1 > width:
        return indent("\n".join([*left, *right]), " ")
    rows = max(len(left), len(right))
    pairs = zip([*left, *[""] * (rows - len(left))], [*right, *[""] * (rows - len(right))], strict=True)
    return "\n".join(f" {one:<{wide}}{' ' * GROUPS}{two}".rstrip() for one, two in pairs)


def _group(figures: Sequence[Figure]) -> list[str]:
    rows = [(figure.name, _valued(figure), figure.evidence) for figure in figures]
    return table([], rows, left=3).splitlines() if rows else []


def _valued(figure: Figure) -> str:
    """Shares stand below each other by their points, and words below their digits."""
    share = figure.text.endswith(" %")
    value = figure.text.rjust(7) if share else figure.text
    if figure.value == NO_WORK:
        value = f"   {value}"
    return f"{value} = {figure.what}" if figure.what else value


NO_WORK = "no work"


def _table(section: Table, width: int) -> str:
    if not section.rows:
        return ""
    left = [n for n, column in enumerate(section.columns) if column.left]
    headers = [column.title for column in section.columns]
    room = width - section.margin
    rows = section.cells()
    body = table(headers if any(headers) else [], rows, left=left, columns=room)
    over = max(map(len, body.splitlines())) - room
    long = [n for n, column in enumerate(section.columns) if column.long]
    if over > 0 and section.folds:
        body = _folded([headers, *rows], section.folds)
    elif over > 0 and long:
        body = table(headers if any(headers) else [], _broken(rows, long[0], over), left=left, columns=room)
    title = [] if section.untitled else wrapped(section.name or section.title, width)
    return "\n".join([*title, indent(body, " " * section.margin), *_listed(section.notes, width)])


def _broken(rows: Sequence[Sequence[str]], long: int, over: int) -> list[list[str]]:
    """Rows whose longest words go on in further lines, so that a column is narrower by as much as the table is wide."""
    room = max(LEAST, max(len(row[long]) for row in rows) - over)
    lines = []
    for row in rows:
        *before, last = wrap(row[long], room) or [""]
        lines += [[part if n == long else "" for n in range(len(row))] for part in before]
        lines.append([last if n == long else cell for n, cell in enumerate(row)])
    return lines


def _folded(rows: Sequence[Sequence[str]], folds: Sequence[int]) -> str:
    """Each row on several lines, which begin below its first cell."""
    margin = " " * max(len(row[0]) for row in rows)
    ends = [*folds, len(rows[0])]
    parts = [[(row[0].ljust(len(margin)), *row[1 : ends[0]]) for row in rows]]
    parts += [[(margin, *row[first:last]) for row in rows] for first, last in pairwise(ends)]
    lines = [table([], part, left=len(part[0])).splitlines() for part in parts]
    return "\n".join(line for row in zip(*lines, strict=True) for line in row)


def _parts(section: Parts, width: int) -> str:
    digits = section.digits
    rows = [[part.name, milliseconds(part.cost_ms, digits), percent(part.share), part.what] for part in section.parts]
    rows.append([section.whole, milliseconds(section.whole_ms, digits), "100.0 %", section.note])
    body = table(["", "ms", f"of {section.whole}", ""], rows, left=(0, 3), columns=width - len(MARGIN))
    return "\n".join([*wrapped(section.title, width), indent(body, MARGIN)])


def _bars(section: Parts, full: str) -> str:
    """Parts in order, each a bar that begins where the one before ended."""
    rows: list[list[str]] = []
    start, small = 0.0, 0.0
    for part in section.parts:
        end = start + part.share
        if abs(part.share) < SMALL:
            small += part.share
        else:
            first, last = sorted((round(BAR * start), round(BAR * end)))
            bar = " " * first + full * max(last - first, 1)
            rows.append([part.name, _told(part.cost_ms, section), percent(part.share), bar])
        start = end
    if abs(small) >= SMALL:
        rows.append(["smaller parts", _told(small * section.whole_ms, section), percent(small), ""])
    rows.append([section.whole, _told(section.whole_ms, section), "100.0 %", section.note])
    return "\n".join([section.title, indent(table((), rows, left=(0, 3)), MARGIN)])


def _told(cost_ms: float, section: Parts) -> str:
    return f"{milliseconds(cost_ms, section.digits)} ms"


def _ranks(section: Ranks, width: int) -> str:
    headers, rows, note = ranks_table(section)
    margin = MARGIN if section.title else " "  # below a picture of the same ranks it begins as that does
    body = table(headers, rows, left=0, columns=width - len(margin))
    title = wrapped(section.title, width) if section.title else []
    return "\n".join([*title, indent(body, margin), *([f"{margin}{note}"] if note else [])])


def _paste(section: Paste) -> str:
    return "\n".join([section.title, section.text]) if section.text else ""
