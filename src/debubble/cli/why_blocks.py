"""What ``why`` prints for people: the two runs side by side, the factors, the verdict and the ways out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from ..core.units import percent
from ..diagnosis.compared_run import ComparedRun
from ..diagnosis.fit_steps import ONE_POINT, StepFit
from ..diagnosis.replay import WhatIf
from ..diagnosis.series import frontier
from ..diagnosis.verdict import checks, times, verdict
from ..diagnosis.why import Comparison
from ..drawing.tables import duration
from .answers import granted, legend, letters, memory
from .blocks import Block, Picture, Sentences, Table
from .console import Look
from .fit_document import Fitted

NONE = "-"
MOST_CHANGES = 12  # remedies in the text; --json has all


def blocks(comparison: Comparison, look: Look) -> list[Block]:
    """Everything about two runs, the answer first."""
    sentences = verdict(comparison)
    found: list[Block] = [Sentences(f"{comparison.a.name} -> {comparison.b.name}", sentences[:1])]
    found += _pictures(comparison, look)
    found.append(_side_by_side(comparison))
    if comparison.factors:
        found.append(Table("Throughput ratio = a product of factors", *_factor_rows(comparison), left=2))
    if comparison.a.causes is not None and comparison.b.causes is not None:
        found.append(_causes(comparison))
    found.append(Sentences("Verdict", sentences[1:]))
    if causes := checks(comparison):
        found.append(Sentences("Check, in this order", causes))
    if comparison.next:
        found += _ways_out(comparison)
    if comparison.asks:
        found.append(Sentences("To know more, state", _asked(comparison)))
    if remarks := [f"{run.name}: {each}" for run in (comparison.a, comparison.b) for each in run.remarks]:
        found.append(Sentences("Remarks", remarks))
    return found


def _asked(c: Comparison) -> list[str]:
    """One line a key, for all runs that lack it."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for ask in c.asks:
        wanted.setdefault((ask.key, ask.reason), []).append(ask.side)
    return [f"{key} of {' and '.join(sides)}: {reason}" for (key, reason), sides in wanted.items()]


def series_blocks(comparisons: Sequence[Comparison], look: Look) -> list[Block]:
    """A line for each run of a series, then all about the last."""
    headers = ["run", "GPUs", "throughput", "by the bubble", "left over", "idle share", "evidence"]
    first = comparisons[0].a
    rows = [[first.name, _whole(first.gpus), "1.00", "1.00", "1.00", _idle(first), _evidence(first)]]
    for c in comparisons:
        ratio = times(c.ratio.value) if c.ratio is not None else NONE
        cells = [ratio, _bounds(c.explains), _bounds(c.left_over), _idle(c.b), _evidence(c.b)]
        rows.append([c.b.name, _whole(c.b.gpus), *cells])
    unit = comparisons[-1].unit or "schedules only"
    top = Table(f"Against {first.name} ({unit}): throughput = by the bubble x left over", headers, rows)
    return [top, *_frontier(comparisons), *blocks(comparisons[-1], look)]


def _frontier(comparisons: Sequence[Comparison]) -> Iterator[Block]:
    found = frontier(comparisons)
    if found is None:
        return
    sentences = [
        f"By memory and throughput, none of these is beaten in both: {', '.join(found.pareto)}.",
        f"Most throughput for its memory: {found.best_per_byte}.",
    ]
    if found.implied_idle_share > 0:
        idle = percent(found.implied_idle_share)
        sentences.append(
            f"If {found.fastest} idles not at all, {found.first} idles {idle} of the time, work in a busy second alike."
        )
    yield Sentences("Throughput against memory of a device (stated)", sentences)


def fit_blocks(fits: Sequence[Fitted]) -> list[Block]:
    """What the step times of logs say: what scales with micro-batches, and what does not."""
    rows = [
        [
            PurePath(fit.log.source).name,
            duration(1e9 * fit.steps.slot),
            _bubble_of(fit.steps),
            NONE if fit.steps.model == ONE_POINT else duration(1e9 * fit.steps.fixed),
            fit.steps.evidence,
        ]
        for fit in fits
        if fit.steps is not None
    ]
    headers = ["", "a micro-batch", "bubble", "fixed", ""]
    return [Table("Steps of the logs: fixed + bubble + micro-batches x slot", headers, rows)] if rows else []


