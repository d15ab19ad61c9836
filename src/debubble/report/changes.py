"""What-ifs as a table: a letter for each thing that an answer takes for granted, and what the letters mean."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING

from ..core.units import counted
from .figures import Unit
from .sections import Column, Sentences, Table

if TYPE_CHECKING:
    from ..diagnosis.diagnosis import Change

MOST_BEYOND = 4  # changes that ask for more, in a terminal
MOST_CHANGES = 12  # in a terminal; a page and --json have more
LEGEND = "held: micro-batches in flight; memory: of their activations on the worst rank, with over without."
LIMITS = "A limit is what nobody can do: it shows what something costs."


def letters(changes: Sequence[Change]) -> dict[str, str]:
    """A letter for each assumption, in the order in which they appear."""
    assumptions = dict.fromkeys(each for change in changes for each in change.assumes)
    return dict(zip(assumptions, ascii_lowercase, strict=False))


def granted(change: Change, letter: dict[str, str]) -> str:
    """The letters of one answer."""
    return "".join(letter.get(each, "?") for each in change.assumes)


def legend(letter: dict[str, str]) -> list[str]:
    """What the columns and the letters mean, a line each."""
    return [LEGEND, *(f"{sign}: {assumption}" for assumption, sign in letter.items())]


def changes_section(changes: Sequence[Change], resim: str, *, detail: bool) -> Table:
    """What would help, per sample.

    Args:
        changes: the best first.
        resim: how well the replay fits, a clause.
        detail: whether all are shown.
    """
    shown = changes if detail else changes[:MOST_CHANGES]
    letter = letters(shown)
    rows = [
        (
            change.change,
            "limit" if change.bound else "change",
            change.microbatches,
            f"{change.peak_activations:g}",
            change.activations_ratio,
            change.step_ms,
            change.speedup,
            granted(change, letter),
        )
        for change in shown
    ]
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
    notes = [*legend(letter), *([LIMITS] if any(change.bound for change in shown) else [])]
    if len(shown) < len(changes):
        notes.append(f"{counted(len(changes) - len(shown), 'more change')} in --json")
    most = max((change.speedup for change in shown), default=1.0)
    return Table(
        title="What would help",
        columns=columns,
        rows=rows,
        hint=f"Simulated from the measured durations, per sample; {resim}.",
        bars=[change.speedup / most for change in shown],
        notes=notes,
        name=f"What would help, per sample (simulated; {resim})",
    )


def beyond_section(ways: Sequence[tuple[str, float, Sequence[str]]]) -> Sentences:
    """What asks for more than a run has.

    Args:
        ways: each change with its gain and what it demands, the best first.
    """
    lines = [f"{change}: {gain:.2f}x, if {' and '.join(demands)}" for change, gain, demands in ways[:MOST_BEYOND]]
    if len(ways) > len(lines):
        lines.append(f"{counted(len(ways) - len(lines), 'more change')} in --json")
    return Sentences("Beyond what it has (simulated)", lines)
