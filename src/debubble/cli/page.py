"""Pages: what ``show``, ``diagnose``, ``why`` and ``run`` found, as the one HTML page that they all draw."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account import Account, account
from ..costs import Costs, Rates, costs_of
from ..diagnose.causes import Causes, causes
from ..diagnose.fit import fitted, present, stage_means
from ..diagnose.own import closed_form, rates
from ..diagnose.recognise import recognise
from ..diagnose.report import REMEDIES, Diagnosis
from ..diagnose.sides import Side
from ..diagnose.verdict import percent, verdict
from ..diagnose.what_if import TRUSTED
from ..diagnose.why import Comparison
from ..draw.html import MOST_BOXES, Page, Run
from ..draw.tables import duration
from ..lower import needs_of
from ..memory import peak_activations
from ..op import KINDS, Kind
from ..schedule import Schedule, Shape
from ..simulate import simulate
from ..timeline import Timeline
from .diagnose_blocks import WHAT
from .report import per_rank
from .show import Shown
from .show_text import title
from .take import document_item, launch_item, show_command, take

Tile = dict[str, str]

_MENDED: dict[str, dict[str, Any]] = {
    "imbalance": {"stage_scale": (), "rank_scale": ()},
    "variation": {"microbatch_scale": ()},
    "transfer": {"transfer": 0, "payload": 0},
}
_HALVES = "A schedule that splits the backward takes half of it for each part: state or measure I and W to know better."


def page_of_shown(shown: Shown, document: dict[str, Any]) -> Page:
    """A simulated schedule.

    Args:
        shown: what ``show`` found.
        document: what its ``--json`` prints.
    """
    schedule = shown.schedule
    found = causes(shown.timeline)
    again = show_command(schedule, shown.rates)
    run = _run(schedule.name, shown.timeline, shown.account, shown.peak)
    command = {"name": "The command that shows this", "text": again}
    return Page(
        title=title(shown),
        verdict=[*_shown_verdict(shown, found), *shown.warnings],
        next=_better(shown, found) if schedule.ranks > 1 else "",
        tiles=_shown_tiles(shown, found),
        runs=[run],
        causes=[_causes(found, shown.account.evidence)],
        what_if=_what_if(shown.timeline, costs_of(shown.rates, schedule), "Simulated with the durations above."),
        take=[command, *take(schedule, document)],
    )


def _better(shown: Shown, found: Causes) -> str:
    """The same without what costs most; for the schedule's own idle time with micro-batches enough to halve it."""
    schedule, closed = shown.schedule, shown.closed
    if (mended := _MENDED.get(_dearest(found)[0])) is not None:
        return show_command(schedule, replace(shown.rates, **mended))
    half = closed.half_at if closed and closed.half_at else 2 * schedule.microbatches
    half += -half % schedule.ranks if schedule.name == "interleaved" else 0
    return show_command(schedule, replace(shown.rates, microbatch_scale=()), microbatches=half)


def _dearest(found: Causes) -> tuple[str, int]:
    """What costs most beside the work itself."""
    return max((pair for pair in found if pair[0] != "ideal"), key=lambda pair: pair[1])


def _shown_verdict(shown: Shown, found: Causes) -> list[str]:
    spent, evidence = shown.account, "exact" if shown.closed else shown.account.evidence
    ranks = f"{shown.schedule.ranks} ranks" if shown.schedule.ranks > 1 else "1 rank"
    lines = [
        f"{ranks} idle for {percent(spent.idle_share)} of {duration(spent.window)} ({evidence}): "
        f"a bubble ratio of {percent(spent.bubble_ratio)}."
    ]
    name, cost = _dearest(found)
    if cost > 0:
        lines.append(f"The largest part is {name}, {duration(cost)}: {WHAT[name]}. Remedy: {REMEDIES[name]}.")
    if shown.closed and shown.closed.half_at and shown.schedule.ranks > 1:
        lines.append(f"With {shown.closed.half_at} micro-batches the idle share is half of that.")
    return lines


def _shown_tiles(shown: Shown, found: Causes) -> list[Tile]:
    spent, closed = shown.account, shown.closed
    evidence = "exact" if closed else spent.evidence
    own = f"{closed.share_text}, exact; simulation agrees" if closed else "even stages, free transfers; simulated"
    share = spent.idle_share if closed else 1 - found.most_busy
    beaten = shown.lower_bound / spent.window if spent.window else 1.0
    return [
        _tile(
            "Pipeline window",
            duration(spent.window),
            f"{spent.evidence}, for {shown.schedule.microbatches} micro-batches",
        ),
        _bubble_tile(f"{percent(spent.idle_share)}", f"{percent(spent.bubble_ratio)}", evidence),
        _tile("What the schedule itself promises", f"{percent(share)} idle share", own),
        _tile(
            "Lower bound",
            duration(shown.lower_bound),
            f"{percent(beaten)} of the window; no order of this placement and these costs is shorter",
        ),
    ]


