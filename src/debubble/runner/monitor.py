"""The monitor: a thread of the launcher that ends a run which stands still, and says who held it up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..core.schedule import Schedule
from .heartbeat import Held, State, beats_of, held_up, path_of, place_in, table

_LOOK_S = 0.25


class Monitor:
    """Watches the processes of one run on this host; to be entered before they start.

    Args:
        run: what the launcher calls the run.
        processes: of the run.
        schedule: that they follow.
        limit_s: how long a process may be in one op, or wait for another.
        name: what to call a process.
    """

    def __init__(
        self, run: str, processes: int, schedule: Schedule, limit_s: float, name: Callable[[int], str]
    ) -> None:
        self._path, self._schedule, self._limit, self._name = path_of(run), schedule, limit_s, name
        self._notes = table(self._path, processes)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.held: Held | None = None

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def place(self, process: int) -> str:
        """Where in its work a process was when it was last heard of; empty if it had not begun a step."""
        beat = beats_of(self._notes)[process]
        if beat.state not in (State.OP, State.RECEIVE):
            return ""
        return f"{place_in(beat, self._schedule, process % self._schedule.ranks)} of step {beat.step}"

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            beats = beats_of(self._notes)
            now = time.monotonic_ns()
            held = held_up(beats, self._schedule, self._limit, now, name=self._name, stopped=how_it_stands_still)
            if held is not None:
                self.held = held
                _end([beat.pid for beat in beats if beat.pid])
                return


def _end(processes: list[int]) -> None:
    """End processes at once: one that is stopped takes no other signal."""
    for pid in processes:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def how_it_stands_still(pid: int) -> str:
    """How the system says that a process stands still: it is stopped, or gone; empty text if it may run."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "its process is gone" if Path("/proc/self/stat").exists() else ""
    except OSError:
        return ""
    state = status.rpartition(")")[2].split()[0]
    if state in "Tt":
        return "its process is stopped by a signal"
    return "its process is gone" if state in "ZX" else ""
