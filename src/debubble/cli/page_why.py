"""The page of two runs: what ``why`` found, with both timelines on one time axis."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.account import account
from ..core.lower import lower
from ..core.memory import peak_activations
from ..core.simulate import simulate
from ..core.timeline import Timeline
from ..core.units import percent
from ..diagnosis.compared_run import ComparedRun
from ..diagnosis.own_idle import rates
from ..diagnosis.verdict import verdict
from ..diagnosis.why import Comparison
from ..drawing.html import Page
from .page_parts import Tile, bubble_tile, causes_of, fit_tile, run_of, tile, what_if_measured
from .page_take import document_item, launch_item, show_command, take


def page_of_comparison(c: Comparison, document: dict[str, Any], paths: Sequence[Path]) -> Page:
    """Two runs on one time axis.

    Args:
        c: the comparison.
        document: what ``--json`` prints of it.
        paths: of the runs, as given.
    """
    sides = [(side, timeline) for side in (c.a, c.b) if (timeline := _timeline(side)) is not None]
    runs = [run_of(_side_name(side), t, account(t), peak_activations(t.program.schedule)) for side, t in sides]
    last = sides[-1] if sides and sides[-1][0] is c.b else None
    offered = (
        [launch_item(last[1].program.schedule), *take(last[1].program.schedule, document, run=len(runs) - 1)[1:]]
        if last
        else []
    )
    return Page(
        title=f"{c.a.name} against {c.b.name}: why",
        verdict=verdict(c),
        next=_next_of(c.b, paths[-1]),
        tiles=_comparison_tiles(c),
        runs=runs,
        causes=[causes_of(side.causes, _evidence(side), side.name) for side, _ in sides if side.causes is not None],
        what_if=_comparison_what_if(last, len(runs) - 1),
        take=offered or [document_item(document)],
    )


def figures_of_comparison(c: Comparison) -> list[tuple[str, Timeline]]:
    """The timelines of both runs, as far as there are any."""
    return [
        (f"{_side_name(side)} ({timeline.evidence})", timeline)
        for side in (c.a, c.b)
        if (timeline := _timeline(side)) is not None
    ]


def _next_of(side: ComparedRun, path: Path) -> str:
    """A measured run alone, in full; a stated one with twice the micro-batches."""
    if side.measured:
        return shlex.join(["debubble", "diagnose", str(path)])
    if side.replay is None:
        return ""
    schedule = side.replay.schedule
    return show_command(schedule, rates(side.job), microbatches=2 * schedule.microbatches)


def _comparison_what_if(last: tuple[ComparedRun, Timeline] | None, number: int) -> dict[str, Any] | None:
    if last is None or last[0].causes is None:
        return None
    side, timeline = last
    return what_if_measured(timeline, side.causes, number) if side.causes is not None else None


def _timeline(side: ComparedRun) -> Timeline | None:
    """What was measured or simulated; a job without durations at the ones that ``show`` takes."""
    if side.timeline is not None or side.replay is None:
        return side.timeline
    return simulate(lower(side.replay.schedule), side.replay.costs)


def _side_name(side: ComparedRun) -> str:
    stated = side.measured or side.job.forward is not None
    return (
        f"{side.name}, the median window"
        if side.measured
        else side.name
        if stated
        else f"{side.name}, at 1 ms a forward and 2 ms a backward"
    )


def _evidence(side: ComparedRun) -> str:
    return "measured" if side.measured else "simulated"


def _comparison_tiles(c: Comparison) -> list[Tile]:
    ratio = f"{c.ratio.value:.2f} x" if c.ratio is not None else "not stated"
    note = (
        f"{c.b.name} over {c.a.name}, {c.unit}, {c.ratio.evidence}" if c.ratio is not None else "state it for both runs"
    )
    seen = [account(t) for side in (c.a, c.b) if (t := _timeline(side)) is not None]
    shares, ratios = (
        " to ".join(f"{percent(getattr(each, name))}" for each in seen) for name in ("idle_share", "bubble_ratio")
    )
    own = [f"{percent(side.own.most)}" for side in (c.a, c.b) if side.own is not None and side.own.known]
    fits = [f"{percent(side.causes.resim_ratio)}" for side in (c.a, c.b) if side.measured and side.causes is not None]
    trusted = all(s.causes.trusted for s in (c.a, c.b) if s.measured and s.causes is not None)
    tiles = [tile("Throughput", ratio, note)]
    if seen:
        tiles.append(bubble_tile(shares, ratios, " and ".join(dict.fromkeys(each.evidence for each in seen))))
    if own:
        tiles.append(
            tile(
                "What the schedules themselves promise",
                " to ".join(own),
                "idle share of even stages and free transfers",
            )
        )
    if fits:
        tiles.append(fit_tile(" and ".join(fits), trusted))
    elif c.explains is not None:
        low, high = c.explains
        value = f"{high:.2f} x" if low == high else f"{low:.2f} to {high:.2f} x"
        tiles.append(
            tile("The bubble alone explains", value, "throughput, had only the schedule's own idle time changed")
        )
    return tiles
