"""The worker: what each process of a run does, step after step; its place in the world, and the file it writes."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..core.engine import Engine as Communicates
from ..core.errors import Fault, InputError, Refusal
from ..core.lower import lower
from ..readers.recording_file import NOT_SENT, Part, Process, Times, pack, packed
from ..recorder.place import clock_name
from ..recorder.writer import Writer
from .communication import Board, Line, Stamps, make_file
from .engine import Engine
from .gradients import Gradient, Reference, SharedParameters, gradient_error, gradients, optimizer_of
from .heartbeat import BEFORE, Pulse, State, name_of_run, path_of, table
from .model import Parts, build
from .task import Task
from .watch import CpuWatch, CudaWatch, Noted, Watch


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


_GRACE_S = 3.0  # in which the launcher sees a dead peer before this one's broken connection
_PATIENCE_S = 60.0  # beyond the limit, in which the monitor has named who holds the others up


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as all processes measured it.

    Args:
        number: from 1.
        loss: mean over the samples of all replicas.
        makespan_ns: pipeline window, mean over replicas.
        idle_share: idle over ranks x window, mean over replicas.
    """

    number: int
    loss: float
    makespan_ns: int
    idle_share: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the process that speaks for all knows at the end.

    Args:
        loss: of the last step.
        gradient_error: largest over all steps, or None where it was not asked for, or nothing was trained.
        loss_error: largest relative difference of the loss, or None.
    """

    loss: float
    gradient_error: float | None = None
    loss_error: float | None = None


Tell = Callable[[Step], None]
Errors = tuple[float | None, float]  # of gradients and loss


def work(task: Task, tell: Tell) -> Outcome | None:
    """Be one process of a run; the first one returns the outcome and tells of each step.

    Raises:
        InputError: the processes that were started do not fit the task.
        RuntimeError: another process is gone.
    """
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)  # we say it in one line
    _leave_with_launcher()
    path = path_of(name_of_run())  # both ends know it without a word: a message could come too late
    pulse = Pulse(table(path, task.processes)[int(os.environ["RANK"])])
    # Our own launcher names who holds the others up, if it is the first to lose patience.
    limit = task.timeout_s
    if multiprocessing.parent_process() is not None:
        limit += _PATIENCE_S
    try:
        with connect(task.processes, device=task.device, timeout_s=limit) as device:
            world = seat(task.schedule.ranks, task.replicas, device, timeout_s=limit)
            if os.environ.get("LOCAL_RANK", "0") == "0":
                path.unlink(missing_ok=True)  # all have it open now, and it goes with the last of them
            return train(task, world, tell, pulse)
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            time.sleep(_GRACE_S)  # a peer is gone: let the launcher see it first, and name it
        raise


def _leave_with_launcher() -> None:
    """End at once on Ctrl-C and when the launcher is gone, even in a receive, where Python runs no handler."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    launcher = multiprocessing.parent_process()
    if launcher is not None:  # else torchrun looks after this process

        def follow() -> None:
            launcher.join()
            os._exit(1)  # no handler, no atexit: the main thread may stand in a receive for ever

        threading.Thread(target=follow, daemon=True).start()


def train(task: Task, world: World, tell: Tell, pulse: Pulse | None = None) -> Outcome | None:
    """Train for the steps of a task, and record all but the first."""
    if pulse is None:
        pulse = Pulse()
    trainer = Trainer(task, world, pulse)
    outcome = None
    for number in range(task.steps + 1):
        step, errors = trainer.step(number)
        if world.first:
            outcome = _worst(outcome, step, errors)
            if number:
                tell(step)
    trainer.close()
    pulse.enter(State.DONE)
    return outcome


def _worst(outcome: Outcome | None, step: Step, errors: Errors | None) -> Outcome:
    """The latest loss with the largest errors so far."""
    if outcome is None:
        outcome = Outcome(step.loss)
    if errors is None:
        return replace(outcome, loss=step.loss)
    of_gradients, of_loss = errors
    return Outcome(
        loss=step.loss,
        gradient_error=_larger(outcome.gradient_error, of_gradients),
        loss_error=_larger(outcome.loss_error, of_loss),
    )


def _larger(first: float | None, second: float | None) -> float | None:
    """The larger of two errors, of which either may not have been asked for."""
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)