def page_of_diagnosis(d: Diagnosis, document: dict[str, Any], path: Path | str) -> Page:
    """A measured run.

    Args:
        d: what was found.
        document: what ``--json`` prints of it.
        path: of the recording or trace.
    """
    summary, timeline = d.summary, d.summary.window.timeline
    schedule = timeline.program.schedule
    name = PurePath(d.run.source).name or str(path)
    where = f"step {summary.window.step}, replica {summary.window.replica}, the median window"
    sizes = f"{schedule.ranks} ranks x {schedule.microbatches} micro-batches"
    return Page(
        title=f"{name}: {d.order}, {sizes} (measured)",
        verdict=[*d.verdict, *map(_sentence, [*(found.sentence for found in d.findings[1:3]), *d.remarks])],
        next=_next_command(timeline, d.causes, d.order.name),
        tiles=_measured_tiles(d),
        runs=[_run(where, timeline, summary.account, peak_activations(schedule))],
        causes=[_causes(d.causes, "measured")],
        what_if=_what_if_measured(timeline, d.causes),
        take=take(schedule, document),
    )


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
        _tile(whole, duration(step), f"measured, {count}{outside}"),
        _bubble_tile(f"{percent(summary.idle_share)}", f"{percent(summary.bubble_ratio)}", "measured"),
        _promise_tile(d.causes, summary.window.timeline.program.schedule, d.order.name),
        _fit_tile(f"{percent(d.causes.resim_ratio)}", abs(d.causes.resim_ratio - 1) <= TRUSTED),
    ]


