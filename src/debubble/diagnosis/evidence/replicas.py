"""Replicas side by side, how long they wait for each other, and micro-batches of unlike length that make them wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from ...core.account import Account
from ...core.observation import Window
from ...core.op import Kind
from ...core.timeline import Timeline
from ..measured_costs import spent
from ..windows import Summary
from .slowness import Slow

UNLIKE = 0.05  # standard deviation of a micro-batch's length over the mean, from which lengths differ
SHARED = 0.5  # share of the spread that stages must have in common: jitter of ops has nothing in common
NEARLY_ALWAYS = 0.9  # share of the steps in which the same replica comes last, from which it is not chance
_MOST_WINDOWS = 64  # that are looked at for lengths


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    """One data-parallel replica over all its steps.

    Args:
        number: from 0.
        windows: how many were measured.
        makespan_ns: median length of its pipeline window, nanoseconds.
        idle_share: mean over its windows.
        stage_ns: mean work of each stage in a step, float64[stages], nanoseconds.
    """

    number: int
    windows: int
    makespan_ns: float
    idle_share: float
    stage_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tail:
    """What replicas wait for each other at the end of a step.

    Args:
        cost_ns: the longest window over the mean one, the mean over steps: what even replicas would save.
        slowest: the replica that came last most often.
        times: in how many steps.
        steps: that all replicas have.
        slow: the slow rank that most of it comes from; None if it does not come from one.
        lengths_share: what replicas would wait for micro-batches of unlike length alone, over what they wait.
    """

    cost_ns: float
    slowest: int
    times: int
    steps: int
    slow: Slow | None = None
    lengths_share: float = 0.0

    @property
    def always_the_same(self) -> bool:
        """Whether one replica was last far more often than by chance."""
        return self.steps > 1 and self.times >= NEARLY_ALWAYS * self.steps


@dataclass(frozen=True, slots=True)
class Lengths:
    """How micro-batches differ.

    Args:
        spread: standard deviation over the mean of their lengths, over all windows that were looked at.
        common_share: of the forwards' variance that all stages have in common.
        longest: micro-batch of the median window that takes longest.
        factor: its time over the mean.
    """

    spread: float
    common_share: float
    longest: int
    factor: float

    @property
    def differ(self) -> bool:
        """Whether micro-batches differ in length, and not only in luck."""
        return self.spread > UNLIKE and self.common_share > SHARED


def replicas(summary: Summary) -> tuple[Replica, ...]:
    """Every replica, by number."""
    by_number: dict[int, list[tuple[Window, Account]]] = {}
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        by_number.setdefault(window.replica, []).append((window, account))
    return tuple(_replica(number, each) for number, each in sorted(by_number.items()))


def _replica(number: int, windows: list[tuple[Window, Account]]) -> Replica:
    return Replica(
        number=number,
        windows=len(windows),
        makespan_ns=median(account.window for _, account in windows),
        idle_share=fmean(account.idle_share for _, account in windows),
        stage_ns=np.mean([_stage_work(window) for window, _ in windows], axis=0),
    )


def _stage_work(window: Window) -> NDArray[np.float64]:
    schedule = window.timeline.program.schedule
    return np.bincount(schedule.stage, spent(window.timeline), schedule.stages).astype(np.float64)


def tail(summary: Summary, slow: Sequence[Slow] = ()) -> Tail | None:
    """What replicas wait for each other, and for what; None if fewer than two were measured in the same steps."""
    cost, last = 0.0, Counter[int]()
    by_slow: dict[Slow, float] = {}
    by_lengths = 0.0
    steps = {step: rows for step, rows in _by_step(summary).items() if len(rows) == summary.replicas > 1}
    if not steps:
        return None
    for step, rows in steps.items():
        lengths = {summary.windows[row].replica: summary.accounts[row].window for row in rows}
        slowest = max(lengths, key=lambda replica: lengths[replica])
        wait = max(lengths.values()) - fmean(lengths.values())
        cost += wait
        last[slowest] += 1
        culprit = next((each for each in slow if each.shows(slowest, step)), None)
        if culprit is not None:
            by_slow[culprit] = by_slow.get(culprit, 0.0) + wait
        else:
            by_lengths += min(wait, _wait_for_lengths(summary, rows))
    slowest, times = last.most_common(1)[0]
    blamed = max(by_slow, key=lambda each: by_slow[each], default=None)
    return Tail(
        cost_ns=cost / len(steps),
        slowest=slowest,
        times=times,
        steps=len(steps),
        slow=blamed if blamed is not None and by_slow[blamed] > cost / 2 else None,
        lengths_share=by_lengths / cost if cost else 0.0,
    )


def _by_step(summary: Summary) -> dict[int, list[int]]:
    """Indices of the windows of each step."""
    rows: dict[int, list[int]] = {}
    for row, window in enumerate(summary.windows):
        rows.setdefault(window.step, []).append(row)
    return rows


def _wait_for_lengths(summary: Summary, rows: Sequence[int]) -> float:
    """What replicas of one step would wait if their windows were as long as the work that all their ranks share."""
    work = np.stack([summary.accounts[row].compute.astype(np.float64) for row in rows])
    batches = np.median(work / np.maximum(work.mean(axis=0), 1), axis=1)
    return float((batches.max() - batches.mean()) * fmean(summary.accounts[row].window for row in rows))


def lengths(summary: Summary) -> Lengths | None:
    """How micro-batches differ in length; None if there are too few stages or micro-batches to tell."""
    schedule = summary.window.timeline.program.schedule
    if schedule.stages < 2 or schedule.units < 2:
        return None
    every = max(1, len(summary.windows) // _MOST_WINDOWS)
    tables = [_forwards(window.timeline) for window in summary.windows[::every]]
    common, whole = (float(np.mean(column)) for column in zip(*map(_variances, tables), strict=True))
    mine = _forwards(summary.window.timeline).mean(axis=0)
    longest = int(mine.argmax())
    share = common / whole if whole else 0.0
    return Lengths(common**0.5, share, longest // schedule.slices, float(mine[longest]))


def _forwards(timeline: Timeline) -> NDArray[np.float64]:
    """Each forward over the mean of its stage, float64[stages, units]."""
    schedule = timeline.program.schedule
    table = np.zeros((schedule.stages, schedule.units))
    rows = schedule.kind == Kind.F
    table[schedule.stage[rows], schedule.unit[rows]] = spent(timeline)[rows]
    mean = table.mean(axis=1, keepdims=True)
    relative: NDArray[np.float64] = np.divide(table, mean, out=np.ones_like(table), where=mean > 0)
    return relative


def _variances(table: NDArray[np.float64]) -> Iterator[float]:
    """Variance that stages have in common (of pairs of stages, so that jitter adds nothing), and all of it."""
    stages = len(table)
    away = table - 1
    whole = float((away**2).mean())
    total = float((away.sum(axis=0) ** 2).mean())
    yield max(0.0, (total - stages * whole) / (stages * (stages - 1)))
    yield whole
