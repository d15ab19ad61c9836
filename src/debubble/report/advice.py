"""What costs and what would help: the causes of a window, and changes with a letter for each thing they presume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..core.units import counted, percent
from .sections import Cell, Column, Part, Parts, Sentences, Table, Unit

if TYPE_CHECKING:
    from ..core.packing import UnequalSamples
    from ..diagnosis.remedies import Change, WayOut

# Share of a window from which a cause is worth a remedy: below, it is within the scatter of most measurements.
WORTH = 0.01
WHAT = {
    "ideal": "the mean work of a rank: even, no bubble",
    "schedule": "fill and drain in this order",
    "imbalance": "stages of unequal work",
    "variation": "ops of one stage that differ",
    "transfer": "hops between ranks",
    "engine": "this schedule under this engine with these links: ranks stand still and transfers take turns",
    "unexplained": "late hosts, and all else",
}
MOST_BEYOND = 4  # changes that ask for more, in a terminal
MOST_CHANGES = 12  # in a terminal; a page and --json have more
LEGEND = "held: micro-batches in flight; memory: of their activations on the worst rank, with over without."
LIMITS = "A limit is what nobody can do: it shows what something costs."

AnyChange = TypeVar("AnyChange", "Change", "WayOut")


class Cost(Protocol):
    """A cause as results hold it (``diagnosis.causes.CauseCost``)."""

    @property
    def cause(self) -> str:
        """Its name."""

    @property
    def cost_ms(self) -> float:
        """Of the window."""

    @property
    def cost_share(self) -> float:
        """Of the window."""

    @property
    def evidence(self) -> str:
        """Of the figure."""

    @property
    def remedy(self) -> str:
        """What would help."""


def causes_section(costs: Sequence[Cost], window_ms: float, *, note: str = "", name: str = "") -> Parts:
    """The causes of a window; they sum to it.

    Args:
        costs: of each cause.
        window_ms: how long it is.
        note: on the window, a clause.
        name: of the run, if a report holds several.
    """
    parts = []
    for cost in costs:
        remedy = cost.remedy if cost.cost_share > WORTH else ""
        parts.append(Part(cost.cause, cost.cost_ms, cost.cost_share, cost.evidence, WHAT[cost.cause], remedy))
    title = "Why (by re-simulation, one change at a time)"
    return Parts(title, parts, "window", window_ms, note, name)


def first_changes(changes: Sequence[AnyChange], *, detail: bool) -> Sequence[AnyChange]:
    """Those that are shown: all, or as many as a terminal has room for."""
    return changes if detail else changes[:MOST_CHANGES]


def more_changes(count: int) -> list[str]:
    """A note on changes that are not shown; none if all are."""
    return [f"{counted(count, 'more change')} in --json"] if count else []


def letters(changes: Sequence[Change] | Sequence[WayOut]) -> dict[str, str]:
    """A letter for each assumption, in the order in which they appear."""
    letter: dict[str, str] = {}
    for change in changes:
        for assumption in change.assumes:
            # Twenty-six are more than any table has had; beyond them a question mark stands for the rest.
            if assumption not in letter and len(letter) < len(ascii_lowercase):
                letter[assumption] = ascii_lowercase[len(letter)]
    return letter


def granted(change: Change | WayOut, letter: Mapping[str, str]) -> str:
    """The letters of one answer."""
    return "".join(letter.get(assumption, "?") for assumption in change.assumes)


def legend(letter: Mapping[str, str]) -> list[str]:
    """What the columns and the letters mean, a line each."""
    return [LEGEND, *(f"{sign}: {assumption}" for assumption, sign in letter.items())]


def changes_section(changes: Sequence[Change], resim: str, *, detail: bool) -> Table:
    """What would help, per sample.

    Args:
        changes: the best first.
        resim: how well the replay fits, a clause.
        detail: whether all are shown.
    """
    first = first_changes(changes, detail=detail)
    letter = letters(first)
    columns = [
        Column("change", left=True, long=True),
        Column("kind", left=True),
        Column("m", Unit.COUNT),
        Column("held"),
        Column("memory", Unit.GAIN),
        Column("step", Unit.TIME),
        Column("samples/s", Unit.GAIN),
        Column("if", left=True),
    ]
    rows: list[list[Cell]] = []
    for change in first:
        # A limit is no advice, and stands among the changes only because its gain is read against theirs.
        kind = "limit" if change.bound else "change"
        held = f"{change.peak_activations:g}"
        row: list[Cell] = [change.change, kind, change.microbatches, held, change.activations_ratio, change.step_ms]
        rows.append([*row, change.speedup, granted(change, letter)])
    notes = legend(letter)
    if any(change.bound for change in first):
        notes.append(LIMITS)
    # Bars against the best of those that are shown, so that the longest fills its column.
    gains = [change.speedup for change in first]
    return Table(
        title="What would help",
        columns=columns,
        rows=rows,
        hint=f"Simulated from the measured durations, per sample; {resim}.",
        bars=[gain / max(gains) for gain in gains],
        notes=[*notes, *more_changes(len(changes) - len(first))],
        name=f"What would help, per sample (simulated; {resim})",
    )


def beyond_section(ways: Sequence[tuple[str, float, Sequence[str]]]) -> Sentences:
    """What asks for more than a run has.

    Args:
        ways: each change with its gain and what it demands, the best first.
    """
    lines = [f"{change}: {gain:.2f}x, if {' and '.join(demands)}" for change, gain, demands in ways[:MOST_BEYOND]]
    return Sentences("Beyond what it has (simulated)", [*lines, *more_changes(len(ways) - len(lines))])


PACKED = {
    "whole": "whole samples fill each row in turn",
    "cut": "rows are cut from a stream of samples",
    "none": "each row is one sample",
}


def unequal_section(found: UnequalSamples) -> Table:
    """What samples of unequal length cost, as they come and dealt out longest first."""
    columns = [
        Column("micro-batches", left=True),
        Column("makespan", Unit.TIME),
        Column("95 %", Unit.TIME),
        Column("idle", Unit.SHARE),
        Column("95 %", Unit.SHARE),
        Column("most tokens", Unit.COUNT),
    ]
    rows: list[Sequence[Cell]] = [["all alike", None, None, found.even_idle_share, None, found.sequence]]
    for name, steps in (("as they come", found.as_they_come), ("balanced", found.balanced)):
        rows.append(
            [
                name,
                steps.expected_makespan_ms,
                steps.p95_makespan_ms,
                steps.expected_idle_share,
                steps.p95_idle_share,
                steps.most_tokens,
            ]
        )
    notes = [
        f"{PACKED[found.packing]}, of room for {found.sequence:,} tokens; {found.samples:,.0f} samples fill "
        f"{percent(found.fill_share)} of a step's. Balanced: the same samples, longest first, into the row that has "
        f"least work.",
    ]
    title = f"Samples of unequal length, {found.lengths} ({found.evidence}: {found.draws} steps, seed {found.seed})"
    return Table(title, columns, rows, notes=notes)
