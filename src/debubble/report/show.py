"""What is said of a schedule: simulated by ``show``, executed by ``run``, or listed among those that are known by name.

The picture, the bubble by both of its names, where each rank's time goes, and what to try next; of two schedules, both
on one axis of time, what differs, and where a slow link turns the ranking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from ..core.engine import SENDS
from ..core.schedule import Release
from ..core.units import counted, percent
from .advice import WHAT, causes_section, files, launch, numbers, page_sliders, show_command, unequal_section
from .diagnose import median_window
from .diagnose import report as diagnosed
from .sections import Column, Figure, Figures, Paste, Picture, Ranks, Report, Section, Sentences, Table, Unit, span
from .sections import shown as written

if TYPE_CHECKING:
    from ..diagnosis.causes import CauseCost
    from ..diagnosis.simulated import Against, Executed, Show, SweepPoint
    from ..schedules.catalog import Catalog


FREED = {"w": "at W", "half": "half at I, half at W", "i": "at I"}
MOST_PEAKS = 8  # ranks whose activations are listed one by one
DIFFERENT = 5e-4  # of the window: less rounds to the same tenth of a percent, and needs no third number
NO_WORK = "no work"
TITLES = ("schedule", "placement", "needs", "idle time of a rank", "holds for", "peak activations", "paper")
LEGEND = (
    "p ranks, r one of them from 0, m micro-batches, v chunks a rank, s slices; N micro-batches in a group, cap those "
    "that a search may hold (both p if none is given); F, I, W, B: times of a micro-batch on a rank, F&B of an "
    "overlapped pair. Formulas hold for even stages and free transfers."
)
PLOT = 40  # columns of the plot beside the numbers of a sweep
FIRST, OTHER, BOTH = "1", "2", "x"
# What to leave out to see a schedule without a cause.
_MENDED: dict[str, Mapping[str, tuple[float, ...] | float]] = {
    "imbalance": {"stage_scale": (), "rank_scale": ()},
    "variation": {"microbatch_scale": ()},
    "transfer": {"transfer": 0, "payload": 0, "occupy": 0},
    "engine": {"transfer": 0, "payload": 0, "occupy": 0},
}


def report(shown: Show, *, detail: bool = False) -> Report:
    """The sections of a simulated schedule."""
    sections: list[Section] = [
        Picture(
            *("", shown.schedule, shown.timeline, shown.account, shown.per_rank, shown.title),
            release=Release(shown.release),
        ),
        _figures(shown, detail),
        Ranks("", shown.per_rank, shown.makespan_ms),
        *_engines(shown),
    ]
    if shown.unequal_samples is not None:
        sections.append(unequal_section(shown.unequal_samples))
    if not detail:
        hints = [*_hints(shown), f"More: {'   '.join(_options(shown))}"]
        return Report(shown.title, (), [*sections, Sentences("", hints, plain=True, margin=1)])
    causes = shown.causes
    again = Paste("The command that shows this", show_command(shown.order, shown.rates, engine=_said(shown)))
    sections += [causes_section(causes, shown.makespan_ms), again, launch(shown.order)]
    sections += [*files(shown.order), numbers(shown)]
    return Report(
        title=shown.title,
        verdict=[*_verdict(shown, causes), *_hints(shown), *shown.warnings],
        sections=sections,
        next=_better(shown, causes),
        sliders=page_sliders(shown.sliders),
    )


def _said(shown: Show) -> str:
    """The engine, if one was asked for."""
    return "" if shown.timeline.program.engine in SENDS.values() else shown.engine


def _engines(shown: Show) -> Iterator[Section]:
    """What the step would be under each engine, where hops are long and none was said; engines alike share a line."""
    if shown.per_engine_ms is None:
        return
    alike: dict[float | None, list[str]] = {}
    for name, step in shown.per_engine_ms.items():
        alike.setdefault(step, []).append(name)
    rows: list[tuple[str, float]] = []
    notes = ["ideal: a hop is only a latency. Say who runs it: --engine E."]
    for step, names in alike.items():
        if step is None:
            notes.append(f"{', '.join(names)}: cannot run this order.")
        else:
            rows.append((", ".join(names), step))
    columns = [Column("engine", left=True, long=True), Column("step ms", Unit.MILLISECONDS)]
    yield Table("What these hops do under each engine (simulated)", columns, rows, notes=notes)


def _figures(shown: Show, detail: bool) -> Figures:
    """The bubble by every name, with its formula and evidence; memory and bound beside them."""
    idle, busy = shown.idle_formula or "idle / (p x makespan)", shown.bubble_formula or "idle / busy"
    # Idle over no work at all is no number.
    ratio = shown.bubble_ratio if isfinite(shown.bubble_ratio) else NO_WORK
    figures = [
        Figure("idle share", shown.idle_share, Unit.SHARE, idle, shown.evidence),
        Figure("bubble ratio", ratio, Unit.SHARE, busy, shown.evidence),
    ]
    if abs(shown.span_idle_share - shown.idle_share) > DIFFERENT:
        what = "longest rank, without a barrier"
        figures.append(Figure("span idle", shown.span_idle_share, Unit.SHARE, what, shown.timeline.evidence))
    peaks = Figure("peak activations", _peaks(shown))
    if detail:
        what = f"the window is {percent(shown.gap_share)} above it; no order of this placement and these costs is below"
        return Figures(
            [*_of_a_page(shown), *figures], [peaks, Figure("lower bound", shown.lower_bound_ms, Unit.TIME, what)]
        )
    bound = Figure("lower bound", shown.lower_bound_ms, Unit.TIME)
    return Figures(figures, [peaks, bound, Figure("gap to bound", shown.gap_share, Unit.SHARE)])


def _of_a_page(shown: Show) -> Iterator[Figure]:
    """What the picture of a terminal says, and what the schedule would idle if nothing but its order did."""
    window = f"for {shown.microbatches} micro-batches"
    yield Figure("pipeline window", shown.makespan_ms, Unit.TIME, window, shown.timeline.evidence)
    # What the order alone costs, beside what was simulated: the difference is not the schedule's fault.
    own = "even stages, free transfers; simulated"
    if shown.idle_formula:
        own = f"{shown.idle_formula}, exact; simulation agrees"
    yield Figure("what the schedule itself promises", f"{percent(shown.promised_share)} idle share", what=own)


def _peaks(shown: Show) -> str:
    peaks = [rank.peak_activations for rank in shown.per_rank]
    text = " ".join(f"{peak:.3g}" for peak in peaks)
    if len(peaks) > MOST_PEAKS:
        text = f"{max(peaks):.3g} (rank {peaks.index(max(peaks))})"
    if shown.order.splits:  # a whole backward frees them at its end, whatever was asked
        text += f", freed {FREED[shown.release]}"
    return text


def _hints(shown: Show) -> Iterator[str]:
    """What halves the idle share."""
    if shown.half_at_microbatches and shown.ranks > 1:
        hint = f"Half the idle share: -m {shown.half_at_microbatches}"
        if shown.as_interleaved_idle_share is not None:
            hint += f"; as interleaved -v 2 it is {percent(shown.as_interleaved_idle_share)}"
        yield f"{hint}."


def _options(shown: Show) -> list[str]:
    """Options that were not given, for a terminal: a page has sliders."""
    # The most frequent fault of real pipelines: a last stage with the loss head.
    uneven = ",".join(["1"] * (min(shown.stages, 8) - 1) + ["1.6"])
    options = []
    if not shown.rates.stage_scale:
        options.append(f"--stage-scale {uneven}")
    if not shown.rates.transfer and not shown.rates.payload:
        options.append("--transfer 100us")
    return [*options, "--html F", "--json"]


def _dearest(causes: Sequence[CauseCost]) -> CauseCost:
    """What costs most beside the work itself."""
    return max((each for each in causes if each.cause != "ideal"), key=lambda each: each.cost_ms)


def _verdict(shown: Show, causes: Sequence[CauseCost]) -> Iterator[str]:
    ranks = counted(shown.ranks, "rank")
    ratio = "there is no work at all"  # idle over busy is over nothing then
    if isfinite(shown.bubble_ratio):
        ratio = f"a bubble ratio of {percent(shown.bubble_ratio)}"
    window = span(shown.makespan_ms)
    yield f"{ranks} idle for {percent(shown.idle_share)} of {window} ({shown.evidence}): {ratio}."
    dearest = _dearest(causes)
    if dearest.cost_ms > 0:
        cost = span(dearest.cost_ms)
        yield f"The largest part is {dearest.cause}, {cost}: {WHAT[dearest.cause]}. Remedy: {dearest.remedy}."


def _better(shown: Show, causes: Sequence[CauseCost]) -> str:
    """The same without what costs most; for the schedule's own idle time with micro-batches enough to halve it."""
    if shown.ranks == 1:
        return ""  # one rank waits for nobody
    # The same without what costs most shows at once whether that is worth mending.
    mended = _MENDED.get(_dearest(causes).cause)
    if mended is not None:
        rates = replace(shown.rates, **mended)  # type: ignore[arg-type]  # fields by name
        return show_command(shown.order, rates, engine=_said(shown))
    half = shown.half_at_microbatches or 2 * shown.microbatches
    return show_command(shown.order, replace(shown.rates, microbatch_scale=()), microbatches=half, engine=_said(shown))


