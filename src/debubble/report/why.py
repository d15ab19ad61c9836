"""What ``why`` and ``fit`` say: of two runs verdict, factors, causes, ways out; of a series; of one; of step times."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..core.units import percent
from ..diagnosis.diagnosis import place_of
from .advice import (
    beyond_section,
    causes_section,
    files,
    first_changes,
    granted,
    launch,
    legend,
    letters,
    more_changes,
    numbers,
    page_sliders,
    show_change,
)
from .diagnose import gate_section
from .sections import Cell, Column, Figure, Figures, Picture, Report, Section, Sentences, Table, Unit, shown, span

if TYPE_CHECKING:
    from ..diagnosis.compared import Bounds
    from ..diagnosis.comparison import Alone, ComparedWindow, Comparison, Missing, Series, Side
    from ..diagnosis.fit import Fit, Timers
    from ..diagnosis.log_run import LoneStep, Phase
    from ..diagnosis.remedies import WayOut


NONE = "-"
FEW = 1000  # of tokens or samples a second: below, four digits tell more than a whole number
SURE = 10.0  # a ratio above: digits after its point say nothing any more


def report(c: Comparison, *, detail: bool = False) -> Report:
    """The sections of two runs."""
    sections = sections_of(c, detail=detail)
    if not detail:
        return Report(f"{c.a.name} -> {c.b.name}", c.verdict, sections)
    return Report(
        title=f"{c.a.name} -> {c.b.name}",
        verdict=c.verdict,
        sections=[_figures(c), *sections, *_take(c)],
        next=_next(c),
        sliders=page_sliders(c.sliders),
    )


def sections_of(c: Comparison, *, detail: bool) -> list[Section]:
    """Everything about two runs but the verdict."""
    windows = c.windows
    sections: list[Section] = [picture_of(window) for window in windows]
    sections += [_side_by_side(c), _factors(c), _causes(c)]
    if detail:
        for window in windows:
            sections.append(causes_section(window.causes, window.account.window / 1e6, name=window.name))
    return [
        *sections,
        # Suspects before remedies: what differs in the arguments is looked at before anything is changed.
        Sentences("Check, in this order", c.check),
        ways_out_section(c.next, c.b.name, c.a.name, detail=detail),
        beyond_section([(way.change, way.predicted_ratio, way.demands) for way in c.beyond]),
        Sentences("To know more, state", missing_lines(c.missing)),
        Sentences("Remarks", [f"{run.name}: {remark}" for run in (c.a, c.b) for remark in run.remarks]),
        fits_section(c.fits or ()),
        gate_section(c.gate),
    ]


def _take(c: Comparison) -> Iterator[Section]:
    """What a page offers of b, if it has a timeline."""
    windows = c.windows
    if windows and windows[-1].of_b:
        order = windows[-1].timeline.program.schedule
        yield launch(order)
        yield from files(order, len(windows) - 1)
    yield numbers(c)


def picture_of(window: ComparedWindow) -> Picture:
    """A window; a terminal draws only measured ones, as it has no room for more."""
    name = window.name
    if window.measured:
        name = f"{name}, the median window"
    elif not window.stated:
        # Nobody said how long ops take: the picture shows the order alone.
        name = f"{name}, at 1 ms a forward and 2 ms a backward"
    return Picture(
        title=f"{window.name}: the median window (measured)",
        name=name,
        timeline=window.timeline,
        account=window.account,
        ranks=window.per_rank,
        caption=f"{name} ({window.timeline.evidence})",
        of_page=not window.measured,
    )


def _figures(c: Comparison) -> Figures:
    """The figures at the head of a page."""
    figures = [_throughput(c), *_bubbles(c.windows)]
    own = [percent(side.idle_share) for side in (c.a, c.b) if side.idle_share is not None]
    if own:  # of each run, so that what the schedule alone did is seen beside what was lost
        what = "idle share of even stages and free transfers"
        figures.append(Figure("what the schedules themselves promise", " to ".join(own), what=what))
    ratios, near = [], "close enough"
    for run in (c.compared.a, c.compared.b):
        if run.measured and run.causes is not None:
            ratios.append(percent(run.causes.resim_ratio))
            if not run.causes.trusted:  # one that misses is enough: changes are offered for what both rest on
                near = "too far off"
    if ratios:
        what = f"of the measured window; {near} for what-ifs"
        figures.append(Figure("simulated again it takes", " and ".join(ratios), what=what))
    elif c.bubble_explains_bounds is not None:
        low, high = c.bubble_explains_bounds
        value = f"{high:.2f} x"
        if low != high:
            value = f"{low:.2f} to {value}"
        what = "throughput, had only the schedule's own idle time changed"
        figures.append(Figure("the bubble alone explains", value, what=what))
    return Figures(figures)


def _throughput(c: Comparison) -> Figure:
    if c.throughput_ratio is None:
        return Figure("throughput", "not stated", what="state it for both runs")
    note = f"{c.b.name} over {c.a.name}, {c.unit}, {c.evidence}"
    return Figure("throughput", f"{c.throughput_ratio:.2f} x", what=note)


def _bubbles(windows: Sequence[ComparedWindow]) -> Iterator[Figure]:
    """The bubble of each window by both of its names."""
    if not windows:
        return
    shares, ratios = [], []
    for window in windows:
        shares.append(percent(window.account.idle_share))
        ratios.append(percent(window.account.bubble_ratio))
    evidence = " and ".join(unlike(window.timeline.evidence for window in windows))
    yield Figure("idle share", " to ".join(shares), evidence=evidence)
    yield Figure("bubble ratio", " to ".join(ratios), evidence=evidence)


def _side_by_side(c: Comparison) -> Table:
    """A row for each thing that is known of a run, and where the figures come from."""
    a, b = c.a, c.b
    sizes = "stated"
    if c.compared.a.measured and c.compared.b.measured:
        sizes = "measured"
    own = " / ".join(unlike((a.evidence, b.evidence)))
    timelines = (c.compared.a.timeline, c.compared.b.timeline)
    windows = " / ".join(unlike(timeline.evidence for timeline in timelines if timeline is not None))
    rows = [
        ("GPUs", shown(a.gpus), shown(b.gpus), sizes),
        ("pipeline x data", _layout(a), _layout(b), sizes),
        ("schedule", _schedule(a), _schedule(b), sizes),
        ("micro-batches per pipeline", shown(a.microbatches), shown(b.microbatches), sizes),
        ("bubble ratio, idle / busy", *map(range_of, (a.bubble_ratio_bounds, b.bubble_ratio_bounds)), own),
        ("idle share, idle / all", *map(range_of, (a.idle_share_bounds, b.idle_share_bounds)), own),
        ("most that a rank can be busy", *map(range_of, (a.most_busy_bounds, b.most_busy_bounds)), own),
    ]
    for evidence in unlike((a.busy_evidence, b.busy_evidence)):
        name = "utilisation" if evidence == "stated" else "busy share of the window"
        rows.append((name, _busy(a, evidence), _busy(b, evidence), evidence))
    # 0 outside is a step of which nothing but ops was seen, not one without an optimizer.
    outside = (a.outside_ms or None, b.outside_ms or None)
    for name, values, unit, evidence in (
        ("pipeline window", (a.makespan_ms, b.makespan_ms), Unit.TIME, windows),
        ("outside it, a step", outside, Unit.TIME, "measured"),
        ("activations in flight", (a.peak_activations, b.peak_activations), Unit.NUMBER, "exact"),
    ):
        rows.append((name, shown(values[0], unit), shown(values[1], unit), evidence))
    if c.unit is not None and c.evidence is not None:
        rows.append((c.unit, _speed(a, c.unit), _speed(b, c.unit), c.evidence))
    known = [row for row in rows if {row[1], row[2]} != {NONE}]
    columns = [Column("", left=True), Column(a.name), Column(b.name), Column("", left=True)]
    return Table("Side by side", columns, known, untitled=True)


def unlike(words: Iterable[str | None]) -> list[str]:
    """Each word once, in the order in which they come; None is no word."""
    return list(dict.fromkeys(word for word in words if word is not None))


def _layout(run: Side) -> str:
    if run.pipeline is None:
        return NONE
    return f"{run.pipeline} x {shown(run.data)}"


def _schedule(run: Side) -> str:
    if run.pipeline is None:
        return NONE
    if run.pipeline == 1:
        return "no pipeline"
    return str(run.schedule)


def range_of(bounds: Bounds | None) -> str:
    """One share if its bounds are the same."""
    if bounds is None:
        return NONE
    low, high = bounds
    if low == high:
        return percent(high)
    least = percent(low) if low else "0"  # a bound, not a measurement: 0.0 % would claim a digit
    return f"{least} to {percent(high)}"


def _busy(run: Side, evidence: str) -> str:
    """The busy share if it is of this evidence: a stated and a measured one are not the same figure."""
    if run.busy is None or run.busy_evidence != evidence:
        return NONE
    mark = " (!)" if run.overstated else ""  # more than its schedule can reach; the verdict says so in words
    return f"{percent(run.busy)}{mark}"


def _speed(run: Side, unit: str) -> str:
    figure = run.throughput.get(unit)
    if figure is None:
        return NONE
    if figure.value < FEW:
        return shown(figure.value, Unit.NUMBER)
    return shown(figure.value, Unit.COUNT)


def _factors(c: Comparison) -> Table:
    """The factors as stated or measured, and those of the schedules themselves."""
    ratio = NONE
    if c.throughput_ratio is not None:
        ratio = times(c.throughput_ratio)
    evidence = c.busy_evidence
    if evidence == "stated":
        evidence = "the stated utilisations"
    columns = [Column("ratio", left=True), Column("", left=True)]
    for name in c.factors:
        columns.append(Column(name.replace("_", " "), Unit.RATIO))
    columns.append(Column("busy shares"))
    rows: list[list[Cell]] = []
    if c.factors:
        rows.append([ratio, "=", *c.factors.values(), evidence])
    # Beside stated utilisations, what the schedules alone would give: people confuse the two.
    if c.factors and c.schedule_factors:
        own = " / ".join(unlike((c.a.evidence, c.b.evidence)))
        rows.append([ratio, "=", *c.schedule_factors.values(), f"the schedules' own ({own})"])
    return Table("Throughput ratio = a product of factors", columns, rows)


def times(value: float) -> str:
    """A ratio with as many digits as a verdict needs."""
    if value < SURE:
        return f"{value:.2f}"
    return f"{value:.3g}"


def _causes(c: Comparison) -> Table:
    """Why each window is as long as it is; columns sum to the windows."""
    columns = [
        Column("", left=True),
        Column(f"{c.a.name} ms", Unit.MILLISECONDS),
        Column("", Unit.SHARE),
        Column(f"{c.b.name} ms", Unit.MILLISECONDS),
        Column("", Unit.SHARE),
    ]
    rows: list[list[Cell]] = []
    for cause in c.causes:
        rows.append([cause.cause, cause.a_ms, cause.a_share, cause.b_ms, cause.b_share])
    if rows:
        rows.append(["window", c.a.makespan_ms, 1.0, c.b.makespan_ms, 1.0])
    return Table("Why each window takes as long as it does (by re-simulation)", columns, rows)


def ways_out_section(ways: Sequence[WayOut], name: str, against: str | None, *, detail: bool) -> Table:
    """Changes that can be launched, the best first.

    Args:
        ways: the changes.
        name: of the run that is changed.
        against: of the run that it is compared with; None if there is none.
        detail: whether all are shown.
    """
    first = first_changes(ways, detail=detail)
    letter = letters(first)
    columns = [
        Column("change", left=True, long=True),
        Column("m", Unit.COUNT),
        Column("idle", Unit.SHARE),
        Column("held"),
        Column("memory", Unit.GAIN),
        Column(f"x {name}", Unit.GAIN),
    ]
    if against is not None:
        columns.append(Column(f"x {against}", Unit.GAIN))
    columns.append(Column("if", left=True))
    rows: list[list[Cell]] = []
    for way in first:
        held = f"{way.peak_activations:g}"
        row: list[Cell] = [way.change, way.microbatches, way.idle_share, held, way.activations_ratio]
        row.append(way.predicted_ratio)
        if against is not None:
            row.append(way.against_a_ratio)
        rows.append([*row, granted(way, letter)])
    batch = f"The global batch is that of {name} unless the last column says otherwise."
    notes = [batch, *legend(letter), *more_changes(len(ways) - len(first))]
    return Table(f"Ways out of {name}: throughput with each change (simulated)", columns, rows, notes=notes)


def missing_lines(missing: Sequence[Missing]) -> list[str]:
    """One line a key, for all runs that lack it."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for ask in missing:
        wanted.setdefault((ask.key, ask.reason), []).append(ask.side)
    return [f"{key} of {' and '.join(sides)}: {reason}" for (key, reason), sides in wanted.items()]


