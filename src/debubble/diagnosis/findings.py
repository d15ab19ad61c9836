"""Findings: what costs a run its time, in plain words, each with where it shows, a remedy and its simulated gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from ..core.finding import Finding, Span
from ..core.observation import Observation
from ..core.timeline import Timeline
from ..schedules.catalog import CATALOG
from .causes import Causes
from .edits import ALIKE, BALANCED, FREE, other_schedule, without_hop
from .evidence.late import Late, dearest_hop, latest_rank
from .evidence.lengths import lengths
from .evidence.replicas import tail
from .evidence.slow import Slow
from .recognise import Recognised
from .replay import Replay, WhatIf
from .ways_out import GOOD_IDLE_SHARE
from .what_if import HEAVY, SMALL, heaviest, work_of_ranks
from .windows import Summary

REMEDIES = {
    "schedule": "more micro-batches, or a schedule with less idle time",
    "imbalance": "move layers off the heavy rank",
    "variation": "batch samples of like length",
    "transfer": "overlap the transfers, or put neighbours on a faster link",
    "unexplained": "look at the host: launches, data loading, garbage collection",
}
FACTS = ("order",)  # findings that are said whatever they cost


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """All that findings are drawn from.

    Args:
        run: what was measured.
        summary: of its windows.
        causes: of the median window.
        replay: of the median window.
        order: what its order was recognised as.
        asked: the schedule that was asked for; None where nobody said.
        slow: ranks that are slow, with what curing each would save.
        tried: changes and what they would bring.
    """

    run: Observation
    summary: Summary
    causes: Causes
    replay: Replay
    order: Recognised
    asked: str | None
    slow: Sequence[tuple[Slow, WhatIf | None]]
    tried: Sequence[WhatIf]

    @property
    def timeline(self) -> Timeline:
        """The median window."""
        return self.summary.window.timeline

    def gain(self, change: str) -> float | None:
        """Samples per second with a change over without; None where it was not tried."""
        return next((answer.speedup for answer in self.tried if answer.change == change), None)


def findings(case: Case) -> list[Finding]:
    """Everything that costs more than a hundredth of the window, the dearest first.

    What is smaller than the uncertainty of the clocks is not claimed.
    """
    least = max(SMALL * case.causes.window, case.run.clock_uncertainty_ns)
    whole = (_schedule, _asked_for, _transfer)  # of which torn pipelines cannot tell
    makers = (*(() if case.run.torn else whole), _slow, _imbalance, _variation, _host, _tail, _outside)
    found = [each for maker in makers for each in maker(case)]
    worth = (each for each in found if each.cost_ns > least or each.cause in FACTS)
    return sorted(worth, key=lambda each: -each.cost_ns)


def _schedule(case: Case) -> Iterator[Finding]:
    p, m = case.replay.schedule.ranks, case.replay.schedule.microbatches
    causes, busy = case.causes, f"{100 * case.causes.most_busy:.0f} %"
    enough = ceil(m * causes.schedule / causes.ideal * (1 - GOOD_IDLE_SHARE) / GOOD_IDLE_SHARE) if causes.ideal else m
    more = f"; {enough} micro-batches bring its own idle share to a tenth" if enough > m else ""
    gain = case.gain(f"{2 * m} micro-batches")
    of = f"; the gain is that of {2 * m}, a batch twice as large" if gain else ""
    yield Finding(
        "schedule",
        f"fill and drain: {m} micro-batches for {p} ranks keep a rank busy for {busy} at best",
        causes.schedule,
        "simulated",
        f"{REMEDIES['schedule']}{more}{of}",
        gain_ratio=gain,
    )


def _asked_for(case: Case) -> Iterator[Finding]:
    """The order that ran is not the one that was asked for."""
    asked, order = case.asked, case.order
    if asked not in CATALOG or asked == order.name:
        return
    shows = order.name or f"no known schedule (nearest {order.nearest}, departs at {order.departure})"
    meant = other_schedule(case.replay, asked, case.replay.schedule.stages // case.replay.schedule.ranks)
    cost = case.causes.resimulated - meant.again().window if meant is not None else 0
    gain = case.causes.resimulated / (case.causes.resimulated - cost)
    sentence = f"{asked} was asked for, and the order shows {shows}"
    remedy = f"look how the schedule is chosen: {asked} did not run"
    yield Finding("order", sentence, cost, "simulated", remedy, gain_ratio=gain if meant is not None else None)


def _slow(case: Case) -> Iterator[Finding]:
    for slow, cured in case.slow:
        if cured is None:
            continue
        where = f"rank {slow.rank} of replica {slow.replica}" if case.summary.replicas > 1 else f"rank {slow.rank}"
        beside = "as the same stage in other replicas"
        if slow.steps:
            steps = ", ".join(map(str, slow.steps[:8])) + (", .." if len(slow.steps) > 8 else "")
            beside = f"in step {steps} as in the other steps"
        sentence = f"slow rank: {where} takes {slow.factor:.2f} times as long {beside}, and its neighbours do not"
        remedy = f"look at the GPU of {where}: clocks, power, other work on its host"
        window = next(w for w in case.summary.windows if _shows(slow, w.step, w.replica))
        spans = _longest(window.timeline, slow.rank)
        lost = (1 - 1 / cured.speedup) * (len(slow.steps) / case.summary.steps if slow.steps else 1)
        cost = round(case.causes.window * lost)  # of a mean step, where only some are slow
        yield Finding("slow rank", sentence, cost, "simulated", remedy, spans, 1 / (1 - lost))


def _shows(slow: Slow, step: int, replica: int) -> bool:
    return replica == slow.replica and (not slow.steps or step in slow.steps)


def _imbalance(case: Case) -> Iterator[Finding]:
    (rank, factor), window = heaviest(case.replay), case.summary.window
    sentence, remedy = "unequal stages", REMEDIES["imbalance"]
    if factor > HEAVY:
        ends = rank in (case.replay.schedule.placement[0, 0], case.replay.schedule.placement[0, -1])
        hint = " (an end of the model: embedding or loss head)" if ends else ""
        sentence = f"unequal stages: rank {rank} works {factor:.2f} times as long as the mean of the others{hint}"
        remedy = f"move layers off rank {rank}: {_layers(case.replay, rank)}"
        if any(slow.rank == rank and _shows(slow, window.step, window.replica) for slow, _ in case.slow):
            remedy = f"see to rank {rank} first: it is slow, its stage is not heavy"
        elif not ends and case.summary.replicas == 1:
            sentence += "; one replica cannot tell more layers from a slow GPU"
    spans = _longest(case.timeline, rank)
    yield Finding("imbalance", sentence, case.causes.imbalance, "simulated", remedy, spans, case.gain(BALANCED))


def _layers(replay: Replay, rank: int) -> str:
    """What to move off a heavy rank, in layers of the others: its work above the mean over a usual rank's work."""
    work = work_of_ranks(replay)
    usual = float(np.median(np.delete(work, rank)))
    share = float(work[rank] - work.mean()) / usual if usual else 0.0
    return f"{100 * share:.0f} % of what another rank holds, {10 * share:.1f} layers for every 10 there"


