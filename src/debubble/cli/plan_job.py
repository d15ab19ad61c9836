"""A job TOML, or a launch script, as the question of ``plan``: devices, batch and sequence stay, the layout is free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError

if TYPE_CHECKING:
    from ..config.config import Config


def filled(said: dict[str, Any], path: str) -> dict[str, Any]:
    """Options with what a job file says where they are silent; of a series, the number of devices of each run.

    Raises:
        InputError: the file cannot be read, or its runs have different batches.
    """
    from .launched_job import jobs_of_file

    jobs = jobs_of_file(Path(path))
    batches = sorted({batch for job in jobs if (batch := _batch(job))})
    if len(batches) > 1 and said["global_batch"] is None:
        rule = f"its runs have the global batches {', '.join(map(str, batches))}"
        raise InputError(Fault(path, rule, "give one as in --global-batch 64"))
    job = jobs[0]
    known = {
        "gpus": tuple(dict.fromkeys(one.gpus for one in jobs if one.gpus)) or None,
        "global_batch": tuple(batches) or None,
        "sequence": job.sequence,
        "micro_batch": _one(job.micro_batch),
    }
    if said["model"] is None:
        known |= {"tensor": _one(job.tensor), "context": _one(job.context)}
    if said["microbatches"]:
        del known["global_batch"]
    return said | {name: value for name, value in known.items() if said[name] is None and value is not None}


def _batch(job: Config) -> int | None:
    """Samples of a step; a micro-batch counts as one sample where the file does not say."""
    if job.global_batch is None and job.data and job.microbatches:
        return job.data * job.microbatches * (job.micro_batch or 1)
    return job.global_batch


def _one(value: int | None) -> tuple[int, ...] | None:
    return None if value is None else (value,)
