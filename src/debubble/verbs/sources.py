"""Sources: what a path holds, read as jobs, as a measurement, or as a log of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config.config import Config
from ..core.errors import Fault, InputError
from ..core.observation import Observation
from ..diagnosis.fit import Fit
from ..diagnosis.log_run import LoggedRun
from ..readers.places import place
from ..readers.source import Ask, is_log, read
from .launched_job import LAUNCHERS, jobs_of_file
from .logs import job_of_log
from .read import AnyPath, paths_of

Source = Observation | AnyPath


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run that a source holds.

    Args:
        what: stated or measured.
        fit: of its step times, if it is a log of several.
    """

    what: Config | Observation | LoggedRun
    fit: Fit | None = None


def read_runs(sources: Sequence[Source], ask: Ask, micro_batch: int | None = None) -> list[Run]:
    """Every run that the sources hold, in their order: a job file may hold a series, a folder holds one measured run.

    Args:
        sources: observations, job files, launch configurations, recordings, traces, logs of steps.
        ask: what traces and logs do not tell.
        micro_batch: samples in one, which logs do not tell either.

    Raises:
        InputError: what is wrong with any of them, all at once.
    """
    runs: list[Run] = []
    faults: list[Fault] = []
    for source in sources:
        try:
            runs += [Run(source)] if isinstance(source, Observation) else _read(source, ask, micro_batch)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    return runs


def _read(source: AnyPath, ask: Ask, micro_batch: int | None) -> list[Run]:
    (path,) = (place(each) for each in paths_of(source))
    if path.suffix.lower() in {".toml", *LAUNCHERS}:
        return [Run(job) for job in jobs_of_file(Path(path))]
    if path.is_file() and is_log(path, ask):
        return [Run(*job_of_log(path, ask.said, micro_batch))]
    return [Run(read([path], ask))]
