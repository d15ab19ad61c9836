"""Runs that never ran, with a known truth: orders, a clock for every host, faults; written as Kineto traces.

Nothing of the product is used here. Times are seconds of a true clock until an event is written; each host then shows
them on a clock of its own, which is ahead by some seconds and runs a little faster or slower.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple


class Op(NamedTuple):
    """One op: its letter, stage and micro-batch."""

    letter: str
    stage: int
    unit: int


@dataclass(frozen=True, slots=True)
class World:
    """What a run is like.

    Args:
        schedule: ``1f1b``, ``gpipe``, ``interleaved`` or ``zb``.
        ranks: of a pipeline.
        units: micro-batches.
        chunks: stages a rank.
        data: replicas.
        steps: of the trace.
        forward: seconds of a forward of one rank; a backward takes twice as long.
        hop: seconds of a transfer.
        links: seconds more between a rank and the next, by the former.
        offset: seconds by which each host's clock is ahead.
        drift: by how much faster it runs, ppm.
        noise: share by which the length of an op varies at most.
        early: seconds by which a send may end before its receive.
        scale: how much work each stage has.
        slow: replica, rank and factor of a slow device.
        straggler: step, replica, rank and factor of a device that is slow once.
        missing: devices whose trace is not there.
        cut: device whose trace begins within its first step, and at which share of it.
        labels: whether ranges name ops.
        peers: whether messages name the other side.
        style: ``cuda`` kernels of transfers say what they are; of ``rocm`` only the calls do; ``batch`` posts several.
        marks: what tells steps: ``profiler``, ``optimizer`` or nothing.
        gap: seconds between steps.
        seed: of all that is random.
    """

    schedule: str = "1f1b"
    ranks: int = 4
    units: int = 8
    chunks: int = 1
    data: int = 1
    steps: int = 4
    forward: float = 0.010
    hop: float = 0.0004
    links: dict[int, float] = field(default_factory=dict)
    offset: dict[int, float] = field(default_factory=dict)
    drift: dict[int, float] = field(default_factory=dict)
    noise: float = 0.0
    early: float = 0.0
    scale: tuple[float, ...] = ()
    slow: tuple[int, int, float] | None = None
    straggler: tuple[int, int, int, float] | None = None
    missing: tuple[int, ...] = ()
    cut: tuple[int, float] | None = None
    labels: bool = False
    peers: bool = True
    style: str = "cuda"
    marks: str = "profiler"
    gap: float = 0.008
    seed: int = 0

    def device(self, replica: int, rank: int) -> int:
        """The global rank."""
        return rank * self.data + replica

    def shown(self, device: int, moment: float) -> float:
        """A moment of the true clock as a host's clock shows it, microseconds; below 0 if it is far behind."""
        return 1e6 * (moment * (1 + 1e-6 * self.drift.get(device, 0.0)) + self.offset.get(device, 0.0) + 5.0)


class Truth(NamedTuple):
    """What is so, whatever the trace says.

    Args:
        windows: by step and replica: length in seconds, and idle share.
        offset: of each device's clock against the lowest one that is there, at its first whole step, seconds.
        rate: likewise how much faster it runs, ppm.
    """

    windows: dict[tuple[int, int], tuple[float, float]]
    offset: dict[int, float]
    rate: dict[int, float]

    def idle_share(self, steps: set[int], replicas: set[int]) -> float:
        """The mean over some windows."""
        return mean(share for (step, q), (_, share) in self.windows.items() if step in steps and q in replicas)

    def window(self, steps: set[int], replicas: set[int]) -> float:
        """The median length of some windows, seconds."""
        return median(length for (step, q), (length, _) in self.windows.items() if step in steps and q in replicas)


def order_of(world: World, rank: int) -> list[Op]:
    """What one rank does, one after the other."""
    if world.schedule == "interleaved":
        return _interleaved(world, rank)
    ahead = world.units if world.schedule == "gpipe" else min(world.ranks - 1 - rank, world.units)
    forwards = [Op("F", rank, unit) for unit in range(world.units)]
    back = "I" if world.schedule == "zb" else "B"
    row, done, weights = forwards[:ahead], ahead, 0
    for unit in range(world.units):
        row += forwards[done : done + 1]
        done += 1
        row.append(Op(back, rank, unit))
        if world.schedule == "zb" and unit - weights >= rank:  # a rank holds back as many as lie before it
            row.append(Op("W", rank, weights))
            weights += 1
    if world.schedule == "zb":
        row += [Op("W", rank, unit) for unit in range(weights, world.units)]
    return row


