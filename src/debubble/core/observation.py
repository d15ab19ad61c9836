"""An observation: what was measured of a run, window by window, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass

from .notebook_hook import Pictured
from .timeline import Timeline


@dataclass(frozen=True, slots=True, eq=False)
class Window(Pictured):
    """One pipeline window: one step of one data-parallel replica.

    Args:
        step: number of the step in its source.
        replica: data-parallel replica, from 0.
        timeline: of all its ranks, evidence ``measured``.
        step_ns: the whole step around it, nanoseconds, with what lies outside the pipeline; None where unknown.
    """

    step: int
    replica: int
    timeline: Timeline
    step_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """Receives of one rank from another whose sends were found, over all windows.

    Args:
        sender: rank in the pipeline.
        receiver: rank in the pipeline.
        receives: how many.
        waiting_ns: time that they waited for their senders, nanoseconds, all together.
        transfer_ns: the rest, from the later side's start to the common end: the most that transfer can have been.
        usual_ns: that of one transfer, the median.
    """

    sender: int
    receiver: int
    receives: int
    waiting_ns: int
    transfer_ns: int
    usual_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Observation(Pictured):
    """A run as it was measured.

    Args:
        source: the path that was read.
        windows: every complete window, by step and replica.
        remarks: what was left out or repaired, and why, a sentence each.
        gpus: devices that took part, over all replicas; None where unknown.
        samples: samples of all replicas in one step; None where unknown.
        tokens: tokens of all replicas in one step; None where unknown.
        paced: whether ops were stretched to given durations.
        predicted_ns: makespan that was simulated before the run, nanoseconds; None where there was none.
        hop_ns: delay that was put on each arrival, nanoseconds.
        clock_uncertainty_ns: how far the clocks of two ranks may disagree.
        matched_share: share of transfers whose both sides were found.
        links: receives by sender and receiver, split into waiting and transfer; empty where no transfer was measured.
        torn: global ranks that talk to ranks which were not measured, so that what they waited for is not known.
    """

    source: str
    windows: tuple[Window, ...]
    remarks: tuple[str, ...] = ()
    gpus: int | None = None
    samples: int | None = None
    tokens: int | None = None
    paced: bool = False
    predicted_ns: int | None = None
    hop_ns: int = 0
    clock_uncertainty_ns: int = 0
    matched_share: float = 1.0
    links: tuple[Link, ...] = ()
    torn: tuple[int, ...] = ()
