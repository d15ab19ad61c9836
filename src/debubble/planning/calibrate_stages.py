"""Calibration by stage: measured F and B, hops and what lies outside the pipeline become factors of the cost model.

A run is held against the costs with which `plan` simulates its layout, part by part:

    slot     F + B (or F + I + W) of a micro-batch on each stage      kernels, tensor, floor
    share    F over B on each stage                                   kernels from floor
    hop      delay from one stage to the next                         transfer
    outside  step less pipeline window                                data

Stages of one run share what the model gets wrong, so all of them together count as one measurement of a part. What no
part depends on keeps its prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..config.layout import Layout
from ..core.costs import Costs
from ..core.errors import Fault, InputError
from ..core.schedule import Kind
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..estimate.setting import GENERIC, PRIOR, Calibration
from .calibrate import NOISE, band_of, corrected, likeliest, linear, memory_of, one_by_one, predict, steps_of
from .judge import SECOND, judge, simulated
from .runs import Run

Column = NDArray[np.float64]

# How far the generic model is off in each part, in e-folds. A stage's time holds neither schedule nor traffic of
# replicas: half the noise of a step. Its F and B err in opposite directions. Hops hold what the host takes, and outside
# lie loading of data and logging too. Assumed; on eight A100 (https://arxiv.org/abs/2411.05288) slots are off by 4 %
# and shares by 12 %.
PARTS = {"slot": NOISE / 2, "share": 2 * NOISE, "hop": 0.3, "outside": 0.3}
NAMES = tuple(PRIOR)
USUAL = 1.48  # standard deviation over the median distance from the median


@dataclass(frozen=True, slots=True, eq=False)
class StageRun:
    """A run as its stages were measured.

    Args:
        model: what was trained.
        cluster: on what.
        layout: how.
        costs: measured durations of each kind and stage, and delays until their input has come from another rank,
            int64[kinds, stages, 1], nanoseconds; 0 for what was not measured.
        outside: seconds of a step beside its pipeline window; 0 where not known.
        overlapped: whether F and B ran together, so that what each takes alone is not known.
        source: for reports.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    costs: Costs
    outside: float = 0.0
    overlapped: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A run held against the model: which values are known to both, of which part, as measured, and how far off."""

    run: StageRun
    known: NDArray[np.bool_]
    part: NDArray[np.int64]
    target: Column  # logs
    off: Column  # of the generic model

    @property
    def noise(self) -> Column:
        """Of each value, so that a part has that of the model and of the mean of its values, however many there are."""
        # Values of a part are off together, so their mean is as uncertain as one of them; their scatter is not.
        noise = np.zeros(len(self.off))
        for number, own in enumerate(PARTS.values()):
            mine = self.part == number
            scatter = USUAL * _median(np.abs(self.off[mine] - _median(self.off[mine])))
            noise[mine] = np.sqrt(mine.sum() * own**2 + scatter**2)
        return noise

    def predicted(self, factors: Calibration) -> Column:
        """Logs of what the model says to the same values."""
        found: Column = np.log(_values(*_costs(self.run, factors), self.run.overlapped)[self.known])
        return found


def calibrate_stages(runs: Sequence[StageRun], rows: Sequence[Run] = (), source: str = "") -> Calibration:
    """Fit the factors to measured stages, and to measured steps beside them.

    Args:
        runs: measured stages; one run is enough for ``kernels``.
        rows: measured steps of other layouts, if any.
        source: what they are, for reports.

    Raises:
        InputError: a run has other stages than its layout, or no stage of it has F and B.
    """
    held = [_held(run) for run in runs]
    timed = [row for row in rows if row.seconds > 0]
    target = np.concatenate([*(one.target for one in held), np.log([row.seconds for row in timed])])
    noise = np.concatenate([*(one.noise for one in held), np.full(len(timed), NOISE)])

    def predicted(at: Column) -> Column:
        factors = corrected(at)
        return np.concatenate([*(one.predicted(factors) for one in held), np.log(predict(timed, factors)[0])])

    start, prior, kernels = _start(held), np.array(list(PRIOR.values())), NAMES.index("kernels")
    prior[kernels] = max(prior[kernels], abs(start[kernels]))  # a device that is off as a whole is so in them first
    found = likeliest(one_by_one(predicted), (target, noise), prior, start)
    whole = np.concatenate([*(one.part == 0 for one in held), np.ones(len(timed), np.bool_)])  # slots, and steps
    like = [*timed, *(Run(run.model, run.cluster, run.layout, (), run.source) for run in runs)]
    band = band_of(found, found.off[whole], linear(steps_of(like), found.at)[1])
    fitted = corrected(found.at, found.errors)
    return replace(fitted, memory=memory_of(rows), rows=len(timed), source=source, band=band)


def _held(run: StageRun) -> _Held:
    if run.costs.durations.shape[1] != run.layout.stages:
        rule = f"its layout has {run.layout.stages} stages and {run.costs.durations.shape[1]} were measured"
        raise InputError(Fault(run.source or "stages", rule, "give the pipeline and chunks with which it ran"))
    measured = _values(run.costs, run.outside, run.overlapped)
    generic = _values(*_costs(run, GENERIC), run.overlapped)
    known = (measured > 0) & (generic > 0)
    if not known[: run.layout.stages].any():
        raise InputError(Fault(run.source or "stages", "no stage has both a forward and a backward", "measure a step"))
    stages, target = run.layout.stages, np.log(measured[known])
    # In the order of ``_values``: a stage each for slots and shares, a boundary each for both ways of hops.
    part = np.repeat(np.arange(len(PARTS)), [stages, stages, 2 * stages - 2, 1])[known]
    return _Held(run, known, part, target, target - np.log(generic[known]))


def _start(held: Sequence[_Held]) -> Column:
    """What slots are made of, and hops, there where those of most stages lie."""
    at = np.zeros(len(NAMES))
    for name, number in (("kernels", 0), ("tensor", 0), ("floor", 0), ("transfer", 2)):
        at[NAMES.index(name)] = _median(np.concatenate([one.off[one.part == number] for one in held]))
    return at


def _median(values: Column) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _values(costs: Costs, outside: float, overlapped: bool) -> Column:
    """Every part one after the other: slots, shares, hops forward, hops backward, outside; 0 for what is not known."""
    forward, inputs, weight, whole = costs.durations[:, :, 0].astype(float)  # F, I, W, B
    # A trace has B, or I and W where the backward is split.
    backward = np.where(whole > 0, whole, inputs + weight)
    both = (forward > 0) & (backward > 0)
    share = np.where(both & (not overlapped), forward / np.maximum(backward, 1), 0.0)
    hops = costs.transfers[:, :, 0].astype(float)
    back = np.maximum(hops[Kind.B], hops[Kind.I])[:-1]
    return np.concatenate([np.where(both, forward + backward, 0.0), share, hops[Kind.F, 1:], back, [outside]])


def _costs(run: StageRun, factors: Calibration) -> tuple[Costs, float]:
    """What the model says to a run; what lies outside only where no weights are gathered inside (ZeRO-3)."""
    costs = simulated(run.model, run.cluster, run.layout, factors)[1]
    parts = judge(run.model, run.cluster, run.layout, factors).parts
    outside = (parts.data + parts.optimizer + parts.fixed) / SECOND
    if run.layout.zero == 3:  # what is gathered inside the window cannot be told from the stages' own time
        return costs, 0.0
    return costs, outside
