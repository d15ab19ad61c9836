"""An observation: what was measured of a run, window by window, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        waits: how long each rank stood in receives, in sends and in waits that covered both, int64[3, ranks],
            nanoseconds; None if the engine was not asked.
    """

    step: int
    replica: int
    timeline: Timeline
    step_ns: int | None = None
    waits: NDArray[np.int64] | None = None


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


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """The clock of one device against that of the lowest device.

    Args:
        device: global rank.
        offset_ns: how far it was ahead when the trace began, nanoseconds; None if nothing joins the two.
        rate_ppm: how much faster it runs, millionths.
        uncertainty_ns: by how much the offset may be wrong at most, nanoseconds; None likewise.
    """

    device: int
    offset_ns: int | None
    rate_ppm: float
    uncertainty_ns: int | None


@dataclass(frozen=True, slots=True, eq=False)
class HeldMemory:
    """What one device held over time.

    Args:
        device: global rank.
        rank: its rank in the pipeline.
        replica: its data-parallel replica.
        time_ns: when each sample was taken, int64[samples], on the clock of the windows, ascending.
        held_bytes: int64[samples].
    """

    device: int
    rank: int
    replica: int
    time_ns: NDArray[np.int64]
    held_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostLoad:
    """How much of a host's cores the processes of the run used while steps ran.

    Args:
        host: its name.
        processes: of the run on it.
        cores: that they may run on.
        cpu_share: their processor time over cores x wall time.
        queued_share: of a process's time, in which it could have run and had no core; the mean of them.
    """

    host: str
    processes: int
    cores: int
    cpu_share: float
    queued_share: float

    @property
    def wanted_share(self) -> float:
        """Cores that the processes would have used, over those there are: above 1 the processor is what is measured."""
        return self.cpu_share + self.queued_share * self.processes / self.cores


@dataclass(frozen=True, slots=True)
class OutsideParts:
    """What a step holds beside its pipeline, nanoseconds, means over steps and ranks; None where it is not shown.

    Args:
        load: loading data.
        reduction: of gradients over replicas.
        optimizer: its step.
    """

    load: float | None = None
    reduction: float | None = None
    optimizer: float | None = None


@dataclass(frozen=True, slots=True)
class OtherSteps:
    """Steps of a run that are not among its windows: evaluation, another number of micro-batches, another model.

    Args:
        phase: ``train`` or ``evaluation``.
        schedule: its name, if the engine says one.
        microbatches: in a step.
        steps: how many.
        makespan_ns: pipeline window, the median, nanoseconds.
    """

    phase: str
    schedule: str
    microbatches: int
    steps: int
    makespan_ns: int


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
        missing: global ranks that messages name and that were not measured.
        clocks: of each device whose messages tell it, the lowest first.
        memory: what devices held, where the trace has it.
        engine: that ran it, by the name of a table of engines; None if unknown.
        hosts: how hard their cores worked, where that was measured.
        outside: what steps hold beside the pipeline; None if not measured.
        others: steps that are not among the windows.
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
    missing: tuple[int, ...] = ()
    clocks: tuple[DeviceClock, ...] = ()
    memory: tuple[HeldMemory, ...] = ()
    engine: str | None = None
    hosts: tuple[HostLoad, ...] = ()
    outside: OutsideParts | None = None
    others: tuple[OtherSteps, ...] = ()