def _next(c: Comparison) -> str:
    """A measured run alone, in full; of a stated one the first recommendation in simulation."""
    run = c.compared.b
    if run.measured and run.observation is not None:
        return shlex.join(["debubble", "diagnose", place_of(run.observation.source)])
    return show_change(c.compared.remedies.first)


def of_one(alone: Alone, *, detail: bool = False) -> Report:
    """The sections of one run."""
    run = alone.run
    sections: list[Section] = []
    if alone.window is not None and alone.window.measured:
        sections.append(picture_of(alone.window))
    sections += [_sizes_of_one(run), _busy_of_one(alone)]
    if run.makespan_ms is not None:
        sections.append(causes_section(run.causes, run.makespan_ms))
    if run.phases is not None and len(run.phases) > 1:
        sections.append(phases_section("Phases of the run", run.phases))
    sections += [
        ways_out_section(alone.next, run.name, None, detail=detail),
        beyond_section([(way.change, way.predicted_ratio, way.demands) for way in alone.beyond]),
        Sentences("To know more, state", missing_lines(alone.missing)),
        Sentences("Remarks", run.remarks),
    ]
    if alone.fit is not None:
        sections.append(fits_section([alone.fit]))
    return Report(run.name, alone.verdict, sections)


def _sizes_of_one(run: Side) -> Table:
    rows: list[tuple[str, Cell]] = [("GPUs", run.gpus)]
    if run.pipeline is not None:
        rows.append(("pipeline x data", f"{run.pipeline} x {shown(run.data)}"))
    rows += [("schedule", run.schedule), ("micro-batches per pipeline", run.microbatches)]
    known = [row for row in rows if row[1] is not None]
    return Table("Sizes", [Column("", left=True), Column("")], known)


