"""``fit``: step times against micro-batches: slot, bubble, fixed time and a forecast; peak memory likewise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..diagnosis.fit_memory import MemoryFit, fit_memory
from ..diagnosis.fit_result import Fit, FitParts, fit_of
from ..diagnosis.fit_steps import StepFit, StepTimes, fit_steps
from ..readers.places import place
from ..readers.steplog import BACKWARD, FORWARD, StepLog, read_steps
from .arguments import Factors, Size, factors, size
from .log_head import config_of_log
from .read import AnyPath, paths_of


def fit(
    file: AnyPath,
    *,
    ranks: int | None = None,
    data: int | None = None,
    micro_batch: int | None = None,
    constant_batch: bool = False,
    forecast: Factors = (),
    capacity: Size | None = None,
) -> Fit:
    """Fit step times of a log, or of a table of settings and seconds: step = fixed + (m + p - 1) x slot.

        >>> debubble.fit("train.log").slot_ms

    A log of Megatron-LM that begins with its arguments needs no options.

    Args:
        file: a log of Megatron-LM or DeepSpeed, or a CSV of batch or microbatches, and seconds (and peak gb).
        ranks: of the pipeline, if the log does not begin with them.
        data: data-parallel replicas: with ``micro_batch`` turns batches into micro-batches.
        micro_batch: samples in one micro-batch.
        constant_batch: all rows share one batch; micro-batches cut it finer.
        forecast: settings to foretell, in the file's own unit: ``4096,8192``.
        capacity: memory of a device, as in ``80GB``: says which settings fit.

    Raises:
        InputError: no step time, nothing says how many ranks there are, or sizes that do not fit its batches.
    """
    (path,) = (place(each) for each in paths_of(file))
    sizes = _told(path, {"ranks": ranks, "data": data, "micro_batch": micro_batch})
    asked = Asked(
        ranks=sizes["ranks"] or 1,
        data=sizes["data"],
        micro_batch=sizes["micro_batch"],
        constant=constant_batch,
        forecast=factors(forecast, "forecast"),
        capacity=None if capacity is None else size(capacity, "capacity"),
    )
    return fitted(read_steps(path), asked)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was said beside a log.

    Args:
        ranks: of the pipeline.
        data: data-parallel replicas.
        micro_batch: samples in one micro-batch.
        constant: whether all rows share one batch.
        forecast: settings to foretell, in the unit of the file.
        capacity: bytes of a device.
    """

    ranks: int
    data: int | None
    micro_batch: int | None
    constant: bool = False
    forecast: tuple[float, ...] = ()
    capacity: int | None = None


def _told(path: Path, given: dict[str, int | None]) -> dict[str, int | None]:
    """Ranks, replicas and samples of a micro-batch, as the log begins with them or as the options say.

    Raises:
        InputError: nothing says how many ranks there are, or an option contradicts the log.
    """
    head = config_of_log(path)
    own = {"ranks": head.pipeline, "data": head.replicas, "micro_batch": head.micro_batch}
    faults = [
        Fault(f"--{name.replace('_', '-')} {given[name]}", f"{path} says {value} of itself", "leave it out")
        for name, value in own.items()
        if value and given[name] and value != given[name]
    ]
    if not own["ranks"] and not given["ranks"]:
        rule = "nothing says how many ranks its pipeline has"
        faults.append(Fault(str(path), rule, "give --ranks, or a log from its first line on"))
    if faults:
        raise InputError(*faults)
    return {name: given[name] or value for name, value in own.items()}


def fitted(log: StepLog, asked: Asked) -> Fit:
    """The fits of a log's step times and of its peak memory.

    Raises:
        InputError: its rows do not say how many micro-batches they hold.
    """
    microbatches = _microbatches(log, asked)
    timed = np.isfinite(log.seconds)
    return fit_of(
        FitParts(
            source=PurePath(log.source).name or log.source,
            ranks=asked.ranks,
            samples=asked.data * asked.micro_batch if asked.data and asked.micro_batch else None,
            steps=_steps(log, asked, microbatches),
            memory=_memory(log, asked, microbatches),
            timers=log.timers,
            step_seconds=float(np.median(log.seconds[timed])) if timed.any() else None,
            forward=log.timer(FORWARD),
            backward=log.timer(BACKWARD),
            forecast=asked.forecast,
            capacity=asked.capacity,
            remarks=log.remarks,
        )
    )


def _steps(log: StepLog, asked: Asked, microbatches: NDArray[np.float64]) -> StepFit | None:
    timed = ~np.isnan(log.seconds)
    if not timed.any():
        return None
    constant, why = _constant(log, asked)
    batch = None if np.isnan(log.batch).any() else log.batch[timed]
    return fit_steps(StepTimes(microbatches[timed], log.seconds[timed], batch, constant, why), asked.ranks)


def _memory(log: StepLog, asked: Asked, microbatches: NDArray[np.float64]) -> MemoryFit | None:
    sized = ~np.isnan(log.memory)
    return fit_memory(microbatches[sized], log.memory[sized], asked.ranks) if sized.any() else None


def _microbatches(log: StepLog, asked: Asked) -> NDArray[np.float64]:
    """Micro-batches per pipeline of each row: as the file says, or batch / (data x micro-batch)."""
    if not np.isnan(log.microbatches).any():
        return log.microbatches
    if np.isnan(log.batch).any():
        rule = "neither a batch nor a number of micro-batches stands in every row"
        raise InputError(Fault(log.source, rule, "add a column microbatches"))
    if asked.data is None or asked.micro_batch is None:
        rule = "its batches count samples; micro-batches of a pipeline are batch / (data x micro-batch)"
        raise InputError(Fault(log.source, rule, "give --data and --micro-batch"))
    microbatches = log.batch / (asked.data * asked.micro_batch)
    broken = np.flatnonzero(microbatches != np.rint(microbatches))
    if len(broken):
        value = f"batch = {log.batch[broken[0]]:g}"
        rule = f"{asked.data} replicas x micro-batches of {asked.micro_batch} do not divide it"
        raise InputError(Fault(value, rule, "check --data and --micro-batch"))
    return microbatches


def _constant(log: StepLog, asked: Asked) -> tuple[bool, str]:
    """Whether micro-batches cut one batch finer, and what says so."""
    if asked.constant:
        return True, "--constant-batch says so"
    if np.isnan(log.batch).any():
        return False, "no batch is given, so each micro-batch is taken for the same work (--constant-batch if not)"
    if len(np.unique(log.batch)) == 1 and len(np.unique(log.microbatches)) > 1:
        return True, f"all rows have the batch {log.batch[0]:g}"
    return False, "the batch differs from row to row"
