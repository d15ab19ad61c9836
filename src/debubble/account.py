"""The account of a timeline: where every nanosecond of every rank went, and the three numbers called bubble.

On each rank:  compute + warm_up + waiting + transfer + cool_down == window, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Where time went, per rank, in nanoseconds.

    Args:
        window: from the first op of any rank to the last end of any rank.
        compute: F, I, W and B work, int64[ranks]; an overlapped pair counts once.
        warm_up: from the start of the window to the rank's own first op.
        waiting: gaps between ops in which the input had not been made yet, or the host was late.
        transfer: gaps in which the input had been made and was on its way.
        cool_down: from the rank's own last op to the end of the window.
        evidence: of the timeline.
    """

    window: int
    compute: NDArray[np.int64]
    warm_up: NDArray[np.int64]
    waiting: NDArray[np.int64]
    transfer: NDArray[np.int64]
    cool_down: NDArray[np.int64]
    evidence: str

    @property
    def idle_share(self) -> float:
        """Idle over ranks x window: (p-1)/(m+p-1) for even GPipe and 1F1B."""
        whole = self.window * len(self.compute)
        return 1 - int(self.compute.sum()) / whole if whole else 0.0

    @property
    def bubble_ratio(self) -> float:
        """Idle over busy: (p-1)/m for even GPipe and 1F1B (Megatron-LM's convention)."""
        busy = int(self.compute.sum())
        return (self.window * len(self.compute) - busy) / busy if busy else float("inf")

    @property
    def span_idle_share(self) -> float:
        """Idle of the longest rank between its own first and last op: true only where no barrier ends the step.

        Zero-bubble papers print this one (https://arxiv.org/abs/2401.10241, section 5.3).
        """
        span = self.window - self.warm_up - self.cool_down
        longest = int(span.argmax())
        return 1 - int(self.compute[longest]) / int(span[longest]) if span[longest] else 0.0


def account(timeline: Timeline) -> Account:
    """Split each rank's window into compute and four kinds of gap."""
    schedule = timeline.program.schedule
    ops = len(schedule)
    start, end = timeline.start[:ops], timeline.end[:ops]
    first, last = timeline.window
    opens = schedule.offsets[:-1][np.diff(schedule.offsets) > 0]
    before = np.concatenate([end[:1], end[:-1]])  # end of the op before on the same rank
    before[opens] = start[opens]
    gap = np.maximum(start - before, 0)
    transfer = np.minimum(gap, _since_made(timeline))
    own_start, own_end = (np.full(schedule.ranks, last) for _ in range(2))  # a rank without ops only warms up
    full = np.diff(schedule.offsets) > 0
    own_start[full], own_end[full] = start[opens], end[schedule.offsets[1:][full] - 1]
    return Account(
        window=last - first,
        compute=_per_rank(end - np.maximum(start, before), schedule.offsets),
        warm_up=own_start - first,
        waiting=_per_rank(gap - transfer, schedule.offsets),
        transfer=_per_rank(transfer, schedule.offsets),
        cool_down=last - own_end,
        evidence=timeline.evidence,
    )


def _since_made(timeline: Timeline) -> NDArray[np.int64]:
    """How long before each op's start its last input had been made on another rank, int64[ops]; 0 without one."""
    ops = len(timeline.program.schedule)
    needs = timeline.program.needs_by_op()[:, :ops]
    made = np.where(needs >= 0, timeline.end[needs], np.iinfo(np.int64).min).max(axis=0)
    needed = (needs >= 0).any(axis=0)
    return np.where(needed, np.maximum(timeline.start[:ops] - np.where(needed, made, 0), 0), 0)


def _per_rank(spent: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    running = np.concatenate([[0], np.cumsum(spent)])
    return running[offsets[1:]] - running[offsets[:-1]]