def _busy_of_one(alone: Alone) -> Table:
    """How busy it is beside what its bubble allows."""
    run = alone.run
    rows: list[tuple[str, Cell, Cell]] = [
        ("busy share that the bubble allows", alone.bubble_allows_share, run.evidence),
        ("busy share", run.busy, run.busy_evidence),
        ("something else", alone.something_else_share, ""),
    ]
    known = [row for row in rows if row[1] is not None]
    return Table("Busy", [Column("", left=True), Column("", Unit.SHARE), Column("", left=True)], known)


def of_series(series: Series, *, detail: bool = False) -> Report:
    """The sections of a series."""
    last = series.runs[-1]
    sections = [
        _against_the_first(series),
        Sentences("Throughput against memory of a device (stated)", list(_frontier(series))),
        Sentences(f"{last.a.name} -> {last.b.name}", last.verdict),
        *sections_of(last, detail=detail),
        fits_section(series.fits or ()),
        gate_section(series.gate),
    ]
    unit = last.unit or "schedules only"
    return Report(f"Against {series.base} ({unit}): throughput = by the bubble x left over", (), sections)


def _against_the_first(series: Series) -> Table:
    first = series.runs[0].a
    idle = range_of(first.idle_share_bounds)
    # The first against itself, so that the column can be read from the top.
    rows: list[list[Cell]] = [[first.name, first.gpus, "1.00", "1.00", "1.00", idle, first.evidence]]
    for run in series.runs:
        ratio = NONE
        if run.throughput_ratio is not None:
            ratio = times(run.throughput_ratio)
        parts = [_between(run.bubble_explains_bounds), _between(run.left_over_bounds)]
        rows.append([run.b.name, run.b.gpus, ratio, *parts, range_of(run.b.idle_share_bounds), run.b.evidence])
    columns = [Column("run", left=True)]
    for title in ("GPUs", "throughput", "by the bubble", "left over", "idle share", "evidence"):
        columns.append(Column(title))
    return Table("Each run against the first", columns, rows, untitled=True)


