"""What ``why`` says: the verdict, both runs side by side, the factors, the causes, and the ways out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..core.units import counted, percent
from ..diagnosis.order import rates
from .causes import causes_section
from .changes import LEGEND, beyond_section
from .figures import Cell, Unit, shown
from .fit import fits_section
from .launch import files, launch, numbers, show_command
from .sections import Column, Figure, Figures, Picture, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..diagnosis.comparison import ComparedWindow, Comparison, Missing, Side, WayOut
    from ..diagnosis.why import Bounds

NONE = "-"
MOST_CHANGES = 12  # ways out in a terminal; a page and --json have more

Line = tuple[str, Callable[["Side"], str], str]


def report(c: Comparison, *, detail: bool = False) -> Report:
    """The sections of two runs."""
    return Report(
        title=f"{c.a.name} -> {c.b.name}",
        verdict=c.verdict,
        sections=sections_of(c, detail=detail),
        next=_next(c) if detail else "",
        sliders=c.sliders if detail else None,
    )


def sections_of(c: Comparison, *, detail: bool) -> list[Section]:
    """Everything about two runs but the verdict."""
    windows = c.windows
    sections: list[Section] = [Figures(list(_figures(c, windows)))] if detail else []
    sections += [picture_of(window) for window in windows]
    sections.append(_side_by_side(c))
    if c.factors:
        sections.append(_factors(c))
    if c.causes:
        sections.append(_causes(c))
    if detail:
        sections += [
            causes_section(window.causes, window.account.window / 1e6, name=window.name)
            for window in windows
            if window.causes
        ]
    if c.check:
        sections.append(Sentences("Check, in this order", c.check))
    if c.next:
        sections.append(ways_out_section(c.next, c.b.name, c.a.name, detail=detail))
    if c.beyond:
        sections.append(beyond_section(beyond_ways(c.beyond)))
    if c.missing:
        sections.append(Sentences("To know more, state", missing_lines(c.missing)))
    remarks = [f"{run.name}: {each}" for run in (c.a, c.b) for each in run.remarks]
    if remarks:
        sections.append(Sentences("Remarks", remarks))
    if c.fits:
        sections.append(fits_section(c.fits))
    if c.gate is not None:
        sections.append(Sentences("Gate", c.gate.reasons or ["passed"]))
    if detail:
        sections += _take(c, windows)
    return sections


def _take(c: Comparison, windows: tuple[ComparedWindow, ...]) -> Iterator[Section]:
    """What a page offers of b, if it has a timeline."""
    if windows and windows[-1].of_b:
        order = windows[-1].timeline.program.schedule
        yield launch(order)
        yield from files(order, len(windows) - 1)
    yield numbers(c)


def picture_of(window: ComparedWindow) -> Picture:
    """A window; a terminal draws only measured ones, as it has no room for more."""
    name = window.name
    if window.measured:
        long = f"{name}, the median window"
    else:
        long = name if window.stated else f"{name}, at 1 ms a forward and 2 ms a backward"
    return Picture(
        title=f"{name}: the median window (measured)",
        name=long,
        timeline=window.timeline,
        account=window.account,
        ranks=window.per_rank,
        caption=f"{long} ({window.timeline.evidence})",
        of_page=not window.measured,
    )


def _figures(c: Comparison, windows: tuple[ComparedWindow, ...]) -> Iterator[Figure]:
    """The figures at the head of a page."""
    if c.throughput_ratio is None:
        yield Figure("throughput", "not stated", what="state it for both runs")
    else:
        note = f"{c.b.name} over {c.a.name}, {c.unit}, {c.evidence}"
        yield Figure("throughput", f"{c.throughput_ratio:.2f} x", what=note)
    if windows:
        shares = " to ".join(percent(window.account.idle_share) for window in windows)
        ratios = " to ".join(percent(window.account.bubble_ratio) for window in windows)
        evidence = " and ".join(dict.fromkeys(window.timeline.evidence for window in windows))
        yield Figure("idle share", shares, evidence=evidence)
        yield Figure("bubble ratio", ratios, evidence=evidence)
    own = [percent(side.idle_share) for side in (c.a, c.b) if side.idle_share is not None]
    if own:
        what = "idle share of even stages and free transfers"
        yield Figure("what the schedules themselves promise", " to ".join(own), what=what)
    measured = [run.causes for run in (c.compared.a, c.compared.b) if run.measured and run.causes is not None]
    if measured:
        near = "close enough" if all(found.trusted for found in measured) else "too far off"
        ratios = " and ".join(percent(found.resim_ratio) for found in measured)
        yield Figure("simulated again it takes", ratios, what=f"of the measured window; {near} for what-ifs")
    elif c.bubble_explains_bounds is not None:
        low, high = c.bubble_explains_bounds
        value = f"{high:.2f} x" if low == high else f"{low:.2f} to {high:.2f} x"
        what = "throughput, had only the schedule's own idle time changed"
        yield Figure("the bubble alone explains", value, what=what)


def _side_by_side(c: Comparison) -> Table:
    rows = [
        (label, here, there, evidence)
        for label, show, evidence in _lines(c)
        if {here := show(c.a), there := show(c.b)} != {NONE}
    ]
    columns = [Column("", left=True), Column(c.a.name), Column(c.b.name), Column("", left=True)]
    return Table("Side by side", columns, rows, untitled=True)


def _lines(c: Comparison) -> Iterator[Line]:
    """Label, cell of a run, and where the figures come from."""
    sizes = "measured" if c.compared.a.measured and c.compared.b.measured else "stated"
    own = " / ".join(dict.fromkeys(run.evidence for run in (c.a, c.b) if run.evidence is not None))
    yield "GPUs", lambda run: shown(run.gpus), sizes
    yield "pipeline x data", _layout, sizes
    yield "schedule", _schedule, sizes
    yield "micro-batches per pipeline", lambda run: shown(run.microbatches), sizes
    yield "bubble ratio, idle / busy", lambda run: _range(run.bubble_ratio_bounds), own
    yield "idle share, idle / all", lambda run: _range(run.idle_share_bounds), own
    yield "most that a rank can be busy", lambda run: _range(run.most_busy_bounds), own
    for evidence in dict.fromkeys(run.busy_evidence for run in (c.a, c.b) if run.busy_evidence is not None):
        label = "utilisation" if evidence == "stated" else "busy share of the window"
        yield label, _busy_of(evidence), evidence
    timelines = (run.timeline for run in (c.compared.a, c.compared.b))
    kinds = " / ".join(dict.fromkeys(timeline.evidence for timeline in timelines if timeline is not None))
    yield "pipeline window", lambda run: shown(run.makespan_ms, Unit.TIME), kinds
    yield "outside it, a step", lambda run: shown(run.outside_ms or None, Unit.TIME), "measured"
    yield "activations in flight", lambda run: shown(run.peak_activations, Unit.NUMBER), "exact"
    if c.unit is not None and c.evidence is not None:
        yield c.unit, _speed_in(c.unit), c.evidence


def _layout(run: Side) -> str:
    return NONE if run.pipeline is None else f"{run.pipeline} x {shown(run.data)}"


def _schedule(run: Side) -> str:
    if run.pipeline is None:
        return NONE
    return str(run.schedule) if run.pipeline > 1 else "no pipeline"


def _range(bounds: Bounds | None) -> str:
    """One share if its bounds are the same."""
    if bounds is None:
        return NONE
    low, high = bounds
    if low == high:
        return percent(high)
    return f"{percent(low) if low else '0'} to {percent(high)}"


def _busy_of(evidence: str) -> Callable[[Side], str]:
    def show(run: Side) -> str:
        if run.busy is None or run.busy_evidence != evidence:
            return NONE
        return percent(run.busy) + (" (!)" if run.overstated else "")

    return show


def _speed_in(unit: str) -> Callable[[Side], str]:
    def show(run: Side) -> str:
        figure = run.throughput.get(unit)
        if figure is None:
            return NONE
        return f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}"

    return show


def _factors(c: Comparison) -> Table:
    """The factors as stated or measured, and those of the schedules themselves."""
    kinds = {"stated": "the stated utilisations", None: NONE}
    ratio = NONE if c.throughput_ratio is None else times(c.throughput_ratio)
    rows: list[list[Cell]] = [[ratio, "=", *c.factors.values(), kinds.get(c.busy_evidence, c.busy_evidence or NONE)]]
    if c.schedule_factors:
        evidence = " / ".join(dict.fromkeys(run.evidence or NONE for run in (c.a, c.b)))
        rows.append([ratio, "=", *c.schedule_factors.values(), f"the schedules' own ({evidence})"])
    names = [Column(name.replace("_", " "), Unit.RATIO) for name in c.factors]
    columns = [Column("ratio", left=True), Column("", left=True), *names, Column("busy shares")]
    return Table("Throughput ratio = a product of factors", columns, rows)


def times(value: float) -> str:
    """A ratio with as many digits as a verdict needs."""
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _causes(c: Comparison) -> Table:
    """Why each window is as long as it is; columns sum to the windows."""
    columns = [
        Column("", left=True),
        Column(f"{c.a.name} ms", Unit.MILLISECONDS),
        Column("", Unit.SHARE),
        Column(f"{c.b.name} ms", Unit.MILLISECONDS),
        Column("", Unit.SHARE),
    ]
    rows = [(each.cause, each.a_ms, each.a_share, each.b_ms, each.b_share) for each in c.causes]
    rows.append(("window", c.a.makespan_ms or 0.0, 1.0, c.b.makespan_ms or 0.0, 1.0))
    return Table("Why each window takes as long as it does (by re-simulation)", columns, rows)


def ways_out_section(ways: Sequence[WayOut], name: str, against: str | None, *, detail: bool) -> Table:
    """Changes that can be launched, the best first.

    Args:
        ways: the changes.
        name: of the run that is changed.
        against: of the run that it is compared with; None if there is none.
        detail: whether all are shown.
    """
    found = ways if detail else ways[:MOST_CHANGES]
    letter = {text: chr(ord("a") + n) for n, text in enumerate(dict.fromkeys(t for way in found for t in way.assumes))}
    columns = [
        Column("change", left=True, long=True),
        Column("m", Unit.COUNT),
        Column("idle", Unit.SHARE),
        Column("held"),
        Column("memory", Unit.GAIN),
        Column(f"x {name}", Unit.GAIN),
        *([] if against is None else [Column(f"x {against}", Unit.GAIN)]),
        Column("if", left=True),
    ]
    rows = [row for way in found for row in _way_out(way, letter, against, len(columns))]
    notes = [
        f"The global batch is that of {name} unless the last column says otherwise.",
        LEGEND,
        *(f"{sign}: {text}" for text, sign in letter.items()),
    ]
    if len(found) < len(ways):
        notes.append(f"{counted(len(ways) - len(found), 'more change')} in --json")
    return Table(f"Ways out of {name}: throughput with each change (simulated)", columns, rows, notes=notes)


def _way_out(way: WayOut, letter: dict[str, str], against: str | None, columns: int) -> Iterator[list[Cell]]:
    """A row for a change; those that go together are below each other."""
    *before, last = way.change.split(" + ")
    for part in before:
        yield [f"{part} and", *[""] * (columns - 1)]
    cells: list[Cell] = [last, way.microbatches, way.idle_share, f"{way.peak_activations:g}", way.activations_ratio]
    cells.append(way.predicted_ratio)
    if against is not None:
        cells.append(way.against_a_ratio)
    yield [*cells, "".join(letter[text] for text in way.assumes)]


def beyond_ways(ways: Sequence[WayOut]) -> list[tuple[str, float, Sequence[str]]]:
    """Changes with their gains and demands."""
    return [(way.change, way.predicted_ratio, way.demands) for way in ways]


def missing_lines(missing: Sequence[Missing]) -> list[str]:
    """One line a key, for all runs that lack it."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for ask in missing:
        wanted.setdefault((ask.key, ask.reason), []).append(ask.side)
    return [f"{key} of {' and '.join(sides)}: {reason}" for (key, reason), sides in wanted.items()]


def _next(c: Comparison) -> str:
    """A measured run alone, in full; a stated one with twice the micro-batches."""
    run = c.compared.b
    if run.measured and run.observation is not None:
        return shlex.join(["debubble", "diagnose", run.observation.source])
    if run.replay is None:
        return ""
    schedule = run.replay.schedule
    return show_command(schedule, rates(run.job), microbatches=2 * schedule.microbatches)
