"""The world of one process: which rank of which replica it is, whom it talks to, and the file in which it says so."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..readers.recording_file import NOT_SENT, Part, Process, Times, pack, packed
from ..recorder.place import clock_name
from ..recorder.writer import Writer
from .task import Task


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Where a process stands; processes count replica after replica, rank after rank.

    Args:
        rank: in its pipeline.
        replica: which pipeline.
        pipeline: processes of this pipeline, by rank.
        peers: processes that hold the same stages in all replicas.
        device: of this process.
        run: text that is the same in all processes and in no other run.
        clocks: how many monotonic clocks they read: one a host.
    """

    rank: int
    replica: int
    pipeline: dist.ProcessGroup
    peers: dist.ProcessGroup
    device: torch.device
    run: str
    clocks: int

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks for all."""
        return self.rank == 0 and self.replica == 0


@contextmanager
def connect(processes: int, *, device: str = "cpu", timeout_s: float = 300) -> Iterator[torch.device]:
    """Join the other processes by what ``torchrun`` (or our own launcher) put into the environment.

    Processes on GPUs have one each and talk by NCCL, those on CPUs by gloo.

    Raises:
        InputError: another number of processes was started.
    """
    started = int(os.environ["WORLD_SIZE"])
    if started != processes:
        rule = f"ranks x replicas are {processes} processes"
        raise InputError(Fault(f"processes = {started}", rule, "start as many, or change --ranks or --data"))
    mine = _device(device)
    backend = "nccl" if mine.type == "cuda" else "gloo"
    # The group's own limit: a rank whose peer is gone gives up then, if nobody has ended it before.
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    yield mine
    dist.destroy_process_group()  # not after an error: it would wait for peers that may be gone


def seat(ranks: int, replicas: int, device: torch.device, *, timeout_s: float = 300) -> World:
    """Find this process's place in so many pipelines; all processes must ask together."""
    me = dist.get_rank()
    replica, rank = divmod(me, ranks)
    limit = timedelta(seconds=timeout_s)  # a new group does not take over that of the world
    # Every process makes every group, its own or not: torch asks for that, and hangs where one is left out.
    pipelines = [dist.new_group([r * ranks + k for k in range(ranks)], timeout=limit) for r in range(replicas)]
    peers = [dist.new_group([r * ranks + k for r in range(replicas)], timeout=limit) for k in range(ranks)]
    everyone: list[tuple[str, str]] = [("", "")] * (ranks * replicas)
    dist.all_gather_object(everyone, (uuid4().hex, clock_name()))
    return World(
        rank=rank,
        replica=replica,
        pipeline=pipelines[replica],
        peers=peers[rank],
        device=device,
        run=everyone[0][0],
        clocks=len({clock for _, clock in everyone}),
    )


def device_for(wanted: str, processes: int, *, stretched: bool) -> str:
    """The kind of device to run on: GPUs where there is one for each process of this host, else the CPU.

    Args:
        wanted: ``auto``, ``cpu`` or ``cuda``.
        processes: of the whole run.
        stretched: whether ops or arrivals are given durations, which only a CPU can be made to take.

    Raises:
        InputError: GPUs are asked for, or there, and cannot be used.
    """
    gpus = 0
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    if wanted == "cpu" or (wanted == "auto" and (stretched or not gpus)):
        return "cpu"
    if stretched:
        raise InputError(Fault("device = cuda", "--pace and --hop need the CPU", "leave out one of them"))
    if gpus < here:
        rule = f"{here} processes on this host need a GPU each and {gpus} are here"
        raise InputError(Fault(f"device = {wanted}", rule, "run fewer ranks, or give --device cpu"))
    return "cuda"


def _device(name: str) -> torch.device:
    torch.set_num_threads(1)  # several processes share the cores; two threads each cost a hundredfold
    if name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


class Recorder:
    """The file of one process.

    Args:
        task: what is run.
        world: which process this is; all must make their recorder together, for the clocks meet here.
        tokens: in a sample, or None.
        folder: of the recording; an earlier one there is replaced once all ranks have measured a step.

    Raises:
        InputError: another run is writing there, or nothing can be written.
    """

    def __init__(self, task: Task, world: World, tokens: int | None, folder: Path) -> None:
        asked = time.monotonic_ns()
        dist.barrier()
        # All leave the barrier at one moment, give or take what it took: so clocks of several hosts are tied together.
        anchor = time.monotonic_ns()
        self._part = _part(task, world)
        self._writer = Writer(folder, _process(task, world, tokens, (anchor, anchor - asked)), replace=True)

    def add(self, number: int, times: NDArray[np.int64], bounds: tuple[int, int], loss: float | None) -> None:
        """Append a step.

        Args:
            number: of the step.
            times: start, end and time waited in receives, in sends and in both at once, int64[5, ops], nanoseconds.
            bounds: when the whole step began and ended, nanoseconds.
            loss: of this replica, or None where this rank does not know it.

        Raises:
            OSError: the folder cannot be written; the steps before are whole.
        """
        start, end = times[:2]
        measured = Times(start, end, times[2:], np.full(len(start), NOT_SENT))
        self._writer.add(self._part, packed(number, 0, bounds[0], bounds[1], measured, loss=loss))

    def close(self) -> None:
        """The last step is written."""
        self._writer.close()


def _process(task: Task, world: World, tokens: int | None, anchor: tuple[int, int]) -> Process:
    return Process(
        run=world.run,
        rank=world.replica * task.schedule.ranks + world.rank,
        world=task.processes,
        pid=os.getpid(),
        host=socket.gethostname(),
        clock=clock_name(),
        wall_ns=time.time_ns(),
        clock_ns=time.monotonic_ns(),
        anchor_ns=anchor[0],
        anchor_spread_ns=anchor[1],
        device=task.device,
        samples=task.batch,
        tokens=None if tokens is None else tokens * task.batch,
        paced=task.pace is not None,
        predicted_ns=task.predicted_ns,
        hop_ns=task.hop_ns,
    )


def _part(task: Task, world: World) -> Part:
    schedule = task.schedule
    rows = slice(schedule.offsets[world.rank], schedule.offsets[world.rank + 1])
    first = world.replica * schedule.ranks
    return Part(
        number=0,
        # Our own order of sends and receives is no engine's communication.
        engine="" if task.engine is None else task.engine.name,
        schedule=schedule.name,
        microbatches=schedule.microbatches,
        pipeline=list(range(first, first + schedule.ranks)),
        axes={"pipeline": (world.rank, schedule.ranks), "data": (world.replica, task.replicas)},
        placement=pack(schedule.placement[0], "i4"),
        kind=pack(schedule.kind[rows], "u1"),
        stage=pack(schedule.stage[rows], "i4"),
        unit=pack(schedule.unit[rows], "i4"),
        joined=None if schedule.joined is None else pack(schedule.joined[rows], "u1"),
    )
