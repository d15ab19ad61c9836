"""Heartbeats: what each process of a run is in, in memory that outlives it, so that one that stands still is named.

A rank that is stopped (a signal, a dead host, a kernel that hangs) says nothing, and those that wait for it fail with
a timeout of their own, whose trace names the wrong rank. So each process notes what it enters, and since when, in a
table that all processes of a host map; the monitor, a thread of the launcher, reads it, names the culprit and ends the
run:

    rank 0   receive before 0B1   31 s  --+
    rank 1   receive before 1B1   31 s  --+--> waits for what rank 2 is to send
    rank 2   op 2F3               31 s         <-- holds the others up

Who waits is followed from rank to rank through the program; where the trail ends, or where the process is stopped, is
the one to name. A note costs four stores into shared memory.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.laws import needs_of
from ..core.schedule import NOTHING, Kind, Op, Schedule

_COLUMNS = 5  # pid, state, step, row, since
_SECOND = 1_000_000_000
BEFORE = -1  # row of what comes before the first op of a step


class State(IntEnum):
    """What a process is in."""

    ABSENT = 0
    START = 1  # joins the others, builds its model
    OP = 2
    RECEIVE = 3  # stands before an op whose input has not come
    BETWEEN = 4  # ops: sends, book-keeping
    TOGETHER = 5  # with all others: barriers, reductions, exchanges
    DONE = 6
    SEND = 7  # stands behind an op whose output nobody has taken yet
    BOTH = 8  # stands in a wait that covers a send and a receive


@dataclass(frozen=True, slots=True)
class Beat:
    """The latest note of one process.

    Args:
        pid: of the process; 0 if it never came up.
        state: what it is in.
        step: that it is in.
        row: op of its order that it is in, or that it waits to start.
        since: when it entered, nanoseconds of the host's monotonic clock.
    """

    pid: int
    state: State
    step: int
    row: int
    since: int


@dataclass(frozen=True, slots=True)
class Held:
    """A run that stands still.

    Args:
        process: that holds the others up.
        sentence: what it is in, for how long, and who waits for it.
    """

    process: int
    sentence: str


def path_of(run: str) -> Path:
    """Where the table of a run lies on this host, by what the launcher calls the run."""
    return Path(tempfile.gettempdir()) / f"debubble-{os.getuid()}-{run}.beats"


def name_of_run() -> str:
    """What the launcher of this process calls the run; the same in all of them."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if run == "none":  # what torchrun says where nobody gave the run a name: every such run would share one
        return f"port-{os.environ.get('MASTER_PORT', 0)}"
    return run


def table(path: Path, processes: int) -> NDArray[np.int64]:
    """The table itself, int64[processes, 5], made if it is not there yet."""
    size = processes * _COLUMNS * 8
    # Everybody may write to the folder for temporary files: nobody's link is followed, and nobody else reads.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(handle, size)  # zeros where the file was shorter, so that whoever comes first makes it
    finally:
        os.close(handle)
    mapped: NDArray[np.int64] = np.memmap(path, np.int64, "r+", shape=(processes, _COLUMNS))
    return mapped


class Pulse:
    """The notes of one process.

    Args:
        notes: its row of the table; by default one that nobody reads.
    """

    def __init__(self, notes: NDArray[np.int64] | None = None) -> None:
        if notes is None:
            notes = np.zeros(_COLUMNS, np.int64)
        self._notes = notes
        self._step = 0
        self._notes[0] = os.getpid()
        self.enter(State.START)

    def begin_step(self, number: int) -> None:
        """The next notes are of this step, whose batch is made first."""
        self._step = number
        self.enter(State.BETWEEN, BEFORE)

    def enter(self, state: State, row: int = 0) -> None:
        """Note what the process is in from now on."""
        self._notes[2] = self._step
        self._notes[3] = row
        self._notes[4] = time.monotonic_ns()
        self._notes[1] = state  # last: whoever reads between the stores sees the former state with a fresh time


def beats_of(notes: NDArray[np.int64]) -> list[Beat]:
    """The latest note of every process."""
    return [Beat(pid, State(state), step, row, since) for pid, state, step, row, since in notes.tolist()]


def held_up(
    beats: Sequence[Beat],
    schedule: Schedule,
    limit_s: float,
    now: int,
    *,
    name: Callable[[int], str],
    stopped: Callable[[int], str],
) -> Held | None:
    """Who holds up a run of which some process has been in one state for longer than a limit; None if none has.

    Args:
        beats: of all processes, replica after replica.
        schedule: that they follow.
        limit_s: seconds.
        now: on the clock of the beats, nanoseconds.
        name: what to call a process.
        stopped: how the process of a pid is known to stand still (``stopped by a signal``), or empty text.
    """
    ages = _ages(beats, now)
    if not any(age > limit_s for age, beat in zip(ages, beats, strict=True) if beat.state != State.DONE):
        return None
    needs = needs_of(schedule)[0]
    waits = {process: _waits_for(process, beats, schedule, needs) for process in range(len(beats))}
    process, how = _culprit(beats, ages, waits, stopped)
    where = place_in(beats[process], schedule, process % schedule.ranks)
    waiting = [name(other) for other in waits if other != process and _leads_to(other, process, waits)]
    sentence = f"{name(process)} has been {where} for {ages[process]:.0f} s"
    if how:
        sentence += f" ({how})"
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        sentence += f"; {_listed(waiting)} {verb} for it"
    return Held(process, sentence)


