"""Windows: the ops of all ranks of a replica in one step, completed with what only their order tells, as timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Refusal
from ..core.laws import FORWARD, LINE
from ..core.lower import lower
from ..core.observation import Window
from ..core.op import Kind
from ..core.program import Program
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from .device_ops import Ints, RankOps
from .positions import Places

_MOST_REASONS = 5  # for which windows were left out, that are spelled out


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
    members = where.members()
    ranks = max(where.position) + 1
    for q in range(max(where.replica) + 1):
        held = [[devices[i] for i in members.get((q, position), ())] for position in range(ranks)]
        by_step = [[rows_of(device) for device in some] for some in held]
        lengths = [device.step_ns for some in held for device in some]
        numbers = {step for some in by_step for rows in some for step in rows}
        for step in sorted(step for step in numbers if steps is None or steps[0] <= step <= steps[1]):
            rows = [_rank(some, step) for some in by_step]
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
            known = [length[step] for length in lengths if step in length]
            start, end = (np.concatenate([getattr(row, name) for row in whole]) for name in ("start", "end"))
            timeline = Timeline(program, start, end, "measured")
            found.append(Window(step, q, timeline, max(known, default=None)))
    remarks = _left_out(faults, source)
    if sum(map(len, members.values())) > len(members):
        spread = np.median(spreads) / 1e6 if spreads else 0.0
        remarks.append(f"devices of one stage were merged; their ends lie {spread:.3f} ms apart (median)")
    return found, remarks


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
    order = np.lexsort((device.end, device.start, device.step))
    steps, first = np.unique(device.step[order], return_index=True)
    found: dict[int, Row] = {}
    for step, rows in zip(steps.tolist(), np.split(order, first[1:]), strict=True):
        row = _row(device, rows)
        most = len(rows)  # a whole step has an op of each micro-batch: larger numbers would only fill memory
        if (row.unit >= 0).all() and (row.chunk >= 0).all() and int(row.unit.max()) < most:
            found[step] = row
    return found


def _row(device: RankOps, rows: Ints) -> Row:
    line = LINE[device.kind[rows]].astype(np.int64)
    labels = device.stage if device.stage is not None else device.chunk
    if labels is not None:
        chunk = labels[rows].astype(np.int64)
        unit = _counts(line, chunk) if device.unit is None else device.unit[rows].astype(np.int64)
    elif device.unit is not None:
        unit = device.unit[rows].astype(np.int64)
        chunk = _passes(line, unit)
    else:
        unit = _counts(line, np.zeros(len(line), np.int64))
        chunk = np.zeros(len(line), np.int64)
    return Row(
        kind=device.kind[rows],
        chunk=chunk.astype(np.int32),
        unit=unit.astype(np.int32),
        start=device.start[rows],
        end=device.end[rows],
        numbered=device.stage is not None,
    )


def _counts(line: Ints, group: Ints) -> Ints:
    """How many ops of the same line and group came before each, int64[ops]."""
    key = group * (int(LINE.max()) + 1) + line
    order = np.argsort(key, kind="stable")
    fresh = np.flatnonzero(np.concatenate([[True], np.diff(key[order]) != 0]))
    count = np.empty(len(key), np.int64)
    count[order] = np.arange(len(key)) - np.repeat(fresh, np.diff([*fresh, len(key)]))
    return count


def _passes(line: Ints, unit: Ints) -> Ints:
    """Chunks from how often a micro-batch has passed: up in forwards, down in backwards."""
    passed = _counts(line, unit)
    most = int(passed.max(initial=0))
    return np.where(line == FORWARD, passed, most - passed)


def _rank(members: Sequence[dict[int, Row]], step: int) -> Row | None:
    """One position in one step, or None if a device of it lacks the step or differs from the others."""
    rows = [rows[step] for rows in members if step in rows]
    return _together(rows) if rows and len(rows) == len(members) else None


def _together(members: Sequence[Row]) -> Row | None:
    """The devices of one position as one rank: each op from its earliest start to its latest end.

    Returns:
        None if they did not do the same ops.
    """
    if len(members) == 1:
        return members[0]
    orders = [np.lexsort((row.unit, row.chunk, LINE[row.kind])) for row in members]
    first, by = members[0], orders[0]
    for row, order in zip(members[1:], orders[1:], strict=True):
        for mine, theirs in ((first.kind, row.kind), (first.chunk, row.chunk), (first.unit, row.unit)):
            if not np.array_equal(mine[by], theirs[order]):
                return None
    starts = np.stack([row.start[order] for row, order in zip(members, orders, strict=True)])
    ends = np.stack([row.end[order] for row, order in zip(members, orders, strict=True)])
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
    count = max(int(stage.max(initial=-1)) for stage in stages) + 1
    if count > sum(len(row.kind) for row in rows):
        raise Refusal(f"measured has too few ops\nfor {count:,} stages")
    placement = np.zeros(count, np.int32)
    for position, stage in enumerate(stages):
        placement[stage] = position
    return Schedule(
        name="measured",
        source=source,
        microbatches=max(int(row.unit.max(initial=-1)) for row in rows) + 1,
        placement=placement[None],
        offsets=np.cumsum([0, *(len(row.kind) for row in rows)], dtype=np.int64),
        kind=np.concatenate([row.kind for row in rows]),
        stage=np.concatenate(stages),
        unit=np.concatenate([row.unit for row in rows]),
    )


def _stages(row: Row, position: int, ranks: int, *, turns: bool) -> NDArray[np.int32]:
    if row.numbered:
        return row.chunk
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