def of_run(run: Executed, *, detail: bool = False) -> Report:
    """The sections of a run: its page is that of a diagnosis."""
    figures = _measured(run)
    if detail:
        whole = diagnosed(run, detail=True)
        return Report(whole.title, whole.verdict, [*whole.sections, figures], whole.next, sliders=whole.sliders)
    return Report("", (), [median_window(run, titled=False), figures])


def _measured(run: Executed) -> Figures:
    how = "paced, measured" if run.paced else "measured"
    measured, predicted = written(run.measured_ms, Unit.TIME), written(run.predicted_ms, Unit.TIME)
    figures = [
        Figure("makespan", f"{measured} {how}, {predicted} simulated"),
        Figure("idle share", run.idle_share, Unit.SHARE, evidence=how),
        Figure("bubble ratio", run.bubble_ratio, Unit.SHARE, evidence=how),
        Figure("loss", f"{run.loss:.4f}"),
    ]
    if run.loss_error is not None:
        off = f"loss {run.loss_error:.1e} off one process without a pipeline"
        if run.gradient_error is not None:
            off = f"gradient_error {run.gradient_error:.1e}, {off}"
        figures.append(Figure("check", off))
    figures.append(Figure("recording", f"{run.recording} (debubble diagnose {run.recording})"))
    return Figures(figures)


