"""Logs beside other runs: what a log of steps says of a job, and the fit of its step times, for ``why``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .fit_document import Asked, Fitted

if TYPE_CHECKING:
    from ..formats.places import Said
    from ..formats.steplog import StepLog
    from ..job import Job

SLOW = 1.5  # steps longer than this times the median are no measurement of a job


def job_of_log(path: Path, said: Said, micro_batch: int | None) -> tuple[Job, Fitted | None]:
    """A job whose step and batch are those of most steps in a log; with sizes, also the fit of all its settings.

    Args:
        path: of the log, or of a table of step times.
        said: ranks of a pipeline, replicas and chunks, which logs do not tell.
        micro_batch: samples in one; None where unknown.

    Raises:
        InputError: no step time stands in it, or the sizes do not fit its batches.
    """
    from ..formats.steplog import read_steps

    log = read_steps(path)
    job = _job(log, path.name, said, micro_batch)
    if said.ranks is None or job.microbatches is None:
        return job, None
    from .fit import fitted

    return job, fitted(log, Asked(said.ranks, said.data, micro_batch, constant=False, forecast=(), capacity=None))


def _job(log: StepLog, name: str, said: Said, micro_batch: int | None) -> Job:
    import numpy as np

    from ..job import Job, Measured, settled

    timed = np.flatnonzero(np.isfinite(log.seconds))
    setting = np.nan_to_num(np.stack([log.batch, log.microbatches])[:, timed], nan=-1.0)
    settings, index, count = np.unique(setting, axis=1, return_inverse=True, return_counts=True)
    most = len(count) - 1 - int(count[::-1].argmax())  # the largest of those that are equally frequent
    seconds = log.seconds[timed][index.reshape(-1) == most]
    seconds = seconds[seconds <= SLOW * np.median(seconds)]
    batch, microbatches = (int(value) if value > 0 else None for value in settings[:, most])
    return settled(
        Job(
            name=name,
            pipeline=said.ranks,
            data=said.data,
            microbatches=microbatches,
            micro_batch=micro_batch,
            global_batch=batch,
            chunks=said.chunks or 1,
            measured=Measured(step=float(np.median(seconds)) * 1e9),
        )
    )
