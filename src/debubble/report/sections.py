"""Sections: what a report is made of, for every renderer: figures, tables, sentences, pictures, things to paste.

A report function (``report/show.py`` is the model) takes a result and returns a ``Report``, whose sections are in the
order in which they are read. It formats nothing and knows no terminal and no page: cells are values, a column says what
they are, and ``figures.shown`` writes them, so that a figure is rounded alike everywhere.

    Figures     the numbers that answer the question, each with its name, what it is of, and its evidence
    Table       rows under typed columns
    Parts       parts that sum to a whole: causes of a window, where a step goes
    Ranks       where the time of each rank of a picture goes
    Picture     a timeline
    Sentences   a list of sentences
    Paste       text to take along: flags, a configuration, a command

What a terminal has no room for (a second picture, all layouts, the launch flags of every framework) is a section too,
made only if ``detail`` is asked for: a page has it. JSON is the result itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..core.account import PARTS, Account, RankTime
from ..core.program import Timeline
from ..core.schedule import Release
from ..core.units import duration, percent
from ..drawing.html import Sliders

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


UNDER_A_MILLISECOND = 1.0  # a window that is shown in microseconds: in milliseconds all would begin with 0.
MOST_RANKS = 32  # with a line of their own in a terminal: a screenful


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that answers the question.

    Args:
        name: as in ``idle share``.
        value: text, or a number of ``unit``.
        unit: what it is.
        what: how it comes about, a formula or a clause.
        evidence: ``exact``, ``simulated``, ``measured``, ``estimated``, ``stated``; empty if ``what`` says it.
    """

    name: str
    value: Cell
    unit: Unit = Unit.TEXT
    what: str = ""
    evidence: str = ""

    @property
    def text(self) -> str:
        """The value as it is written."""
        return shown(self.value, self.unit)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures in one place: lines of a terminal, tiles of a page.

    Args:
        figures: the most important first.
        beside: figures that are next to these if the terminal is wide enough, else below.
    """

    figures: Sequence[Figure]
    beside: Sequence[Figure] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: above it; empty for names of rows.
        unit: of its numbers.
        digits: after the point, of milliseconds.
        left: whether it is aligned to the left, as text is; numbers are aligned to the right.
        long: whether a page may break its cells into lines.
    """

    title: str
    unit: Unit = Unit.TEXT
    digits: int = 1
    left: bool = False
    long: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under typed columns.

    Args:
        title: of the section.
        columns: in order.
        rows: a cell for each column.
        hint: a sentence on how to read it.
        bars: a share of 1 to draw beside each row of a page, or empty.
        shades: how dark each cell of a page is, 0 to 1, or empty.
        notes: sentences below it.
        name: of this table, if several follow each other under one title.
        folds: columns at which a row goes on in the next line of a terminal, if it is wider than that.
        untitled: whether a terminal leaves the title out: what is before it says what it is.
        margin: columns before it in a terminal; none for a table that is wider than that anyway.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    hint: str = ""
    bars: Sequence[float] = ()
    shades: Sequence[Sequence[float]] = ()
    notes: Sequence[str] = ()
    name: str = ""
    folds: Sequence[int] = ()
    untitled: bool = False
    margin: int = 2

    @property
    def head(self) -> list[str]:
        """The titles of its columns."""
        return [column.title for column in self.columns]

    def cells(self) -> list[list[str]]:
        """Its rows as text."""
        rows = []
        for row in self.rows:
            cells = zip(row, self.columns, strict=True)
            rows.append([shown(value, column.unit, column.digits) for value, column in cells])
        return rows


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts of a whole.

    Args:
        name: of the part.
        cost_ms: how much of the whole it is; may be negative.
        share: of the whole.
        evidence: of the figure.
        what: what it is, a clause.
        remedy: what would help, a clause; empty if it costs next to nothing.
    """

    name: str
    cost_ms: float
    share: float
    evidence: str
    what: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that sum to a whole.

    Args:
        title: of the section.
        parts: in order.
        whole: what they sum to, as in ``window``.
        whole_ms: how long that is.
        note: on the whole, a clause.
        name: of the run, if a report holds several.
        hint: a sentence on where the figures come from, if not from re-simulation.
        bars: whether a terminal draws each as a bar that begins where the part before ends.
    """

    title: str
    parts: Sequence[Part]
    whole: str
    whole_ms: float
    note: str = ""
    name: str = ""
    hint: str = ""
    bars: bool = False

    @property
    def head(self) -> list[str]:
        """The titles of the columns of ``cells``."""
        return ["", "ms", f"of {self.whole}", ""]

    def cells(self) -> list[list[str]]:
        """Name, milliseconds, share and clause of each part, then of the whole; all times have as many decimals."""
        # One for all parts: they are read as a sum.
        digits = decimals([part.cost_ms for part in self.parts], least=1)
        rows = []
        for part in self.parts:
            rows.append([part.name, milliseconds(part.cost_ms, digits), percent(part.share), part.what])
        rows.append([self.whole, milliseconds(self.whole_ms, digits), "100.0 %", self.note])
        return rows


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where the time of each rank goes: five parts that sum to the window.

    Args:
        title: of the section.
        ranks: of the window.
        window_ms: how long it is.
        peaks: whether the most activations that a rank holds are a column.
    """

    title: str
    ranks: Sequence[RankTime]
    window_ms: float
    peaks: bool = True

    @property
    def head(self) -> list[str]:
        """The titles of the columns of ``cells``."""
        titles = [f"{self._unit[0]} of rank", *(part.replace("_", "-") for part in PARTS), "busy"]
        if self.peaks:
            titles.append("peak")
        return titles

    @property
    def head_with_units(self) -> list[str]:
        """The same for a page, which shows a row as a list of names and values if the screen is narrow."""
        _, *titles = self.head
        parts = [f"{title} {self._unit[0]}" for title in titles[: len(PARTS)]]
        return ["rank", *parts, *titles[len(PARTS) :]]

    def cells(self, most: int) -> list[list[str]]:
        """Where the time of each rank goes; all times have as many decimals.

        Args:
            most: lines; of more ranks every n-th has one, and the busiest and the idlest.
        """
        size = self._unit[1]
        chosen = self._chosen(most)
        times = [[getattr(rank, f"{part}_ms") / size for part in PARTS] for rank in chosen]
        # As many for all: figures of one column are read against each other.
        digits = decimals([time for line in times for time in line])
        rows = []
        for rank, line in zip(chosen, times, strict=True):
            row = [str(rank.rank), *(f"{time:,.{digits}f}" for time in line), percent(rank.busy_share)]
            if self.peaks:
                row.append(f"{rank.peak_activations:.3g}")
            rows.append(row)
        return rows

    def note(self, most: int) -> str:
        """What is left out of so many lines, if anything is."""
        count = len(self._chosen(most))
        if count == len(self.ranks):
            return ""
        return f"{count} of {len(self.ranks)} ranks, the busiest and the idlest among them; all with --json"

    @property
    def _unit(self) -> tuple[str, float]:
        """The unit of all times, and how many milliseconds it is."""
        if self.window_ms < UNDER_A_MILLISECOND:
            return "us", 1e-3
        return "ms", 1.0

    def _chosen(self, most: int) -> list[RankTime]:
        # Rounded up, so that no more lines come out than were asked for.
        step = -(-len(self.ranks) // most)
        if step <= 1:
            return list(self.ranks)
        busy = [rank.busy_share for rank in self.ranks]
        # Every n-th would lose what is looked for: the ends of the pipeline, the busiest rank and the idlest.
        numbers = {*range(0, len(busy), step), len(busy) - 1, busy.index(max(busy)), busy.index(min(busy))}
        return [self.ranks[number] for number in sorted(numbers)]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A timeline.

    Args:
        title: above it; empty if the report's title says it.
        name: of the run, on a page and in a figure.
        timeline: what to draw.
        account: of it.
        ranks: of it.
        caption: below it in a figure; empty for the title.
        of_page: whether only pages and figures show it.
        release: when a split backward frees its activations, for the curve of memory on a page.
        axis: time that the width of a terminal stands for, nanoseconds, where pictures are held against each other;
            None for the timeline's own.
    """

    title: str
    name: str
    timeline: Timeline
    account: Account
    ranks: Sequence[RankTime]
    caption: str = ""
    of_page: bool = False
    release: Release = Release.W
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Sentences:
    """A list of sentences.

    Args:
        title: above them, or empty.
        lines: a sentence each.
        plain: whether there is no dash before each.
        margin: columns before each of these in a terminal.
        whole: whether each stays on one line, however narrow the terminal, so that it can be searched for.
    """

    title: str
    lines: Sequence[str]
    plain: bool = False
    margin: int = 2
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Paste:
    """Text to take along.

    Args:
        title: what it is.
        text: as it is to be pasted.
        file: the name under which a page saves it; empty for none.
        maker: ``perfetto``, ``torch-csv`` or ``ops-csv`` for what a page makes from the ops of run number ``run``.
        run: which picture that is.
    """

    title: str
    text: str = ""
    file: str = ""
    maker: str = ""
    run: int = 0


Section = Figures | Table | Parts | Ranks | Picture | Sentences | Paste


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """All that is said of a result.

    Args:
        title: what it is about.
        verdict: the answer in sentences, the most important first.
        sections: in the order in which they are read.
        next: the command to run next, or empty.
        sliders: where the sliders of a page start; None for no sliders.
    """

    title: str
    verdict: Sequence[str] = ()
    sections: Sequence[Section] = ()
    next: str = ""
    sliders: Sliders | None = field(default=None, kw_only=True)

    @property
    def filled(self) -> list[Section]:
        """Its sections, but those with nothing to say: a report function need not ask whether there is anything."""
        return [section for section in self.sections if not empty(section)]

    @property
    def pictures(self) -> list[Picture]:
        """Its timelines."""
        return [section for section in self.sections if isinstance(section, Picture)]


def empty(section: Section) -> bool:
    """Whether a section has nothing to say."""
    match section:
        case Figures():
            return not section.figures and not section.beside
        case Table():
            return not section.rows
        case Parts():
            return not section.parts
        case Ranks():
            return not section.ranks
        case Sentences():
            return not section.lines
        case Paste():
            return not section.text and not section.maker
        case Picture():
            return False
