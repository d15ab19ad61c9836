"""A file as jobs: a job TOML, or the launch configuration of any framework; its content decides."""

from __future__ import annotations

from pathlib import Path

from ..config.config import Config
from ..config.derive import settled
from ..core.errors import Fault, InputError
from ..frameworks.catalog import FRAMEWORKS, configurations_of
from ..readers.job_toml import is_job, read_jobs

LAUNCHERS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml"})  # no trace, log or table ends so


def jobs_of_file(path: Path) -> tuple[Config, ...]:
    """The runs of a job TOML, or those that a launch configuration describes.

    Raises:
        InputError: what cannot be read, of no known framework, or contradicts itself; all of it.
    """
    plain = path if path.exists() else path.with_name(path.name.rsplit(":", 1)[0])
    if not plain.is_file():
        raise InputError(Fault(str(path), "no such file", "give a job TOML, a launch script, a recording or traces"))
    if plain.suffix.lower() not in LAUNCHERS and is_job(plain):
        return read_jobs(plain)
    found = configurations_of(path)
    return tuple(settled(FRAMEWORKS[config.framework or "megatron"].filled(config)) for config in found)
