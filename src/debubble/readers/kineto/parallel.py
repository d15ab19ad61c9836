"""Ranks in parallel: large sets of traces are read by several processes or by Ray, small ones by this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import Fault, InputError
from ..stream import progress
from .read import TraceFile, read_trace_or_fault

_WORTH = 200 << 20  # bytes of JSON; a second process costs .3 s of start and 60 MB
_PACKED = 12  # times that gzip shrinks a trace


def in_processes(paths: Sequence[Path]) -> list[TraceFile | Fault]:
    """What each file holds, in their order, read by as many processes as there are cores and files.

    The caller's main module must be importable without side effects, as a command line's is.
    """
    workers = min(len(paths), os.cpu_count() or 1)
    if workers < 2 or _bytes(paths) < _WORTH:
        return [read_trace_or_fault(path) for path in paths]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    found = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for path, one in zip(paths, pool.map(read_trace_or_fault, paths), strict=True):
            found.append(one)
            progress.get()(path.stat().st_size if path.exists() else 0)
    return found


def on_ray(paths: Sequence[Path]) -> list[TraceFile | Fault]:
    """What each file holds, in their order, read by one Ray task each: on the cluster of RAY_ADDRESS, or on this host.

    The tasks open the paths where they run, so these must be there: a shared folder, or ``s3://`` and its like.

    Raises:
        InputError: Ray is not installed, or its cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        rule = "Ray is not installed"
        raise InputError(Fault("--ray", rule, "install debubble[ray], or leave the option out")) from error
    try:
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        task = ray.remote(read_trace_or_fault)
        found = []
        for path, running in [(path, task.remote(path)) for path in paths]:
            found.append(ray.get(running))
            progress.get()(path.stat().st_size if path.exists() else 0)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, SystemError) as error:  # the last of its start
        said = str(error).strip().splitlines()
        rule = f"the cluster does not answer: {said[-1] if said else type(error).__name__}"
        raise InputError(Fault("--ray", rule, "look at RAY_ADDRESS, or leave the option out")) from error
    return found


def _bytes(paths: Sequence[Path]) -> int:
    """About how much JSON the files hold."""
    sizes = [path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1) for path in paths if path.exists()]
    return sum(sizes)
