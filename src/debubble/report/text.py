"""Reports as text: for a terminal, as wide as it is, with the characters it has; and as Markdown for pull requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from textwrap import wrap

from ..core.units import percent
from ..drawing.terminal import table, timeline_text
from .sections import (
    MOST_RANKS,
    Figure,
    Figures,
    Parts,
    Paste,
    Picture,
    Ranks,
    Report,
    Section,
    Sentences,
    Table,
    milliseconds,
)

LEAST = 16  # columns to which a column of words is broken: narrower, its words are
BAR = 32  # columns of a bar that is the whole: with names and figures it fits into 80
SMALL = 5e-4  # of a whole drawn as bars: smaller parts round to 0.0 % and share a line
GROUPS = 5  # columns between figures and those beside them
NO_WORK = "no work"  # instead of a ratio; set below the digits of other figures
UNIT = re.compile(r"(\d) (%|ms\b|us\b|s\b)")  # a line must not end between a number and its unit


def text(report: Report, width: int = 80, *, utf8: bool = True, colour: bool = False) -> str:
    """A report as plain text.

    Args:
        report: what to print.
        width: columns; sentences are wrapped to them, tables that are wider stand closer.
        utf8: whether block characters can be shown.
        colour: whether pictures are coloured.
    """
    lines = [*wrapped(report.title, width), *_dashed(report.verdict, width)]
    before: Section | None = None
    for section in report.filled:
        if isinstance(section, Picture) and section.of_page:
            continue
        if isinstance(section, Picture):
            picture = timeline_text(section.timeline, width, utf8=utf8, colour=colour, axis=section.axis)
            shown = [*wrapped(section.title, width), *picture.splitlines()]
        else:
            shown = _lines(section, width, utf8)
        if not _close(before, section):
            lines.append("")
        lines += shown
        before = section
    return "\n".join(lines).lstrip("\n").rstrip()


def wrapped(line: str, width: int, first: str = "", rest: str = "  ") -> list[str]:
    """Lines of at most ``width`` columns with these indents; none for no text."""
    # A space that wrap() does not break at, put back as a plain one: a copied line must not hold it.
    bound = UNIT.sub("\\1\u00a0\\2", line)
    lines = wrap(bound, width, initial_indent=first, subsequent_indent=rest, break_long_words=False)
    return [part.replace("\u00a0", " ") for part in lines]


def _close(before: Section | None, section: Section) -> bool:
    """Whether no empty line parts two sections: what the title is about, figures of a picture, further sentences."""
    if isinstance(section, Picture):
        return before is None and not section.title
    if isinstance(section, Sentences) and section.plain and not section.title:
        return before is None or (isinstance(before, Sentences) and not before.title and section.margin > 0)
    return isinstance(section, Figures) and isinstance(before, Picture)


def _lines(section: Section, width: int, utf8: bool) -> list[str]:
    match section:
        case Figures():
            return _figures(section, width)
        case Table():
            return _table(section, width)
        case Parts(bars=True):
            return [section.title, *_indented(_bars(section, "█" if utf8 else "#"), 2)]
        case Parts():
            body = table(section.head, section.cells(), left=(0, 3), columns=width - 2)
            return [*wrapped(section.title, width), *_indented(body, 2)]
        case Ranks():
            return _ranks(section, width)
        case Sentences():
            return [*wrapped(section.title, width), *_sentences(section, width)]
        case Paste():
            # What only a page can make from its ops has no text, and no line here.
            return [section.title, *section.text.splitlines()] if section.text else []
    return []


def _indented(text: str, margin: int) -> list[str]:
    return [f"{' ' * margin}{line}" for line in text.splitlines()]


def _dashed(lines: Sequence[str], width: int) -> list[str]:
    shown = []
    for line in lines:
        shown += wrapped(line, width, "  - ", "    ")
    return shown


def _sentences(section: Sentences, width: int) -> list[str]:
    if section.whole:
        return [f"  {line}" for line in section.lines]
    if not section.plain:
        return _dashed(section.lines, width)
    shown = []
    for line in section.lines:
        shown += wrapped(line, width, " " * section.margin, " " * (section.margin + 2))
    return shown


def _figures(section: Figures, width: int) -> list[str]:
    """Names, values and what they are of; those beside them to the right if that fits, else below."""
    left = _named(section.figures)
    right = _named(section.beside)
    left_width = max(map(len, left), default=0)
    right_width = max(map(len, right), default=0)
    if left_width + GROUPS + right_width + 1 > width:
        return [f" {line}" for line in (*left, *right)]
    gap = " " * GROUPS
    return [f" {one:<{left_width}}{gap}{two}".rstrip() for one, two in zip_longest(left, right, fillvalue="")]


def _named(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return []
    return table([], [(figure.name, _valued(figure), figure.evidence) for figure in figures], left=3).splitlines()


def _valued(figure: Figure) -> str:
    """Shares are set by their points, and words below their digits."""
    value = figure.text
    if value.endswith(" %"):
        value = value.rjust(7)  # as wide as 100.0 %
    elif value == NO_WORK:
        value = f"   {value}"
    if figure.what:
        return f"{value} = {figure.what}"
    return value


def _table(section: Table, width: int) -> list[str]:
    lines = [*_indented(_body(section, width - section.margin), section.margin), *_dashed(section.notes, width)]
    if section.untitled:
        return lines
    return [*wrapped(section.name or section.title, width), *lines]


def _body(section: Table, width: int) -> str:
    """The rows; if they are too wide, folded, or with words that go on in the next line."""
    rows = section.cells()
    head = section.head if any(section.head) else []
    left: list[int] = []
    long: list[int] = []
    for number, column in enumerate(section.columns):
        if column.left:
            left.append(number)
        if column.long:
            long.append(number)
    body = table(head, rows, left=left, columns=width)
    excess = max(map(len, body.splitlines())) - width
    # Folding keeps every column; breaking words is for tables with one long column.
    if excess > 0 and section.folds:
        return _folded([section.head, *rows], section.folds)
    if excess > 0 and long:
        return table(head, _broken(rows, long[0], excess), left=left, columns=width)
    return body


def _broken(rows: Sequence[Sequence[str]], long: int, excess: int) -> list[list[str]]:
    """Rows whose long cell goes on in further lines, so that its column is narrower by what the table is too wide."""
    widest = max(len(row[long]) for row in rows)
    lines = []
    for row in rows:
        # The figures of a row stand in its last line, where the eye arrives after reading its words.
        *before, last = wrap(row[long], max(LEAST, widest - excess), break_on_hyphens=False) or [""]
        for part in before:
            line = [""] * len(row)
            line[long] = part
            lines.append(line)
        line = list(row)
        line[long] = last
        lines.append(line)
    return lines


def _folded(rows: Sequence[Sequence[str]], folds: Sequence[int]) -> str:
    """Each row on several lines, which begin below its first cell."""
    widest = max(len(row[0]) for row in rows)
    strips = []
    for first, last in pairwise([0, *folds, len(rows[0])]):
        strip = []
        for row in rows:
            name = ""  # the first line alone repeats what the row is about
            if first == 0:
                name = row[0]
            strip.append([name.ljust(widest), *row[max(first, 1) : last]])
        strips.append(table([], strip, left=len(strip[0])).splitlines())
    lines: list[str] = []
    for parts in zip(*strips, strict=True):
        lines += parts
    return "\n".join(lines)


def _bars(section: Parts, full: str) -> str:
    """Parts in order, each a bar that begins where the one before ended."""
    rows: list[list[str]] = []
    start, small = 0.0, 0.0
    for part, (name, cost, share, _) in zip(section.parts, section.cells(), strict=False):
        # Also of parts that are not drawn, so that the next bar begins where it should.
        end = start + part.share
        if abs(part.share) < SMALL:
            small += part.share
        else:
            # A part that is below zero, time won back, is drawn to the left of where it begins.
            first, last = sorted((round(BAR * start), round(BAR * end)))
            rows.append([name, f"{cost} ms", share, " " * first + full * max(last - first, 1)])
        start = end
    if abs(small) >= SMALL:
        rows.append(["smaller parts", f"{milliseconds(small * section.whole_ms)} ms", percent(small), ""])
    name, cost, share, note = section.cells()[-1]
    rows.append([name, f"{cost} ms", share, note])
    return table((), rows, left=(0, 3))


def _ranks(section: Ranks, width: int) -> list[str]:
    margin = 2 if section.title else 1  # below a picture of the same ranks it begins as that does
    body = table(section.head, section.cells(MOST_RANKS), left=0, columns=width - margin)
    note = section.note(MOST_RANKS)
    if note:
        body += f"\n{note}"
    return [*wrapped(section.title, width), *_indented(body, margin)]


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
            return [_grid(["", "", "", "evidence"], rows, left=(0, 2, 3))]
        case Table():
            left = [number for number, column in enumerate(section.columns) if column.left]
            blocks = [_grid(section.head, section.cells(), left), _listed(section.notes)]
            return blocks if section.untitled else [_bold(section.name or section.title), *blocks]
        case Parts():
            return [_bold(section.title), _grid(section.head, section.cells(), left=(0, 3))]
        case Ranks():
            body = _grid(section.head, section.cells(MOST_RANKS), left=(0,))
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


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
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
