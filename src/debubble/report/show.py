"""What ``show`` says: the picture, the bubble by both of its names, where each rank's time goes, what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from ..core.memory import Release
from ..core.units import percent
from .causes import WHAT, causes_section
from .figures import Unit, span
from .launch import files, launch, numbers, show_command
from .sections import Figure, Figures, Paste, Picture, Ranks, Report, Section, Sentences

if TYPE_CHECKING:
    from ..diagnosis.causes import CauseCost
    from ..diagnosis.simulated import Show

FREED = {"w": "at W", "half": "half at I, half at W", "i": "at I"}
MOST_PEAKS = 8  # ranks whose activations are listed one by one
DIFFERENT = 5e-4  # from which the third number called bubble is worth a line
NO_WORK = "no work"
# What to leave out to see a schedule without a cause.
_MENDED: dict[str, Mapping[str, tuple[float, ...] | float]] = {
    "imbalance": {"stage_scale": (), "rank_scale": ()},
    "variation": {"microbatch_scale": ()},
    "transfer": {"transfer": 0, "payload": 0},
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
    ]
    if not detail:
        return Report(shown.title, (), [*sections, Sentences("", list(_hints(shown)), plain=True, margin=1)])
    causes = shown.causes
    again = Paste("The command that shows this", show_command(shown.order, shown.rates))
    sections += [causes_section(causes, shown.makespan_ms), again, launch(shown.order)]
    sections += [*files(shown.order), numbers(shown)]
    return Report(
        title=shown.title,
        verdict=[*_verdict(shown, causes), *_hints(shown), *shown.warnings],
        sections=sections,
        next=_better(shown, causes) if shown.ranks > 1 else "",
        sliders=shown.sliders,
    )


def _figures(shown: Show, detail: bool) -> Figures:
    """The bubble by every name, with its formula and evidence; memory and bound beside them."""
    idle, busy = shown.idle_formula or "idle / (p x makespan)", shown.bubble_formula or "idle / busy"
    ratio = shown.bubble_ratio if isfinite(shown.bubble_ratio) else NO_WORK
    figures = [
        Figure("idle share", shown.idle_share, Unit.SHARE, idle, shown.evidence),
        Figure("bubble ratio", ratio, Unit.SHARE, busy, shown.evidence),
    ]
    if abs(shown.span_idle_share - shown.idle_share) > DIFFERENT:
        what = "longest rank, without a barrier"
        figures.append(Figure("span idle", shown.span_idle_share, Unit.SHARE, what, shown.timeline.evidence))
    beside = [
        Figure("peak activations", _peaks(shown)),
        Figure("lower bound", shown.lower_bound_ms, Unit.TIME, _beaten(shown) if detail else ""),
    ]
    return Figures([*_of_a_page(shown), *figures] if detail else figures, beside)


def _of_a_page(shown: Show) -> Iterator[Figure]:
    """What the picture of a terminal says, and what the schedule would idle if nothing but its order did."""
    window = f"for {shown.microbatches} micro-batches"
    yield Figure("pipeline window", shown.makespan_ms, Unit.TIME, window, shown.timeline.evidence)
    own = "even stages, free transfers; simulated"
    if shown.idle_formula:
        own = f"{shown.idle_formula}, exact; simulation agrees"
    yield Figure("what the schedule itself promises", f"{percent(shown.promised_share)} idle share", what=own)


def _beaten(shown: Show) -> str:
    share = shown.lower_bound_ms / shown.makespan_ms if shown.makespan_ms else 1.0
    return f"{percent(share)} of the window; no order of this placement and these costs is shorter"


def _peaks(shown: Show) -> str:
    peaks = [rank.peak_activations for rank in shown.per_rank]
    text = " ".join(f"{peak:.3g}" for peak in peaks)
    if len(peaks) > MOST_PEAKS:
        text = f"{max(peaks):.3g} (rank {peaks.index(max(peaks))})"
    return f"{text}, freed {FREED[shown.release]}" if shown.order.splits else text


def _hints(shown: Show) -> Iterator[str]:
    """What halves the idle share, and options that were not given."""
    if shown.half_at_microbatches and shown.ranks > 1:
        hint = f"Half the idle share: -m {shown.half_at_microbatches}"
        if shown.as_interleaved_idle_share is not None:
            hint += f"; as interleaved -v 2 it is {percent(shown.as_interleaved_idle_share)}"
        yield f"{hint}."
    uneven = ",".join(["1"] * (min(shown.stages, 8) - 1) + ["1.6"])
    options = [] if shown.rates.stage_scale else [f"--stage-scale {uneven}"]
    options += [] if shown.rates.transfer or shown.rates.payload else ["--transfer 100us"]
    yield f"More: {'   '.join([*options, '--html F', '--json'])}"


def _dearest(causes: Sequence[CauseCost]) -> CauseCost:
    """What costs most beside the work itself."""
    return max((each for each in causes if each.cause != "ideal"), key=lambda each: each.cost_ms)


def _verdict(shown: Show, causes: Sequence[CauseCost]) -> Iterator[str]:
    ranks = f"{shown.ranks} ranks" if shown.ranks > 1 else "1 rank"
    ratio = "there is no work at all"
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
    mended = _MENDED.get(_dearest(causes).cause)
    if mended is not None:
        return show_command(shown.order, replace(shown.rates, **mended))  # type: ignore[arg-type]  # fields by name
    half = shown.half_at_microbatches or 2 * shown.microbatches
    return show_command(shown.order, replace(shown.rates, microbatch_scale=()), microbatches=half)
