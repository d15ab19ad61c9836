"""Devices poured from simulated runs: what a reader would yield if it read without a fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from debubble.core.costs import Rates, costs_of
from debubble.core.laws import needs_of
from debubble.core.lower import lower
from debubble.core.program import Timeline
from debubble.core.schedule import Kind, Schedule, Shape
from debubble.core.simulate import simulate
from debubble.core.units import MILLISECOND
from debubble.reconstruct.device_ops import RankOps, Reading, Transfers
from debubble.schedules.catalog import build

EPOCH = 1_790_857_026_000_000_000  # nanoseconds since 1970, where the first step begins
RATES = Rates(forward=3 * MILLISECOND, backward=7 * MILLISECOND, transfer=0.4 * MILLISECOND)


def simulated(schedule: Schedule | str, ranks: int = 4, microbatches: int = 6, chunks: int = 1) -> Timeline:
    """A schedule, or the one of the catalog with this name, simulated with ``RATES``."""
    made = build(schedule, Shape(ranks, microbatches, chunks)) if isinstance(schedule, str) else schedule
    return simulate(lower(made), costs_of(RATES, made))


def devices(timeline: Timeline, *, steps: int = 3, apart: int = 0, first: int = 0) -> list[RankOps]:
    """One device a rank; each step begins 5 ms after the one before, and ``apart`` nanoseconds later altogether."""
    schedule = timeline.program.schedule
    period = timeline.makespan + 5 * MILLISECOND
    shifts = EPOCH + apart + period * np.arange(steps)
    return [_device(timeline, rank, shifts, first + rank) for rank in range(schedule.ranks)]


def _device(timeline: Timeline, rank: int, shifts: np.ndarray, number: int) -> RankOps:
    schedule = timeline.program.schedule
    rows = np.arange(schedule.offsets[rank], schedule.offsets[rank + 1])
    steps = len(shifts)
    return RankOps(
        rank=number,
        source=f"rank{number}",
        step=np.repeat(np.arange(10, 10 + steps), len(rows)),
        kind=np.tile(schedule.kind[rows], steps),
        start=(timeline.start[rows] + shifts[:, None]).ravel(),
        end=(timeline.end[rows] + shifts[:, None]).ravel(),
        stage=np.tile(schedule.stage[rows], steps),
        unit=np.tile(schedule.unit[rows], steps),
        step_ns={10 + i: 1000 + i for i in range(steps)},
    )


def talking(found: list[RankOps], timeline: Timeline, *, named: bool) -> list[RankOps]:
    """The same devices with their transfers: both sides end when the op that waits for them could start."""
    schedule, needs = timeline.program.schedule, needs_of(timeline.program.schedule)[0]
    rank = schedule.rank_of()
    hop = int(RATES.transfer)
    moves = [
        (int(rank[a]), int(rank[b]), int(timeline.end[a]))
        for b, a in enumerate(needs[: len(schedule)].tolist())
        if a >= 0
    ]
    return [replace(device, transfers=_transfers(device, found, moves, hop, named=named)) for device in found]


def _transfers(device: RankOps, found: list[RankOps], moves: list, hop: int, *, named: bool) -> Transfers:
    base = found[0].rank
    shifts = [
        int(device.start[device.step == step].min()) - int(device.start[device.step == 10].min())
        for step in np.unique(device.step)
    ]
    zero = int(found[0].start.min())
    mine = [
        (a == device.rank - base, b if a == device.rank - base else a, end)
        for a, b, end in moves
        if device.rank - base in (a, b)
    ]
    rows = [(send, base + peer, zero + shift + end) for shift in shifts for send, peer, end in mine]
    return Transfers(
        step=np.full(len(rows), -1),
        send=np.array([send for send, _, _ in rows]),
        forward=np.full(len(rows), -1, np.int8),
        peer=np.array([peer if named else -1 for _, peer, _ in rows], np.int32),
        start=np.array([end for _, _, end in rows]),
        end=np.array([end + hop + (20_000 if send else 0) for send, _, end in rows]),
    )


def reading(found: list[RankOps]) -> Reading:
    """A reading of these devices."""
    return Reading("poured", tuple(found))


def as_chunks(device: RankOps, ranks: int) -> RankOps:
    """A device that knows its position and the chunk of each op, but no stage."""
    return replace(device, stage=None, chunk=(device.stage // ranks).astype(np.int32), position=device.rank)


def skewed(device: RankOps, by: int) -> RankOps:
    """A device whose clock is off."""
    moves = device.transfers and device.transfers.later(by)
    return replace(device, start=device.start + by, end=device.end + by, transfers=moves)


def only(device: RankOps, keep: np.ndarray) -> RankOps:
    """A device that lost some ops."""
    cut = {name: getattr(device, name)[keep] for name in ("step", "kind", "start", "end", "stage", "unit")}
    return replace(device, **cut)


def forwards(device: RankOps) -> np.ndarray:
    """Which ops are forwards."""
    return device.kind == Kind.F
