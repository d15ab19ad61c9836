"""What ``show A --against B`` says: both on one axis of time, what differs, where a slow link turns the ranking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.memory import Release
from .figures import Unit, span
from .launch import numbers
from .sections import Column, Figure, Figures, Picture, Report, Section, Table

if TYPE_CHECKING:
    from ..diagnosis.against import Against, SweepPoint
    from ..diagnosis.simulated import Show

PLOT = 40  # columns of the plot beside the numbers of a sweep
FIRST, OTHER, BOTH = "1", "2", "x"


def report(held: Against, *, detail: bool = False) -> Report:
    """The sections of two schedules, one against the other."""
    axis = max(shown.timeline.makespan for shown in (held.first, held.other))
    sections: list[Section] = [_picture(shown, axis) for shown in (held.first, held.other)]
    sections += [Figures(list(_figures(held))), *_sweep(held)]
    if detail:
        sections.append(numbers(held))
    return Report(f"{held.schedule} against {held.against}, engine {held.engine}", held.differences, sections)


def _picture(shown: Show, axis: int) -> Picture:
    """A schedule, drawn to the scale of the longer one."""
    return Picture(
        title=shown.title,
        name=shown.schedule,
        timeline=shown.timeline,
        account=shown.account,
        ranks=shown.per_rank,
        release=Release(shown.release),
        axis=axis,
    )


def _figures(held: Against) -> Iterator[Figure]:
    yield Figure(held.schedule, held.makespan_ms, Unit.TIME, evidence="simulated")
    yield Figure(held.against, held.against_ms, Unit.TIME, evidence="simulated")
    if held.link is not None:
        turns = "never, within the sweep" if held.crossover_ms is None else f"at {span(held.crossover_ms)}"
        yield Figure("ranking turns", turns, what=f"hop on link {held.link}", evidence="simulated")


def _sweep(held: Against) -> Iterator[Table]:
    """Both steps for each hop, with a plot whose axis begins at 0."""
    if not held.sweep:
        return
    longest = max(max(point.makespan_ms, point.against_ms) for point in held.sweep)
    columns = [
        Column(f"hop on {held.link}", Unit.TIME),
        Column(f"{FIRST}: {held.schedule}", Unit.TIME),
        Column(f"{OTHER}: {held.against}", Unit.TIME),
        Column("", left=True),
    ]
    rows = [(point.transfer_ms, point.makespan_ms, point.against_ms, _plot(point, longest)) for point in held.sweep]
    yield Table("Step by hop", columns, rows, notes=[f"{FIRST} and {OTHER} from 0 to {span(longest)}"])


def _plot(point: SweepPoint, longest: float) -> str:
    """Where the two steps lie between 0 and the longest."""
    first, other = _column(point.makespan_ms, longest), _column(point.against_ms, longest)
    line = ["."] * PLOT
    line[first], line[other] = FIRST, OTHER
    if first == other:
        line[first] = BOTH
    return "".join(line)


def _column(step_ms: float, longest: float) -> int:
    return round(step_ms / longest * (PLOT - 1)) if longest else 0
