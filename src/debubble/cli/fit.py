"""``fit``: step times against micro-batches: slot, bubble, fixed time and a forecast; peak memory likewise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import Fault, InputError
from .fit_document import Asked, Fitted, document_of
from .options import COUNT, FACTORS, PLACE, SIZE, Verb, json_option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..readers.steplog import StepLog


@click.command(cls=Verb)
@click.argument("file", type=PLACE)
@click.option("-p", "--ranks", type=COUNT, help="Ranks of the pipeline, where the log does not begin with them.")
@click.option("--data", type=COUNT, help="Data-parallel replicas: with --micro-batch turns batches into micro-batches.")
@click.option("--micro-batch", type=COUNT, help="Samples in one micro-batch.")
@click.option("--constant-batch", is_flag=True, help="All rows share one batch; micro-batches cut it finer.")
@click.option("--forecast", type=FACTORS, default=(), help="Settings to forecast, in the file's own unit: 4096,8192.")
@click.option("--capacity", type=SIZE, help="Memory of a device, as in 80GB: says which settings fit.")
@json_option
def fit(file: Path, *, as_json: bool, **given: Any) -> None:
    """Fit step times of FILE: a log of Megatron-LM or DeepSpeed, or a CSV of batch or microbatches, and seconds.

    step = fixed + (m + p - 1) x slot. A column gb (peak memory) is fitted to the micro-batches in flight. A log of
    Megatron-LM that begins with its arguments needs no options.
    """
    from ..readers.steplog import read_steps
    from .fit_text import show_fit
    from .report import emit

    given |= _told(file, given)
    found = fitted(read_steps(file), Asked(constant=given.pop("constant_batch"), **given))
    if as_json:
        emit(document_of(found))
    else:
        show_fit(found, document_of(found))


def _told(file: Path, given: dict[str, Any]) -> dict[str, int | None]:
    """Ranks, replicas and samples of a micro-batch, as the log begins with them or as the options say.

    Raises:
        InputError: nothing says how many ranks there are, or an option contradicts the log.
    """
    from .log_head import config_of_log

    head = config_of_log(file)
    own = {"ranks": head.pipeline, "data": head.replicas, "micro_batch": head.micro_batch}
    faults = [
        Fault(f"--{name.replace('_', '-')} {given[name]}", f"{file} says {value} of itself", "leave it out")
        for name, value in own.items()
        if value and given[name] and value != given[name]
    ]
    if not own["ranks"] and not given["ranks"]:
        rule = "nothing says how many ranks its pipeline has"
        faults.append(Fault(str(file), rule, "give --ranks, or a log from its first line on"))
    if faults:
        raise InputError(*faults)
    return {name: given[name] or value for name, value in own.items()}


def fitted(log: StepLog, asked: Asked) -> Fitted:
    """The fits of a log's step times and of its peak memory.

    Raises:
        InputError: its rows do not say how many micro-batches they hold.
    """
    import numpy as np

    from ..diagnosis.fit_memory import fit_memory
    from ..diagnosis.fit_steps import StepTimes, fit_steps

    microbatches = _microbatches(log, asked)
    timed, sized = ~np.isnan(log.seconds), ~np.isnan(log.memory)
    steps = memory = None
    if timed.any():
        constant, why = _constant(log, asked)
        batch = None if np.isnan(log.batch).any() else log.batch[timed]
        steps = fit_steps(StepTimes(microbatches[timed], log.seconds[timed], batch, constant, why), asked.ranks)
    if sized.any():
        memory = fit_memory(microbatches[sized], log.memory[sized], asked.ranks)
    return Fitted(log, asked, steps, memory)


def _microbatches(log: StepLog, asked: Asked) -> NDArray[np.float64]:
    """Micro-batches per pipeline of each row: as the file says, or batch / (data x micro-batch)."""
    import numpy as np

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
    import numpy as np

    if asked.constant:
        return True, "--constant-batch says so"
    if np.isnan(log.batch).any():
        return False, "no batch is given, so each micro-batch is taken for the same work (--constant-batch if not)"
    if len(np.unique(log.batch)) == 1 and len(np.unique(log.microbatches)) > 1:
        return True, f"all rows have the batch {log.batch[0]:g}"
    return False, "the batch differs from row to row"
