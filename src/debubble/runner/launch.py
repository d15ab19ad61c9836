"""The launcher: starts the processes of a run on this host, and says which of them failed and how.

PyTorch's elastic agent does the work: it watches all processes and, when one is gone, ends the others. Workers have
no handler for SIGTERM, because Python runs handlers between byte codes only and a rank that waits in a receive never
gets there; without one it dies at once. They start from a fork server that has imported torch already, so that eight
of them start in the time of one.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any
from uuid import uuid4

from ..errors import Refusal

_SHUTDOWN_S = 5
_POLL_S = 0.1
_SILENT = ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn")


def launch(entry: Callable[..., Any], processes: int, *args: Any) -> Any:
    """Run a function in several processes that can join each other, and return what the first one returned.

    Args:
        entry: a function of a module; it gets ``args``.
        processes: how many.
        args: whatever can be pickled.

    Raises:
        Refusal: a process failed or was killed; names it. All others are ended by then.
        KeyboardInterrupt: Ctrl-C.
    """
    _warm_up()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for logger in _SILENT:
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # what they say we say in one line
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=_POLL_S,
        start_method="forkserver",
        shutdown_timeout=_SHUTDOWN_S,
    )
    try:
        return elastic_launch(config, entry)(*args)[0]
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise Refusal(f"process {rank} {_how(failure.exitcode, failure.message)}") from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + error.sigval) from None


def _warm_up() -> None:
    """Let the fork server import torch while this process does."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    multiprocessing.set_forkserver_preload(["debubble.runner.worker"])
    forkserver.ensure_running()


def _how(exit_code: int, message: Any) -> str:
    """In what way a process ended."""
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    text = message.get("message", "") if isinstance(message, dict) else message
    return f"failed: {' '.join(str(text).split())}"
