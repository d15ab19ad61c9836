"""``fit``: step times against micro-batches: slot, bubble, fixed time and a forecast; peak memory likewise."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ..core.errors import Fault, InputError
from ..diagnosis.fit import Fit, Sizes, fit_of
from ..readers.steplog import read_steps
from ..readers.stream import place
from .arguments import Factors, Size, factors, size
from .sources import config_of_log


def fit(
    file: str | PathLike[str],
    *,
    ranks: int | None = None,
    data: int | None = None,
    micro_batch: int | None = None,
    constant_batch: bool = False,
    forecast: Factors = (),
    capacity: Size | None = None,
) -> Fit:
    """Fit step times to micro-batches, and say what of a step is bubble and what is fixed.

        >>> found = debubble.fit("train.log", ranks=4, data=8, micro_batch=1)
        >>> found.phases, found.slot_ms, found.bubble_ms, found.verdict[0]

    step = fixed + (m + p - 1) x slot. No number is given if no line holds: a run that has phases or a trend, a slope
    below zero, settings that the line misses by more than a tenth; the verdict says which.

    Args:
        file: a training log, or a CSV with the columns ``batch`` or ``microbatches``, and ``seconds`` (or ``gb``).
        ranks: of the pipeline, if the log does not begin with them.
        data: data-parallel replicas; with ``micro_batch`` they turn batches into micro-batches.
        micro_batch: samples in one micro-batch.
        constant_batch: all rows share one batch; micro-batches cut it finer.
        forecast: settings to foretell, in the unit of the file.
        capacity: memory of a device, as in ``80GB``: says which settings fit.

    Raises:
        InputError: no step time is in the file, or sizes are missing, contradict the file or do not divide its batches.
    """
    path = place(file if isinstance(file, str) else Path(file))  # text may be an address, as s3://bucket/train.log
    # A log that begins with its arguments needs no options, and must not be contradicted by them.
    head = config_of_log(path)
    sizes = _agreed(
        path,
        {"ranks": head.pipeline, "data": head.replicas, "micro_batch": head.micro_batch},
        {"ranks": ranks, "data": data, "micro_batch": micro_batch},
    )
    limit = None
    if capacity is not None:
        limit = size(capacity, "--capacity")
    foretold = factors(forecast, "--forecast")
    return fit_of(read_steps(path), Sizes(**sizes, constant_batch=constant_batch), forecast=foretold, capacity=limit)


def _agreed(path: Path, own: dict[str, int | None], given: dict[str, int | None]) -> dict[str, int | None]:
    """Ranks, replicas and samples of a micro-batch, as the log begins with them or as the options say.

    Raises:
        InputError: nothing says how many ranks there are, or an option contradicts the log.
    """
    faults = []
    for name, value in own.items():
        said = given[name]
        # Not overruled: either the option or the file is of another run, and nobody here knows which.
        if value and said and value != said:
            option = f"--{name.replace('_', '-')} {said}"
            faults.append(Fault(option, f"{path} says {value} of itself", "leave it out"))
    if not own["ranks"] and not given["ranks"]:
        rule = "nothing says how many ranks its pipeline has"
        faults.append(Fault(str(path), rule, "give --ranks, or a log from its first line on"))
    if faults:
        raise InputError(*faults)
    return {name: given[name] or value for name, value in own.items()}