def of_catalog(found: Catalog, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of the catalog."""
    rows = []
    for entry in found.schedules:
        holds = entry.bubble_holds or "even stages"
        formulas = (entry.needs or None, entry.bubble or None, holds, entry.activations)
        rows.append((entry.name, entry.placement, *formulas, entry.paper or None))
    columns = [Column(title, left=True) for title in TITLES]
    return Report("", (), [Table("", columns, rows, notes=[LEGEND], folds=(3, 5))])


def of_two(held: Against, *, detail: bool = False) -> Report:
    """The sections of two schedules, one against the other."""
    # One scale for both, or the shorter one would look as long.
    axis = max(shown.timeline.makespan for shown in (held.first, held.other))
    sections: list[Section] = [_picture(shown, axis) for shown in (held.first, held.other)]
    sections += [Figures(list(_figures_of_two(held))), *_swept(held)]
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


def _figures_of_two(held: Against) -> Iterator[Figure]:
    yield Figure(held.schedule, held.makespan_ms, Unit.TIME, evidence="simulated")
    yield Figure(held.against, held.against_ms, Unit.TIME, evidence="simulated")
    if held.link is not None:
        turns = "never, within the sweep"
        if held.crossover_ms is not None:
            turns = f"at {span(held.crossover_ms)}"
        yield Figure("ranking turns", turns, what=f"hop on link {held.link}", evidence="simulated")


def _swept(held: Against) -> Iterator[Table]:
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
    if not longest:  # steps that take no time are all at the left end
        return 0
    return round(step_ms / longest * (PLOT - 1))