def _bubble_of(fit: StepFit) -> str:
    """A single setting does not tell the bubble from what is fixed: it bounds their sum."""
    if fit.bubble is None:
        return NONE
    return f"<= {duration(1e9 * fit.bubble)}" if fit.model == ONE_POINT else duration(1e9 * fit.bubble)


def _pictures(c: Comparison, look: Look) -> Iterator[Block]:
    from ..drawing.terminal import timeline_text

    for run in (c.a, c.b):
        if run.summary is not None and run.timeline is not None:
            text = timeline_text(run.timeline, look.width, utf8=look.utf8, colour=look.colour)
            yield Picture(f"{run.name}: the median window (measured)", text)


def _side_by_side(c: Comparison) -> Table:
    rows = [
        [label, here, there, evidence]
        for label, show, evidence in _lines(c)
        if {here := show(c.a), there := show(c.b)} != {NONE}
    ]
    return Table("", ["", c.a.name, c.b.name, ""], rows)


Line = tuple[str, Callable[[ComparedRun], str], str]


def _lines(c: Comparison) -> Iterator[Line]:
    """Label, cell of a run, and where the figures come from."""
    sizes = "measured" if c.a.measured and c.b.measured else "stated"
    own = " / ".join(dict.fromkeys(_evidence(run) for run in (c.a, c.b) if run.own is not None))
    yield "GPUs", lambda run: _whole(run.gpus), sizes
    yield "pipeline x data", _layout, sizes
    yield "schedule", _schedule, sizes
    yield "micro-batches per pipeline", lambda run: _whole(run.job.microbatches), sizes
    yield "bubble ratio, idle / busy", _ratio, own
    yield "idle share, idle / all", _idle, own
    yield "most that a rank can be busy", _busiest, own
    for evidence in dict.fromkeys(run.busy.evidence for run in (c.a, c.b) if run.busy is not None):
        label = "utilisation" if evidence == "stated" else "busy share of the window"
        yield label, lambda run, evidence=evidence: _busy(run, evidence), evidence  # type: ignore[misc]
    yield "pipeline window", lambda run: duration(run.causes.window) if run.causes else NONE, _of_timeline(c)
    yield "outside it, a step", lambda run: duration(run.outside_ns) if run.outside_ns else NONE, "measured"
    yield "activations in flight", _in_flight, "exact"
    if c.unit is not None and c.ratio is not None:
        unit = c.unit
        yield unit, lambda run: _speed(run, unit), c.ratio.evidence


def _layout(run: ComparedRun) -> str:
    return NONE if run.job.pipeline is None else f"{run.job.pipeline} x {_whole(run.job.data)}"


def _schedule(run: ComparedRun) -> str:
    if run.job.pipeline is None:
        return NONE
    return str(run.job.schedule) if run.job.pipeline > 1 else "no pipeline"


def _of_timeline(c: Comparison) -> str:
    return " / ".join(dict.fromkeys(run.timeline.evidence for run in (c.a, c.b) if run.timeline is not None))


def _whole(count: int | None) -> str:
    return NONE if count is None else str(count)


def _evidence(run: ComparedRun) -> str:
    return NONE if run.own is None else run.own.evidence


def _idle(run: ComparedRun) -> str:
    if run.own is None:
        return NONE
    return percent(run.own.most) if run.own.known else f"{percent(run.own.least)} to {percent(run.own.most)}"


def _ratio(run: ComparedRun) -> str:
    if run.own is None:
        return NONE
    return percent(run.own.bubble_ratio) if run.own.known else f"0 to {percent(run.own.bubble_ratio)}"