def _interleaved(world: World, rank: int) -> list[Op]:
    """Micro-batches in groups as large as there are ranks, each group through one chunk after the other."""
    p, v = world.ranks, world.chunks
    groups = [range(first, first + p) for first in range(0, world.units, p)]
    down = [Op("F", chunk * p + rank, unit) for group in groups for chunk in range(v) for unit in group]
    up = [Op("B", chunk * p + rank, unit) for group in groups for chunk in reversed(range(v)) for unit in group]
    ahead = min(2 * (p - 1 - rank) + (v - 1) * p, len(down))
    row = down[:ahead]
    for i, back in enumerate(up):
        row += [*down[ahead + i : ahead + i + 1], back]
    return row


class Span(NamedTuple):
    """When an op had its rank, when it began and when it was over."""

    free: float
    start: float
    end: float


def needs(world: World, op: Op) -> Op | None:
    """The op whose result one waits for."""
    last = world.ranks * world.chunks - 1
    if op.letter == "F":
        return Op("F", op.stage - 1, op.unit) if op.stage else None
    if op.letter == "W":
        return Op("I", op.stage, op.unit)
    return Op("F", last, op.unit) if op.stage == last else Op(op.letter, op.stage + 1, op.unit)


def hop(world: World, one: int, other: int) -> float:
    """Seconds that a transfer takes between two ranks."""
    return (
        0.0 if one == other else world.hop + (world.links.get(min(one, other), 0.0) if abs(one - other) == 1 else 0.0)
    )


def played(world: World, rows: list[list[Op]], begin: float, length: Any) -> dict[Op, Span]:
    """When each op of a replica runs, one pass over the ranks after the other until nothing is left."""
    spans: dict[Op, Span] = {}
    free = [begin] * world.ranks
    left = [list(reversed(row)) for row in rows]
    while any(left):
        for rank, row in enumerate(left):
            while row and ((cause := needs(world, row[-1])) is None or cause in spans):
                op = row.pop()
                arrived = begin if cause is None else spans[cause].end + hop(world, cause.stage % world.ranks, rank)
                start = max(free[rank], arrived)
                spans[op] = Span(free[rank], start, start + length(op))
                free[rank] = spans[op].end
    return spans


def pour(world: World, folder: Path) -> Truth:
    """Write one file a device, and tell the truth."""
    dice = random.Random(world.seed)
    rows = [order_of(world, rank) for rank in range(world.ranks)]
    hosts = {world.device(q, r): Host(world, q, r) for q in range(world.data) for r in range(world.ranks)}
    windows: dict[tuple[int, int], tuple[float, float]] = {}
    first: dict[int, float] = {}
    now = 0.0
    for step in range(world.steps):
        runs = []
        for q in range(world.data):
            spans = played(world, rows, now, partial(_length, world, dice, step, q))
            begin, end = min(span.start for span in spans.values()), max(span.end for span in spans.values())
            busy = sum(span.end - span.start for span in spans.values())
            windows[step, q] = end - begin, 1 - busy / (world.ranks * (end - begin))
            runs.append(spans)
        over = max(span.end for spans in runs for span in spans.values()) + 0.002
        for q, spans in enumerate(runs):
            for rank, row in enumerate(rows):
                host = hosts[world.device(q, rank)]
                if step or world.cut is None or world.cut[0] != host.number:
                    first.setdefault(host.number, spans[row[0]].start)
                host.write_step(step, row, spans, now, over, dice)
        now = over + 0.004 + world.gap
    here = sorted(set(hosts) - set(world.missing))
    for number in here:
        hosts[number].save(folder, windows[0, number % world.data][0])
    zero, lowest = first[here[0]], here[0]
    offset = {i: (world.shown(i, zero) - world.shown(lowest, zero)) / 1e6 for i in here}
    speed = {i: 1 + 1e-6 * world.drift.get(i, 0.0) for i in here}
    return Truth(windows, offset, {i: 1e6 * (speed[i] / speed[lowest] - 1) for i in here})


def _length(world: World, dice: random.Random, step: int, replica: int, op: Op) -> float:
    share = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}[op.letter]
    length = world.forward * share / world.chunks * (world.scale[op.stage] if world.scale else 1.0)
    rank = op.stage % world.ranks
    if world.slow is not None and world.slow[:2] == (replica, rank):
        length *= world.slow[2]
    if world.straggler is not None and world.straggler[:3] == (step, replica, rank):
        length *= world.straggler[3]
    return length * dice.uniform(1 - world.noise, 1 + world.noise)


