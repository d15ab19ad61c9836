"""The options of ``plan`` as they were read: lists of values to try, and what is fixed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..config.config import Config
from ..config.layout import Layout
from ..core.errors import Fault, InputError
from .arguments import counts, size, together
from .sources import jobs_of_file

Tried = tuple[int, ...] | None
SEQUENCE = 4096  # tokens in a sample if nobody says


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What was asked of ``plan``; None is what was not said (see ``verbs.plan.plan``)."""

    job: str | None = None
    gpus: Tried = None
    model: str | None = None
    gpu: str | None = None
    global_batch: Tried = None
    sequence: int | None = None
    nodes: int | None = None
    nic: float | None = None
    price: float | None = None
    tensor: Tried = None
    pipeline: Tried = None
    data: int | None = None
    context: Tried = None
    expert: Tried = None
    expert_tensor: Tried = None
    chunks: Tried = None
    micro_batch: Tried = None
    microbatches: Tried = None
    schedule: str | None = None
    precision: str | None = None
    zero: int | None = None
    calibrate: tuple[str, ...] = ()
    save_calibration: str | None = None
    launched: str | None = None
    top: int | None = None
    framework: str | None = None
    emit: str | None = None
    rampup: Tried = None

    @property
    def base(self) -> Layout:
        """What neither a search nor a file says of a layout."""
        zero = 1 if self.zero is None else self.zero
        return Layout(sequence=self.sequence or SEQUENCE, precision=self.precision or "bf16", zero=zero)

    def needs(self, *names: str) -> None:
        """Refuse if one of these is missing.

        Raises:
            InputError: all that are missing.
        """
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            raise InputError(*(Fault(_option(name), "it is required", "see --help") for name in missing))

    def refuses(self, *names: str, why: str) -> None:
        """Refuse options that would be passed over.

        Raises:
            InputError: all that were given.
        """
        given = [name for name in names if getattr(self, name) not in (None, ())]
        if given:
            raise InputError(*(Fault(_option(name), why, "leave it out") for name in given))

    def with_job(self) -> PlanOptions:
        """With what a job file says where options are silent; of a series, the number of devices of each run.

        Raises:
            InputError: the file cannot be read, or its runs have different batches.
        """
        if self.job is None:
            return self
        jobs = jobs_of_file(Path(self.job))
        found: dict[str, Tried | int] = {}
        if self.global_batch is None and not self.microbatches:
            batches = sorted({batch for one in jobs if (batch := _batch(one))})
            if len(batches) > 1:
                rule = f"its runs have the global batches {', '.join(map(str, batches))}"
                raise InputError(Fault(self.job, rule, "give one as in --global-batch 64"))
            found["global_batch"] = tuple(batches) or None
        if self.gpus is None:
            found["gpus"] = tuple(dict.fromkeys(one.gpus for one in jobs if one.gpus)) or None
        if self.sequence is None:
            found["sequence"] = jobs[0].sequence
        for name in ("micro_batch",) if self.model else ("micro_batch", "tensor", "context"):
            value = getattr(jobs[0], name)
            if getattr(self, name) is None and value is not None:
                found[name] = (value,)
        return replace(self, **{name: value for name, value in found.items() if value is not None})  # type: ignore[arg-type]

    def command(self, emit: str | None, schedules: tuple[str, ...]) -> str:
        """The same question as a command line, printing what to paste.

        Args:
            emit: name of the framework; None for none.
            schedules: those that were asked for and that it runs.
        """
        asked = replace(self, schedule=",".join(schedules) or None, emit=emit, save_calibration=None)
        words = [word for each in fields(asked) for word in _words(each.name, getattr(asked, each.name))]
        return shlex.join(["debubble", "plan", *words])


LISTS = (
    *("gpus", "global_batch", "tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "micro_batch"),
    *("microbatches", "rampup"),
)
PATHS = ("job", "model", "gpu", "save_calibration", "launched")


def read_options(given: Mapping[str, Any]) -> PlanOptions:
    """The options as their types: lists of counts, paths as text, bytes as numbers.

    Args:
        given: the arguments of ``plan`` by name.

    Raises:
        InputError: what cannot be read, all at once.
    """
    said = {name: value for name, value in given.items() if value is not None}
    lists = [name for name in LISTS if name in said]
    read = together(*(partial(counts, said[name], name) for name in lists))
    made: dict[str, Any] = said | dict(zip(lists, read, strict=True))
    made |= {name: fspath(said[name]) for name in PATHS if name in said}
    if "nic" in said:
        made["nic"] = float(size(said["nic"], "nic"))
    if not isinstance(said.get("schedule", ""), str):
        made["schedule"] = ",".join(said["schedule"])
    measured = said["calibrate"]
    made["calibrate"] = tuple(map(fspath, [measured] if isinstance(measured, str | PathLike) else measured))
    return PlanOptions(**made)


def _words(name: str, value: object) -> Iterator[str]:
    if value is None or value == ():
        return
    if name == "job":
        yield str(value)
    elif name == "calibrate" and isinstance(value, tuple):
        yield from (word for path in value for word in ("--calibrate", path))
    else:
        text = ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if name == "nic" else str(value)
        yield from (_option(name), text)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _batch(job: Config) -> int | None:
    """Samples of a step; a micro-batch counts as one sample if the file does not say."""
    if job.global_batch is None and job.data and job.microbatches:
        return job.data * job.microbatches * (job.micro_batch or 1)
    return job.global_batch
