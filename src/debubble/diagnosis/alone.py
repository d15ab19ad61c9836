"""One run alone: how busy its GPUs are, how busy its schedule lets them be, and what the difference must be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ..core.results import HIDDEN, SPARSE, Result
from ..core.units import counted, percent
from .compared_run import ComparedRun
from .comparison import ComparedWindow, Missing, Side, WayOut, side_of, way_out_of, window_of
from .fit import Fit
from .log_run import history_sentences
from .own_idle import Own
from .remedies import Launcher, Remedies, next_sentences

NOTICEABLE = 0.01  # share of the time that is worth a word


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Alone(Result):
    """A run without another to compare it with.

    Args:
        run: what is known of it.
        bubble_allows_share: busy share that its schedule allows, at most; None if the pipeline is not known.
        something_else_share: by how much it is less busy than that; None if nobody saw how busy it is.
        busy_mfu: model FLOP utilisation in a busy second, if only the bubble idled; None if no utilisation was stated.
        verdict: sentences, the answer first.
        next: changes at the global batch that it has.
        beyond: changes that ask for more, each with what.
        missing: what would tell more.
        fit: of its step times, if it is a log of several.
    """

    schema: ClassVar[str] = "why-alone/1"

    run: Side
    bubble_allows_share: float | None
    something_else_share: float | None
    busy_mfu: float | None
    verdict: tuple[str, ...]
    next: tuple[WayOut, ...]
    beyond: tuple[WayOut, ...]
    missing: tuple[Missing, ...]
    fit: Fit | None = field(default=None, metadata=SPARSE)
    compared: ComparedRun = field(metadata=HIDDEN)

    @property
    def window(self) -> ComparedWindow | None:
        """What can be drawn of it."""
        return window_of(self.compared, of_b=True)


def alone(run: ComparedRun, fit: Fit | None = None, launcher: Launcher | None = None) -> Alone:
    """What can be said of one run."""
    allows = run.own.busy[1] if run.own is not None else None
    busy = run.busy.value if run.busy is not None else None
    remedies = run.remedies(launcher)
    return Alone(
        run=side_of(run),
        bubble_allows_share=allows,
        something_else_share=None if allows is None or busy is None else max(0.0, allows - busy),
        busy_mfu=None if allows is None or run.job.mfu is None else run.job.mfu / allows,
        verdict=tuple(_verdict(run, remedies)),
        next=tuple(way_out_of(answer, None) for answer in remedies.launchable),
        beyond=tuple(way_out_of(answer, None) for answer in remedies.beyond),
        missing=tuple(_missing(run)),
        fit=fit,
        compared=run,
    )


def _verdict(run: ComparedRun, remedies: Remedies) -> Iterator[str]:
    own = run.own
    if own is not None:
        yield from _against_its_bubble(run, own)
    if run.causes is not None and run.measured:
        named = [(name, cost) for name, cost in run.causes if name not in ("ideal", "schedule")]
        parts = [f"{name} {percent(cost / run.causes.window)}" for name, cost in named if cost > 0]
        if parts:
            yield f"Of the window, beside the schedule's own idle time: {', '.join(parts)} (by re-simulation)."
    if run.history is not None:
        yield from (f"{sentence[:1].upper()}{sentence[1:]}." for sentence in history_sentences(run.history))
    if own is not None and run.job.mfu is not None:
        reached = percent(run.job.mfu / own.busy[1])
        yield f"If only the bubble idled, a GPU would reach {reached} of its peak in a busy second."
    yield from next_sentences(remedies)


def _against_its_bubble(run: ComparedRun, own: Own) -> Iterator[str]:
    """How busy it is, and how busy its schedule lets it be."""
    low, high = own.busy
    allows = f"its bubble allows {percent(high)} ({own.evidence})"
    if not own.known:
        allows = f"its bubble allows {percent(low)} to {percent(high)}, by the number of micro-batches"
    if run.busy is None:
        yield f"Of what was seen, nothing says how busy its GPUs are; {allows}."
        return
    busy = run.busy.value
    seen = f"Its GPUs are busy for {percent(busy)} ({run.busy.evidence}), and {allows}"
    if run.overstated:
        yield f"{seen}: that cannot be, so it was measured over something else than the step."
        yield "A rank that waits in a receive kernel counts as busy."
    elif high - busy > NOTICEABLE:
        points = counted(round(100 * (high - busy)), "point")
        bubble = percent(1 - high)
        yield f"{seen}: the bubble costs {bubble}, and {points} more are something else."
    else:
        yield f"{seen}: nothing but the bubble needs a cause."


def _missing(run: ComparedRun) -> Iterator[Missing]:
    if run.job.pipeline is None:
        yield Missing(side=run.name, key="pipeline", reason="how long a pipeline is, which bounds its bubble")
    elif run.own is not None and not run.own.known:
        yield Missing(side=run.name, key="microbatches", reason="how many travel through a pipeline in a step")
    if run.busy is None:
        yield Missing(side=run.name, key="measured.utilisation", reason="how busy its GPUs are (or a trace of it)")
