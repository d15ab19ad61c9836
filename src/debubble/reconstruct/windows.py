"""Windows: the ops of all ranks of a replica in one step, completed with what only their order tells, as timelines.

If no replica is whole, the ranks that are here close up:

    stages that ran        0 1 2 3        what the one before rank 2 hands on still reaches rank 3 some time later, so
    stages that are here   0 1   3        the order of the ranks that are here stays a legal one: 0 1 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from .device_ops import UNKNOWN, Ints, RankOps, group_of, parted, place_within
from .positions import MOST_NAMED, NOWHERE, Places, Said

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
    remarks = [f"{source}: {_counted(count)} left out: {why}" for why, count in named]
    if more := faults.total() - sum(count for _, count in named):
        remarks.append(f"{source}: {_counted(more)} left out for other reasons of that kind")
    return remarks


def _counted(windows: int) -> str:
    return "1 window" if windows == 1 else f"{windows} windows"


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
