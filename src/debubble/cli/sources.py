"""Sources: what a path given on the command line holds, read as jobs, as a measurement, or as a log of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import Fault, InputError

if TYPE_CHECKING:
    from ..config.config import Config
    from ..core.observation import Observation
    from ..readers.source import Ask
    from .fit_document import Fitted


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run that a path holds.

    Args:
        what: stated or measured.
        fit: of its step times, where it is a log of several.
    """

    what: Config | Observation
    fit: Fitted | None = None


def read_runs(paths: Sequence[Path], ask: Ask | None = None, micro_batch: int | None = None) -> list[Run]:
    """Every run that the paths hold, in their order: a job file may hold a series, a folder holds one measured run.

    Args:
        paths: job files, launch configurations, recordings, traces, logs of steps.
        ask: what traces and logs do not tell.
        micro_batch: samples in one, which logs do not tell either.

    Raises:
        InputError: what is wrong with any of them, all at once.
    """
    from .progress import reading

    runs: list[Run] = []
    faults: list[Fault] = []
    with reading(paths):
        for path in paths:
            try:
                runs += _read(path, ask, micro_batch)
            except InputError as error:
                faults += error.faults
    if faults:
        raise InputError(*faults)
    return runs


def _read(path: Path, ask: Ask | None, micro_batch: int | None) -> Sequence[Run]:
    from .launched_job import LAUNCHERS, jobs_of_file

    if path.suffix.lower() in {".toml", *LAUNCHERS}:
        return [Run(job) for job in jobs_of_file(path)]
    from ..readers.source import Ask, is_log, read

    ask = ask or Ask()
    if path.is_file() and is_log(path, ask):
        from .logs import job_of_log

        return [Run(*job_of_log(path, ask.said, micro_batch))]
    return [Run(read([path], ask))]