def _longest(timeline: Timeline, rank: int) -> tuple[Span, ...]:
    """The longest op of a rank."""
    schedule = timeline.program.schedule
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    length = timeline.end[rows] - timeline.start[rows]
    return (_span(timeline, rows.start + int(length.argmax()), rank),) if len(length) else ()


def _span(timeline: Timeline, row: int, rank: int) -> Span:
    first, schedule = timeline.window[0], timeline.program.schedule
    start, end = int(timeline.start[row]) - first, int(timeline.end[row]) - first
    return Span(rank, start, end, schedule.op(row).text(schedule.slices))


def _variation(case: Case) -> Iterator[Finding]:
    found, gain = lengths(case.summary), None
    if found is not None and found.differ:
        gain = case.gain(ALIKE)
        sentence = (
            f"micro-batches differ in length: on all stages alike, by {100 * found.spread:.0f} %; micro-batch "
            f"{found.longest} takes {found.factor:.2f} times the mean"
        )
        remedy = "batch samples of like length, or pack sequences, so that micro-batches take equally long"
    else:
        sentence, remedy = "ops of one stage differ, on each stage in its own way: jitter", "look at hosts and clocks"
    yield Finding("variation", sentence, case.causes.variation, "simulated", remedy, gain_ratio=gain)


def _transfer(case: Case) -> Iterator[Finding]:
    hop = dearest_hop(case.timeline)
    if hop is None:
        return
    what = "activations" if hop.forward else "gradients"
    sentence = (
        f"exposed transfers: most between rank {hop.sender} and rank {hop.receiver}, {what}, "
        f"{hop.usual_ns / 1e6:.2f} ms from the end of an op to the start of the next (median)"
    )
    alone = without_hop(case.replay, hop.sender, hop.receiver, forward=hop.forward).again().window
    if (cost := case.causes.resimulated - alone) > 0:
        sentence += f", {cost / 1e6:.1f} ms of the window by themselves"
    remedy = REMEDIES["transfer"]
    link = next((e for e in case.run.links if (e.sender, e.receiver) == (hop.sender, hop.receiver)), None)
    if link is not None and link.usual_ns < hop.usual_ns / 2:
        sentence += f"; a matched transfer takes at most {link.usual_ns / 1e6:.2f} ms of it, the rest is a late launch"
        remedy = "post receives earlier, and look at the host: the link itself is fast enough"
    if not case.run.links and not case.run.hop_ns:
        sentence += "; no transfer was measured, so a slow link and a late host cannot be told apart"
        remedy = f"trace the sends and receives too; then {remedy}"
    spans = (_span(case.timeline, hop.row, hop.receiver),)
    yield Finding("transfer", sentence, case.causes.transfer, "simulated", remedy, spans, case.gain(FREE))


