"""A schedule's own idle time: equal stages, equal micro-batches, free transfers; exact where a formula is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..config.config import Config
from ..config.derive import settled
from ..core.account import account
from ..core.bounds import lower_bound
from ..core.costs import Rates, costs_of
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.op import Kind
from ..core.schedule import Schedule, Shape
from ..core.simulate import simulate
from ..schedules.catalog import build, entry_of
from ..schedules.closed_form import bubble_ratio, even, least_ratio, takes


@dataclass(frozen=True, slots=True)
class Own:
    """Idle time of a schedule itself; two bounds where the number of micro-batches is not known.

    Args:
        least: idle share, at least.
        most: idle share, at most.
        evidence: ``exact`` or ``simulated``.
        barrier_ratio: its makespan over the least that any order with a barrier at the end needs, for the same
            placement and a backward that may be split; None where only bounds are known.
        fewest: the fewest micro-batches that the schedule takes, where ``most`` is of them; else None.
    """

    least: float
    most: float
    evidence: str
    barrier_ratio: float | None = None
    fewest: int | None = None

    @property
    def known(self) -> bool:
        """Whether the two bounds are one number."""
        return self.least == self.most

    @property
    def busy(self) -> tuple[float, float]:
        """Busy share, at least and at most."""
        return 1 - self.most, 1 - self.least

    @property
    def bubble_ratio(self) -> float:
        """Idle over busy, at most."""
        return self.most / (1 - self.most)


def own(job: Config) -> Own | None:
    """The idle time of a job's schedule; None where the length of the pipeline is not known.

    Raises:
        InputError: there is no such schedule, or it does not take these sizes.
    """
    job = settled(job)
    if job.pipeline is None:
        return None
    if job.pipeline == 1:
        return Own(0.0, 0.0, "exact", 1.0)
    if job.microbatches is None:
        fewest = _fewest(job)
        at_fewest = _of_shape(job, fewest)
        return Own(0.0, at_fewest.most, at_fewest.evidence, fewest=fewest)
    return _named(job, job.microbatches)


def rates(job: Config) -> Rates:
    """What a job says about the speed of its ops, with equal stages and free transfers; default B = 2 F, F = 1 ms."""
    said = {name: getattr(job, name) for name in ("forward", "backward", "input", "weight")}
    known = {name: value for name, value in said.items() if value is not None}
    if set(known) == {"forward"}:
        known["backward"] = 2 * known["forward"]
    return Rates(**known)


def shape(job: Config, microbatches: int) -> Shape:
    """The size of a job's pipeline."""
    return Shape(job.number("pipeline"), microbatches, job.number("chunks"))


def _named(job: Config, microbatches: int) -> Own:
    """As ``_of_shape``, with the job's name in front of each fault."""
    try:
        return _of_shape(job, microbatches)
    except InputError as error:
        faults = (replace(fault, value=f"{job.name}: {fault.value}") for fault in error.faults)
        raise InputError(*faults) from None


def _fewest(job: Config) -> int:
    """The fewest micro-batches that a schedule takes."""
    first = None
    for microbatches in range(1, 4 * job.number("pipeline") + 1):
        try:
            _of_shape(job, microbatches)
        except InputError as error:
            first = first or error
        else:
            return microbatches
    faults = (
        first.faults if first else (Fault(str(job.schedule), "no number of micro-batches suits it", "take another"),)
    )
    raise InputError(*(replace(fault, value=f"{job.name}: {fault.value}") for fault in faults))


def _of_shape(job: Config, microbatches: int) -> Own:
    entry = entry_of(str(job.schedule))
    size = entry.shape(shape(job, microbatches))
    pipeline = even(size, rates(job))
    ratio = bubble_ratio(entry, pipeline) if pipeline is not None and takes(entry, pipeline) else None
    if pipeline is not None and ratio is not None:
        idle = ratio / (1 + ratio)
        return Own(idle, idle, "exact", barrier_ratio=(1 + ratio) / (1 + least_ratio(entry, pipeline, split=True)))
    schedule = build(entry.name, size)
    costs = costs_of(rates(job), schedule)
    timeline = simulate(lower(schedule), costs)
    idle = account(timeline).idle_share
    return Own(idle, idle, "simulated", timeline.makespan / lower_bound(halved(schedule), costs))


def halved(schedule: Schedule) -> Schedule:
    """The same schedule with each full backward split into I and W: its bound holds whether or not W may wait."""
    if schedule.joined is not None or not (schedule.kind == Kind.B).any():
        return schedule
    times = 1 + (schedule.kind == Kind.B)
    rows = np.repeat(np.arange(len(schedule)), times)
    kind = schedule.kind[rows].copy()
    second = np.concatenate([[False], rows[1:] == rows[:-1]])
    kind[kind == Kind.B] = Kind.I
    kind[second] = Kind.W
    offsets = np.concatenate([[0], np.cumsum(times)])[schedule.offsets]
    return replace(schedule, kind=kind, stage=schedule.stage[rows], unit=schedule.unit[rows], offsets=offsets)
