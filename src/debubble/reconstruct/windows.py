"""Steps and windows: the ops of a replica's ranks in one step, sound and completed with what their order tells.

Labels that repeat tell steps; else a pipeline that runs empty does: a flush leaves nothing in flight. Ops that cannot
be are left out.

If no replica is whole, the ranks that are here close up:

    stages that ran        0 1 2 3        what the one before rank 2 hands on still reaches rank 3 some time later, so
    stages that are here   0 1   3        the order of the ranks that are here stays a legal one: 0 1 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.laws import FORWARD, LINE
from ..core.lower import lower
from ..core.observation import Window
from ..core.program import Program, Timeline
from ..core.schedule import Kind, Schedule
from ..core.units import counted
from .device_ops import UNKNOWN, Clock, Ints, Mask, RankOps, group_of, index_of, of_each_op, parted, place_within
from .positions import MOST_NAMED, NOWHERE, Places, Said

_LONG = 10.0  # times the median of its kind: beyond this an op that also covers another one is a fault of the tracer
_MOST_SHIFT = 8  # steps by which files may begin apart
_ALIKE = 20_000  # nanoseconds; lags that wander by as little are alike
_CLEARLY = 3.0  # times as much must lags wander if files end together, for another shift to be taken
_FAR = 20.0  # times the median length of a step: an op that far from the rest of its step did not happen there


def plausible(devices: Sequence[RankOps]) -> tuple[tuple[RankOps, ...], list[str]]:
    """The devices without ops that end before they start, swallow others, or lie far from their step; and remarks."""
    kept: list[RankOps] = []
    remarks: list[str] = []
    for device in devices:
        bad = (device.end < device.start) | _swallows(device) | _strays(device)
        if bad.any():
            first = int(bad.argmax())
            length = (device.end[first] - device.start[first]) / 1e6
            remarks.append(
                f"{device.source}: rank {device.rank}: ops set aside: {int(bad.sum())}, the first "
                f"in step {device.step[first]}, {length:,.3f} ms long: no op of this run can be there"
            )
            device = device.only(~bad)
        kept.append(device)
    return tuple(kept), remarks


def _swallows(device: RankOps) -> Mask:
    """Far longer than its kind, and not over before another op that starts later has ended."""
    bad = np.zeros(len(device), np.bool_)
    order = np.lexsort((device.start, device.step))
    length, end, step = (device.end - device.start)[order], device.end[order], device.step[order]
    covers = np.concatenate([(end[:-1] > end[1:]) & (step[:-1] == step[1:]), [False]])
    # A real straggler is long, too, but what comes after it on the same device waits for it.
    for kind in np.unique(device.kind):
        mine = device.kind[order] == kind
        bad[order] |= mine & covers & (length > _LONG * np.median(length[mine]))
    return bad


def _strays(device: RankOps) -> Mask:
    """Further from the middle of its step than any step is long."""
    away = np.zeros(len(device))
    typical: list[float] = []
    groups = parted(np.argsort(device.step, kind="stable"), device.step)
    for rows in groups:
        away[rows] = np.abs(device.start[rows] - np.median(device.start[rows]))
        typical.append(float(np.median(away[rows])))
    if not typical or not np.median(typical):  # steps of one op have no length
        return np.zeros(len(device), np.bool_)
    # Ops lie a quarter of a step away from its middle, the median of all of them.
    far: Mask = away > _FAR * 4 * float(np.median(typical))
    return far


def with_steps(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The same devices, on one clock, with a step for every op.

    If other devices know their steps, the moment tells. Else, if micro-batches (and stages or chunks) are labelled, the
    k-th time that an op comes is its step k; if they are not, a step ends where, over all devices, every forward has
    had its backward.
    """
    known = [device for device in devices if (device.step >= 0).all()]
    if len(known) == len(devices):
        return tuple(devices)
    known = [device for device in known if len(device)]
    if known and all(device.clock is not Clock.STEP for device in devices):
        return _as_of(devices, known)
    if all(device.unit is not None and not device.counted for device in devices if len(device)):
        return tuple(replace(device, step=_occurrence(device), step_ns={}) for device in devices)
    return _by_flush(devices)


