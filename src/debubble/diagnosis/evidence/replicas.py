"""Data-parallel replicas side by side: window, work of each stage, and how long the fast ones wait for the slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from ...core.account import Account
from ...core.observation import Window
from ..fit import spent
from ..windows import Summary


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
    """

    cost_ns: float
    slowest: int
    times: int
    steps: int

    @property
    def always_the_same(self) -> bool:
        """Whether one replica was last far more often than by chance."""
        return self.steps > 1 and self.times >= 0.9 * self.steps


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


def tail(summary: Summary) -> Tail | None:
    """What replicas wait for each other; None where fewer than two were measured in the same steps."""
    steps = [lengths for lengths in _by_step(summary) if len(lengths) == summary.replicas > 1]
    if not steps:
        return None
    last = Counter(max(lengths, key=lambda replica: lengths[replica]) for lengths in steps)
    slowest, times = last.most_common(1)[0]
    return Tail(fmean(max(each.values()) - fmean(each.values()) for each in steps), slowest, times, len(steps))


def _by_step(summary: Summary) -> Iterator[dict[int, int]]:
    lengths: dict[int, dict[int, int]] = {}
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        lengths.setdefault(window.step, {})[window.replica] = account.window
    yield from lengths.values()
