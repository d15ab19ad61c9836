"""The recorder: keeps what one process measured and rewrites its file after each step."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import msgspec
import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from ..readers.recording import Track, pack, write_track
from .task import Task
from .world import World, clock_name


class Recorder:
    """The file of one process.

    Args:
        task: what is run.
        world: which process this is; all must make their recorder together, for the clocks meet here.
        tokens: in a sample, or None.
        folder: of the recording.
    """

    def __init__(self, task: Task, world: World, tokens: int | None, folder: Path) -> None:
        asked = time.monotonic_ns()
        dist.barrier()
        anchor = time.monotonic_ns()
        self._folder = folder
        self._header = _header(task, world, tokens, (anchor, anchor - asked))
        self._numbers: list[int] = []
        self._times: list[NDArray[np.int64]] = []
        self._bounds: list[tuple[int, int]] = []
        self._losses: list[float] = []

    def add(self, number: int, times: NDArray[np.int64], bounds: tuple[int, int], loss: float | None) -> None:
        """Take in a step, and write all steps so far.

        Args:
            number: of the step.
            times: start, end and time waited, int64[3, ops], nanoseconds.
            bounds: when the whole step began and ended, nanoseconds.
            loss: of this replica, or None where this rank does not know it.

        Raises:
            OSError: the folder cannot be written.
        """
        self._numbers.append(number)
        self._times.append(times)
        self._bounds.append(bounds)
        self._losses.append(math.nan if loss is None else loss)
        start, end, waited = np.stack(self._times, axis=1)
        begun, finished = np.array(self._bounds).T
        columns = {"start": start, "end": end, "waited": waited, "begun": begun, "finished": finished}
        write_track(
            self._folder,
            msgspec.structs.replace(
                self._header,
                steps=pack(self._numbers, "i4"),
                loss=pack(self._losses, "f8"),
                **{name: pack(column, "i8") for name, column in columns.items()},
            ),
        )


def _header(task: Task, world: World, tokens: int | None, anchor: tuple[int, int]) -> Track:
    schedule = task.schedule
    rows = slice(schedule.offsets[world.rank], schedule.offsets[world.rank + 1])
    return Track(
        run=world.run,
        rank=world.rank,
        ranks=schedule.ranks,
        replica=world.replica,
        replicas=task.replicas,
        schedule=schedule.name,
        microbatches=schedule.microbatches,
        placement=pack(schedule.placement[0], "i4"),
        kind=pack(schedule.kind[rows], "u1"),
        stage=pack(schedule.stage[rows], "i4"),
        unit=pack(schedule.unit[rows], "i4"),
        joined=None if schedule.joined is None else pack(schedule.joined[rows], "u1"),
        samples=task.batch,
        tokens=None if tokens is None else tokens * task.batch,
        paced=task.pace is not None,
        predicted_ns=task.predicted_ns,
        hop_ns=task.hop_ns,
        clock=clock_name(),
        pid=os.getpid(),
        anchor=anchor[0],
        anchor_spread=anchor[1],
        steps=b"",
        start=b"",
        end=b"",
        waited=b"",
        begun=b"",
        finished=b"",
        loss=b"",
    )
