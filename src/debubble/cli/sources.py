"""Sources: what a path given on the command line holds, read as jobs or as a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Fault, InputError

if TYPE_CHECKING:
    from ..formats.source import Ask
    from ..job import Job
    from ..observation import Observation


def read_runs(paths: Sequence[Path]) -> list[Job | Observation]:
    """Every run that the paths hold, in their order: a job file may hold a series, a folder holds one measured run.

    Raises:
        InputError: what is wrong with any of them, all at once.
    """
    runs: list[Job | Observation] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            runs += _read(path)
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    return runs


def read_observation(paths: Sequence[Path], ask: Ask | None = None) -> Observation:
    """A measurement of one run: a recording, or traces in any format that is known.

    Raises:
        InputError: nothing is there, or it cannot be read.
        Refusal: there is no pipeline in it.
    """
    from ..formats.source import read

    return read(paths, ask)


def _read(path: Path) -> Sequence[Job | Observation]:
    if path.suffix.lower() == ".toml":
        from ..formats.job import read_jobs

        if not path.is_file():
            raise InputError(Fault(str(path), "no such file", "give a job TOML, a recording or traces"))
        return read_jobs(path)
    return [read_observation([path])]