def _ages(beats: Sequence[Beat], now: int) -> list[float]:
    """For how long each process has been in what it is in, seconds; nought for all before the first has come up."""
    up = [beat.since for beat in beats if beat.state != State.ABSENT]
    if not up:
        return [0.0] * len(beats)
    ages: list[float] = []
    for beat in beats:
        # One that never came up is counted from when the first did.
        since = min(up) if beat.state == State.ABSENT else beat.since
        ages.append((now - since) / _SECOND)
    return ages


_AT_AN_OP = {
    State.OP: "in {}",
    State.RECEIVE: "in the receive before {}",
    State.SEND: "in the send after {}",
    State.BOTH: "in a send and receive before {}",
}


def place_in(beat: Beat, schedule: Schedule, rank: int) -> str:
    """Where in its work a process is, in words."""
    if beat.state in _AT_AN_OP:
        first, behind = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        # A send is of what the op before made; a rank that waits after its last op is behind that one, too.
        row = min(max(first + beat.row - (beat.state == State.SEND), first), behind - 1)
        op = Op(Kind(schedule.kind[row]), int(schedule.stage[row]), int(schedule.unit[row]))
        return _AT_AN_OP[beat.state].format(op)
    if beat.state == State.TOGETHER:
        return f"at the exchange of all ranks in step {beat.step}"
    if beat.state == State.BETWEEN and beat.row == BEFORE:
        return f"making the batch of step {beat.step}"
    words = {
        State.ABSENT: "absent",
        State.START: "starting",
        State.BETWEEN: f"between ops of step {beat.step}",
        State.DONE: "done",
    }
    return words[beat.state]


def _culprit(
    beats: Sequence[Beat], ages: Sequence[float], waits: dict[int, list[int]], stopped: Callable[[int], str]
) -> tuple[int, str]:
    """The process that holds the others up, and how it is known to; the oldest of several."""
    oldest = sorted(range(len(beats)), key=lambda process: -ages[process])
    running = [process for process in oldest if beats[process].state != State.DONE]
    for process in running:  # what the system says of a process is better evidence than any note
        if beats[process].pid and (how := stopped(beats[process].pid)):
            return process, how
    for process in running:
        if not waits[process]:
            return process, ""
    return oldest[0], ""  # all wait in a circle: the first that began to


def _waits_for(process: int, beats: Sequence[Beat], schedule: Schedule, needs: NDArray[np.int32]) -> list[int]:
    """Whom a process waits for; nobody if it works, or if what it needs was made already."""
    beat = beats[process]
    replica, rank = divmod(process, schedule.ranks)
    found: list[int] = []
    first = int(schedule.offsets[rank])
    if beat.state in (State.RECEIVE, State.BOTH) and first + beat.row < schedule.offsets[rank + 1]:
        found.append(int(needs[first + beat.row]))
    if beat.state in (State.SEND, State.BOTH):
        # What was made last and is needed elsewhere: whoever needs it has not taken it.
        takers = np.flatnonzero((needs >= first) & (needs < first + beat.row))
        if len(takers):
            found.append(int(takers[np.argmax(needs[takers])]))
    if found:
        return _not_come_to(found, beat, beats, schedule, replica)
    if beat.state == State.TOGETHER:
        return [other for other, its in enumerate(beats) if its.state != State.DONE and _at(its) < _at(beat)]
    if beat.state == State.START:
        return [other for other, its in enumerate(beats) if its.state == State.ABSENT]
    return []


def _not_come_to(ops: Sequence[int], beat: Beat, beats: Sequence[Beat], schedule: Schedule, replica: int) -> list[int]:
    """The processes of some ops, as far as they have not done them: what they made before is on its way."""
    found = []
    for op in ops:
        if op == NOTHING:
            continue
        owner = int(np.searchsorted(schedule.offsets, op, side="right")) - 1
        other = replica * schedule.ranks + owner
        if beats[other].state != State.DONE and _at(beats[other]) <= (beat.step, op - schedule.offsets[owner]):
            found.append(other)
    return found


def _at(beat: Beat) -> tuple[int, int]:
    """How far a process is: the step, and the op of its order that it has come to."""
    if beat.state in (State.ABSENT, State.START):
        return -1, 0
    return beat.step, beat.row


def _leads_to(process: int, target: int, waits: dict[int, list[int]]) -> bool:
    """Whether a process waits for another, directly or through others."""
    seen: set[int] = set()
    ahead = list(waits[process])
    while ahead:
        at = ahead.pop()
        if at == target:
            return True
        if at not in seen:
            seen.add(at)
            ahead += waits[at]
    return False


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    if len(names) > 4:  # of 64 ranks nearly all wait, and the one that matters is named already
        return f"{len(names)} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


_LOOK_S = 0.25  # a look reads some hundred integers; a run that stands still is told this much late at most


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
                self.held = held  # before the end, which the launcher sees at once and asks who it was
                _end([beat.pid for beat in beats if beat.pid])
                return


def _end(processes: list[int]) -> None:
    """End processes at once: one that is stopped takes no other signal."""
    for pid in processes:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def how_it_stands_still(pid: int) -> str:
    """How the system says that a process stands still: it is stopped, or gone; empty text if it may run."""
    if not Path("/proc/self/stat").exists():
        return ""  # macOS: nothing is told
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "its process is gone"
    except OSError:
        return ""
    state = status.rpartition(")")[2].split()[0]  # behind the name, which may hold anything, brackets too
    if state in "Tt":  # stopped, or traced by a debugger
        return "its process is stopped by a signal"
    if state in "ZX":  # a zombie, or dead
        return "its process is gone"
    return ""
