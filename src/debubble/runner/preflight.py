"""Readiness: what only torch can tell, looked at before any process starts, so that no fault is found by waiting."""

from __future__ import annotations

import os

import torch

from ..core.errors import Fault, InputError
from .model import build
from .task import Task


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


def try_model(task: Task) -> None:
    """Build the model and its first batch once, in this process.

    Raises:
        InputError: the text is too short, the function is missing, or what it makes does not fit the schedule.
    """
    parts = build(task.schedule.stages, model=task.model, text=task.text)
    if not task.model:
        return
    sizes = [len(part) for part in parts.batch(0, task.batch)]
    if sizes != [task.batch, task.batch]:
        rule = f"asked for {task.batch} samples it made {sizes[0]} inputs and {sizes[-1]} targets"
        raise InputError(Fault(f"model = {task.model}", rule, "make as many as asked for, samples first"))