class Host:
    """Writes the trace of one device."""

    def __init__(self, world: World, replica: int, rank: int) -> None:
        self.world, self.replica, self.rank = world, replica, rank
        self.number = world.device(replica, rank)
        self.events: list[dict[str, Any]] = []
        self.ids = 0
        self.cpu = 0.0  # when the host launches next

    def write_step(
        self, step: int, row: list[Op], spans: dict[Op, Span], begin: float, over: float, dice: random.Random
    ) -> None:
        """All events of one step; ``over`` is when the last device of all has done its gradients."""
        world = self.world
        self.cpu = begin - 0.050 * world.gap
        if world.marks == "profiler":
            self.span("user_annotation", f"ProfilerStep#{step}", begin - 0.1 * world.gap, over + 0.1 * world.gap, 1)
        for op in row:
            cause = needs(world, op)
            if cause is not None and cause.stage % world.ranks != self.rank:
                self.receive(cause, spans[op], spans[cause])
            self.work(op, spans[op])
            for follower in self.followers(op):
                late = spans[op].end + hop(world, self.rank, follower.stage % world.ranks)
                sooner = min(world.early, 0.9 * (late - spans[op].end)) * dice.random()
                self.message("send", follower.stage % world.ranks, spans[op].end, late - sooner)
        last = max(spans[op].end for op in row)
        collective = {"Collective name": "_allgather_base", "Group size": world.data, "dtype": "Float"}
        self.kernel("ncclDevKernel_AllGather_RING_LL", last, over, 31, "record_param_comms", 1, collective)
        if world.marks == "optimizer":
            self.span("user_annotation", "Optimizer.step#Adam.step", self.cpu, self.cpu + 1e-4, 1)
        self.kernel("multi_tensor_apply_kernel<adam>", over, over + 0.001, 7, "Optimizer", 1)

    def followers(self, op: Op) -> list[Op]:
        """Ops on other ranks that wait for one of this rank."""
        last = self.world.ranks * self.world.chunks - 1
        if op.letter == "F" and op.stage < last:
            found = [Op("F", op.stage + 1, op.unit)]
        elif op.letter in "BI" and op.stage:
            found = [Op(op.letter, op.stage - 1, op.unit)]
        else:
            found = []
        return [other for other in found if other.stage % self.world.ranks != self.rank]

    def receive(self, cause: Op, mine: Span, theirs: Span) -> None:
        """A kernel that spins from the moment at which the rank had nothing else to do."""
        source = cause.stage % self.world.ranks
        arrived = theirs.end + hop(self.world, source, self.rank)
        self.message("recv", source, min(mine.free, theirs.end), arrived)

    def message(self, sense: str, peer: int, start: float, end: float) -> None:
        """A send or a receive: a call that is posted, and a kernel."""
        other = self.world.device(self.replica, peer)
        told: dict[str, Any] = {"Collective name": sense, "Group size": 2, "Process Group Name": f"p2p {self.replica}"}
        if self.world.peers:
            told |= (
                {"Src Rank": self.number, "Dst Rank": other}
                if sense == "send"
                else {"Src Rank": other, "Dst Rank": self.number}
            )
        said = {"cuda": told, "rocm": {}, "batch": {"Collective name": "coalesced"}}[self.world.style]
        name = "ncclDevKernel_Generic_4" if self.world.style == "rocm" else "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
        if self.world.style == "batch":
            self.ids += 1
            self.span("cpu_op", "record_param_comms", self.cpu, self.cpu + 2e-6, 1, {**told, "External id": self.ids})
            self.cpu += 3e-6
            self.kernel(name, start, end, 21 if sense == "recv" else 23, "nccl:coalesced", 1, said)
            return
        self.kernel(name, start, end, 21 if sense == "recv" else 23, "record_param_comms", 1, said, told)

    def work(self, op: Op, span: Span) -> None:
        """Four kernels back to back, launched by the main thread or by the thread of the autograd engine."""
        thread = 1 if op.letter == "F" else 2
        begun = self.cpu
        call = "aten::linear" if op.letter == "F" else "autograd::engine::evaluate_function: MulBackward0"
        for part in range(4):
            step = (span.end - span.start) / 4
            start = span.start + part * step
            self.kernel("cutlass_gemm", start, start + step, 7, call, thread)
        if self.world.labels:
            self.span("user_annotation", f"PP:{op.stage}{op.letter}{op.unit}", begun - 1e-6, self.cpu + 1e-6, 1)
        self.cpu += 2e-5

    def kernel(
        self, name: str, start: float, end: float, stream: int, call: str, thread: int, *told: dict[str, Any]
    ) -> None:
        """A call on the CPU, its launch and its kernel; the last of ``told`` is the call's, the first the kernel's."""
        self.ids += 1
        own, of_call = (told[0], told[-1]) if told else ({}, {})
        linked = {"External id": self.ids, "correlation": self.ids}
        self.span("cpu_op", call, self.cpu, self.cpu + 3e-6, thread, {**of_call, "External id": self.ids})
        self.span("cuda_runtime", "cudaLaunchKernel", self.cpu + 1e-6, self.cpu + 2e-6, thread, linked)
        self.events[-1]["pid"] = self.events[-2]["pid"]
        self.span("kernel", name, start, end, stream, {**own, **linked, "stream": stream, "device": 0})
        self.events[-1]["pid"] = 0
        self.cpu += 4e-6

    def span(self, cat: str, name: str, start: float, end: float, tid: int, args: dict[str, Any] | None = None) -> None:
        """One event, on the clock of this host."""
        begin, stop = (round(self.world.shown(self.number, moment), 3) for moment in (start, end))
        row = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 900 + self.number,
            "tid": tid,
            "ts": begin,
            "dur": stop - begin,
        }
        self.events.append({**row, "args": args or {}})

    def save(self, folder: Path, window: float) -> None:
        """Write the file; what came before a cut is not in it."""
        rows = self.events
        if self.world.cut is not None and self.world.cut[0] == self.number:
            begin = min(row["ts"] for row in rows) + self.world.cut[1] * window * 1e6
            rows = [row for row in rows if row["ts"] >= begin]
        info = {"backend": "nccl", "rank": self.number, "world_size": self.world.ranks * self.world.data}
        document = {"distributedInfo": info, "deviceProperties": [{"id": 0}], "traceEvents": rows}
        (folder / f"rank{self.number}.json").write_text(json.dumps(document))