def _host(case: Case) -> Iterator[Finding]:
    late = latest_rank(case.timeline) if not case.run.torn else None
    if case.run.torn:
        sentence = "time that the ranks at hand do not explain: waiting for ranks that are not here, or late hosts"
        yield Finding("unexplained", sentence, case.causes.unexplained, "measured", "trace all ranks of a pipeline")
        return
    sentence, spans = "time that no op, order or hop explains", tuple[Span, ...]()
    if late is not None:
        sentence, spans = _late(case, late), (_span(case.timeline, late.row, late.rank),)
    yield Finding("unexplained", sentence, case.causes.unexplained, "measured", REMEDIES["unexplained"], spans)


def _late(case: Case, late: Late) -> str:
    op = case.timeline.program.schedule.op(late.row).text(case.timeline.program.schedule.slices)
    return (
        f"host gaps: ops start late though their rank is free and their input is there, most on rank {late.rank}: "
        f"{late.late_ns / 1e6:.1f} ms in all, {late.row_ns / 1e6:.1f} ms of it before {op}"
    )


def _tail(case: Case) -> Iterator[Finding]:
    found = tail(case.summary)
    if found is None:
        return
    sentence = f"data-parallel tail: replicas wait {found.cost_ns / 1e6:.1f} ms of a step for the slowest (mean)"
    remedy = "give replicas micro-batches of like length"
    if found.always_the_same:
        sentence += f", which is replica {found.slowest} in {found.times} of {found.steps} steps"
        remedy = f"look at the hosts of replica {found.slowest}, and at what it is fed"
    yield Finding("tail", sentence, round(found.cost_ns), "measured", remedy)


def _outside(case: Case) -> Iterator[Finding]:
    summary = case.summary
    if summary.outside_ns and summary.step_ns:
        share = summary.outside_ns / summary.step_ns
        sentence = f"{100 * share:.0f} % of a step lies outside the pipeline: reduction, optimizer, data loading"
        remedy = "overlap the reduction with the backward, or do more micro-batches for each"
        yield Finding("outside", sentence, round(summary.outside_ns), "measured", remedy)