def _between(bounds: Bounds | None) -> str:
    """One ratio if its bounds are the same."""
    if bounds is None:
        return NONE
    low, high = bounds
    if low == high:
        return f"{low:.3f}"
    return f"{low:.2f} to {high:.2f}"  # fewer digits: what is bounded is not known to three


def _frontier(series: Series) -> Iterator[str]:
    best = series.frontier
    if best is None:
        return
    yield f"By memory and throughput, none of these is beaten in both: {', '.join(best.pareto)}."
    yield f"Most throughput for its memory: {best.best_per_byte}."
    if best.implied_idle_share > 0:  # else the fastest is no faster in a busy second, and idling explains nothing
        idle = percent(best.implied_idle_share)
        yield f"If {best.fastest} idles not at all, {best.first} idles {idle} of the time, work in a busy second alike."


MOST_ROWS = 20  # of phases, settings and steps in a terminal: a screenful; --json has all
ONE_POINT = "no fixed time"  # the model of a single setting


def of_fit(fit: Fit, *, detail: bool = False) -> Report:
    """The sections of a fit."""
    most = None if detail else MOST_ROWS
    phases = fit.phases[:most]
    if len(phases) == 1:
        phases = ()  # the whole run: the verdict says all of it
    lines = [*_parts(fit), *_forecast(fit), *_set_aside(fit, most), *_memory(fit)]
    sections: list[Section] = [
        phases_section("Phases of the run", phases),
        _settings(fit, most),
        Sentences("", lines),
    ]
    if fit.timers is not None:
        sections.append(_timers(fit.timers, most))
    sections.append(Sentences("Remarks", fit.remarks))
    verdict = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in fit.verdict]
    return Report(PurePath(fit.source).name, verdict, sections)


