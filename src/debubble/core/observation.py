"""What is known of a run, whatever file it came from: its windows as measured, its log of steps, what they show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .program import Timeline
from .results import Pictured


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


FORWARD = ("forward-compute", "fwd_microstep", "forward_microstep", "forward", "fwd", "pipe_fwd")
BACKWARD = ("backward-compute", "bwd_microstep", "backward_microstep", "backward", "bwd", "pipe_bwd")


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a log: seconds a step, over ranks, the median of its lines.

    Timers are sums over the micro-batches of a step without any order: enough for an imbalance and for a bound of the
    idle share, not for a timeline.

    Args:
        name: as in the log.
        low: on the rank with least, if the log says; else equal to ``high``.
        high: on the rank with most.
    """

    name: str
    low: float
    high: float


def _none() -> NDArray[np.float64]:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """Step times of a log or table, as columns in the order of the file; NaN where a row does not say.

    Args:
        source: the path.
        seconds: of each step (or of a mean of steps), float64[rows].
        batch: samples of all replicas in a step, float64[rows].
        microbatches: per pipeline and step, float64[rows].
        memory: peak bytes, float64[rows]; infinite if the run died of it.
        step: number of the (last) step of a row, float64[rows]; likewise the columns below may be empty.
        ordered: whether rows follow each other as the steps did; those of a table may not.
        tflops: model TFLOP/s of a GPU, float64[rows].
        mfu: model FLOP utilisation, 0 to 1, float64[rows].
        tokens_per_second: of the whole run, float64[rows].
        tokens_per_gpu: tokens per second of a GPU, float64[rows].
        timers: what timers the log holds.
        remarks: what was left out, and how times were told.
    """

    source: str
    seconds: NDArray[np.float64]
    batch: NDArray[np.float64]
    microbatches: NDArray[np.float64]
    memory: NDArray[np.float64]
    step: NDArray[np.float64] = field(default_factory=_none)
    ordered: bool = True
    tflops: NDArray[np.float64] = field(default_factory=_none)
    mfu: NDArray[np.float64] = field(default_factory=_none)
    tokens_per_second: NDArray[np.float64] = field(default_factory=_none)
    tokens_per_gpu: NDArray[np.float64] = field(default_factory=_none)
    timers: tuple[Timer, ...] = ()
    remarks: tuple[str, ...] = ()

    def timer(self, names: Iterable[str]) -> Timer | None:
        """The first timer of one of these names."""
        by_name = {timer.name: timer for timer in self.timers}
        return next((by_name[name] for name in names if name in by_name), None)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time on one rank that a finding points at: nanoseconds from the start of the window."""

    rank: int
    start: int
    end: int
    op: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause.

    Args:
        cause: a short name, the same in every report.
        sentence: what was found, in plain words.
        cost_ns: what it costs a window, nanoseconds; may be negative.
        evidence: ``exact``, ``simulated``, ``measured``, ``estimated`` or ``stated``.
        remedy: what to do about it, or an empty string.
        spans: where it can be seen.
        gain_ratio: simulated throughput with the remedy over without; None where it was not simulated.
        rank: of the pipeline, if one is to blame.
        stage: of the model, if one is to blame.
        replica: data-parallel, if one is to blame.
        step: by its number, if one is to blame.
        size_ratio: how many times as long as usual what is to blame took.
    """

    cause: str
    sentence: str
    cost_ns: int
    evidence: str
    remedy: str = ""
    spans: tuple[Span, ...] = ()
    gain_ratio: float | None = None
    rank: int | None = None
    stage: int | None = None
    replica: int | None = None
    step: int | None = None
    size_ratio: float | None = None
