"""Ranks in parallel: large sets of traces are read by several processes, small ones by this one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import Fault
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

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(read_trace_or_fault, paths))


def _bytes(paths: Sequence[Path]) -> int:
    """About how much JSON the files hold."""
    sizes = [path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1) for path in paths if path.exists()]
    return sum(sizes)
