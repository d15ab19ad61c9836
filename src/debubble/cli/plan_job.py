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
    from ..verbs.launched_job import jobs_of_file

    jobs = jobs_of_file(Path(path))
    job = jobs[0]
    found: dict[str, Any] = {}
    if said["global_batch"] is None and not said["microbatches"]:
        batches = sorted({batch for one in jobs if (batch := _batch(one))})
        if len(batches) > 1:
            rule = f"its runs have the global batches {', '.join(map(str, batches))}"
            raise InputError(Fault(path, rule, "give one as in --global-batch 64"))
        found["global_batch"] = tuple(batches) or None
    if said["gpus"] is None:
        found["gpus"] = tuple(dict.fromkeys(one.gpus for one in jobs if one.gpus)) or None
    if said["sequence"] is None:
        found["sequence"] = job.sequence
    kept = ("micro_batch",) if said["model"] else ("micro_batch", "tensor", "context")
    for name in kept:
        if said[name] is None and (value := getattr(job, name)) is not None:
            found[name] = (value,)
    return said | {name: value for name, value in found.items() if value is not None}


def _batch(job: Config) -> int | None:
    """Samples of a step; a micro-batch counts as one sample where the file does not say."""
    if job.global_batch is None and job.data and job.microbatches:
        return job.data * job.microbatches * (job.micro_batch or 1)
    return job.global_batch
