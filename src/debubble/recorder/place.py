"""Where a process stands: run, rank, host and clock, what the host gives it, and its coordinates on every axis."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..readers.recording_file import Process

Axes = dict[str, tuple[int, int]]

# Names of dimensions of a DeviceMesh, as torchtitan and people use them, by our axes.
_DIMENSIONS = {
    "pipeline": ("pp", "pipeline", "pipe"),
    "data": ("dp", "data", "dp_replicate", "dp_shard", "fsdp", "replicate", "shard", "batch"),
    "tensor": ("tp", "tensor", "model"),
    "context": ("cp", "context"),
    "expert": ("ep", "expert"),
}
_RUN_KEY = "debubble/run"


def process_of(restart_of: str | None = None, sample: list[int] | None = None) -> Process:
    """What this process is, asked of what its launcher and torch.distributed say; no other process is waited for.

    Args:
        restart_of: run whose recording an earlier start of this job left here.
        sample: replicas that are recorded; None for all.
    """
    rank, world = _rank()  # as torch.distributed says if it is up, else as the launcher does
    return Process(
        run=_run(restart_of),
        launch=launch_of(),
        restart=restarts(),
        rank=rank,
        world=world,
        pid=os.getpid(),
        host=socket.gethostname(),
        clock=clock_name(),
        wall_ns=time.time_ns(),
        clock_ns=time.monotonic_ns(),
        device=_device(),
        cores=_cores(),
        processes=_local_processes(),
        sample=sample,
    )


def clock_name() -> str:
    """A name for the monotonic clock of this host: it starts with the system, and containers share it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def restarts() -> int:
    """How often the launcher has started this job anew."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(count) if count.isdigit() else 0


def launch_of() -> str:
    """Names what started this process: the same in a restart by the same agent; empty if nothing is known."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "RAY_JOB_ID"):
        if name in os.environ:
            return f"{os.environ[name]}@{socket.gethostname()}:{os.getppid()}"
    return ""


def queue_ns() -> int | None:
    """How long the threads of this process could have run and had no core, nanoseconds; None if it is not told."""
    try:
        return sum(int(file.read_text().split()[1]) for file in Path("/proc/self/task").glob("*/schedstat"))
    except (OSError, ValueError, IndexError):
        return None


def mesh_axes() -> Axes:
    """Coordinates that the job's DeviceMeshes name; nothing where it made none.

    They are found among the objects of the process, once: whoever made one before the recorder came is seen too.
    """
    import gc

    mesh_type = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if mesh_type is None:
        return {}
    found: dict[str, tuple[int, int]] = {}
    # No isinstance: some objects warn when they are asked for their class.
    for mesh in [thing for thing in gc.get_objects() if type(thing) is mesh_type]:
        with suppress(Exception):
            coordinate, names = mesh.get_coordinate() or (), mesh.mesh_dim_names or ()
            for at, (name, index) in enumerate(zip(names, coordinate, strict=True)):
                found[name] = int(index), int(mesh.size(at))
    axes: Axes = {}
    for axis, dimensions in _DIMENSIONS.items():
        index, size = 0, 1
        known = [found[name] for name in dimensions if name in found]
        for at, count in known:
            index, size = index * count + at, size * count
        if known:
            axes[axis] = index, size
    if "pipeline" in axes:  # a mesh that names the pipeline names all axes that the job has
        axes.setdefault("data", (0, 1))
    return axes


def is_on_gpu(owner: object) -> bool:
    """Whether a pipeline computes on a GPU: its parameters are there or, if it has none, this process uses one."""
    with suppress(Exception):
        for parameter in owner.parameters():  # type: ignore[attr-defined]  # whatever an engine calls its model
            return bool(parameter.device.type == "cuda")
    return _device() != "cpu"


def _rank() -> tuple[int, int]:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank()), int(dist.get_world_size())
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _run(restart_of: str | None) -> str:
    """A text that all processes of this start share: the first to ask the job's store gives it.

    ``compare_set`` sets a key that is not there and returns what is: one message to the store, and nobody waits.
    """
    mine = restart_of or uuid4().hex
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        told = c10d._get_default_store().compare_set(f"{_RUN_KEY}/{restarts()}", "", mine)
        if isinstance(told, bytes | bytearray):
            return bytes(told).decode()
        return str(told)
    except Exception:  # no store, or one of another kind: what the launcher says must do
        names = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
        told = "-".join(os.environ[name] for name in names if name in os.environ)
        return restart_of or told or mine


def _device() -> str:
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return f"cuda:{torch.cuda.get_device_name()}"
    return "cpu"


def _cores() -> int | None:
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _local_processes() -> int | None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None