def _busiest(run: ComparedRun) -> str:
    if run.own is None:
        return NONE
    low, high = run.own.busy
    return percent(high) if run.own.known else f"{percent(low)} to {percent(high)}"


def _busy(run: ComparedRun, evidence: str) -> str:
    if run.busy is None or run.busy.evidence != evidence:
        return NONE
    return percent(run.busy.value) + (" (!)" if run.overstated else "")


def _in_flight(run: ComparedRun) -> str:
    return NONE if run.peak_activations is None else f"{run.peak_activations:g}"


def _speed(run: ComparedRun, unit: str) -> str:
    figure = run.speeds.get(unit) or run.predicted.get(unit)
    return NONE if figure is None else f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.4g}"


def _bounds(bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return NONE
    low, high = bounds
    return f"{low:.3f}" if low == high else f"{low:.2f} to {high:.2f}"


def _factor_rows(c: Comparison) -> tuple[list[str], list[list[str]]]:
    """The factors as stated or measured, those of the schedules themselves, and what the bubble explains."""
    names = list(c.factors)
    rows = [["=", *(_three(c.factors[name]) for name in names), _kind(c)]]
    own = c.explains
    if c.busy_evidence == "stated" and own is not None and own[0] == own[1] and c.ratio is not None:
        gpus = c.factors.get("gpus", 1.0)
        schedules = {"gpus": gpus, "busy": own[0] / gpus, "work_rate": c.ratio.value / own[0]}
        evidence = " / ".join(dict.fromkeys((_evidence(c.a), _evidence(c.b))))
        rows.append(["=", *(_three(schedules[name]) for name in names), f"the schedules' own ({evidence})"])
    ratio = times(c.ratio.value) if c.ratio is not None else NONE
    headers = ["ratio", "", *(name.replace("_", " ") for name in names), "busy shares"]
    return headers, [[ratio, *row] for row in rows]


def _three(value: float) -> str:
    return f"{value:.3f}"


def _kind(c: Comparison) -> str:
    return {"stated": "the stated utilisations", "measured": "measured", "": NONE}.get(c.busy_evidence, c.busy_evidence)


def _causes(c: Comparison) -> Table:
    """Why each window is as long as it is; columns sum to the windows."""
    here, there = c.a.causes, c.b.causes
    if here is None or there is None:
        return Table("", [], [])
    rows = [
        [name, *_cost(cost, here.window), *_cost(other, there.window)]
        for (name, cost), (_, other) in zip(here, there, strict=True)
    ]
    rows.append(["window", *_cost(here.window, here.window), *_cost(there.window, there.window)])
    headers = ["", c.a.name, "", c.b.name, ""]
    return Table("Why each window takes as long as it does (by re-simulation)", headers, rows)


def _cost(cost: int, window: int) -> tuple[str, str]:
    return f"{cost / 1e6:,.1f} ms", percent(cost / window) if window else NONE


def _way_out(answer: WhatIf, against: float | None, letter: dict[str, str]) -> list[list[str]]:
    """One row; changes that go together are below each other."""
    *before, last = answer.change.split(" + ")
    figures = [
        str(answer.microbatches),
        percent(answer.idle_share),
        *memory(answer),
        f"{answer.speedup:.2f}x",
        NONE if against is None else f"{against * answer.speedup:.2f}x",
        granted(answer, letter),
    ]
    return [*([f"{part} and", *[""] * len(figures)] for part in before), [last, *figures]]


def _ways_out(c: Comparison) -> Iterator[Block]:
    against = c.ratio.value if c.ratio is not None else None
    letter = letters(c.next)
    rows = [row for answer in c.next[:MOST_CHANGES] for row in _way_out(answer, against, letter)]
    headers = ["change", "m", "idle", "held", "memory", f"x {c.b.name}", f"x {c.a.name}", "if"]
    yield Table(f"Ways out of {c.b.name}: throughput with each change (simulated)", headers, rows)
    batch = f"The global batch is that of {c.b.name} unless the last column says otherwise."
    yield Sentences("", [batch, *legend(letter)])
