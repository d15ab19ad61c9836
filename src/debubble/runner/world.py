"""The world of one process: which rank of which replica it is, whom it talks to, and on what device."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist

from ..core.errors import Fault, InputError


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
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    yield mine
    dist.destroy_process_group()  # not after an error: it would wait for peers that may be gone


def seat(ranks: int, replicas: int, device: torch.device, *, timeout_s: float = 300) -> World:
    """Find this process's place in so many pipelines; all processes must ask together."""
    me = dist.get_rank()
    replica, rank = divmod(me, ranks)
    limit = timedelta(seconds=timeout_s)  # a new group does not take over that of the world
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


def clock_name() -> str:
    """A name for the monotonic clock of this host: it starts with the system, and containers share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def device_for(wanted: str, processes: int, *, stretched: bool) -> str:
    """The kind of device to run on: GPUs where there is one for each process of this host, else the CPU.

    Args:
        wanted: ``auto``, ``cpu`` or ``cuda``.
        processes: of the whole run.
        stretched: whether ops or arrivals are given durations, which only a CPU can be made to take.

    Raises:
        InputError: GPUs are asked for, or there, and cannot be used.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
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
