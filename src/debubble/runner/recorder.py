"""The recorder of a run: what one process of it is, and the order of its ops, for the file that all recordings have."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from ..readers.recording_file import NOT_SENT, Part, Process, Times, pack, packed
from ..recorder.writer import Writer
from .task import Task
from .world import World, clock_name


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
        anchor = time.monotonic_ns()
        self._part = _part(task, world)
        self._writer = Writer(folder, _process(task, world, tokens, (anchor, anchor - asked)), replace=True)

    def add(self, number: int, times: NDArray[np.int64], bounds: tuple[int, int], loss: float | None) -> None:
        """Append a step.

        Args:
            number: of the step.
            times: start, end and time waited in receives, int64[3, ops], nanoseconds.
            bounds: when the whole step began and ended, nanoseconds.
            loss: of this replica, or None where this rank does not know it.

        Raises:
            OSError: the folder cannot be written; the steps before are whole.
        """
        start, end, waited = times
        waits = np.stack([waited, np.zeros_like(waited), np.zeros_like(waited)])
        measured = Times(start, end, waits, np.full(len(start), NOT_SENT))
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
        engine="",  # paced and with delays of our own it is no engine's communication
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
