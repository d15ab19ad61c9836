"""Pours a simulated run into Kineto files, so that readers are tested on traces whose every nanosecond is known.

The timeline comes from the simulator; what surrounds it (threads, launches, kernels, ranges, receives that wait,
flows, noise) is written as PyTorch's profiler writes it, and as little of it is shared with the readers as can be.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from debubble.core.costs import Costs
from debubble.core.laws import needs_of
from debubble.core.lower import lower
from debubble.core.program import Timeline
from debubble.core.schedule import Kind, Schedule
from debubble.core.simulate import simulate

BASE = 1_790_857_026_000_000_000  # nanoseconds, baseTimeNanoseconds of the files
EPOCH = 4_458_676_522_000_000  # nanoseconds of the first step behind the base
GAP = 50_000_000  # nanoseconds between two steps
HOST = 1_000  # nanoseconds by which each op ends earlier than simulated, so that its sends lie behind it
ENGINE = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class Style:
    """How a run is written.

    Args:
        kernels: GPU kernels an op; 0 for a run on the CPU.
        labels: ``PP:2F0`` ranges around the launches.
        engine: backward work is launched from the autograd engine's thread.
        named: kernels are called ``fwd_..`` and ``bwd_..``.
        p2p: calls, and with kernels also SendRecv kernels, of each transfer; ``rocm`` leaves their arguments out,
            ``batch`` posts them in one coalesced kernel.
        ahead: how long before it runs a kernel is launched, nanoseconds.
        noise: python_function events an op.
        flows: arrows from forward to backward.
        steps: ``profiler``, ``optimizer`` or "".
    """

    kernels: int = 0
    labels: bool = True
    engine: bool = True
    named: bool = False
    p2p: str = "cuda"
    ahead: int = 40_000
    noise: int = 0
    flows: bool = False
    steps: str = "profiler"


def run_of(schedule: Schedule, costs: Costs, steps: int = 1) -> list[Timeline]:
    """The same simulated window, once for each step."""
    return [simulate(lower(schedule), costs)] * steps


def pour(timelines: list[Timeline], style: Style = Style()) -> dict[int, list[dict[str, Any]]]:
    """Events of each rank."""
    return {rank: pour_rank(timelines, rank, style) for rank in range(timelines[0].program.schedule.ranks)}


def pour_rank(timelines: list[Timeline], rank: int, style: Style = Style()) -> list[dict[str, Any]]:
    """Events of one rank."""
    return list(_Rank(rank, style).events(timelines))


def untold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without the calls on the CPU, those of the autograd engine among them: then only transfers tell."""
    return [row for row in rows if row["cat"] != "cpu_op" or row["name"] == "record_param_comms"]


def write(folder: Path, events: dict[int, list[dict[str, Any]]], *, packed: bool = True, **header: Any) -> list[Path]:
    """One file a rank, as ``rankN_trace.json.gz``."""
    paths = []
    for rank, rows in events.items():
        document = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(events)},
            "baseTimeNanoseconds": BASE,
            **header,
            "traceEvents": rows,
            "traceName": f"rank{rank}.json",
        }
        said = {key: value for key, value in document.items() if value is not None}
        text = json.dumps(said, separators=(",", ":")).encode()
        path = folder / f"rank{rank}_trace.json{'.gz' * packed}"
        path.write_bytes(gzip.compress(text, 1) if packed else text)
        paths.append(path)
    return paths