def drawn(seed: int) -> World:
    """A world by chance: up to 8 ranks, 32 micro-batches and 4 replicas, each host with a time of its own."""
    dice = random.Random(seed)
    schedule = dice.choice(["1f1b", "1f1b", "interleaved", "zb"])
    ranks = dice.choice([2, 3, 4, 4, 6, 8])
    chunks = dice.choice([2, 3]) if schedule == "interleaved" and ranks > 2 else 1
    schedule = "1f1b" if chunks == 1 and schedule == "interleaved" else schedule
    units = ranks * dice.randint(1, 32 // ranks) if chunks > 1 else dice.randint(ranks, 32)
    data = dice.choice([1, 1, 2, 3, 4])
    devices = range(ranks * data)
    clocks = dice.random()
    slow, straggler, scale = _faults(dice, ranks, chunks, data)
    early = dice.choice([0.0, 0.0, 0.0003, 0.001])
    return World(
        schedule=schedule,
        ranks=ranks,
        units=units,
        chunks=chunks,
        data=data,
        steps=dice.randint(4, 6),
        forward=dice.uniform(0.005, 0.030),
        hop=dice.uniform(0.0001, 0.0006) + 1.2 * early,
        links={dice.randrange(ranks - 1): dice.uniform(0.002, 0.006)} if dice.random() < 0.2 else {},
        offset={i: dice.uniform(-10, 10) for i in devices if dice.random() < clocks},
        drift={i: dice.uniform(-100, 100) for i in devices} if dice.random() < 0.5 else {},
        noise=dice.choice([0.0, 0.01, 0.03, 0.05]),
        early=early,
        scale=scale,
        slow=slow,
        straggler=straggler,
        missing=(dice.choice(devices),) if dice.random() < 0.12 else (),
        cut=(dice.choice(devices), dice.uniform(0.1, 0.9)) if dice.random() < 0.15 else None,
        labels=dice.random() < 0.4,
        style=dice.choice(["cuda", "cuda", "batch", "rocm"]),
        marks=dice.choice(["profiler", "profiler", "optimizer"]),
        gap=dice.choice([0.008, 0.1, 20.0]),
        seed=seed,
    )


def _faults(
    dice: random.Random, ranks: int, chunks: int, data: int
) -> tuple[tuple[int, int, float] | None, tuple[int, int, int, float] | None, tuple[float, ...]]:
    """One fault of each kind at most: a slow device (only beside replicas), one slow step, a heavy stage."""
    slow = (
        (dice.randrange(data), dice.randrange(ranks), dice.uniform(1.15, 2))
        if data > 1 and dice.random() < 0.3
        else None
    )
    late = (dice.randint(1, 3), dice.randrange(data), dice.randrange(ranks), dice.uniform(1.15, 2))
    heavy = [1.0] * (ranks * chunks)
    if dice.random() < 0.3:
        heavy[dice.randrange(len(heavy))] = dice.uniform(1.15, 2)
    return slow, late if dice.random() < 0.3 else None, tuple(heavy)