def phases_section(title: str, phases: Sequence[Phase]) -> Table:
    """Phases with their share of the time."""
    columns = [
        Column("steps", left=True),
        Column("a step", Unit.TIME),
        Column("trend", left=True),
        Column("of the time", Unit.SHARE),
    ]
    rows: list[list[Cell]] = []
    for phase in phases:
        trend = ""
        if phase.from_ms is not None and phase.to_ms is not None:
            trend = f"{span(phase.from_ms)} to {span(phase.to_ms)}"
        rows.append([f"{phase.first_step} to {phase.last_step}", phase.mean_ms, trend, phase.share])
    return Table(f"{title} (measured)", columns, rows)


def left_out_lines(left_out: Sequence[LoneStep], most: int | None) -> list[str]:
    """Steps that do not count, a line each."""
    lines = [f"step {step.step} does not count: {span(step.ms)}, {step.reason}" for step in left_out[:most]]
    if len(left_out) > len(lines):
        lines.append(f".. and {len(left_out) - len(lines)} more")
    return lines


def _settings(fit: Fit, most: int | None) -> Table:
    columns = [
        Column("batch", Unit.NUMBER),
        Column("micro-batches", Unit.NUMBER),
        Column("steps", Unit.COUNT),
        Column("measured", Unit.TIME),
        Column("fitted", Unit.TIME),
        Column("bubble", Unit.SHARE),
    ]
    rows: list[list[Cell]] = []
    for row in fit.rows[:most]:
        rows.append([row.batch, row.microbatches, row.steps, row.step_ms, row.fitted_ms, row.bubble_share])
    title = "Steps by setting"
    if fit.model:  # why this model: which of two was fitted is not seen from its figures
        title = f"{fit.model} ({fit.why})"
    return Table(title, columns, rows)