class _Rank:
    """Writes one rank; times in nanoseconds until the last moment."""

    def __init__(self, rank: int, style: Style) -> None:
        self.rank, self.style, self.ids = rank, style, iter(range(1, 1 << 40))
        self.main, self.autograd = (1000 + rank, 1000 + rank), (1000 + rank, 2000 + rank)

    def events(self, timelines: list[Timeline]) -> Iterator[dict[str, Any]]:
        begin = EPOCH
        for number, timeline in enumerate(timelines):
            schedule = timeline.program.schedule
            end = begin + timeline.makespan
            rows = np.arange(schedule.offsets[self.rank], schedule.offsets[self.rank + 1])
            for row in rows.tolist():
                yield from self._op(timeline, row, begin)
            yield from self._around(number, begin - GAP // 4, end + GAP // 2)
            begin = end + GAP

    def _around(self, number: int, begin: int, end: int) -> Iterator[dict[str, Any]]:
        if self.style.steps == "profiler":
            yield self._span("user_annotation", f"ProfilerStep#{number + 10}", self.main, begin, end)
        if self.style.steps:
            yield self._span("user_annotation", "Optimizer.step#AdamW.step", self.main, end - GAP // 4, end - GAP // 8)
            times = end - GAP // 5, end - GAP // 6
            yield from self._work("aten::_foreach_add_", self.main, *times, "multi_tensor_apply", times[0])

    def _op(self, timeline: Timeline, row: int, begin: int) -> Iterator[dict[str, Any]]:
        schedule, style = timeline.program.schedule, self.style
        kind, stage, unit = Kind(schedule.kind[row]), int(schedule.stage[row]), int(schedule.unit[row])
        start, end = begin + int(timeline.start[row]), begin + int(timeline.end[row]) - HOST
        backward = kind != Kind.F
        launch = start - style.ahead if style.kernels else start
        free = min(start, self._free(timeline, row, begin))
        if style.p2p and self._needs(timeline, row) >= 0:
            post = launch - 20_000 if style.kernels else free
            arrived = begin + self._arrival(timeline, self._needs(timeline, row), row)
            yield from self._transfer("recv", post, post, arrived if style.kernels else start)
        if style.labels:
            first = launch - 2_000 if style.kernels else free
            last = launch + 3_000 * (style.kernels + 1) if style.kernels else end
            yield self._span("user_annotation", f"PP:{stage}{kind.name}{unit}", self.main, first, last)
        thread = self.autograd if backward and style.engine and style.kernels else self.main
        call = f"{ENGINE}: AddmmBackward0" if backward and style.engine else "aten::linear"
        kernel = ("bwd_gemm" if backward else "fwd_gemm") if style.named else "ampere_gemm"
        parts = max(style.kernels, 3)
        edges = [start + (end - start) * i // parts for i in range(parts + 1)]
        for i, (one, two) in enumerate(pairwise(edges)):
            yield from self._work(call, thread, one, two, kernel, launch + 3_000 * i if style.kernels else one)
        if style.flows and kind != Kind.W:
            where = {"pid": thread[0], "tid": thread[1], "ts": launch / 1000, "id": stage * 100_000 + unit + 1}
            yield {"ph": "f" if backward else "s", "cat": "fwdbwd", "name": "fwdbwd", **where}
        for i in range(style.noise):
            yield self._span("python_function", f"model.py({i}): forward", self.main, start + i, end - i)
        for consumer in np.flatnonzero(needs_of(timeline.program.schedule)[0] == row)[: bool(style.p2p)].tolist():
            post = launch + 3_000 * style.kernels + 5_000 if style.kernels else end
            arrived = begin + self._arrival(timeline, row, consumer)
            yield from self._transfer("send", post, max(post, end), arrived)

    def _arrival(self, timeline: Timeline, producer: int, consumer: int) -> int:
        """When both sides of a transfer end: once it was made and, as rendezvous has it, its receive was posted."""
        posted = int(timeline.start[consumer]) - self.style.ahead - 10_000
        return max(int(timeline.end[producer]) + _hop(timeline), posted)

    def _free(self, timeline: Timeline, row: int, begin: int) -> int:
        """When the rank was done with the op before, which is when its next range begins."""
        first = row == timeline.program.schedule.offsets[self.rank]
        return begin if first else begin + int(timeline.end[row - 1])

    def _needs(self, timeline: Timeline, row: int) -> int:
        return int(needs_of(timeline.program.schedule)[0, row])

    def _work(
        self, call: str, thread: tuple[int, int], start: int, end: int, kernel: str, launch: int
    ) -> Iterator[dict[str, Any]]:
        """A call on the CPU with a call inside it, and, with a device, the kernel that it launches."""
        if not self.style.kernels:
            yield self._span("cpu_op", call, thread, start, end - 1)
            yield self._span("cpu_op", "aten::addmm", thread, start, start + (end - start) // 2)
            return
        correlation = next(self.ids)
        yield self._span("cpu_op", call, thread, launch, launch + 2_000)
        said = {"correlation": correlation, "External id": correlation}
        yield self._span("cuda_runtime", "cudaLaunchKernel", thread, launch + 500, launch + 1_500, **said)
        yield self._span("kernel", f"{kernel}_kernel", (0, 7), start, end, **said, stream=7, device=0)

    def _transfer(self, sense: str, post: int, start: int, end: int) -> Iterator[dict[str, Any]]:
        """A send or receive: a call, and on a device the kernel that waits and transfers."""
        if not self.style.kernels:
            yield self._span("user_annotation", f"gloo:{sense}", self.main, start, end)
            yield self._span("cpu_op", f"c10d::{sense}", self.main, start, start + 5_000)
            return
        number, correlation = next(self.ids), next(self.ids)
        said = {"Collective name": sense, "External id": number, "Group size": 2}
        yield self._span("cpu_op", "record_param_comms", self.main, post, post + 1_000, **said)
        batch = {"Collective name": "coalesced", "External id": next(self.ids)}
        own = {"cuda": said, "rocm": {"External id": number}, "batch": batch}[self.style.p2p]
        yield self._span(
            "cuda_runtime", "cudaLaunchKernel", self.main, post + 1_000, post + 2_000, correlation=correlation
        )
        kernel = "ncclDevKernel_Generic_1" if self.style.p2p == "rocm" else "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
        stream = (0, 20 + (sense == "send"))
        yield self._span("kernel", kernel, stream, max(start, post + 3_000), end, **own, correlation=correlation)

    def _span(self, cat: str, name: str, thread: tuple[int, int], start: int, end: int, **args: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": thread[0],
            "tid": thread[1],
            "ts": start / 1000,
            "dur": max(end - start, 0) / 1000,
            "args": args,
        }


def _hop(timeline: Timeline) -> int:
    """How long both sides of a transfer take once it is made: what every op that needs one leaves room for."""
    needs = needs_of(timeline.program.schedule)[0]
    waits = (timeline.start - timeline.end[needs])[needs >= 0]
    return min(int(waits.min(initial=250_000)), 250_000)
