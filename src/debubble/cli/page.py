"""Pages of one run: what ``diagnose`` and ``run`` found, as the HTML page that they draw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from ..core.account import Account
from ..core.costs import Rates
from ..core.memory import peak_activations
from ..core.observation import Window
from ..core.op import Kind
from ..core.timeline import Timeline
from ..core.units import percent
from ..diagnosis.causes import Causes, causes
from ..diagnosis.diagnose import Diagnosis
from ..diagnosis.measured_costs import fitted
from ..drawing.html import Page, Run
from ..drawing.tables import duration
from .page_measured import sections_of
from .page_parts import (
    Tile,
    bubble_tile,
    causes_of,
    fit_tile,
    promise_tile,
    run_of,
    table_of,
    tile,
    what_if_measured,
)
from .page_take import show_command, take


def page_of_diagnosis(d: Diagnosis, document: dict[str, Any], path: Path | str) -> Page:
    """A measured run.

    Args:
        d: what was found.
        document: what ``--json`` prints of it.
        path: of the recording or trace.
    """
    timeline = d.summary.window.timeline
    schedule = timeline.program.schedule
    name = PurePath(d.run.source).name or str(path)
    sizes = f"{schedule.ranks} ranks x {schedule.microbatches} micro-batches"
    runs = list(_windows(d))
    return Page(
        title=f"{name}: {d.order}, {sizes} (measured)",
        verdict=[*d.verdict, *map(_sentence, [*(found.sentence for found in d.findings[1:3]), *d.remarks])],
        next=_next_command(timeline, d.causes, d.order.name),
        tiles=_measured_tiles(d),
        runs=[run for run, _ in runs],
        causes=[why for _, why in runs],
        sections=list(sections_of(document)),
        what_if=what_if_measured(timeline, d.causes),
        take=take(schedule, document),
    )


def _windows(d: Diagnosis) -> Iterator[tuple[Run, dict[str, Any]]]:
    """The median window with its causes, and beside it that of the slowest replica, where it is another."""
    summary, window, worst = d.summary, d.summary.window, d.summary.windows[d.worst]
    where = f"step {window.step}, replica {window.replica}, the median window"
    alone = (worst.step, worst.replica) == (window.step, window.replica)
    yield _window(where, window, summary.account), causes_of(d.causes, "measured", "" if alone else where)
    if not alone:
        where = f"step {worst.step}, replica {worst.replica}, the median window of the slowest replica"
        found = causes(worst.timeline)
        yield _window(where, worst, summary.accounts[d.worst]), causes_of(found, "measured", where)


def _window(name: str, window: Window, spent: Account) -> Run:
    return run_of(name, window.timeline, spent, peak_activations(window.timeline.program.schedule))


def figure_of_diagnosis(d: Diagnosis, path: Path | str) -> tuple[str, Timeline]:
    """The median window under the name of the run."""
    window = d.summary.window
    name = PurePath(d.run.source).name or str(path)
    title = f"{name}: {d.order}, step {window.step}, replica {window.replica}, the median window (measured)"
    return title, window.timeline


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."


def _measured_tiles(d: Diagnosis) -> list[Tile]:
    summary = d.summary
    outside = f", {duration(summary.outside_ns)} of it outside the pipeline" if summary.outside_ns is not None else ""
    step = summary.step_ns if summary.step_ns is not None else summary.makespan_ns
    whole = "Step" if summary.step_ns is not None else "Pipeline window"
    count = f"median of {summary.steps} steps x {summary.replicas} replicas"
    return [
        tile(whole, duration(step), f"measured, {count}{outside}"),
        bubble_tile(f"{percent(summary.idle_share)}", f"{percent(summary.bubble_ratio)}", "measured"),
        promise_tile(d.causes, summary.window.timeline.program.schedule, d.order.name),
        fit_tile(f"{percent(d.causes.resim_ratio)}", d.causes.trusted),
    ]


def _next_command(timeline: Timeline, found: Causes, name: str | None) -> str:
    """The same pipeline in simulation, with twice the micro-batches."""
    schedule = timeline.program.schedule
    if name is None or schedule.ranks == 1 or not found.trusted:
        return ""
    table = table_of(fitted(timeline), schedule)
    by_kind = table.sum(axis=1) / schedule.ranks  # per micro-batch and rank
    spent = {"forward": float(by_kind[Kind.F])}
    halves = {"input": float(by_kind[Kind.I]), "weight": float(by_kind[Kind.W])}
    spent |= halves if schedule.splits else {"backward": float(by_kind[Kind.B])}
    rates = Rates(**{kind: float(f"{value:.4g}") for kind, value in spent.items()})  # type: ignore[arg-type]
    return show_command(schedule, rates, name=name, microbatches=2 * schedule.microbatches)