def _timers(timers: Timers, most: int | None) -> Table:
    columns = [Column("", left=True), Column("least", Unit.TIME), Column("most", Unit.TIME)]
    rows = [(timer.timer, timer.least_ms, timer.most_ms) for timer in timers.timers[:most]]
    return Table(f"Timers over ranks ({timers.evidence})", columns, rows)


def _parts(fit: Fit) -> Iterator[str]:
    """What the line says, each part with its name."""
    if fit.slot_ms is None:
        return
    # If the batch is constant and m cuts it finer, work is in the intercept, and what m adds is overhead.
    slot = "overhead per micro-batch" if fit.bubble_ms is None else "slot"
    parts = [(slot, fit.slot_ms), ("intercept", fit.intercept_ms)]
    if fit.model == ONE_POINT:
        parts.append(("bubble at most", fit.intercept_ms))  # what is fixed in it cannot be told
    elif fit.bubble_ms is not None:
        parts += [("bubble", fit.bubble_ms), ("fixed", fit.fixed_ms)]
    known = [f"{name} {span(value)}" for name, value in parts if value is not None]
    yield f"{', '.join(known)} ({fit.evidence})"


def _forecast(fit: Fit) -> Iterator[str]:
    for row in fit.forecast:
        setting = f"{row.microbatches:g} micro-batches"
        if row.batch is not None:
            setting = f"batch {row.batch:g}"
        line = f"{setting}: forecast {span(row.step_ms)}"
        if row.measured_ms is not None and row.error_share is not None:
            error = f"{100 * row.error_share + 0.0:+.1f} %"  # + 0.0: no figure is "-0.0"
            line += f" from the smaller ones, measured {span(row.measured_ms)} ({error})"
        yield line


def _set_aside(fit: Fit, most: int | None) -> Iterator[str]:
    for outlier in fit.outliers[:most]:
        yield f"row {outlier.row} set aside: {span(outlier.step_ms)} is {outlier.reason}"
    yield from left_out_lines(fit.left_out, most)


def _memory(fit: Fit) -> Iterator[str]:
    memory = fit.memory
    if memory is None:
        return
    if memory.bytes_per_in_flight is not None:
        slope = memory.bytes_per_in_flight / 1e9
        yield f"peak memory {memory.base_bytes / 1e9:.1f} GB + {slope:.2f} GB a micro-batch in flight"
    for row in memory.forecast:
        peak = "unknown"
        if row.peak_bytes is not None:
            peak = f"{row.peak_bytes / 1e9:.1f} GB"
        fits = {None: "", True: ", fits", False: ", does not fit"}[row.fits]
        yield f"{row.microbatches:g} micro-batches: {row.in_flight} in flight, {peak}{fits}"


def fits_section(fits: Sequence[Fit]) -> Section:
    """What the step times of logs say beside other runs: what scales with micro-batches, and what does not."""
    columns = [
        Column("", left=True),
        Column("a micro-batch", Unit.TIME),
        Column("bubble"),
        Column("fixed", Unit.TIME),
        Column("", left=True),
    ]
    rows: list[list[Cell]] = []
    notes = []
    for fit in fits:
        name = PurePath(fit.source).name
        if fit.slot_ms is None:
            notes += [f"{name}: {sentence}" for sentence in fit.verdict]
        elif fit.model == ONE_POINT and fit.bubble_ms is not None:
            # A single setting does not tell the bubble from what is fixed: it bounds their sum.
            rows.append([name, fit.slot_ms, f"<= {span(fit.bubble_ms)}", None, fit.evidence])
        else:
            bubble, fixed = None, fit.fixed_ms
            if fit.bubble_ms is not None:
                bubble = span(fit.bubble_ms)
            if fit.model == ONE_POINT:
                fixed = None  # one setting does not tell it
            rows.append([name, fit.slot_ms, bubble, fixed, fit.evidence])
    if not rows:  # no line held: why is all that is said
        return Sentences("Steps of the logs", notes)
    return Table("Steps of the logs: fixed + bubble + micro-batches x slot", columns, rows, notes=notes)
