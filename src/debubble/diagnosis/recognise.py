"""Recognition: the published schedule whose order a run shows, or the nearest one and where the run departs from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..core.errors import InputError
from ..core.op import Kind
from ..core.schedule import Schedule, Shape
from ..schedules.catalog import CATALOG, GENERATED, build


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
        if published.joined is not None and schedule.same_order(replace(published, joined=None)):
            return Recognised(name, name, "ops that it runs together ran one by one")
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
    position, rank = min(places)
    here, there = (_op_at(each, rank, position) for each in (schedule, published))
    return f"rank {rank} position {position}: {here} where {published.name} has {there}"


def _first_difference(schedule: Schedule, published: Schedule, rank: int) -> int | None:
    mine, theirs = (slice(each.offsets[rank], each.offsets[rank + 1]) for each in (schedule, published))
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
