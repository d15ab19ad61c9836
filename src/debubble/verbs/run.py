"""``run``: train a real model through a schedule on torch.distributed.pipelining, and measure every op."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from ..core.costs import Rates, costs_of, link_table
from ..core.engine import IDEAL, Engine
from ..core.errors import Fault, InputError
from ..core.schedule import Schedule
from ..core.units import MILLISECOND, Hops, hops
from ..diagnosis.diagnose import diagnose as examine
from ..diagnosis.diagnosis import diagnosis_of
from ..diagnosis.simulated import Executed, Show, Trained, executed_of, simulated
from ..readers.recording import is_recording, read_recording
from ..runner.launch import start, warm_up
from ..runner.task import Task, why_not_executed
from .arguments import PACES, Duration, Hop, Listener, duration, heard_by, hop, tell, together
from .arguments import pace as as_pace
from .pipeline_argument import Named, Sizes, engine_argument, schedule_of

if TYPE_CHECKING:  # these import torch
    from ..runner.worker import Outcome, Step

SECOND = 1e9  # nanoseconds

Pace = str | Mapping[str, Duration]  # ``"F=20ms,B=40ms"``


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for beside schedule and speed.

    Args:
        out: folder of the recording.
        data: data-parallel replicas.
        global_batch: samples of all replicas in a step; None for one a micro-batch.
        steps: to measure.
        model: ``package.module:function``; empty for the built-in one.
        text: a file that it learns; empty for Python's help.
        check: whether loss and gradients are compared with one process.
        double: whether it trains in 64 bits.
        optimizer: ``sgd`` or ``adamw``.
        learning_rate: None for the optimizer's default.
        weight_decay: of the optimizer.
        device: ``auto``, ``cpu`` or ``cuda``.
        timeout_s: seconds that a rank waits for another.
    """

    out: str
    data: int
    global_batch: int | None
    steps: int
    model: str
    text: str
    check: bool
    double: bool
    optimizer: str
    learning_rate: float | None
    weight_decay: float
    device: str
    timeout_s: float


def run(
    *,
    schedule: Named,
    out: str | os.PathLike[str],
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    group: int | None = None,
    slices: int | None = None,
    release: str = "w",
    cap: str | float | None = None,
    data: int = 1,
    global_batch: int | None = None,
    steps: int = 5,
    model: str = "",
    text: str = "",
    pace: Pace | None = None,
    transfer: Hop = 0.0,
    engine: str | None = None,
    check: bool = False,
    double: bool = False,
    optimizer: str = "sgd",
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
    device: str = "auto",
    timeout: Duration = "5min",
) -> Executed | None:
    """Train a small transformer, or your own model, through a schedule, and record when every op ran.

    Starts one process a rank on this host, or joins those that torchrun started; then None is what all but one of them
    get. The extra ``torch`` is needed.

    Args:
        schedule: a name of the catalog, a torch CSV file, or a schedule.
        out: folder of the recording; an earlier one there is replaced.
        ranks: of the pipeline.
        microbatches: per step.
        chunks: stages on each rank; None for what the schedule has.
        group: micro-batches that pass a chunk before the next has its turn.
        slices: parts into which the sequence of a micro-batch is cut.
        release: when a split backward frees activations, for schedules that are searched: ``w``, ``half`` or ``i``.
        cap: most activations on a rank, for such schedules.
        data: data-parallel replicas, each with a pipeline of its own.
        global_batch: samples of all replicas in a step; one a micro-batch by default.
        steps: to measure, after one that is not.
        model: ``package.module:function`` of your own model, cut into stages.
        text: a file that the built-in model learns.
        pace: durations to which ops are stretched, per micro-batch and rank, as in ``F=20ms,B=40ms``.
        transfer: delay of each arrival from another rank, or by link, ``1ms,0-1=30ms``.
        engine: whose posts and waits are predicted and, on CPUs, executed, as in ``torch-1f1b``; None for ``ideal``.
            One that cannot be executed here (``torch:one-lane``, ``zero-bubble``) is predicted alone, and that is said.
        check: compare loss and every gradient with one process without a pipeline.
        double: train in 64 bits.
        optimizer: ``sgd`` or ``adamw``; both sides of a check use the same.
        learning_rate: of the optimizer; .1 for sgd and .001 for adamw by default.
        weight_decay: of the optimizer.
        device: ``auto``, ``cpu`` or ``cuda``.
        timeout: how long a rank waits for another.

    Raises:
        InputError: what is missing or wrong, all at once.
        Refusal: torch cannot run the schedule, or a rank failed.
    """
    _need_torch()
    sizes = Sizes(ranks, microbatches, chunks, group, slices)
    held = None if cap is None else str(cap)
    order, rates, delay, waits, _ = together(
        lambda: schedule_of(schedule, sizes, cap=held, release=release),
        lambda: _rates(pace),
        lambda: hop(transfer, "transfer"),
        lambda: duration(timeout, "timeout"),
        lambda: _can_write(os.fspath(out)),
    )
    rates = replace(rates, transfer=delay)
    if pace:  # what is searched is searched at the speed at which it runs
        order = schedule_of(schedule, sizes, rates, cap=held, release=release)
    wish = Wish(
        out=os.fspath(out),
        data=data,
        global_batch=global_batch,
        steps=steps,
        model=model,
        text=text,
        check=check,
        double=double,
        optimizer=optimizer,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        device=device,
        timeout_s=waits / SECOND,
    )
    executes = engine_argument(engine, order, sends="async", link=None)
    # Without a pace nobody knows how long its ops will take: what is expected is the share, at the usual durations.
    expected = simulated(order, rates if pace else Rates(), engine=executes)
    paced = expected if pace else None
    return _trained(_with_engine(_on_device(_task(order, paced, delay, wish), device), executes), expected)


