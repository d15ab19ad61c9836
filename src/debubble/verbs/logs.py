"""Logs beside other runs: what a log of steps says of a job, and the fit of its step times, for ``why``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..config.config import Config
from ..config.derive import settled
from ..diagnosis.fit_result import Fit
from ..readers.steplog import StepLog, read_steps
from ..reconstruct.positions import Said
from .fit import Asked, fitted
from .log_head import config_of_log

SLOW = 1.5  # steps longer than this times the median are no measurement of a job


def job_of_log(path: Path, said: Said, micro_batch: int | None) -> tuple[Config, Fit | None]:
    """A job whose step and batch are those of most steps in a log; with sizes, also the fit of all its settings.

    Args:
        path: of the log, or of a table of step times.
        said: ranks of a pipeline, replicas and chunks, where the log does not begin with its arguments.
        micro_batch: samples in one; None where unknown.

    Raises:
        InputError: no step time stands in it, or the sizes do not fit its batches.
    """
    log, head = read_steps(path), config_of_log(path)
    job = _job(log, _sizes(head, said, micro_batch))
    if job.pipeline is None or job.microbatches is None:
        return job, None
    return job, fitted(log, Asked(job.pipeline, job.data, job.micro_batch))


def _sizes(head: Config, said: Said, micro_batch: int | None) -> Config:
    """The job as its log begins with it, and as the options say where it does not."""
    return head.filled(pipeline=said.ranks, data=said.data, micro_batch=micro_batch, chunks=said.chunks)


def _job(log: StepLog, sizes: Config) -> Config:
    """With the batch and the step of the setting that most steps have."""
    timed = np.flatnonzero(np.isfinite(log.seconds))
    setting = np.nan_to_num(np.stack([log.batch, log.microbatches])[:, timed], nan=-1.0)
    settings, index, count = np.unique(setting, axis=1, return_inverse=True, return_counts=True)
    most = len(count) - 1 - int(count[::-1].argmax())  # the largest of those that are equally frequent
    seconds = log.seconds[timed][index.reshape(-1) == most]
    seconds = seconds[seconds <= SLOW * np.median(seconds)]
    batch, microbatches = (int(value) if value > 0 else None for value in settings[:, most])
    batch = batch or (None if microbatches else sizes.global_batch)
    step = float(np.median(seconds)) * 1e9
    return settled(sizes.changed(microbatches=microbatches, global_batch=batch, step=step, evidence="measured"))
