"""The job of ``record --self-test``: a pipeline as anybody writes one, on torch's own 1F1B, recorded as theirs is.

    step    0        1     2     3     4     5     6  ..
            connects on    off   on    off   on    off        hooks write, or are there and do nothing

Its stages compute on GPUs and sleep on CPUs, where two ranks on two cores would disturb each other.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from ..recorder.start import Recording
from ..recorder.wishes import wish_of
from .worker import connect

CPU_WIDTH, GPU_WIDTH = 16, 4096
SAMPLES = 256  # of a micro-batch on a GPU: 26 GFLOP a forward of a stage, below a millisecond where 32 bits are fast
LAYERS = 3
PAUSE_S = 0.010, 0.020  # a forward and a backward of a stage on a CPU
_TIMEOUT_S = 60
_MOST_RANKS = 4  # enough for every phase of 1F1B, and a minute is enough for them


@dataclass(frozen=True, slots=True)
class Ran:
    """What the first rank knows of the job.

    Args:
        device: what it calls itself.
        on_ns: host time of each step that was recorded; on a GPU it is waited for, as a loop does that reads its loss.
        off_ns: likewise of each step that was not; step by step beside the others.
    """

    device: str
    on_ns: list[int]
    off_ns: list[int]


def devices() -> tuple[str, int]:
    """On what kind of device the job runs here, and in how many ranks."""
    if torch.cuda.is_available():
        return "cuda", min(torch.cuda.device_count(), _MOST_RANKS)
    return "cpu", 2


def job(folder: Path, microbatches: int, pairs: int, kind: str, pause: tuple[float, float] = PAUSE_S) -> Ran:
    """Be one process of the job.

    Args:
        folder: of the recording.
        microbatches: in a step.
        pairs: of steps, with the recorder on and off.
        kind: ``cpu`` or ``cuda``.
        pause: seconds of a forward and of a backward of a stage on a CPU.
    """
    ranks = int(os.environ["WORLD_SIZE"])  # as many as were started
    with connect(ranks, device=kind, timeout_s=_TIMEOUT_S) as device:
        recording = Recording(lambda: wish_of(folder), say=_nothing)
        rank, name = dist.get_rank(), "cpu"
        width, samples = CPU_WIDTH, 1
        if device.type == "cuda":
            width, samples, name = GPU_WIDTH, SAMPLES, torch.cuda.get_device_name()
        stage = PipelineStage(_module(width, device, pause), rank, ranks, device)
        schedule = Schedule1F1B(stage, microbatches, loss_fn=nn.functional.mse_loss)
        batch = torch.randn(microbatches * samples, width, device=device)
        spent: dict[bool, list[int]] = {True: [], False: []}
        _step(schedule, batch, rank, ranks)  # connects, and is left out of every recording
        # In turns and not one half after the other: a machine that grows busy slows both alike.
        for number in range(2 * pairs):
            on = number % 2 == 0
            if recording.session is not None:
                recording.session.on = on
            spent[on].append(_step(schedule, batch, rank, ranks))
        if recording.session is not None:
            recording.session.on = True
        recording.close()
    return Ran(name, spent[True], spent[False])


def _step(schedule: Schedule1F1B, batch: Tensor, rank: int, ranks: int) -> int:
    """One step of all ranks, and how long it took this one, nanoseconds."""
    dist.barrier()
    began = time.monotonic_ns()
    given: dict[str, Any] = {}
    if rank == ranks - 1:
        given = {"target": batch, "losses": []}
    if rank == 0:
        schedule.step(batch, **given)
    else:
        schedule.step(**given)
    if batch.is_cuda:
        torch.cuda.synchronize()  # ours to do: what is told is the cost of a step, not of launching it
    return time.monotonic_ns() - began


def _module(width: int, device: torch.device, pause: tuple[float, float]) -> nn.Module:
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    if device.type == "cuda":
        return nn.Sequential(*layers).to(device)
    return nn.Sequential(layers[0], _Pause(pause))


def _nothing(line: str) -> None:
    """The verb says what came of it."""


class _Pause(nn.Module):
    """A stage of known length that needs no processor."""

    def __init__(self, pause: tuple[float, float]) -> None:
        super().__init__()
        self.pause = pause

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Sleep.apply(x, self.pause)  # type: ignore[no-untyped-call]
        return out


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pause: tuple[float, float]) -> Tensor:
        forward_s, ctx.backward_s = pause
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.backward_s)
        return gradient, None
