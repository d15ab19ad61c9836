"""The writer: appends what one process measured to its file, a step at a time, and says whose folder it is.

* A step is one ``write`` to the end of the file: its cost does not grow with the run, and whatever kills the process
  leaves whole steps. A disk that is full leaves whole steps too: half a frame is cut off again.
* Nothing is on disk before the first step, so that a job that never takes one leaves what was recorded before.
* Another run's files are never written to: new ones get a name of their own beside them. ``run`` replaces an earlier
  recording, as it says: its files go once every rank of the new one has a step on disk.
* A folder is written by one run at a time: ``recording.lock`` says by whom, from which host and process, since when.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import msgspec

from ..core.errors import Fault, InputError
from ..readers.recording_file import MAGIC, Part, Process, Step, frame, frames, track_files, track_path
from .wishes import Keep

LOCK = "recording.lock"
_SILENT_S = 600.0  # a run on another host that has not touched its lock for so long is gone
_TOUCH_S = 30.0
_SEGMENTS = 4  # files among which steps that are kept are spread: the oldest goes as a whole
_HEAD = 1 << 16  # bytes in which the head of a file lies


class Writer:
    """The files of one process.

    Args:
        folder: of the recording; it is made with the first step.
        process: whose files they are.
        keep: the most that is kept.
        replace: whether the files of earlier runs go once this one has steps.

    Raises:
        InputError: another run is writing there, or the folder cannot be made.
    """

    def __init__(self, folder: Path, process: Process, keep: Keep | None = None, replace: bool = False) -> None:
        self.folder, self.process = folder, process
        self.path = Path()  # of the file that is written to, once there is one
        self._keep, self._replace = keep or Keep(), replace
        self._parts: dict[bytes, int] = {}
        self._file: int | None = None  # a bare descriptor: closing it is never forgotten aloud
        self._written = self._steps = self._segment = 0
        self._old: deque[Path] = deque()  # files that are full
        self._touched = time.monotonic()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._owner = lock(folder, process)
        except OSError as error:
            raise _unwritable(folder, error) from error

    def add(self, part: Part, step: Step) -> None:
        """Append a step; its part's number and the step's are given here.

        Raises:
            OSError: the disk is full or gone; what was written before is whole.
        """
        self._cut_if_full()  # before the step and not after it: the newest is always there
        # A part is known by all that it says but its number, which each file gives anew.
        key = msgspec.msgpack.encode(msgspec.structs.replace(part, number=0))
        number, fresh = self._parts.get(key), b""
        if number is None:
            number = len(self._parts)
            fresh = frame(msgspec.structs.replace(part, number=number))
        self._append(fresh + frame(msgspec.structs.replace(step, part=number)))
        self._parts[key] = number
        self._steps += 1
        if self._replace and remove_earlier(self.folder, self.process):
            self._replace = False
        self._touch()

    def close(self) -> None:
        """Nothing more will be written; the folder is free."""
        if self._file is not None:
            if self._replace:
                remove_earlier(self.folder, self.process)
            os.close(self._file)
            self._file = None
        unlock(self.folder, self._owner, self.process)

    def _name(self) -> Path:
        """The file of the next segment; beside that of another run it has the run's name."""
        names: list[str] = []
        if _foreign(plain := track_path(self.folder, self.process.rank), self.process):
            names.append(self.process.run[:8])
        if self.process.restart:
            names.append(f"{self.process.restart}")
        if self._segment:
            names.append(f"s{self._segment:06}")
        if not names:
            return plain
        return track_path(self.folder, self.process.rank, ".".join(names))

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self.path = self._name()
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            self._written = os.fstat(self._file).st_size
        if not self._written:
            data = MAGIC + frame(msgspec.structs.replace(self.process, segment=self._segment)) + data
        try:
            if os.write(self._file, data) != len(data):  # part of it was taken
                raise OSError(ENOSPC, os.strerror(ENOSPC))
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._written)
            raise
        self._written += len(data)

    def _cut_if_full(self) -> None:
        """Go on in a new file where this one has its share of what is kept, and delete the oldest."""
        steps, size = self._keep.steps, self._keep.bytes
        share = steps is not None and self._steps >= max(steps // _SEGMENTS, 1)
        if self._file is None or not (share or (size is not None and self._written >= size // _SEGMENTS)):
            return
        self._old.append(self.path)
        os.close(self._file)
        self._file, self._steps, self._written = None, 0, 0
        self._segment += 1
        self._parts.clear()
        most = min(steps or _SEGMENTS, _SEGMENTS)
        while len(self._old) >= most:
            self._old.popleft().unlink(missing_ok=True)

    def _touch(self) -> None:
        now = time.monotonic()
        if self._owner and now - self._touched > _TOUCH_S:
            self._touched = now
            with suppress(OSError):
                os.utime(self.folder / LOCK)


# Whose folder it is.


def lock(folder: Path, process: Process) -> bool:
    """Make a folder the run's; all of its processes may, and the first of them owns the lock.

    Raises:
        InputError: another run holds it: says which.
        OSError: the folder cannot be written.
    """
    path = folder / LOCK
    mine = {"run": process.run, "host": process.host, "pid": process.pid, "time": time.time()}
    beside = folder / f".{LOCK}.{process.host}.{process.pid}"
    beside.write_text(json.dumps(mine))
    try:
        for _ in range(3):  # a lock that is found stale is removed, and somebody else may be first with a new one
            with suppress(FileExistsError):
                os.link(beside, path)  # at once and with its content, on every file system that has links
                return True
            holder = holder_of(folder)
            alive = holder is not None and is_alive(holder, path)
            if holder is not None and alive and holder.get("run") == process.run:
                return False
            if holder is not None and alive:
                raise InputError(_taken(folder, holder))
            path.unlink(missing_ok=True)
    finally:
        beside.unlink(missing_ok=True)
    raise InputError(_taken(folder, holder_of(folder) or {}))


def unlock(folder: Path, owner: bool, process: Process) -> None:
    """Give a folder back, if this process holds it."""
    if owner and (holder_of(folder) or {}).get("run") == process.run:
        with suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)


def in_use(folder: Path) -> Fault | None:
    """Why a recording cannot be written here now: another run writes one."""
    holder = holder_of(folder)
    if holder is None or not is_alive(holder, folder / LOCK):
        return None
    return _taken(folder, holder)


def holder_of(folder: Path) -> dict[str, Any] | None:
    """What the lock of a folder says; None if there is none that says anything."""
    try:
        found = json.loads((folder / LOCK).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    return found


def is_alive(holder: dict[str, Any], path: Path) -> bool:
    """Whether the process that made a lock may still write: on this host it is asked, on another the lock's age."""
    pid = holder.get("pid")
    try:
        if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
            return time.time() - path.stat().st_mtime < _SILENT_S
        os.kill(pid, 0)
    except PermissionError:
        return True  # it lives and is somebody else's
    except (OSError, OverflowError):
        return False
    return True


def _taken(folder: Path, holder: dict[str, Any]) -> Fault:
    since = holder.get("time")
    when = "some time"
    if isinstance(since, int | float):
        when = time.strftime("%H:%M:%S", time.localtime(since))
    rule = f"process {holder.get('pid')} of {holder.get('host')} writes a recording there since {when}"
    return Fault(str(folder), rule, "give another folder, or end it")


def _unwritable(folder: Path, error: OSError) -> InputError:
    rule = f"no recording can be written there: {error.strerror}"
    return InputError(Fault(str(folder), rule, "give a folder that can be written"))


# Earlier runs.


def remove_earlier(folder: Path, process: Process) -> bool:
    """Delete the files of other runs once every rank of this one has a step on disk; true if that is so."""
    if process.rank:  # one does it for all
        return True
    others, ranks = [], set()
    for file in track_files(folder):
        head = head_of(file)
        if head is not None and head.run == process.run:
            ranks.add(head.rank)
        else:
            others.append(file)
    if len(ranks) < process.world:
        return False
    for file in others:
        file.unlink(missing_ok=True)
    return True


def head_of(file: Path) -> Process | None:
    """Whose file it is, if it is of this version and tells."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_HEAD)
        found, _ = next(frames(data, len(MAGIC)))
    except (OSError, ValueError, StopIteration):
        return None
    if not isinstance(found, Process) or not data.startswith(MAGIC):
        return None
    return found


def _foreign(path: Path, process: Process) -> bool:
    """Whether a file is there and of another run."""
    if not path.exists():
        return False
    head = head_of(path)
    return head is None or head.run != process.run
