"""What is compared: one run, the same for stated, logged and measured ones; and two of them, b against a."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..config.config import Config
from ..core.bounds import lower_bound
from ..core.observation import Observation
from ..core.program import Timeline
from ..core.schedule import Kind, peak_activations
from .causes import Causes, Summary, fitted
from .log_run import History, LoggedRun
from .order import Own, halved
from .replay import Remedies, Replay, WhatIf

SECOND = 1e9  # nanoseconds
# Units in which two runs can be compared, the most telling first.
TOKENS, SAMPLES = "tokens per second", "samples per second"
TOKENS_OF_A_GPU = "tokens per second of a GPU"
TFLOPS, MFU = "model TFLOP/s", "model FLOP utilisation"
MICROBATCHES, STEPS = "micro-batches per second", "steps per second"
UNITS = (TOKENS, SAMPLES, TOKENS_OF_A_GPU, TFLOPS, MFU, MICROBATCHES, STEPS)
PER_GPU = (TOKENS_OF_A_GPU, TFLOPS, MFU)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from.

    Args:
        value: in the unit that its place says.
        evidence: ``exact``, ``simulated``, ``measured``, ``estimated`` or ``stated``.
    """

    value: float
    evidence: str


ROUNDED = 0.001  # people state a utilisation to a tenth of a per cent


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One of the runs that are compared.

    Args:
        name: what reports call it.
        job: its sizes, and what was stated of it.
        own: the schedule's own idle time; None where the pipeline is not known.
        speeds: throughput by unit, stated or measured.
        predicted: throughput by unit, simulated from stated durations.
        busy: share of GPU time with F, I, W, B work, stated or measured; None where neither.
        window_share: share of the step that is pipeline window; None where it was not measured.
        timeline: measured (the median window), or simulated from stated durations; None where neither.
        causes: of that timeline.
        replay: what changes are tried on; None where the order is not known.
        outside_ns: what a step holds beside its pipeline window.
        observation: what was measured; None for a stated job.
        summary: of all its windows.
        history: of its steps, if a log tells of it.
        remarks: what was left out of a measurement or repaired, a sentence each.
    """

    name: str
    job: Config
    own: Own | None
    speeds: dict[str, Figure] = field(default_factory=dict)
    predicted: dict[str, Figure] = field(default_factory=dict)
    busy: Figure | None = None
    window_share: float | None = None
    timeline: Timeline | None = None
    causes: Causes | None = None
    replay: Replay | None = None
    outside_ns: float = 0
    observation: Observation | None = None
    summary: Summary | None = None
    history: History | None = None
    remarks: tuple[str, ...] = ()

    @property
    def gpus(self) -> int | None:
        """Devices of the whole run."""
        return self.job.gpus

    @property
    def measured(self) -> bool:
        """Whether it was measured op by op, not stated."""
        return self.summary is not None

    @property
    def replay_fits(self) -> bool:
        """Whether changes may be tried on it: simulated again, its window is as long as it was, but for a tenth."""
        return self.replay is not None and (self.causes is None or self.causes.trusted)

    @property
    def peak_activations(self) -> float | None:
        """Most activations that any rank holds, in micro-batches; None where the order is not known."""
        if self.replay is None:
            return None
        return float(peak_activations(self.replay.schedule).max())

    @property
    def overstated(self) -> bool:
        """Whether its stated utilisation is more than its schedule can reach."""
        if self.busy is None or self.busy.evidence != "stated" or self.own is None:
            return False
        return self.own.known and self.busy.value > self.own.busy[1] + ROUNDED

    @property
    def ceiling_ratio(self) -> float | None:
        """Throughput without any idle time over throughput as it is; None where only bounds are known."""
        if self.causes is not None:
            return (self.outside_ns + self.causes.window) / (self.outside_ns + self.causes.ideal)
        if self.own is None or not self.own.known:
            return None
        return 1 / (1 - self.own.most)

    @property
    def ceiling_barrier_ratio(self) -> float | None:
        """Throughput of the best order that ends in a barrier, for the same placement and costs, over what it is."""
        if self.timeline is None or self.causes is None:
            return None if self.own is None else self.own.barrier_ratio
        schedule = self.timeline.program.schedule
        # Of an order that splits backwards: it can be shorter, so the bound holds for those that do not as well.
        costs = fitted(self.timeline)
        split = halved(schedule)
        if split is not schedule:
            costs = replace(costs, durations=_halve_backwards(costs.durations))
        return (self.outside_ns + self.causes.window) / (self.outside_ns + lower_bound(split, costs))


def _halve_backwards(durations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each full backward as two halves, in the lines of I and W."""
    table = durations.copy()
    table[Kind.I] += durations[Kind.B] // 2
    # The rest, not another half: the sum stays what it was, to the nanosecond.
    table[Kind.W] += durations[Kind.B] - durations[Kind.B] // 2
    table[Kind.B] = 0
    return table


Bounds = tuple[float, float]
Comparable = Config | Observation | LoggedRun


@dataclass(frozen=True, slots=True)
class Ask:
    """Something that is missing for an answer.

    Args:
        side: name of the run that lacks it.
        key: of the job file.
        reason: what it would tell, a clause.
    """

    side: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Two runs, b against a.

    Args:
        a: the run that is compared with.
        b: the run in question.
        unit: in which their throughput was compared; None where there is none in common.
        ratio: throughput of b over that of a.
        factors: whose product is the ratio: some of gpus, window, busy, work_rate, in this order.
        busy_evidence: of the factor ``busy``.
        explains: gpus x the ratio of the schedules' own busy shares, at least and at most; None where not known.
        remedies: changes of b, the launchable ones at the global batch it has.
        tie_hop_ns: the hop at which both are equally fast, all else as stated; None where there is none.
        asks: what is missing for a better answer.
    """

    a: ComparedRun
    b: ComparedRun
    unit: str | None
    ratio: Figure | None
    factors: dict[str, float]
    busy_evidence: str
    explains: Bounds | None
    remedies: Remedies
    tie_hop_ns: float | None
    asks: tuple[Ask, ...]

    @property
    def next(self) -> tuple[WhatIf, ...]:
        """Changes of b that can be launched at the global batch it has, the best first."""
        return self.remedies.launchable

    @property
    def left_over(self) -> Bounds | None:
        """What the bubble does not explain: the ratio over what it explains, at least and at most."""
        if self.ratio is None or self.explains is None:
            return None
        low, high = self.explains
        return self.ratio.value / high, self.ratio.value / low

    @property
    def recompute_ratio(self) -> float:
        """What b counts of its work over what a counts of its own: forwards that are computed twice count once."""
        return self.b.job.counted_share / self.a.job.counted_share

    @property
    def realised_share(self) -> float | None:
        """Gain of b over a as a share of what removing the bubble of a could bring, on as many GPUs."""
        ceiling = self.a.ceiling_barrier_ratio
        if self.ratio is None or ceiling is None or ceiling <= 1 or self.factors.get("gpus", 1) != 1:
            return None
        return (self.ratio.value - 1) / (ceiling - 1)

    @property
    def left_over_parts(self) -> dict[str, float]:
        """Where both were measured or simulated: what is left over, as a product."""
        if self.left_over is None or self.explains is None or not (self.a.causes and self.b.causes):
            return {}
        if self.busy_evidence not in ("measured", "simulated"):
            return {}
        alone = self.explains[0] / self.factors.get("gpus", 1)
        parts = {"outside": self.factors.get("window", 1.0), "imbalance_and_transfer": self.factors["busy"] / alone}
        return parts | {"work_rate": self.factors["work_rate"]}