def _need_torch() -> None:
    """Say no before anything is read, if torch is not installed."""
    if find_spec("torch") is None:  # finding it is quick, importing it takes seconds
        raise InputError(Fault("torch", "run needs it and it is not installed", "pip install 'debubble[torch]'"))


def _rates(pace: Pace | None) -> Rates:
    given: Mapping[str, Duration] = {}
    if isinstance(pace, str):
        given = as_pace(pace)
    elif pace is not None:
        given = pace
    spent = {PACES[kind]: duration(value, f"pace {kind}") for kind, value in given.items()}
    return Rates(**spent)  # type: ignore[arg-type]  # durations by the names of its fields


def _can_write(out: str) -> None:
    """Try whether a folder can be written to, or made, and leave nothing behind.

    Raises:
        InputError: it cannot.
    """
    # The nearest folder that exists: those below it are made when the run begins.
    there = next(path for path in (Path(out), *Path(out).parents) if path.exists())
    try:  # only trying tells: permissions, read-only and full file systems, quotas
        TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        rule = f"no recording can be written there: {error.strerror}"
        raise InputError(Fault(f"out = {out}", rule, "give a folder that can be written")) from error


def _task(order: Schedule, paced: Show | None, delay: float | Hops, wish: Wish) -> Task:
    """The task, with each op's duration and the makespan that simulation predicts for it."""
    return Task(
        schedule=order,
        batch=wish.global_batch or order.microbatches * wish.data,
        out=wish.out,
        replicas=wish.data,
        steps=wish.steps,
        model=wish.model,
        text=wish.text,
        pace=costs_of(paced.rates, order).durations if paced else None,
        hops=link_table(hops(delay), order).round().astype(np.int64) if delay else None,
        check=wish.check,
        double=wish.double,
        optimizer=wish.optimizer,
        learning_rate=wish.learning_rate,
        weight_decay=wish.weight_decay,
        timeout_s=wish.timeout_s,
        predicted_ns=paced.timeline.makespan if paced else None,
    )


def _joins() -> bool:
    """Whether torchrun (or another launcher) has started this process among others."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _on_device(task: Task, wanted: str) -> Task:
    """The task on the device that it will run on; imports torch, when all that needs no torch is known to be right."""
    if not _joins():
        warm_up()
    from ..runner.worker import device_for

    stretched = task.pace is not None or task.hop_ns > 0
    return replace(task, device=device_for(wanted, task.processes, stretched=stretched))


def _with_engine(task: Task, engine: Engine | None) -> Task:
    """The task with the engine that is executed; says so where it is only predicted."""
    if engine is None or engine == IDEAL:
        return task
    why = why_not_executed(engine)
    if task.device != "cpu":
        why = "GPUs communicate as NCCL does"
    if not why:
        return replace(task, engine=engine)
    tell(f"predicted under {engine}, executed by torch's runtime in our order of sends and receives: {why}")
    return task


def _trained(task: Task, expected: Show) -> Executed | None:
    """Run the task, and diagnose its recording; None in a process that does not speak for all."""
    share = f"{100 * expected.idle_share:.0f} % {expected.evidence}"
    if _joins():
        say = partial(_say_step, expected=share, listener=heard_by())
        from ..runner.worker import work

        outcome = work(task, say)
    else:
        if is_recording(task.out):
            tell(f"replaces the recording in {task.out}")
        # The process that speaks for all is one of those that are started.
        outcome = start(task, partial(_say_step, expected=share, listener=heard_by(elsewhere=True)))
    return None if outcome is None else executed(task, outcome)


def _say_step(step: Step, expected: str, listener: Listener | None) -> None:
    if listener is not None:
        listener(step_line(step, expected))


def step_line(step: Step, expected: str) -> str:
    """What is said of a step while the run goes on.

    Args:
        step: as all processes measured it.
        expected: the idle share, and how it is known.
    """
    window, idle = step.makespan_ns / MILLISECOND, 100 * step.idle_share
    return f"step {step.number} loss {step.loss:.2f} {window:.0f} ms idle share {idle:.0f} % measured ({expected})"


def executed(task: Task, outcome: Outcome) -> Executed:
    """What was measured, from the recording."""
    found = diagnosis_of(examine(read_recording(task.out)))
    if task.predicted_ns is not None:
        found = replace(found, predicted_ms=task.predicted_ns / MILLISECOND)
    trained = Trained(
        loss=outcome.loss,
        loss_error=outcome.loss_error,
        gradient_error=outcome.gradient_error,
        recording=task.out,
        device=task.device,
        executed_engine=str(task.engine or IDEAL),
        hops=task.hops,
    )
    return executed_of(found, trained)
