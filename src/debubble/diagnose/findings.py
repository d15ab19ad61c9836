"""Findings: what costs a run its time, in plain words, each with where it shows, a remedy and its simulated gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..finding import Finding, Span
from ..observation import Observation
from ..op import Kind
from ..timeline import Timeline
from .causes import Causes
from .replay import Replay, WhatIf
from .what_if import HEAVY, SMALL, heaviest
from .windows import Summary

SPREAD = 1.05  # one stage's work in one replica over the same stage's in the others: above it, the GPU is slow
UNLIKE = 0.05  # standard deviation over mean of one stage's forwards: above it, micro-batches differ in length

REMEDIES = {
    "schedule": "more micro-batches, or a schedule with less idle time",
    "imbalance": "move layers off the heavy rank",
    "variation": "batch samples of like length",
    "transfer": "overlap the transfers, or put neighbours on a faster link",
    "unexplained": "look at the host: launches, data loading, garbage collection",
}


def findings(
    run: Observation, summary: Summary, causes: Causes, replay: Replay, tried: Sequence[WhatIf]
) -> list[Finding]:
    """Everything that costs more than a hundredth of the window, the dearest first.

    What is smaller than the uncertainty of the clocks is not claimed.
    """
    least = max(SMALL * causes.window, run.clock_uncertainty_ns)
    gains = {answer.change: answer.speedup for answer in tried}
    found = [
        *_schedule(causes, replay, gains),
        *_imbalance(summary, causes, replay, gains),
        *_variation(causes, replay),
        *_transfer(causes, summary.window.timeline, gains),
        *_host(causes),
        *_outside(summary),
    ]
    return sorted((each for each in found if each.cost_ns > least), key=lambda each: -each.cost_ns)


def _schedule(causes: Causes, replay: Replay, gains: dict[str, float]) -> Iterator[Finding]:
    p, m = replay.schedule.ranks, replay.schedule.microbatches
    yield Finding(
        "schedule",
        f"fill and drain: {m} micro-batches for {p} ranks keep a rank busy for {100 * causes.most_busy:.0f} % at best",
        causes.schedule,
        "simulated",
        REMEDIES["schedule"],
        gain_ratio=gains.get(f"{2 * m} micro-batches"),
    )


def _imbalance(summary: Summary, causes: Causes, replay: Replay, gains: dict[str, float]) -> Iterator[Finding]:
    rank, factor = heaviest(replay)
    share = f"rank {rank} works {factor:.2f} times as long as the mean of the others"
    ends = rank in (replay.schedule.placement[0, 0], replay.schedule.placement[0, -1])
    hint = " (an end of the model: embedding or loss head)" if ends else ""
    sentence, remedy = f"unequal stages: {share}{hint}", REMEDIES["imbalance"]
    if (slow := _slow_replica(summary, rank)) is not None:
        sentence = f"{share}, and in replica {slow} longer than in the others: a slow GPU"
        remedy = f"look at the GPU of rank {rank} in replica {slow}"
    if factor <= HEAVY:
        sentence = "unequal stages"
    spans = _longest(summary.window.timeline, rank)
    yield Finding("imbalance", sentence, causes.imbalance, "simulated", remedy, spans, gains.get("balanced stages"))


def _slow_replica(summary: Summary, rank: int) -> int | None:
    """The replica in which a rank is slower than the same rank of all others; None where none is, or there is one."""
    work: dict[int, list[int]] = {}
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        work.setdefault(window.replica, []).append(int(account.compute[rank]))
    mean = {replica: sum(each) / len(each) for replica, each in work.items()}
    worst = max(mean, key=lambda replica: mean[replica])
    others = [value for replica, value in mean.items() if replica != worst]
    return worst if others and mean[worst] > SPREAD * max(others) else None


def _longest(timeline: Timeline, rank: int) -> tuple[Span, ...]:
    """The longest op of a rank."""
    schedule = timeline.program.schedule
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    length = timeline.end[rows] - timeline.start[rows]
    if not len(length):
        return ()
    row = rows.start + int(length.argmax())
    return (_span(timeline, row, rank),)


def _span(timeline: Timeline, row: int, rank: int) -> Span:
    first, schedule = timeline.window[0], timeline.program.schedule
    start, end = int(timeline.start[row]) - first, int(timeline.end[row]) - first
    return Span(rank, start, end, schedule.op(row).text(schedule.slices))


def _variation(causes: Causes, replay: Replay) -> Iterator[Finding]:
    forward = replay.tables[0][Kind.F]
    spread = float(np.median(forward.std(axis=1) / np.maximum(forward.mean(axis=1), 1)))
    unlike = "micro-batches differ in length" if spread > UNLIKE else "ops of one stage differ"
    sentence = f"{unlike}: the forwards of a stage spread by {100 * spread:.0f} %"
    yield Finding("variation", sentence, causes.variation, "simulated", REMEDIES["variation"])


def _transfer(causes: Causes, timeline: Timeline, gains: dict[str, float]) -> Iterator[Finding]:
    from .fit import hops

    delay = hops(timeline)
    row = int(delay.argmax())
    schedule = timeline.program.schedule
    rank = int(schedule.rank_of()[row])
    sentence = f"exposed transfers: the longest, {delay[row] / 1e6:.2f} ms, before {schedule.op(row)} on rank {rank}"
    spans = (_span(timeline, row, rank),)
    yield Finding(
        "transfer", sentence, causes.transfer, "simulated", REMEDIES["transfer"], spans, gains.get("free transfers")
    )


def _host(causes: Causes) -> Iterator[Finding]:
    sentence = "time that no op, order or hop explains: ops that started late"
    yield Finding("unexplained", sentence, causes.unexplained, "measured", REMEDIES["unexplained"])


def _outside(summary: Summary) -> Iterator[Finding]:
    if summary.outside_ns and summary.step_ns:
        share = summary.outside_ns / summary.step_ns
        sentence = f"{100 * share:.0f} % of a step lies outside the pipeline: reduction, optimizer, data loading"
        remedy = "overlap the reduction with the backward, or do more micro-batches for each"
        yield Finding("outside", sentence, round(summary.outside_ns), "measured", remedy)
