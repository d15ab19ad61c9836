"""Follows a recording as it grows: new bytes of each file, read once, become a line for each step that is whole.

file of rank 0   ..| step 7 | step 8 |
file of rank 1   ..| step 7 | st             step 7 is whole; step 8 once rank 1 has it
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np

from ..core.errors import in_one_line
from ..core.results import SPARSE, Json, Result
from ..core.units import MILLISECOND
from ..readers.recording_file import MAGIC, TRAIN, Frame, Part, Process, Step, frames, track_files, unpacked
from .writer import LOCK, holder_of, is_alive

AVERAGED = 10  # steps over which a gate and a drift are told
_BEHIND = 3  # steps after which one that lacks a pipeline is told without it
_POLL_S = 0.5
_LAST_S = 2.0  # for which the end of a job waits for the last steps of the other ranks


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class WatchedStep(Result):
    """One step of a job that is being recorded: its pipeline windows, the mean over pipelines.

    Args:
        step: its number.
        phase: ``train`` or ``evaluation``.
        schedule: as the engine calls it.
        microbatches: in the step.
        pipelines: that it was measured of.
        window_ms: from the first op to the last.
        step_ms: with what lies outside.
        idle_share: idle over ranks x window.
        bubble_ratio: idle over busy.
        slowest_rank: of the job, the one whose ops took longest.
        slowest_ratio: its busy time over the mean of all ranks.
        drift_share: how much longer the window is than the median of the first steps.
        recent_idle_share: mean over the last 10 steps of training; over ``recent_steps`` where there are fewer.
        recent_steps: how many these are.
        loss: mean, if the engine tells it.
        evidence: ``measured``.
    """

    schema: ClassVar[str] = "watch/1"

    step: int
    phase: str
    schedule: str
    microbatches: int
    pipelines: int
    window_ms: float
    step_ms: float
    idle_share: float
    bubble_ratio: float
    slowest_rank: int
    slowest_ratio: float
    drift_share: float
    recent_idle_share: float
    recent_steps: int
    loss: float | None = field(default=None, metadata=SPARSE)
    evidence: str = "measured"


@dataclass(frozen=True, slots=True)
class _Ran:
    """One process in one step, on the common clock: first start, last end, busy time, and the step around them."""

    rank: int
    first: int
    last: int
    busy: int
    length: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class _Tail:
    """A file of which so much was read."""

    parts: dict[int, Part] = field(default_factory=dict)
    process: list[Process] = field(default_factory=list)
    at: list[int] = field(default_factory=lambda: [0])


class Follower:
    """Reads a recording as it grows.

    Args:
        folder: of the recording.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails: dict[Path, _Tail] = {}
        self._steps: dict[tuple[object, ...], dict[tuple[int, ...], dict[int, _Ran]]] = {}
        self._parts: dict[tuple[object, ...], Part] = {}
        self._lines: dict[tuple[object, ...], int] = {}  # pipelines of each kind of steps
        self._told: dict[tuple[object, ...], int] = {}
        self._recent: deque[float] = deque(maxlen=AVERAGED)
        self._windows: dict[tuple[object, ...], list[float]] = {}

    def poll(self) -> list[WatchedStep]:
        """The steps that became whole since the last call."""
        for file in track_files(self.folder):
            self._read(file, self._tails.setdefault(file, _Tail()))
        return sorted(self._whole(), key=lambda step: step.step)

    @property
    def growing(self) -> bool:
        """Whether somebody may still write."""
        holder = holder_of(self.folder)
        return holder is not None and is_alive(holder, self.folder / LOCK)

    def rest(self) -> list[WatchedStep]:
        """What is left at the end: steps that lack a pipeline whose ranks all died, say."""
        return sorted(self._whole(last=True), key=lambda step: step.step)

    def _read(self, file: Path, tail: _Tail) -> None:
        at = tail.at[0]
        with suppress(OSError):
            if file.stat().st_size <= at:
                return
            with file.open("rb") as stream:
                stream.seek(at)
                data = stream.read()
            if not at and not data.startswith(MAGIC):
                tail.at[0] = len(data)  # of another version, which nobody writes any more
                return
            begin = 0 if at else len(MAGIC)  # half a frame at the end is read again when it has grown
            with suppress(ValueError):
                for found, end in frames(data, begin):
                    self._take(tail, found)
                    begin = end
            tail.at[0] = at + begin

    def _take(self, tail: _Tail, found: Frame) -> None:
        if isinstance(found, Process):
            tail.process[:] = [found]
        elif isinstance(found, Part):
            tail.parts[found.number] = found
        elif tail.process and found.part in tail.parts:
            with suppress(ValueError):
                self._add(tail.process[0], tail.parts[found.part], found)

    def _add(self, process: Process, part: Part, step: Step) -> None:
        (times,) = unpacked([step], len(part.kind))
        if not len(times.start):
            return
        # Hosts share no monotonic clock; walls agree within what ntp leaves, enough to follow and not to diagnose.
        shift = process.wall_ns - process.clock_ns
        busy = times.end - times.start
        if part.joined:
            busy = busy[np.frombuffer(part.joined, np.uint8) == 0]  # a slot of two ops is busy once
        ran = _Ran(
            process.rank,
            int(times.start.min()) + shift,
            int(times.end.max()) + shift,
            int(busy.sum()),
            step.finished - step.begun,
            step.loss,
        )
        kind = (process.run, process.restart, part.engine, part.instance, part.phase, part.microbatches)
        line = tuple(part.pipeline)
        self._parts[kind] = part
        self._lines.setdefault(kind, max(process.world // max(len(line), 1), 1))
        if process.sample is not None:
            self._lines[kind] = len(process.sample)
        self._steps.setdefault((*kind, step.number), {}).setdefault(line, {})[process.rank] = ran

    def _whole(self, last: bool = False) -> Iterator[WatchedStep]:
        newest: dict[tuple[object, ...], int] = {}
        for key in self._steps:
            newest[key[:-1]] = max(newest.get(key[:-1], -1), _number(key))
        for key in sorted(self._steps, key=_number):
            kind, number = key[:-1], _number(key)
            if number <= self._told.get(kind, -1):
                del self._steps[key]  # it was told without this pipeline
                continue
            lines = [ran for line, ran in self._steps[key].items() if len(ran) == len(line)]
            late = last or newest[kind] >= number + _BEHIND
            if lines and (late or len(lines) >= self._lines[kind]):
                del self._steps[key]
                self._told[kind] = number
                yield self._told_of(kind, number, [list(line.values()) for line in lines])

    def _told_of(self, kind: tuple[object, ...], number: int, lines: list[list[_Ran]]) -> WatchedStep:
        part = self._parts[kind]
        windows = [max(ran.last for ran in line) - min(ran.first for ran in line) for line in lines]
        busy = [sum(ran.busy for ran in line) for line in lines]
        shares = [1 - some / max(len(line) * long, 1) for some, line, long in zip(busy, lines, windows, strict=True)]
        everyone = [ran for line in lines for ran in line]
        slowest = max(everyone, key=lambda ran: ran.busy)
        window = sum(windows) / len(windows)
        first = self._windows.setdefault(kind, [])
        if len(first) < AVERAGED:
            first.append(window)
        idle = sum(shares) / len(shares)
        if part.phase == TRAIN:
            self._recent.append(idle)
        losses = [ran.loss for ran in everyone if ran.loss is not None]
        loss = sum(losses) / len(losses) if losses else None
        return WatchedStep(
            step=number,
            phase=part.phase,
            schedule=part.schedule,
            microbatches=part.microbatches,
            pipelines=len(lines),
            window_ms=window / MILLISECOND,
            step_ms=max(ran.length for ran in everyone) / MILLISECOND,
            idle_share=idle,
            bubble_ratio=idle / max(1 - idle, 1e-9),
            slowest_rank=slowest.rank,
            slowest_ratio=slowest.busy * len(everyone) / max(sum(busy), 1),
            drift_share=window / median(first) - 1,
            recent_idle_share=sum(self._recent) / max(len(self._recent), 1),
            recent_steps=len(self._recent),
            loss=loss,
        )


def _number(key: tuple[object, ...]) -> int:
    number = key[-1]
    return number if isinstance(number, int) else 0


def follow(folder: Path, on_step: Callable[[dict[str, Json]], None], warn: Callable[[str], None]) -> Callable[[], None]:
    """Call a function with each step of a recording, from a thread of its own; returns what ends that.

    Args:
        folder: of the recording.
        on_step: gets the keys of ``WatchedStep``; what it raises ends the calls, and nothing else.
        warn: takes a line.
    """
    follower, over, pid = Follower(folder), threading.Event(), os.getpid()

    def tell(steps: list[WatchedStep]) -> bool:
        try:
            for step in steps:
                on_step(step.document())
        except Exception as error:  # the user's function, in the user's job: the job goes on
            warn(f"on_step raised {in_one_line(error)}; it is called no more")
            return False
        return True

    def run() -> None:
        while not over.wait(_POLL_S):
            if not tell(follower.poll()):
                return

    # A daemon: a tracker that hangs must not keep the job from ending.
    thread = threading.Thread(target=run, name="debubble on_step", daemon=True)
    thread.start()

    def end() -> None:
        if os.getpid() != pid or not thread.is_alive():
            return
        over.set()
        thread.join(_LAST_S)
        if not thread.is_alive():
            tell([*follower.poll(), *follower.rest()])

    return end