def _as_of(devices: Sequence[RankOps], known: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The devices with steps by those of some of them: an op is of the step within which it began."""
    steps, bounds = _between_steps(known)
    told = list(devices)
    for i, device in enumerate(devices):
        if (device.step < 0).any():
            told[i] = _cut(device, steps[np.searchsorted(bounds, device.start, side="right")])
    return tuple(told)


def _between_steps(devices: Sequence[RankOps]) -> tuple[Ints, Ints]:
    """Numbers of steps in their order, and the moments halfway between the end of one and the start of the next."""
    numbers, row = np.unique(of_each_op(devices, "step"), return_inverse=True)
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.full(len(numbers), np.iinfo(np.int64).min)
    np.minimum.at(first, row, of_each_op(devices, "start"))
    np.maximum.at(last, row, of_each_op(devices, "end"))
    order = np.argsort(first)
    bounds: Ints = last[order][:-1] + (first[order][1:] - last[order][:-1]) // 2
    return numbers[order], bounds


def _occurrence(device: RankOps) -> Ints:
    """How many times each op of a device came before, int64[ops]."""
    order = np.argsort(device.start, kind="stable")
    labels = [device.kind[order].astype(np.int64)]
    for column in (device.unit, device.stage, device.chunk):
        if column is not None:
            labels.append(column[order].astype(np.int64))
    step = np.empty(len(order), np.int64)
    step[order] = place_within(group_of(*labels))
    return step


def _by_flush(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """Cut where nothing is in flight on any device (their clocks agree well enough: a flush is milliseconds long)."""
    kind, begun = of_each_op(devices, "kind"), of_each_op(devices, "start")
    # A W comes after its I, at any time: only F and I, or F and B, count what is in flight.
    rows = np.flatnonzero(kind != Kind.W)
    rows = rows[np.argsort(begun[rows], kind="stable")]
    forward, begun = kind[rows] == Kind.F, begun[rows]
    flight = np.cumsum(np.where(forward, 1, -1))
    bounds = begun[1:][(flight[:-1] == 0) & forward[1:]]  # the first forward of each new step
    told = []
    for device in devices:
        told.append(_cut(device, np.searchsorted(bounds, device.start, side="right").astype(np.int64)))
    return tuple(told)


def _cut(device: RankOps, step: Ints) -> RankOps:
    """The device with these steps, in each of which micro-batches count from 0."""
    unit = device.unit
    if unit is not None and device.counted and len(unit):
        steps, number = np.unique(step, return_inverse=True)
        first = np.full(len(steps), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(first, number, unit)
        unit = unit - first[number]
    return replace(device, step=step, unit=unit, step_ns={})


# Steps that each file counts from where it begins.


def in_one_count(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The devices with the same number for the same step, if each file counts its steps from where it begins.

    Within a step the ends of the k-th messages at both sides differ by one offset of clocks. If a file began a step
    later, that holds only if its count is shifted; if all steps are exactly alike, files are taken to end together.
    """
    if not any(device.steps_counted for device in devices):
        return tuple(devices)
    found = list(devices)
    left = set(range(len(devices)))
    while left:
        by = _shifts(devices, min(left), left)
        left -= by.keys()
        least = min(by.values())
        for i, shift in by.items():
            found[i] = _shifted(devices[i], shift - least)
    return tuple(found)


def ending_together(devices: Sequence[RankOps]) -> tuple[RankOps, ...]:
    """The devices with one number for the last step of each, if each file counts its steps from where it begins."""
    last = [int(device.step.max(initial=0)) for device in devices]
    found = list(devices)
    for i, device in enumerate(devices):
        if device.steps_counted:
            found[i] = _shifted(device, max(last) - last[i])
    return tuple(found)


def _shifts(devices: Sequence[RankOps], first: int, left: Set[int]) -> dict[int, int]:
    """By how many steps each device that messages join to one must be moved against it, by index.

    Args:
        devices: of which each counts its steps from where its file begins.
        first: index of the one.
        left: indices of the devices that may be moved.
    """
    index = index_of(devices)
    by = {first: 0}
    part = [first]
    for here in part:  # grows as neighbours are found
        for there in _neighbours(devices[here], index):
            if there in left and there not in by:
                by[there] = by[here] + _shift(devices[here], devices[there])
                part.append(there)
    return by


def _neighbours(device: RankOps, index: Mapping[int, int]) -> list[int]:
    """Indices of the devices here that a device's messages name."""
    if device.transfers is None:
        return []
    return [index[peer] for peer in np.unique(device.transfers.peer).tolist() if peer in index]


def _shift(one: RankOps, other: RankOps) -> int:
    """By how many steps the second device's count must be moved so that messages between the two belong together."""
    mine, theirs = _ends_by_step(one, other.rank), _ends_by_step(other, one.rank)
    wander: dict[int, float] = {}
    for by in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        wanders = [_wander(mine[step], theirs[step - by]) for step in mine if step - by in theirs]
        known = [each for each in wanders if each is not None]
        # Any shift fits the last few steps of one file to the first few of the other: half of them at least must meet.
        if known and 2 * len(known) >= min(len(mine), len(theirs)):
            wander[by] = float(np.median(known))
    if not wander:
        return 0
    together = min(wander, key=lambda by: abs(max(theirs) + by - max(mine)))
    best = min(wander, key=wander.__getitem__)
    if _CLEARLY * wander[best] < wander[together] > _ALIKE:
        return best
    return together


def _wander(mine: Ints, theirs: Ints) -> float | None:
    """By how much differences of ends deviate from their median, the median; None if one side has more ends."""
    if len(mine) != len(theirs):
        return None
    lag = theirs - mine
    return float(np.median(np.abs(lag - np.median(lag))))


def _ends_by_step(device: RankOps, peer: int) -> dict[int, Ints]:
    """Ends of the messages with one peer, sends first, by step."""
    moves = device.transfers
    if moves is None:
        return {}
    rows = np.flatnonzero(moves.peer == peer)
    low = device.rank < peer  # what the lower sends first is what the other receives first
    found: dict[int, Ints] = {}
    for some in parted(rows[np.lexsort((moves.send[rows] != low, moves.step[rows]))], moves.step):
        found[int(moves.step[some[0]])] = moves.end[some]
    return found


def _shifted(device: RankOps, by: int) -> RankOps:
    def later(step: Ints) -> Ints:
        return np.where(step < 0, step, step + by)

    if not by:
        return device
    moves, joint = device.transfers, device.collectives
    if moves is not None:
        moves = replace(moves, step=later(moves.step))
    if joint is not None:
        joint = replace(joint, step=later(joint.step))
    step_ns = dict(zip((step + by for step in device.step_ns), device.step_ns.values(), strict=True))
    return replace(device, step=later(device.step), step_ns=step_ns, transfers=moves, collectives=joint)


_MOST_REASONS = 5  # for which windows were left out, that are spelled out
_MOST_CUT = 16  # devices that are tried without, one after the other: each try is as long as a whole merge


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The ops of one rank in one step, in the order of their starts.

    Args:
        kind: uint8[ops].
        chunk: int32[ops], index of the stage among those of the rank; the stage itself if ``numbered``.
        unit: int32[ops].
        start: int64[ops], nanoseconds on the rank's clock.
        end: int64[ops], nanoseconds.
        numbered: whether ``chunk`` holds stages of the whole model.
        spread: how far its devices' ends of one op lie apart, nanoseconds, the median; 0 for one device.
    """

    kind: NDArray[np.uint8]
    chunk: NDArray[np.int32]
    unit: NDArray[np.int32]
    start: Ints
    end: Ints
    numbered: bool
    spread: int = 0

    def by_label(self) -> Ints:
        """Its rows by what they are, whenever they ran."""
        return np.lexsort((self.unit, self.chunk, LINE[self.kind]))


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Complete windows, and what they are of.

    Args:
        windows: each rank on its own clock.
        devices: as they were then counted.
        places: of the devices; their remarks say what was left out.
        beside: global ranks beside one that is missing.
    """

    windows: list[Window]
    devices: tuple[RankOps, ...]
    places: Places
    beside: tuple[int, ...]


def whole_windows(devices: Sequence[RankOps], placed: Places, said: Said, source: str) -> Whole:
    """Every complete window, of all ranks or else of those that are left without one whose file was cut.

    Args:
        devices: with a step for every op.
        placed: their places.
        said: which steps count.
        source: what was read, for messages.

    Raises:
        InputError: no window is complete.
    """
    why: list[str] = []
    # With all of them first; then without the one whose file was cut most, for it lacks ops in every window.
    for without in (None, *_cut_short(devices)[:_MOST_CUT]):
        some = closed_up(devices, placed, without)
        if without is not None and some.places is placed:  # another replica is whole without it, and had no window
            continue
        found, left_out = windows_of(some.devices, some.places, said.steps, source)
        why = why or left_out
        if found:
            lost = why if without is not None else []
            remarks = (*some.places.remarks, *lost, *left_out)
            return Whole(found, some.devices, replace(some.places, remarks=remarks), some.beside)
    rule = "; ".join(why) or "no step of it is complete"
    raise InputError(Fault(source, rule, "give a trace with one whole step of every rank"))


def windows_of(
    devices: Sequence[RankOps], where: Places, steps: tuple[int, int] | None, source: str
) -> tuple[list[Window], list[str]]:
    """Every complete window, each rank on its own clock, and why the others are none.

    Args:
        devices: with a step for every op.
        where: their places; only those of whole replicas count.
        steps: first and last step that count; None for all.
        source: what was read, for messages.
    """
    found: list[Window] = []
    faults: Counter[str] = Counter()
    spreads: list[int] = []
    programs: dict[bytes, Program] = {}
    first, last = steps or (-np.inf, np.inf)
    for q in range(int(where.replica.max()) + 1):
        ranks = _ranks_of(devices, where, q)
        numbers: set[int] = set()
        for rank in ranks:
            numbers |= rank.steps()
        for step in sorted(number for number in numbers if first <= number <= last):
            rows = [rank.row(step) for rank in ranks]
            whole = [row for row in rows if row is not None]
            if len(whole) < len(rows):
                faults[f"replica {q} rank {rows.index(None)} has no whole step there"] += 1
                continue
            try:
                program = _lowered(schedule_of(whole, source, turns=turns_back(whole)), programs)
            except Refusal as refusal:
                faults[f"replica {q}: {str(refusal).splitlines()[:2][-1].strip()}"] += 1  # its first violation
                continue
            spreads += [row.spread for row in whole]
            length = max((rank.length(step) for rank in ranks), default=0)
            timeline = Timeline(program, _column(whole, "start"), _column(whole, "end"), "measured")
            found.append(Window(step, q, timeline, length or None))
    remarks = _left_out(faults, source)
    if place_within(group_of(where.replica, where.position))[where.placed()].any():
        spread = np.median(spreads) / 1e6 if spreads else 0.0
        remarks.append(f"devices of one stage were merged; their ends lie {spread:.3f} ms apart (median)")
    return found, remarks


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """The devices of one position of one replica.

    Args:
        members: of each device its ops by step.
        lengths: of each device the length of whole steps, nanoseconds, by step.
    """

    members: tuple[Mapping[int, Row], ...]
    lengths: tuple[Mapping[int, int], ...]

    def steps(self) -> set[int]:
        """Steps of which any device has ops."""
        return set[int]().union(*self.members)

    def row(self, step: int) -> Row | None:
        """One step of all its devices; None if one lacks the step or differs from the others."""
        rows = [rows[step] for rows in self.members if step in rows]
        if not rows or len(rows) < len(self.members):
            return None
        return _together(rows)

    def length(self, step: int) -> int:
        """The whole step with what lies outside the pipeline, nanoseconds; 0 where no device knows it."""
        return max((length.get(step, 0) for length in self.lengths), default=0)


def _ranks_of(devices: Sequence[RankOps], where: Places, replica: int) -> list[_Rank]:
    """The ranks of a replica by their positions; those that are not here have no devices."""
    found = []
    for position in range(int(where.position.max()) + 1):
        members = [devices[i] for i in where.members(replica, position)]
        found.append(_Rank(tuple(map(rows_of, members)), tuple(device.step_ns for device in members)))
    return found


def _left_out(faults: Counter[str], source: str) -> list[str]:
    """Which windows were left out and why, the commonest reasons first."""
    named = faults.most_common(_MOST_REASONS)
    remarks = [f"{source}: {counted(count, 'window')} left out: {why}" for why, count in named]
    if more := faults.total() - sum(count for _, count in named):
        remarks.append(f"{source}: {counted(more, 'window')} left out for other reasons of that kind")
    return remarks


def rows_of(device: RankOps) -> dict[int, Row]:
    """The ops of a device by step; steps in which an op has no stage or micro-batch, or an absurd one, are left out.

    If micro-batches are not labelled, each stage takes them first in, first out; if chunks are not, a micro-batch
    passes them upwards and its gradient downwards.
    """
    found: dict[int, Row] = {}
    for rows in parted(np.lexsort((device.end, device.start, device.step)), device.step):
        row = _row(device, rows)
        most = len(rows)  # a whole step has an op of each micro-batch: larger numbers would only fill memory
        if (row.unit >= 0).all() and (row.chunk >= 0).all() and int(row.unit.max()) < most:
            found[int(device.step[rows[0]])] = row
    return found


def _row(device: RankOps, rows: Ints) -> Row:
    line = LINE[device.kind[rows]].astype(np.int64)
    labels = device.chunk if device.stage is None else device.stage
    chunk, unit = np.zeros((2, len(rows)), np.int64)
    if labels is not None:
        chunk = labels[rows].astype(np.int64)
    if device.unit is not None:
        unit = device.unit[rows].astype(np.int64)
    if device.unit is None:
        unit = place_within(group_of(chunk, line))
    elif labels is None:
        chunk = _passes(line, unit)
    return Row(
        kind=device.kind[rows],
        chunk=chunk.astype(np.int32),
        unit=unit.astype(np.int32),
        start=device.start[rows],
        end=device.end[rows],
        numbered=device.stage is not None,
    )


def _passes(line: Ints, unit: Ints) -> Ints:
    """Chunks from how often a micro-batch has passed: up in forwards, down in backwards."""
    #  kind     F F F B B B
    #  passed   0 1 2 0 1 2
    #  chunk    0 1 2 2 1 0
    passed = place_within(group_of(unit, line))
    most = int(passed.max(initial=0))
    return np.where(line == FORWARD, passed, most - passed)


def _together(members: Sequence[Row]) -> Row | None:
    """The devices of one position as one rank: each op from its earliest start to its latest end.

    Returns:
        None if they did not do the same ops.
    """
    if len(members) == 1:
        return members[0]
    first, by = members[0], members[0].by_label()
    # What follows needs the results of all members, so the op of their rank lasts until the last of them is done.
    starts, ends = np.empty((2, len(members), len(by)), np.int64)
    for i, row in enumerate(members):
        order = row.by_label()
        for mine, theirs in ((first.kind, row.kind), (first.chunk, row.chunk), (first.unit, row.unit)):
            if not np.array_equal(mine[by], theirs[order]):
                return None
        starts[i], ends[i] = row.start[order], row.end[order]
    start, end = starts.min(axis=0), ends.max(axis=0)
    again = np.lexsort((end, start))
    return Row(
        kind=first.kind[by][again],
        chunk=first.chunk[by][again],
        unit=first.unit[by][again],
        start=start[again],
        end=end[again],
        numbered=first.numbered,
        spread=int(np.median(np.ptp(ends, axis=0))),
    )


def schedule_of(rows: Sequence[Row], source: str, *, turns: bool = False) -> Schedule:
    """The order that was observed, as a schedule named ``measured``.

    Args:
        rows: one a position.
        source: where it came from.
        turns: whether stages turn back at the last rank (two chunks, in V shape) instead of looping.
    """
    ranks = len(rows)
    stages = [_stages(row, position, ranks, turns=turns) for position, row in enumerate(rows)]
    lengths = [len(stage) for stage in stages]
    stage, unit = np.concatenate(stages), _column(rows, "unit")
    count = int(stage.max(initial=-1)) + 1
    if count > len(stage):  # before the table of the placement is made, which a wild number would let grow
        raise Refusal(f"measured has too few ops\nfor {count:,} stages")
    placement = np.zeros(count, np.int32)
    placement[stage] = np.repeat(np.arange(ranks), lengths)
    return Schedule(
        name="measured",
        source=source,
        microbatches=int(unit.max(initial=-1)) + 1,
        placement=placement[None],
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        kind=_column(rows, "kind"),
        stage=stage,
        unit=unit,
    )


def _column(rows: Sequence[Row], name: str) -> NDArray[Any]:
    """A column of all ranks' ops, rank after rank."""
    return np.concatenate([getattr(row, name) for row in rows])


def _stages(row: Row, position: int, ranks: int, *, turns: bool) -> NDArray[np.int32]:
    if row.numbered:
        return row.chunk
    # Two chunks on three ranks, in a loop: 0 3 | 1 4 | 2 5; turning back: 0 5 | 1 4 | 2 3.
    back = row.chunk * ranks + ranks - 1 - position
    loop = row.chunk * ranks + position
    return np.where(turns & (row.chunk % 2 == 1), back, loop).astype(np.int32)


def turns_back(rows: Sequence[Row]) -> bool:
    """Whether chunk 1 of the last rank begins before chunk 1 of the first: stages in V shape."""
    begun = []
    for row in (rows[0], rows[-1]):
        second = (row.kind == Kind.F) & (row.chunk == 1)
        begun.append(int(row.start[second].min(initial=np.iinfo(np.int64).max)))
    return not rows[0].numbered and len(rows) > 1 and begun[1] < begun[0]


def _lowered(schedule: Schedule, known: dict[bytes, Program]) -> Program:
    """Lower an order once, however many windows show it."""
    columns = (schedule.placement, schedule.offsets, schedule.kind, schedule.stage, schedule.unit)
    key = b"".join(column.tobytes() for column in columns)
    if key not in known:
        known[key] = lower(schedule)
    return known[key]


# Pipelines of which no replica is whole.


def closed_up(devices: Sequence[RankOps], where: Places, without: int | None = None) -> Whole:
    """The devices of the fullest replica without gaps between them, if no replica is whole; else what was given.

    Args:
        devices: as they were measured.
        where: their places; positions and, if labels tell them, stages may be missing.
        without: index of a device that is to be left out, whatever it holds.

    Returns:
        Devices with stages counted anew, their places, and the global ranks of those beside a gap; no windows yet.
    """
    held: dict[int, Ints] = {}
    here: dict[int, set[int]] = {}
    for i in where.placed():
        held[i] = _held(devices[i], int(where.position[i]))
        if i != without:
            here.setdefault(int(where.replica[i]), set()).update(held[i].tolist())
    last = max(int(numbers.max(initial=0)) for numbers in held.values()) if held else 0
    if all(device.stage is None for device in devices):  # labels of stages tell more than the number of positions
        last = max(last, where.ranks - 1)
    fullest = max(here, key=lambda q: (len(here[q]), -q), default=0)
    if not here or len(here[fullest]) == last + 1:
        return Whole([], tuple(devices), where, ())
    kept = where.replica == fullest
    if without is not None:
        kept[without] = False
    position, replica = np.full((2, len(devices)), NOWHERE)
    position[kept], replica[kept] = group_of(where.position[kept]), 0
    order = np.array(sorted(here[fullest]))
    # One by one, and no more than are named: an absurd label would make a list of them fill memory.
    gone = list(islice((stage for stage in range(last + 1) if stage not in here[fullest]), MOST_NAMED + 1))
    closer = list(devices)
    beside, ranks = [], []
    for i in np.flatnonzero(kept).tolist():
        closer[i] = _counted_anew(devices[i], order)
        ranks.append(devices[i].rank)
        near = np.append(held[i] - 1, held[i] + 1)
        if not np.isin(near[(near >= 0) & (near <= last)], order).all():
            beside.append(devices[i].rank)
    what = "position" if devices[int(kept.argmax())].stage is None else "stage"
    others = " of the fullest replica" if len(here) > 1 else ""
    remark = (
        f"no whole trace of {what} {_listed(gone)} is here, so no pipeline is whole: windows are those of rank "
        f"{_listed(ranks)}{others} alone, and tell neither an order nor causes"
    )
    places = Places(position, replica, int(position.max()) + 1, where.missing, (*where.remarks, remark))
    return Whole([], tuple(closer), places, tuple(beside))


def _cut_short(devices: Sequence[RankOps]) -> list[int]:
    """Indices of devices that have fewer ops than the others, the fewest first: those whose files were cut."""
    most = max(map(len, devices), default=0)
    return sorted((i for i, device in enumerate(devices) if len(device) < most), key=lambda i: len(devices[i]))


def _held(device: RankOps, position: int) -> Ints:
    """The stages of a device, or its position if no label tells them."""
    if device.stage is None:
        return np.array([position])
    return np.unique(device.stage[device.stage >= 0]).astype(np.int64)


def _counted_anew(device: RankOps, order: Ints) -> RankOps:
    """The device with stages counted among those that are here; a stage that is not known stays so."""
    if device.stage is None:
        return device
    stage = np.where(device.stage < 0, UNKNOWN, np.searchsorted(order, device.stage))
    return replace(device, stage=stage.astype(np.int32))


def _listed(numbers: Sequence[int]) -> str:
    """The first of some numbers; two dots stand for the rest."""
    spelled = ", ".join(map(str, numbers[:MOST_NAMED]))
    if len(numbers) > MOST_NAMED:
        spelled += ", .."
    return spelled
