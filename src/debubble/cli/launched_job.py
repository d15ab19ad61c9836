"""A launch configuration as a job: what a framework was told of a run, before anything is known of its speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import Fault, InputError

if TYPE_CHECKING:
    from ..config.config import Config
    from ..frameworks.setup import Backend, Setup

LAUNCHERS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".py", ".yaml", ".yml"})  # no trace, log or table ends so


def jobs_of_file(path: Path) -> tuple[Config, ...]:
    """The runs of a job TOML, or the one that a launch configuration describes.

    Raises:
        InputError: what cannot be read, of no known framework, or contradicts itself; all of it.
    """
    if not path.is_file():
        raise InputError(Fault(str(path), "no such file", "give a job TOML, a launch script, a recording or traces"))
    if path.suffix.lower() not in LAUNCHERS:
        from ..readers.job_toml import read_jobs

        return read_jobs(path)
    from ..config.derive import settled
    from ..frameworks.backends import recognised
    from ..frameworks.files import read_pairs
    from ..frameworks.read_keys import read_setup

    pairs = read_pairs(path)
    backend = recognised(pairs, str(path))
    return (settled(job_of_setup(path.name, backend, read_setup(backend, pairs).setup)),)


def job_of_setup(name: str, backend: Backend, setup: Setup) -> Config:
    """The sizes that a setup says, None where it is silent; 1F1B where its schedule is none of ours.

    Args:
        name: what reports call it.
        backend: whose setup.
        setup: as read.
    """
    from ..config.config import Config

    full = backend.settled(setup)
    replicas = full.replicas
    return Config(
        name=name,
        gpus=full.gpus,
        pipeline=full.pipeline,
        tensor=full.tensor,
        context=full.context,
        data=replicas,
        microbatches=full.microbatches or (full.flush if full.local_batch else None),
        micro_batch=full.micro_batch or (1 if full.pipeline and full.global_batch else None),
        global_batch=full.global_batch,
        sequence=full.sequence,
        chunks=full.chunks or 1,
        schedule=(backend.schedule(full) if full.pipeline else None) or "1f1b",
        recompute=full.recompute or "none",
    )
