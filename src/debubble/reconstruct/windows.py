"""One window: the ops of all ranks of a replica in one step, completed with what only their order tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.laws import FORWARD, GRADIENT, WEIGHT
from ..core.op import Kind
from ..core.schedule import Schedule
from .device_ops import RankOps

_LINE = np.array([FORWARD, GRADIENT, WEIGHT, GRADIENT], np.int64)  # I and B both yield a gradient


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The ops of one rank in one step, in the order of their starts.

    Args:
        kind: uint8[ops].
        chunk: int32[ops], the how-manieth stage of the rank; the stage itself where ``numbered``.
        unit: int32[ops].
        start: int64[ops], nanoseconds on the rank's clock.
        end: int64[ops], nanoseconds.
        numbered: whether ``chunk`` holds stages of the whole model.
        spread: how far its devices' ends of one op lie apart, nanoseconds, the median; 0 for one device.
    """

    kind: NDArray[np.uint8]
    chunk: NDArray[np.int32]
    unit: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    numbered: bool
    spread: int = 0


def rows_of(device: RankOps, ranks: int, chunks: int | None) -> dict[int, Row]:
    """The ops of a device by step.

    Where micro-batches are not labelled, each stage takes them first in, first out; where chunks are not, a
    micro-batch passes them upwards and its gradient downwards; where neither is, chunks alternate as Megatron-LM
    does it (https://arxiv.org/abs/2104.04473, section 2.2): ``ranks`` micro-batches of one, then of the next.

    Args:
        device: with a step for every op.
        ranks: positions in its pipeline.
        chunks: stages a rank, where the user gave it.
    """
    order = np.lexsort((device.end, device.start, device.step))
    steps, first = np.unique(device.step[order], return_index=True)
    return {
        int(step): _row(device, rows, ranks, chunks)
        for step, rows in zip(steps, np.split(order, first[1:]), strict=True)
    }


def _row(device: RankOps, rows: NDArray[np.int64], ranks: int, chunks: int | None) -> Row:
    line = _LINE[device.kind[rows]]
    given = device.stage if device.stage is not None else device.chunk
    if given is not None:
        chunk = given[rows].astype(np.int64)
        unit = _counts(line, chunk) if device.unit is None else device.unit[rows].astype(np.int64)
    elif device.unit is not None:
        unit = device.unit[rows].astype(np.int64)
        chunk = _passes(line, unit)
    else:
        chunk, unit = _megatron(line, ranks, chunks or 1)
    return Row(
        kind=device.kind[rows],
        chunk=chunk.astype(np.int32),
        unit=unit.astype(np.int32),
        start=device.start[rows],
        end=device.end[rows],
        numbered=device.stage is not None,
    )


def _counts(line: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many ops of the same line and group came before each, int64[ops]."""
    key = group * len(_LINE) + line
    order = np.argsort(key, kind="stable")
    fresh = np.flatnonzero(np.concatenate([[True], np.diff(key[order]) != 0]))
    count = np.empty(len(key), np.int64)
    count[order] = np.arange(len(key)) - np.repeat(fresh, np.diff([*fresh, len(key)]))
    return count


def _passes(line: NDArray[np.int64], unit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Chunks from how often a micro-batch has passed: up in forwards, down in backwards."""
    passed = _counts(line, unit)
    most = int(passed.max(initial=0))
    return np.where(line == FORWARD, passed, most - passed)


def _megatron(line: NDArray[np.int64], ranks: int, chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chunks and micro-batches by Megatron-LM's interleaving: position k of a line is both."""
    k = _counts(line, np.zeros(len(line), np.int64))
    chunk = k // ranks % chunks
    unit = k if chunks == 1 else k // (ranks * chunks) * ranks + k % ranks
    return np.where(line == FORWARD, chunk, chunks - 1 - chunk), unit


def together(members: Sequence[Row]) -> Row | None:
    """The devices of one position as one rank: each op from its earliest start to its latest end.

    Returns:
        None where they did not do the same ops.
    """
    if len(members) == 1:
        return members[0]
    orders = [np.lexsort((row.unit, row.chunk, _LINE[row.kind])) for row in members]
    first, by = members[0], orders[0]
    for row, order in zip(members[1:], orders[1:], strict=True):
        for mine, theirs in ((first.kind, row.kind), (first.chunk, row.chunk), (first.unit, row.unit)):
            if not np.array_equal(mine[by], theirs[order]):
                return None
    starts, ends = (
        np.stack([getattr(row, name)[order] for row, order in zip(members, orders, strict=True)])
        for name in ("start", "end")
    )
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
    placement = np.zeros(max(int(stage.max(initial=-1)) for stage in stages) + 1, np.int32)
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
