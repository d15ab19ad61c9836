"""Why: the throughput of two runs as a product of factors, and how much of their ratio the bubble explains.

    throughput of b / throughput of a  =  gpus  x  window  x  busy  x  work rate
                                       =  bubble explains  x  left over

gpus: of b over of a. window: share of a step that is pipeline window, where both were measured. busy: share of it with
F, I, W, B work. work rate: what is left, the work done in a busy second of a GPU. "Bubble explains" is gpus times the
ratio of the busy shares of the two *schedules themselves*: what would have happened had only their own idle changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ..config.config import Config
from ..core.costs import Costs
from ..core.errors import Fault, InputError
from ..core.observation import Observation
from ..core.schedule import KINDS
from ..core.simulate import simulate
from .compared_run import PER_GPU, UNITS, ComparedRun, Figure, compared_run
from .edits import WhatIf
from .log_run import LoggedRun
from .remedies import Launcher, Remedies

Bounds = tuple[float, float]
Comparable = Config | Observation | LoggedRun

LONG_HOP = 10  # windows: a hop that costs more than all else together


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


def why(
    first: Config | Observation | LoggedRun,
    second: Config | Observation | LoggedRun,
    *,
    changes: bool = True,
    launcher: Launcher | None = None,
    engine: str | None = None,
) -> Compared:
    """Compare two runs.

    Args:
        first: what is compared with.
        second: the run in question.
        changes: also try remedies of the second.
        launcher: the framework that will run what is advised; None if nobody knows.
        engine: as ``compared_run`` takes it, for both.

    Raises:
        InputError: a side that cannot be, or too little to say anything: every key that is missing.
    """
    a, b = compared_run(first, engine), compared_run(second, engine)
    unit, ratio = _ratio(a, b)
    # Without the number of devices both are compared device by device, and it is asked for.
    gpus = b.gpus / a.gpus if a.gpus and b.gpus else None
    explains = _explains(a, b, gpus)
    asks = tuple(_asks(a, b, ratio))
    if ratio is None and explains is None:
        raise InputError(*(Fault(f"{ask.side}: {ask.key} is missing", ask.reason, f"state {ask.key}") for ask in asks))
    factors, evidence = _factors(a, b, gpus, ratio)
    return Compared(
        a=a,
        b=b,
        unit=unit,
        ratio=ratio,
        factors=factors,
        busy_evidence=evidence,
        explains=explains,
        remedies=b.remedies(launcher) if changes else Remedies(),
        tie_hop_ns=_tie_hop(a, b),
        asks=asks,
    )


def _ratio(a: ComparedRun, b: ComparedRun) -> tuple[str | None, Figure | None]:
    """Throughput of b over that of a in the most telling unit that both have, and the unit."""
    # What was seen of both; else what was simulated of both. Never one of each.
    for here, there in ((a.speeds, b.speeds), (a.predicted, b.predicted)):
        for unit in UNITS:
            if unit in here and unit in there:
                return unit, _of_whole_run(unit, a, b, here[unit], there[unit])
    return None, None


def _of_whole_run(unit: str, a: ComparedRun, b: ComparedRun, here: Figure, there: Figure) -> Figure:
    # Rates of one device, or a share of its peak, are brought to the whole run.
    both = b.gpus / a.gpus if unit in PER_GPU and a.gpus and b.gpus else 1.0
    evidence = here.evidence if here.evidence == there.evidence else f"{here.evidence} and {there.evidence}"
    return Figure(both * there.value / here.value, evidence)


def _explains(a: ComparedRun, b: ComparedRun, gpus: float | None) -> Bounds | None:
    if a.own is None or b.own is None:
        return None
    (low_a, high_a), (low_b, high_b) = a.own.busy, b.own.busy
    return (gpus or 1) * low_b / high_a, (gpus or 1) * high_b / low_a


def _factors(a: ComparedRun, b: ComparedRun, gpus: float | None, ratio: Figure | None) -> tuple[dict[str, float], str]:
    if ratio is None:
        return {}, ""
    factors = {} if gpus is None else {"gpus": gpus}
    here, there = _busy(a, b)
    windows = (a.window_share, b.window_share)
    if here is not None and there is not None:
        if here.evidence == there.evidence == "measured" and windows[0] and windows[1]:
            factors["window"] = windows[1] / windows[0]
        factors["busy"] = there.value / here.value
    factors["work_rate"] = ratio.value / prod(factors.values())
    return factors, here.evidence if here is not None and "busy" in factors else ""


def _busy(a: ComparedRun, b: ComparedRun) -> tuple[Figure | None, Figure | None]:
    """Busy shares of one kind for both: stated or measured where both have them, else those of their schedules."""
    if a.busy is not None and b.busy is not None:
        return a.busy, b.busy
    return _schedules_busy(a), _schedules_busy(b)


def _schedules_busy(run: ComparedRun) -> Figure | None:
    if run.causes is not None and run.summary is None:
        return Figure(run.causes.ideal / run.causes.window, "simulated")
    if run.own is not None and run.own.known:
        return Figure(run.own.busy[0], run.own.evidence)
    return None


def _asks(a: ComparedRun, b: ComparedRun, ratio: Figure | None) -> list[Ask]:
    asks = []
    for run in (a, b):
        if ratio is None:
            asks.append(Ask(run.name, "measured.tokens_per_second", "what was seen (or step, or tflops_per_gpu)"))
        if run.job.pipeline is None:
            asks.append(Ask(run.name, "pipeline", "how long a pipeline is, which bounds its bubble"))
        elif run.own is not None and not run.own.known:
            asks.append(
                Ask(run.name, "microbatches", "how many travel through a pipeline in a step: it sets the bubble")
            )
        if run.gpus is None:
            asks.append(Ask(run.name, "gpus", "how many GPUs took part; until then both are compared GPU by GPU"))
    changed = (a.job.microbatches, a.job.data) != (b.job.microbatches, b.job.data)
    for run in (a, b):
        if changed and run.job.micro_batch is None and run.job.microbatches is not None:
            asks.append(Ask(run.name, "micro_batch", "the samples it holds tell whether the global batch changed"))
    return asks


def _tie_hop(a: ComparedRun, b: ComparedRun) -> float | None:
    """The hop, equal in both, from which b is no longer faster, all else as stated; None where no hop does that."""
    unit = next((unit for unit in UNITS if unit in a.predicted and unit in b.predicted), None)
    if unit is None or a.causes is None:
        return None
    if not isinstance(a.job.transfer, float) or not isinstance(b.job.transfer, float):
        return None  # not stated, or each link has its own
    now = b.predicted[unit].value / a.predicted[unit].value
    now *= _window_at(b, b.job.transfer) / _window_at(a, a.job.transfer)

    def faster(hop: float) -> bool:
        return now * _window_at(a, hop) > _window_at(b, hop)

    low, high = 0.0, float(LONG_HOP * a.causes.window)
    if not faster(low) or faster(high):
        return None
    # To the nanosecond: windows are whole ones.
    while high - low > 1:
        middle = (low + high) / 2
        low, high = (middle, high) if faster(middle) else (low, middle)
    return high


def _window_at(run: ComparedRun, hop: float) -> int:
    """The simulated window of a job with another hop, nanoseconds."""
    if run.timeline is None or run.replay is None:
        return 0
    program = run.timeline.program
    transfers = np.full((KINDS, program.schedule.stages, 1), round(hop), np.int64)
    return simulate(program, Costs(run.replay.costs.durations, transfers)).makespan
