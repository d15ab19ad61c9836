"""The order of a run: the published schedule that it is, or is nearest to, and what that order idles by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..config.config import Config
from ..config.derive import settled
from ..core.account import account
from ..core.bounds import lower_bound
from ..core.costs import Rates, costs_of
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.schedule import Kind, Schedule, Shape
from ..core.simulate import simulate
from ..schedules.catalog import CATALOG, GENERATED, build, entry_of
from ..schedules.closed_form import bubble_ratio, even, least_ratio, takes

MOST_BOUNDED = 4_000  # ops of an order whose bound is sought op by op: some hundredths of a second
_MOST_TRIED = 4_096  # numbers of micro-batches, one after the other, before only multiples of the ranks are tried


@dataclass(frozen=True, slots=True)
class Recognised:
    """What an order was recognised as.

    Args:
        name: of the catalog, or None where no schedule of it has this order.
        nearest: the one that agrees for longest; equal to ``name`` where there is one, None where no schedule
            exists for this shape.
        departure: where the order first departs from the nearest one, a clause; empty where it does not. An order
            that runs one by one what the published one runs in pairs has its name, and departs in that.
        searched: the schedule as which it was searched, if so: such an order depends on costs, so that none can be
            held against it, and at some sizes it is a published one.
    """

    name: str | None
    nearest: str | None
    departure: str = ""
    searched: str | None = None

    def __str__(self) -> str:
        return self.searched or self.name or "no known schedule"


def recognise(schedule: Schedule) -> Recognised:
    """Compare an order with every schedule that a shape alone decides."""
    return replace(_published_as(schedule), searched=_searched(schedule.name))


def _searched(name: str) -> str | None:
    return name if name in CATALOG and CATALOG[name].search is not None else None


def _published_as(schedule: Schedule) -> Recognised:
    best: tuple[float, str, Schedule] | None = None
    for name, published in _published(schedule):
        if schedule.same_order(published):
            return Recognised(name, name)
        # torch runs the pairs of DualPipe-V one op after the other: the order is the same, the overlap is gone.
        if published.joined is not None and schedule.same_order(replace(published, joined=None)):
            return Recognised(name, name, "ops that it runs together ran one by one")
        # Last, as it builds another order: only split orders read from traces need it.
        if schedule.same_order(_fused_where(schedule, published)):
            return Recognised(name, name)
        agreement = _agreement(schedule, published)
        if best is None or agreement > best[0]:
            best = agreement, name, published
    if best is None:
        return Recognised(None, None)
    return Recognised(None, best[1], _departure(schedule, best[2]))


def _published(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Every such schedule that exists for this shape, the one of the same name first."""
    if schedule.stages % schedule.ranks:
        return
    shape = Shape(schedule.ranks, schedule.microbatches, schedule.stages // schedule.ranks, schedule.slices)
    # Its own name first: at some sizes several published schedules are one order, and it keeps what it was called.
    for name in sorted(GENERATED, key=lambda name: name != schedule.name):
        try:
            published = build(name, shape)
        except InputError:
            continue
        if published.stages == schedule.stages:
            yield name, published


def _fused_where(schedule: Schedule, published: Schedule) -> Schedule:
    """The published order with one B for an I and the W right after it, for the ops that another order runs as B.

    A trace without names shows them so on the first stage, where no message parts the two and nobody waits for the I.
    """
    fused = schedule.kind == Kind.B
    if not fused.any() or fused.all() or not (published.kind == Kind.W).any():
        return published
    whole = np.zeros((schedule.stages, schedule.units), np.bool_)
    whole[schedule.stage[fused], schedule.unit[fused]] = True
    kind, stage, unit = published.kind, published.stage, published.unit
    weight = np.zeros(len(published), np.bool_)
    weight[1:] = (kind[:-1] == Kind.I) & (kind[1:] == Kind.W) & (stage[:-1] == stage[1:]) & (unit[:-1] == unit[1:])
    weight &= whole[stage, unit]
    before = np.append(0, np.cumsum(weight))
    return replace(
        published,
        offsets=published.offsets - before[published.offsets],
        kind=np.where(np.append(weight[1:], False), Kind.B, kind).astype(kind.dtype)[~weight],
        stage=stage[~weight],
        unit=unit[~weight],
        joined=None if published.joined is None else published.joined[~weight],
    )


def _agreement(schedule: Schedule, published: Schedule) -> float:
    """Share of the positions at which both have the same op."""
    # Ranks with other numbers of ops: no position can be held against the same one.
    if not np.array_equal(schedule.offsets, published.offsets):
        return -1.0
    same = (schedule.kind == published.kind) & (schedule.stage == published.stage) & (schedule.unit == published.unit)
    return float(same.mean()) if len(same) else 1.0


def _departure(schedule: Schedule, published: Schedule) -> str:
    """The earliest position, over all ranks, at which the two differ."""
    places = [
        (position, rank)
        for rank in range(schedule.ranks)
        if (position := _first_difference(schedule, published, rank)) is not None
    ]
    if not places:
        return "some ops run together that it runs one by one" if schedule.joined is not None else ""
    # The earliest position, not the first rank: what comes later may follow from it.
    position, rank = min(places)
    here, there = (_op_at(each, rank, position) for each in (schedule, published))
    return f"rank {rank} position {position}: {here} where {published.name} has {there}"


def _first_difference(schedule: Schedule, published: Schedule, rank: int) -> int | None:
    mine, theirs = (slice(each.offsets[rank], each.offsets[rank + 1]) for each in (schedule, published))
    # Up to the end of the shorter one; that the other goes on is the difference then.
    short = min(mine.stop - mine.start, theirs.stop - theirs.start)
    differs = np.zeros(short, np.bool_)
    for a, b in ((schedule.kind, published.kind), (schedule.stage, published.stage), (schedule.unit, published.unit)):
        differs |= a[mine][:short] != b[theirs][:short]
    if differs.any():
        return int(differs.argmax())
    return None if mine.stop - mine.start == theirs.stop - theirs.start else int(short)


def _op_at(schedule: Schedule, rank: int, position: int) -> str:
    row = int(schedule.offsets[rank]) + position
    return schedule.op(row).text(schedule.slices) if row < schedule.offsets[rank + 1] else "nothing"


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
        # The fewest idle most; with ever more the share goes to nothing.
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
    ranks: int = job.number("pipeline")
    # Schedules ask for a multiple of the ranks, or for so many that a few thousand hold them.
    tried: set[int] = {*range(1, min(4 * ranks, _MOST_TRIED) + 1), *range(ranks, 5 * ranks, ranks)}
    for microbatches in sorted(tried):
        shape(job, microbatches)  # what is too large for any schedule stays so with more micro-batches
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
    ratio = None
    if pipeline is not None and takes(entry, pipeline):
        ratio = bubble_ratio(entry, pipeline)
    if pipeline is not None and ratio is not None:
        idle = ratio / (1 + ratio)
        most = (1 + ratio) / (1 + least_ratio(entry, pipeline, split=True))
        if 2 * size.ranks * size.chunks * size.microbatches <= MOST_BOUNDED:
            most = min(most, _ceiling(build(entry.name, size), job))
        return Own(idle, idle, "exact", barrier_ratio=most)
    schedule = build(entry.name, size)
    costs = costs_of(rates(job), schedule)
    timeline = simulate(lower(schedule), costs)
    idle = account(timeline).idle_share
    return Own(idle, idle, "simulated", timeline.makespan / lower_bound(halved(schedule), costs))


def _ceiling(schedule: Schedule, job: Config) -> float:
    """A makespan over its lower bound: with few ops, heads and tails of all of them say more than the formula."""
    costs = costs_of(rates(job), schedule)
    return simulate(lower(schedule), costs).makespan / lower_bound(halved(schedule), costs)


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
