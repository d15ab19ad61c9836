"""Logs beside other runs: what a log of steps says of a job, and the fit of its step times, for ``why``."""

from __future__ import annotations

from pathlib import Path

from ..diagnosis.fit import Fit, Sizes, fit_of
from ..diagnosis.log_run import LoggedRun, logged_run
from ..readers.steplog import read_steps
from ..reconstruct.positions import Said
from .log_head import config_of_log


def job_of_log(path: Path, said: Said, micro_batch: int | None) -> tuple[LoggedRun, Fit | None]:
    """A job whose step and batch are those of most steps in a log; with sizes, also the fit of all its settings.

    Args:
        path: of the log, or of a table of step times.
        said: ranks of a pipeline, replicas and chunks, where the log does not begin with its arguments.
        micro_batch: samples in one; None where unknown.

    Raises:
        InputError: no step time stands in it, or the sizes do not fit its batches.
    """
    head = config_of_log(path)
    log = read_steps(path)
    sizes = head.filled(pipeline=said.ranks, data=said.data, micro_batch=micro_batch, chunks=said.chunks)
    run = logged_run(log, sizes)
    job = run.job
    if job.pipeline is None or job.microbatches is None:
        return run, None
    return run, fit_of(log, Sizes(job.pipeline, job.data, job.micro_batch))