def _promise_tile(found: Causes, schedule: Schedule, name: str | None) -> Tile:
    """What the order would idle with even stages and free transfers: by formula where there is one."""
    size = Shape(schedule.ranks, schedule.microbatches, max(1, schedule.stages // schedule.ranks), schedule.slices)
    ratio = closed_form(name, size) if name else None
    share = 1 - found.most_busy if ratio is None else ratio / (1 + ratio)
    evidence = "simulated" if ratio is None else "exact"
    return _tile(
        "What the schedule itself promises", f"{percent(share)} idle share", f"even stages, free transfers; {evidence}"
    )


def _fit_tile(value: str, trusted: bool) -> Tile:
    note = "of the measured window; " + ("close enough for what-ifs" if trusted else "too far off for what-ifs")
    return _tile("Simulated again it takes", value, note)


def _next_command(timeline: Timeline, found: Causes, name: str | None) -> str:
    """The same pipeline in simulation, with twice the micro-batches."""
    schedule = timeline.program.schedule
    if name is None or schedule.ranks == 1 or abs(found.resim_ratio - 1) > TRUSTED:
        return ""
    table = _table(fitted(timeline), schedule)
    by_kind = table.sum(axis=1) / schedule.ranks  # per micro-batch and rank
    spent = {"forward": float(by_kind[Kind.F])}
    halves = {"input": float(by_kind[Kind.I]), "weight": float(by_kind[Kind.W])}
    spent |= halves if schedule.splits else {"backward": float(by_kind[Kind.B])}
    rates = Rates(**{kind: float(f"{value:.4g}") for kind, value in spent.items()})  # type: ignore[arg-type]
    return show_command(schedule, rates, name=name, microbatches=2 * schedule.microbatches)


def page_of_comparison(c: Comparison, document: dict[str, Any], paths: Sequence[Path]) -> Page:
    """Two runs on one time axis.

    Args:
        c: the comparison.
        document: what ``--json`` prints of it.
        paths: of the runs, as given.
    """
    sides = [(side, timeline) for side in (c.a, c.b) if (timeline := _timeline(side)) is not None]
    runs = [_run(_side_name(side), t, account(t), peak_activations(t.program.schedule)) for side, t in sides]
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
        causes=[_causes(side.causes, _evidence(side), side.name) for side, _ in sides if side.causes is not None],
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


def _next_of(side: Side, path: Path) -> str:
    """A measured run alone, in full; a stated one with twice the micro-batches."""
    if side.measured:
        return shlex.join(["debubble", "diagnose", str(path)])
    if side.replay is None:
        return ""
    schedule = side.replay.schedule
    return show_command(schedule, rates(side.job), microbatches=2 * schedule.microbatches)


def _comparison_what_if(last: tuple[Side, Timeline] | None, number: int) -> dict[str, Any] | None:
    if last is None or last[0].causes is None:
        return None
    side, timeline = last
    return _what_if_measured(timeline, side.causes, number) if side.causes is not None else None


def _timeline(side: Side) -> Timeline | None:
    """What was measured or simulated; a job without durations at the ones that ``show`` takes."""
    if side.timeline is not None or side.replay is None:
        return side.timeline
    from ..lower import lower

    return simulate(lower(side.replay.schedule), side.replay.costs)


def _side_name(side: Side) -> str:
    stated = side.measured or side.job.forward is not None
    return (
        f"{side.name}, the median window"
        if side.measured
        else side.name
        if stated
        else f"{side.name}, at 1 ms a forward and 2 ms a backward"
    )


def _evidence(side: Side) -> str:
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
    trusted = all(abs(s.causes.resim_ratio - 1) <= TRUSTED for s in (c.a, c.b) if s.measured and s.causes is not None)
    tiles = [_tile("Throughput", ratio, note)]
    if seen:
        tiles.append(_bubble_tile(shares, ratios, " and ".join(dict.fromkeys(each.evidence for each in seen))))
    if own:
        tiles.append(
            _tile(
                "What the schedules themselves promise",
                " to ".join(own),
                "idle share of even stages and free transfers",
            )
        )
    if fits:
        tiles.append(_fit_tile(" and ".join(fits), trusted))
    elif c.explains is not None:
        low, high = c.explains
        value = f"{high:.2f} x" if low == high else f"{low:.2f} to {high:.2f} x"
        tiles.append(
            _tile("The bubble alone explains", value, "throughput, had only the schedule's own idle time changed")
        )
    return tiles


def _tile(name: str, value: str, note: str) -> Tile:
    return {"name": name, "value": value, "note": note}


def _bubble_tile(share: str, ratio: str, evidence: str) -> Tile:
    note = f"idle share = idle / (ranks x window); bubble ratio = idle / busy, {ratio}; {evidence}"
    return _tile("Idle share (bubble ratio)", f"{share} ({ratio})", note)


def _run(name: str, timeline: Timeline, spent: Account, peak: NDArray[np.float64]) -> Run:
    return Run(name, timeline, spent, per_rank(spent, peak))


def _causes(found: Causes, evidence: str, name: str = "") -> dict[str, Any]:
    window = found.window or 1
    rows = [
        {
            "cause": cause,
            "cost_ms": cost / 1e6,
            "cost_share": cost / window,
            "evidence": evidence if cause in ("ideal", "unexplained") else "simulated",
            "remedy": "; ".join(
                [WHAT[cause], *([REMEDIES[cause]] if cost > 0.01 * window and cause in REMEDIES else [])]
            ),
        }
        for cause, cost in found
    ]
    return {"name": name, "rows": rows}


def _what_if_measured(timeline: Timeline, found: Causes, number: int = 0) -> dict[str, Any] | None:
    """Sliders from the mean durations of each stage; none where simulating the run again misses its window."""
    if abs(found.resim_ratio - 1) > TRUSTED:
        return None
    fit = f"the run simulated again takes {percent(found.resim_ratio)} of its window"
    note = f"Simulated with the mean of each stage and one hop for all; {fit}."
    return _what_if(timeline, fitted(timeline), note, number)


def _what_if(timeline: Timeline, costs: Costs, note: str, number: int = 0) -> dict[str, Any] | None:
    """Where the sliders start."""
    schedule = timeline.program.schedule
    if len(schedule) > MOST_BOXES:
        return None
    return {
        "run": number,
        "schedule": recognise(schedule).name or schedule.name,
        "ranks": schedule.ranks,
        "microbatches": schedule.microbatches,
        "chunks": int(schedule.chunks_of().max()),
        "slices": schedule.slices,
        "stages": schedule.stages,
        "table": _table(costs, schedule).tolist(),
        "transfer": _hop(costs, schedule),
        "pairScale": costs.pair_scale,
        "note": note if schedule.splits or schedule.forward_only else f"{note} {_HALVES}",
    }


def _table(costs: Costs, schedule: Schedule) -> NDArray[np.int64]:
    """The mean duration of each kind and stage, int64[kinds, stages]; a backward and its halves from each other."""
    there = present(schedule).any(axis=2)
    said = np.rint(costs.durations.mean(axis=2)).astype(np.int64)  # of kinds that the order does not have
    table = np.where(there, stage_means(costs, schedule).durations[:, :, 0], said)
    if not table[[Kind.I, Kind.W]].any():
        table[Kind.I] = table[Kind.B] // 2
        table[Kind.W] = table[Kind.B] - table[Kind.I]
    elif not table[Kind.B].any():
        table[Kind.B] = table[Kind.I] + table[Kind.W]
    return table


def _hop(costs: Costs, schedule: Schedule) -> int:
    """The mean delay of all hops between ranks, nanoseconds."""
    crossing = needs_of(schedule)[0] >= 0
    delays = np.broadcast_to(costs.hops(), (KINDS, schedule.stages, schedule.units))
    mine = delays[schedule.kind[crossing], schedule.stage[crossing], schedule.unit[crossing]]
    return round(float(mine.mean())) if mine.size else 0
