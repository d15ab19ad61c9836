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
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from ..core.errors import InputError, Interrupted, Refusal, cut_to_a_line
from ..readers.recording import read_recording, read_tracks
from ..recorder.writer import in_use
from .heartbeat import Monitor
from .task import Task

_SHUTDOWN_S = 5  # between SIGTERM and SIGKILL: ours die of the first, a user's threads may hold a process longer
_POLL_S = 0.1  # how late the agent sees at most that a process is gone
_LONGEST_FOLDER = 60  # bytes of the temporary folder's name that leave room for a socket's in it
_ADVICE = "To enable traceback"  # what the agent says of a process that left no error
_SILENT = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.multiprocessing.spawn",
)


def start(task: Task, tell: Callable[..., None]) -> Any:
    """Run a task in processes of this host, and return what the first one returned.

    Raises:
        InputError: the task, or its model, cannot be run; no process has started then.
        Refusal: a rank failed or was killed; names it, and says what was kept.
    """
    folder = Path(task.out)
    if taken := in_use(folder):
        raise InputError(taken)
    warm_up()
    from .model import rehearse
    from .worker import work

    rehearse(task)
    # An earlier recording stays until this run has a step: what is kept must not be told from that one.
    before = _run_in(folder)

    def name(process: int) -> str:
        replica, rank = divmod(process, task.schedule.ranks)
        if task.replicas == 1:
            return f"rank {rank}"
        return f"rank {rank} of replica {replica}"

    run = uuid4().hex
    with Monitor(run, task.processes, task.schedule, task.timeout_s, name) as monitor:
        try:
            return launch(work, task.processes, task, tell, name=name, run=run, place=monitor.place)
        except Refusal as error:
            said = f"{error}"
            if monitor.held is not None:  # the monitor ended it: whom it killed first is not whom to blame
                said = monitor.held.sentence
            raise Refusal(f"{said}; {_kept(folder, before)}") from None
        except Interrupted as error:
            raise Interrupted(error.signal, _kept(folder, before)) from None


def launch(
    entry: Callable[..., Any],
    processes: int,
    *args: Any,
    name: Callable[[int], str] = "process {}".format,
    run: str | None = None,
    place: Callable[[int], str] | None = None,
) -> Any:
    """Run a function in several processes that can join each other, and return what the first one returned.

    Args:
        entry: a function of a module; it gets ``args``.
        processes: how many.
        args: whatever can be pickled.
        name: what to call a process in an error.
        run: what to call the run, so that its processes know each other's notes; any name by default.
        place: where in its work a process was last.

    Raises:
        Refusal: a process failed or was killed; names it. All others are ended by then.
        Interrupted: Ctrl-C, or a signal that ends this process.
    """
    warm_up()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for logger in _SILENT:
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # what they say we say in one line
    # One host and no restart: port 0 lets the store take any free port, so that two runs never meet on one.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=run or uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=_POLL_S,
        start_method="forkserver",
        shutdown_timeout=_SHUTDOWN_S,
    )
    try:
        with _without_script():
            return elastic_launch(config, entry)(*args)[0]
    except ChildFailedError as error:
        process, failure = error.get_first_failure()
        where = "" if place is None else place(process)
        raise Refusal(f"{name(process)} {_how(failure.exitcode, failure.message, where)}") from None
    except SignalException as error:
        raise Interrupted(int(error.sigval), "the others were stopped") from None


@contextmanager
def _without_script() -> Iterator[None]:
    """Let processes start without the script that starts them.

    multiprocessing runs ``__main__`` again in each, which ends a script that has no ``if __name__ == "__main__"``, and
    one that was read from stdin. Ours need nothing of it: what they run is named by its module.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def warm_up() -> None:
    """Let the fork server import torch while this process does."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    multiprocessing.set_forkserver_preload(["debubble.runner.worker"])
    with _short_temporary_folder():
        forkserver.ensure_running()


@contextmanager
def _short_temporary_folder() -> Iterator[None]:
    """Let the fork server's socket have an address that fits, whatever ``TMPDIR`` is.

    The address of a Unix socket has 108 bytes at most, and multiprocessing adds some 40 to the temporary folder's name.
    """
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"  # noqa: S108 - multiprocessing makes a folder of its own in it
    try:
        yield
    finally:
        tempfile.tempdir = before


def _run_in(folder: Path) -> str | None:
    """The run whose recording is in a folder."""
    try:
        return read_tracks(folder)[0][0].process.run
    except InputError:
        return None


def _kept(folder: Path, before: str | None) -> str:
    """What the other ranks had measured when one was lost; an earlier recording that is still there is none of it."""
    nothing = "the others were stopped, and no step had been measured by all of them"
    if _run_in(folder) == before:
        return nothing
    try:
        count = len({window.step for window in read_recording(folder).windows})
    except InputError:
        return nothing
    steps = "1 step" if count == 1 else f"{count} steps"
    return f"the others were stopped; what all had measured, {steps}, is kept in {folder}"


def _how(exit_code: int, message: Any, where: str = "") -> str:
    """In what way a process ended, where in its work, and with what words."""
    place = f" {where}" if where else ""
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}{place}"
    if isinstance(message, dict):
        message = _root_of_callstack(message.get("extraInfo", {}).get("py_callstack", "")) or message.get("message", "")
    elif str(message).startswith(_ADVICE):  # it left without an exception
        detail = f", without an error,{place}" if place else ""
        return f"left with status {exit_code}{detail}"
    return f"failed{place}: {cut_to_a_line(str(message))}"


def _root_of_callstack(callstack: str) -> str:
    """What ``model.root_of`` says of an exception, of one in another process, of which only the printed trace is here.

    The first of a chain is the cause; the engine wraps what a model raises.
    """
    first = callstack.partition("\n\nThe above exception")[0].strip()
    if not first:
        return ""
    last_line = first.splitlines()[-1]
    name, _, words = last_line.partition(": ")
    if name.endswith(".Refusal"):
        return words  # ours, and whole as it is
    places = re.findall(r'File "(.*?)", line (\d+)', first)
    return f"{last_line} ({places[-1][0]}, line {places[-1][1]})" if places else ""
