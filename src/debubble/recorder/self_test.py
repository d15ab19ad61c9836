"""The self-test's answer: what a recording of a known job says, held against what that job must have done.

order     the ops of each rank, against the schedule as it is built here, without any engine
parts     compute + warm-up + waiting + transfer + cool-down of all ranks, against ranks x window: to the nanosecond
messages  no op may start before what it needs was made on another rank; on GPUs this is the clocks against each other
cost      steps with the recorder on, against steps with it off, in turns
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np

from ..core.account import account
from ..core.costs import Rates, costs_of
from ..core.laws import transfers
from ..core.lower import lower
from ..core.program import Timeline
from ..core.results import Result
from ..core.schedule import Schedule
from ..core.simulate import simulate
from ..core.units import MILLISECOND
from ..readers.recording import read_recording


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SelfTested(Result):
    """What agreed in ``record --self-test``.

    Args:
        device: that the job ran on; ``cpu`` where there is no GPU.
        ranks: of its pipeline.
        microbatches: in a step.
        steps: that were recorded.
        order_agrees: whether every rank's ops are in the order of 1F1B.
        parts_sum: whether the parts of every window add up to it.
        messages: whose two ends were compared.
        early_messages: that were used before they were made, by the clocks.
        earliest_ms: by how much the earliest of these was, or 0.
        idle_share: measured, the median; ``even_idle_share`` is that of equal stages without hops, simulated.
        even_idle_share: see there.
        on_ms: step with the recorder on, the median; ``off_ms`` with it off.
        off_ms: see there.
        overhead_share: median over pairs of steps of on over off, less 1.
        evidence: ``measured``.
    """

    schema: ClassVar[str] = "self-test/1"

    device: str
    ranks: int
    microbatches: int
    steps: int
    order_agrees: bool
    parts_sum: bool
    messages: int
    early_messages: int
    earliest_ms: float
    idle_share: float
    even_idle_share: float
    on_ms: float
    off_ms: float
    overhead_share: float
    evidence: str = "measured"

    @property
    def exit_status(self) -> int:
        """1 where order, sums or messages do not agree; the cost is told and judged by nobody."""
        return 0 if self.order_agrees and self.parts_sum and not self.early_messages else 1


def examined(folder: Path, expected: Schedule, device: str, on_ns: list[int], off_ns: list[int]) -> SelfTested:
    """Read the recording of the job, and say what agrees.

    Args:
        folder: of the recording.
        expected: the order that its engine is known to run.
        device: that it ran on.
        on_ns: host time of each step with the recorder on; ``off_ns`` of the step after it, with it off.
        off_ns: see there.
    """
    timelines = [window.timeline for window in read_recording(folder).windows]
    accounts = [account(timeline) for timeline in timelines]
    slack = np.concatenate([_slack(timeline) for timeline in timelines])
    early = slack[slack < 0]
    ranks, microbatches = expected.ranks, expected.microbatches
    return SelfTested(
        device=device,
        ranks=ranks,
        microbatches=microbatches,
        steps=len(timelines),
        order_agrees=all(_same_order(timeline.program.schedule, expected) for timeline in timelines),
        parts_sum=all(
            int((each.compute + each.warm_up + each.waiting + each.transfer + each.cool_down).sum())
            == ranks * each.window
            for each in accounts
        ),
        messages=len(slack),
        early_messages=len(early),
        earliest_ms=float(-early.min(initial=0)) / MILLISECOND,
        idle_share=median(each.idle_share for each in accounts),
        even_idle_share=account(simulate(lower(expected), costs_of(Rates(), expected))).idle_share,
        on_ms=median(on_ns) / MILLISECOND,
        off_ms=median(off_ns) / MILLISECOND,
        overhead_share=median(on / off for on, off in zip(on_ns, off_ns, strict=True)) - 1,
    )


def _slack(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """From the end of what makes each message to the start of what uses it, nanoseconds."""
    producer, consumer = transfers(timeline.program.schedule)
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = timeline.start[consumer] - timeline.end[producer]
    return found


def _same_order(found: Schedule, expected: Schedule) -> bool:
    """Whether two schedules have the same ops in the same order on each rank."""
    columns = ("offsets", "kind", "stage", "unit")
    return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in columns)