class Trainer:
    """One process's model, engine and recorder."""

    def __init__(self, task: Task, world: World, pulse: Pulse) -> None:
        self._task, self._world, self._pulse = task, world, pulse
        self._ops = int(np.diff(task.schedule.offsets)[world.rank])
        self._parts = _parts(task)
        self._reference = None
        if task.check and world.first:
            self._reference = Reference(task, self._parts, partial(_parts, task))
        homes = task.schedule.placement[0].tolist()
        me = (world.replica, world.rank)
        stages = self._parts.stages
        self._shared = SharedParameters(stages, homes, task.replicas, me=me, timeout_s=task.timeout_s)
        self._modules = {
            at: self._parts.stages[at].to(world.device) for at, home in enumerate(homes) if home == world.rank
        }
        held = {id(p): p for module in self._modules.values() for p in module.parameters()}
        self._parameters = list(held.values())  # each once, though two stages of this rank may share it
        self._optimizer = optimizer_of(task, self._parameters)
        folder = _prepare_folder(task)
        self._watch: Watch = Noted(_watch(task, world), pulse)
        # Either our order, whose arrivals stamps delay, or an engine's, whose transfers take as long as links do.
        self._line, stamps = None, None
        if task.engine is None:
            stamps = _stamps(task, world, folder)
        else:
            self._line = _line(task, task.engine, world, folder, self._watch)
        self._engine = Engine(
            lower(task.schedule),
            self._modules,
            self._parts.loss,
            self._watch,
            stamps=stamps,
            line=self._line,
            group=world.pipeline,
            device=world.device,
        )
        self._recorder = Recorder(task, world, self._parts.tokens, folder)

    def step(self, number: int) -> tuple[Step, Errors | None]:
        """One step of all replicas: the pipeline, the sum of gradients over replicas, the optimizer.

        Returns:
            The step as all processes measured it, and the errors of gradients and loss where they were asked for.
        """
        self._pulse.begin_step(number)
        inputs, targets = (self._cast(part) for part in self._parts.batch(number, self._task.batch))
        first = self._world.replica * self._task.share
        mine = [part[first : first + self._task.share].to(self._world.device) for part in (inputs, targets)]
        self._pulse.enter(State.TOGETHER, BEFORE)
        if self._line is not None:
            self._line.begin_step()
        # Without it the ranks' steps would drift into each other, and the window would hold what is outside of it.
        dist.barrier(self._world.pipeline)
        begun = time.monotonic_ns()
        self._watch.begin_step()
        loss = self._engine.step(mine[0], mine[1])
        times = self._watch.times()
        self._pulse.enter(State.TOGETHER, self._ops)
        if self._optimizer and not self._task.schedule.forward_only:
            self._reduce()
            self._optimizer.step()
        if self._world.device.type == "cuda":
            torch.cuda.synchronize()
        if number:
            self._recorder.add(number, times, (begun, time.monotonic_ns()), loss)
        self._pulse.enter(State.TOGETHER, self._ops + 1)
        together = self._together(number, times, loss)
        self._pulse.enter(State.BETWEEN, self._ops + 2)
        if not math.isfinite(together.loss):
            raise Refusal(f"the loss of step {number} is {together.loss}, and no step after it could be trusted")
        errors = self._errors(inputs, targets, together.loss) if self._task.check else None
        if self._optimizer:
            self._optimizer.zero_grad()
        return together, errors

    def close(self) -> None:
        """The last step is done."""
        self._recorder.close()

    def _cast(self, part: Tensor) -> Tensor:
        if self._task.double and part.is_floating_point():
            return part.double()
        return part

    def _reduce(self) -> None:
        """Sum of the gradients of shared parameters, and mean over replicas in one message."""
        self._shared.sum_gradients()
        if self._task.replicas == 1:
            return
        grads = [p.grad for p in self._parameters if p.grad is not None]
        # One message: each costs a round of all replicas, however small it is.
        whole = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(whole, group=self._world.peers)
        whole /= self._task.replicas
        for grad, part in zip(grads, torch.split(whole, [grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def _together(self, number: int, times: NDArray[np.int64], loss: float | None) -> Step:
        """What all processes measured, by one exchange outside the window."""
        start, end = times[:2]
        # The loss's bits travel as an integer, so that one exchange of one type is enough.
        mine = [start[0], end[-1], (end - start).sum(), np.float64(loss or 0).view(np.int64)]
        everyone = torch.empty(self._task.processes * len(mine), dtype=torch.int64, device=self._world.device)
        dist.all_gather_single(everyone, torch.tensor([int(x) for x in mine], device=self._world.device))
        by_replica = everyone.cpu().numpy().reshape(self._task.replicas, -1, len(mine))
        first, last, busy, losses = by_replica.transpose(2, 0, 1)
        window = last.max(axis=1) - first.min(axis=1)
        return Step(
            number=number,
            loss=float(np.ascontiguousarray(losses).view(np.float64).sum(axis=1).mean()),
            makespan_ns=int(window.mean()),
            idle_share=float((1 - busy.sum(axis=1) / (window * busy.shape[1])).mean()),
        )

    def _errors(self, inputs: Tensor, targets: Tensor, loss: float) -> Errors | None:
        """Gather the gradients of the first replica and compare them, and the loss, with the reference."""
        if self._world.replica:
            return None
        if self._task.schedule.forward_only:
            if self._reference is None:
                return None
            return None, _relative(loss, self._reference.infer(inputs, targets))
        mine = {at: gradients(module) for at, module in self._modules.items()}
        if self._reference is None:
            dist.gather_object(mine, None, group_dst=0, group=self._world.pipeline)
            return None
        gathered: list[dict[int, list[Gradient | None]]] = [{}] * self._task.schedule.ranks
        dist.gather_object(mine, gathered, group_dst=0, group=self._world.pipeline)
        expected_loss, expected = self._reference.train(inputs, targets)
        found = {at: grads for part in gathered for at, grads in part.items()}
        return gradient_error(found, expected), _relative(loss, expected_loss)


def _relative(found: float, expected: float) -> float:
    return abs(found - expected) / max(abs(expected), 1e-30)


def _parts(task: Task, stages: int | None = None) -> Parts:
    """The model of a task, cut into its stages or into as many as are asked for."""
    if stages is None:
        stages = task.schedule.stages
    parts = build(stages, model=task.model, text=task.text)
    if task.double:
        for stage in parts.stages:
            stage.double()
    return parts


def _prepare_folder(task: Task) -> Path:
    """Make the folder on every host; what was recorded there before stays until this run has a step."""
    folder = Path(task.out)
    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    return folder


def _watch(task: Task, world: World) -> Watch:
    """The watch of this rank, with the durations of its own ops."""
    schedule = task.schedule
    rows = slice(schedule.offsets[world.rank], schedule.offsets[world.rank + 1])
    kind, stage, unit = schedule.kind[rows], schedule.stage[rows], schedule.unit[rows]
    if world.device.type == "cuda":
        return CudaWatch(len(kind))

    def of_rows(table: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        if table is None:
            return None
        return np.broadcast_to(table, (*table.shape[:2], schedule.units))[kind, stage, unit]

    return CpuWatch(len(kind), of_rows(task.pace), of_rows(task.hops))


def _stamps(task: Task, world: World, folder: Path) -> Stamps | None:
    """The table that arrivals are timed by; its file is gone as soon as all processes have opened it.

    Raises:
        InputError: a hop is asked for and there are several hosts, where no common clock could time it.
    """
    if not task.hop_ns and (task.pace is None or world.clocks > 1):
        return None  # several hosts that pace go by when messages come
    if world.clocks > 1:
        rule = "a hop is timed by a clock that all ranks share, and there are several hosts"
        raise InputError(Fault(f"hop = {task.hop_ns} ns", rule, "run on one host, or without --hop"))
    return _shared(task, world, folder / f"stamps-{world.run}")


def _shared(task: Task, world: World, path: Path) -> Stamps:
    """A table that all processes have open; its file is gone by then."""
    shape = task.schedule.stages, task.schedule.units
    if world.first:
        make_file(path, task.replicas, shape)
    dist.barrier()
    stamps = Stamps(path, world.replica, shape)
    dist.barrier()
    if world.first:
        path.unlink()
    return stamps


def _line(task: Task, engine: Communicates, world: World, folder: Path, watch: Watch) -> Line:
    """What stands between the ops of this rank under an engine.

    Raises:
        InputError: there are several hosts, where no common clock could say when both sides have posted.
    """
    if world.clocks > 1:
        rule = "both sides of a transfer are timed by a clock that all ranks share, and there are several hosts"
        raise InputError(Fault(f"engine = {engine}", rule, "run on one host, or without --engine"))
    sent, received = (_shared(task, world, folder / f"{side}-{world.run}") for side in ("sent", "received"))
    board = Board(sent, received, task.timeout_s)
    return Line(task.schedule, engine, world.rank, delays=task.hops, board=board, watch=watch)
