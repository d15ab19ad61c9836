"""A task: what a run is asked to do, checked before any process starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..core.engine import Engine, Lane, Posting
from ..core.errors import Fault, InputError, Refusal
from ..core.schedule import Schedule

OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Everything that a process needs to know; the same in all of them.

    Args:
        schedule: whose order the ranks follow.
        batch: samples of all replicas in one step.
        out: folder of the recording.
        replicas: data-parallel replicas; each has a whole pipeline.
        steps: steps that are measured, after one that is not (the engine finds out its shapes in it).
        model: ``pkg.module:function`` of the user's own model, or an empty string.
        text: file that the built-in model reads, or an empty string.
        pace: duration to which each op is stretched, nanoseconds, int64[kinds, stages, 1 or micro-batches].
        hops: delay of the arrival of each op's input, nanoseconds, int64[kinds, stages, 1 or micro-batches]; None for
            none.
        engine: whose communication is executed, with ``hops`` as what its links take; None for our own order of sends
            and receives, where a hop is only a latency.
        check: whether to compare loss and gradients with one process that runs the model without a pipeline.
        double: whether to train in 64 bits.
        optimizer: ``sgd`` or ``adamw``.
        learning_rate: of it; None for .1 and .001.
        weight_decay: of it.
        device: ``cpu`` or ``cuda``.
        predicted_ns: simulated makespan, for the recording; None where there is none.
        timeout_s: how long a rank waits for another before it gives up.
    """

    schedule: Schedule
    batch: int
    out: str
    replicas: int = 1
    steps: int = 5
    model: str = ""
    text: str = ""
    pace: NDArray[np.int64] | None = field(default=None, repr=False)
    hops: NDArray[np.int64] | None = field(default=None, repr=False)
    engine: Engine | None = None
    check: bool = False
    double: bool = False
    optimizer: str = "sgd"
    learning_rate: float | None = None
    weight_decay: float = 0.0
    device: str = "cpu"
    predicted_ns: int | None = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        refuse_what_torch_cannot(self.schedule)
        if faults := self._faults():
            raise InputError(*faults)

    @property
    def hop_ns(self) -> int:
        """The longest delay of an arrival, nanoseconds."""
        return 0 if self.hops is None else int(self.hops.max(initial=0))

    @property
    def processes(self) -> int:
        """Ranks of all replicas."""
        return self.schedule.ranks * self.replicas

    @property
    def share(self) -> int:
        """Samples of one replica in a step."""
        return self.batch // self.replicas

    def _faults(self) -> list[Fault]:
        sizes = (("data", self.replicas), ("steps", self.steps), ("batch", self.batch))
        faults = [
            Fault(f"{name} = {size}", "a run needs at least one of it", "give 1 or more")
            for name, size in sizes
            if size < 1
        ]
        if self.optimizer not in OPTIMIZERS:
            faults.append(Fault(f"optimizer = {self.optimizer}", "it is none that run knows", "give sgd or adamw"))
        rates = (("learning rate", self.learning_rate), ("weight decay", self.weight_decay))
        faults += [
            Fault(f"{name} = {rate:g}", "it is a number, 0 or more", "give one such as 0.01")
            for name, rate in rates
            if rate is not None and not 0 <= rate < math.inf
        ]
        # Micro-batches of unlike sizes would each count alike in the mean of their losses.
        parts = self.schedule.microbatches * self.replicas
        if not faults and self.batch % parts:
            below, above = self.batch // parts * parts, (self.batch // parts + 1) * parts
            rule = f"{self.replicas} x {self.schedule.microbatches} micro-batches of one size make up a batch"
            nearest = " or ".join(str(size) for size in (below, above) if size)
            faults.append(Fault(f"batch = {self.batch}", rule, f"give a multiple of {parts}; nearest: {nearest}"))
        return faults


def why_not_executed(engine: Engine) -> str:
    """Why the communication of an engine is predicted here and not executed, a clause; empty if it is executed."""
    if engine.posting is Posting.MADE:
        return "it posts nothing: a hop is only a latency"
    if engine.lane is Lane.GROUP:
        return "its transfers take turns at both of their ranks, and neither knows when the other's turn comes"
    if engine.queue:
        return "its launch queue is that of a GPU"
    return ""


def refuse_what_torch_cannot(schedule: Schedule) -> None:
    """Say no to schedules that ``torch.distributed.pipelining`` has no words for.

    Raises:
        Refusal: two copies of the weights, sliced sequences, or a rank without a stage.
    """
    if schedule.placement.shape[0] > 1:
        raise Refusal(
            f"{schedule.name} keeps two copies of the weights and torch.distributed.pipelining gives each stage one "
            "rank, so it cannot run here; dualpipe-v runs the same overlap with one copy"
        )
    if schedule.slices > 1:
        raise Refusal(
            f"{schedule.name} cuts sequences into slices and torch.distributed.pipelining knows only whole "
            "micro-batches (a slice would need the keys and values of those before it), so it cannot run here"
        )
    empty = np.flatnonzero(schedule.chunks_of()[0] == 0)
    if empty.size:
        raise Refusal(
            f"{schedule.name} leaves rank {empty[0]} without a stage and torch.distributed.pipelining wants one on "
            "every rank, so it cannot run here; use fewer ranks"
        )
