"""A session: one process of a job that is being recorded, from its first hook to its last line.

    adapter (an engine's hooks) --ops, waits, posts--> tape --a whole step--> writer --> DIR/rank-00000.msgpack

An adapter says when a step begins and ends, and at its end what it was: whose stages, of which pipeline, in how many
micro-batches. A step that lacks an op is not written, and why is said once. The first step of a pipeline is left out:
it holds connections and the exchange of shapes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec

from ..core.errors import InputError, in_one_line
from ..core.results import Result
from ..readers.recording_file import (
    EVALUATION,
    TRAIN,
    Ints,
    Part,
    Process,
    Whole,
    pack,
    packed,
    track_files,
    track_path,
)
from .cuda import EventClock, event_clock, is_capturing
from .place import Axes, is_on_gpu, launch_of, process_of, queue_ns, restarts
from .tape import Measured, Rows, Tape
from .wishes import Wish
from .writer import Writer, head_of

_EVIDENCE_NS = 10**9  # how often the processor's time is asked for
_LAST_S = 2.0  # for which the end of a job waits for its device
_TRIED = 2000  # empty ops from which the cost of one is told


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """What an engine says of a step that ended.

    Args:
        engine: ``torch``, ``megatron``, ``deepspeed``; ``version`` of its package.
        version: of its package.
        schedule: as the engine calls it.
        microbatches: in the step.
        pipeline: ranks of the job by position.
        placement: position of each stage.
        axes: coordinates of this process.
        switches: of the engine, by its own names.
        unseen: why ops may be missing, a clause; empty if nothing is known.
    """

    engine: str
    version: str
    schedule: str
    microbatches: int
    pipeline: Sequence[int]
    placement: Sequence[int]
    axes: Axes
    switches: dict[str, Whole] = field(default_factory=dict)
    unseen: str = ""

    @property
    def package(self) -> str:
        """Who ran it, with its version; engines that differ in how they communicate are one package."""
        return f"{self.engine.partition('-')[0]} {self.version}"


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """A step that ended: what it was, its number, its rows, and the optimizer's steps so far, if they are seen."""

    seat: Seat
    number: int
    rows: Rows
    updates: int | None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Recorded(Result):
    """What was recorded, as the first process knows it.

    Args:
        recording: its folder.
        engine: with its version.
        steps: that were written.
        ranks: of a pipeline.
        replicas: of the pipeline; None where the engine does not tell.
        overhead_share: the recorder's time over the job's.
        evidence: of that share: ops are counted, the cost of one is tried.
    """

    schema: ClassVar[str] = "record/1"

    recording: str
    engine: str
    steps: int
    ranks: int
    replicas: int | None
    overhead_share: float
    evidence: str = "estimated"


class Session:
    """One process that is recorded.

    Args:
        wish: what is to be recorded.
        say: takes a line for people.
        events: makes a clock of events for a pipeline on a GPU.
    """

    def __init__(
        self,
        wish: Wish,
        say: Callable[[str], None] | None = None,
        events: Callable[[], EventClock[Any]] = event_clock,
    ) -> None:
        self.wish, self.tape = wish, Tape()
        self.on = True  # whether hooks do anything
        self.open = False  # whether a step is under way
        self.engines: dict[str, str] = {}  # versions of those that are hooked, by name
        self.written = self.seen = 0  # steps
        self.first_seat: Seat | None = None
        self.process: Process | None = None
        self.at_close: list[Callable[[], None]] = []  # of adapters, which may hold a step whose end nobody tells
        self._say = say or _to_stderr
        self._pid = os.getpid()
        self._writer: Writer | None = None
        self._numbers: dict[int, int] = {}  # steps so far, by instance
        self._instances: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # weak: a model must be able to go
        self._counted = 0
        self._parts: dict[tuple[Any, ...], Part] = {}
        self._owner, self._fresh = 0, False
        self._met: set[tuple[int, Hashable]] = set()
        self._ended: int | None = None  # when the step before did
        self._make_clock = events
        self._events: EventClock[_Ended | None] | None = None
        self._on_gpu: bool | None = None  # whether the pipelines compute on one; the first decides
        self._updates: int | None = None
        self._evidence: tuple[int, int, int | None] | None = None  # since the first step that is written
        self._said: set[str] = set()  # a line of a hook would else come with every op
        self._lost: dict[str, int] = {}  # steps that were not written, by the reason
        self._ops, self._own_ns, self._began = 0, 0, time.monotonic_ns()

    # What adapters call.

    def begin(self, owner: object, variety: Hashable = None) -> bool:
        """A step of a pipeline begins; false if nothing of it is to be recorded.

        Args:
            owner: an object that lives as long as the pipeline, a model say.
            variety: what tells steps apart of which the engine prepares the first, by connections or shapes.
        """
        if not self.on or os.getpid() != self._pid:
            return False
        if not self._times(owner):
            return False
        if self._events is not None and is_capturing():
            self._lose("a CUDA graph was captured in it, where events tell no time")
            return False
        self._owner = self._instance(owner)
        self._fresh = (self._owner, variety) not in self._met
        self._met.add((self._owner, variety))
        self.tape.begin()
        self.open = True
        return True

    def end(self, seat_of: Callable[[], Seat], finished: int | None = None) -> None:
        """The step ends: it is written if it is whole and wanted.

        Args:
            seat_of: says what it was; asked only if it is wanted.
            finished: when it ended, on the tape's clock; now if not given.
        """
        self.open = False
        number = self._numbers.get(self._owner, 0)
        self._numbers[self._owner] = number + 1
        self.seen += 1
        if finished is None:
            finished = self.tape.now()
        began, self._ended = self._ended, finished
        if began is None:  # the first step: what was before it is not known to be of it
            began = self.tape.begun
        self._ops += self.tape.count
        own = time.monotonic_ns()
        rows = self.tape.take(began, finished)
        step = None
        if self.wish.takes(number, self._fresh):
            step = _Ended(seat_of(), number, rows, self._updates)
        if self._events is not None:
            self._events.cut(finished, step)
            self._ended = 0  # the same event, as the next step counts
            self._write_late(self._events)
        elif step is not None:
            self._write(step)
        self._own_ns += time.monotonic_ns() - own

    def drop(self) -> None:
        """The step that is under way is not one to record."""
        self.open = False

    def add_outside(self, what: str, began: int) -> None:
        """Since a reading of the clock the process was outside the pipeline: in LOAD, REDUCTION or OPTIMIZER."""
        self.tape.outside(what, began)

    def now_if_open(self) -> int | None:
        """The tape's clock; None outside a step."""
        return self.tape.now() if self.open else None

    def updated(self) -> None:
        """The optimizer took a step."""
        self._updates = (self._updates or 0) + 1

    def failed(self, error: Exception) -> None:
        """A hook went wrong: nothing more is recorded, in one line, and the job goes on."""
        self.on = self.open = False
        engines = ", ".join(f"{name} {version}" for name, version in self.engines.items()) or "no engine"
        self.warn(f"recording ends here ({engines}): {in_one_line(error)}")

    def warn(self, line: str, *, everywhere: bool = False) -> None:
        """Say a line once, in the first process of a host, or in this one whichever it is."""
        if line not in self._said and (everywhere or os.environ.get("LOCAL_RANK", "0") == "0"):
            self._say(f"debubble: {line}\n")
        self._said.add(line)

    def take(self, seat: Seat, measured: Measured, number: int, outside: dict[str, int | None]) -> None:
        """Write a step that has been measured."""
        self.first_seat = self.first_seat or seat
        mine = [stage for stage, rank in enumerate(seat.placement) if seat.pipeline[rank] == self._who(seat).rank]
        if why := measured.missing(mine, seat.microbatches):
            reason = f"{seat.package}: {why}"
            if seat.unseen:
                reason += f" ({seat.unseen})"
            self._lose(reason)
            return
        if self.wish.replicas is not None and seat.axes.get("data", (0, 1))[0] not in self.wish.replicas:
            self._lost["its replica is not among --replicas"] = 1
            return
        beside = {**outside, **self._pressure()}
        step = packed(number, 0, measured.begun, measured.finished, measured.times, **beside)
        try:
            if self._writer is None:
                self._writer = Writer(self.wish.out, self._who(seat), self.wish.keep)
            self._writer.add(self._part(seat, measured), step)
        except InputError as error:
            self.on = False
            self.warn(f"this run is not recorded: {error.faults[0]}")
            return
        except OSError as error:
            self.on = False
            self.warn(f"recording ends here: {self.wish.out}: {error.strerror or error}; steps so far are whole")
            return
        self.written += 1

    # The end.

    def close(self, *, raised: bool = False) -> None:
        """Nothing more will come; says in one line what was recorded, or why nothing was.

        Args:
            raised: whether the job ends by an exception here. Then this process says it too, whatever its rank: its
                launcher may kill the first one before that can.
        """
        if os.getpid() != self._pid:  # a fork of the job, which inherits what is called at its end
            return
        if self.on:
            self._end_open_steps()
        if self._events is not None:
            self._write_late(self._events, _LAST_S)
        self.on = False
        if self._writer is not None:
            self._writer.close()
        if line := self.summary(raised=raised):
            self.warn(line, everywhere=raised)

    def _end_open_steps(self) -> None:
        for end in self.at_close:
            try:
                end()
            except Exception as error:  # as in a hook
                self.failed(error)

    def summary(self, *, raised: bool = False) -> str:
        """What was recorded, a line; empty where another process says it, or that had nothing to do with a pipeline."""
        if self.process is not None and self.process.rank and not raised:
            return ""
        lost = "; ".join(f"{count} not written, {why}" for why, count in self._lost.items())
        if self.written and self.first_seat is not None:
            engine, steps = self.first_seat.package, _count(self.written, "step")
            said = [f"recorded {steps} of {engine} in {self.wish.out}", lost, f"debubble diagnose {self.wish.out}"]
            return "; ".join(filter(None, said))
        if lost:
            return f"no step was recorded: {lost}"
        if self.seen:
            return f"no step was recorded of {_count(self.seen, 'step')}: the first of a pipeline is left out"
        if self.engines:
            engines = ", ".join(f"{name} {version}" for name, version in self.engines.items())
            return f"no step was recorded: no pipeline of {engines} was run in this process"
        return ""

    def result(self) -> Recorded | None:
        """The same as keys; None in a process that does not speak for all, and where nothing was recorded."""
        seat = self.first_seat
        if self.process is None or self.process.rank or seat is None:
            return None
        return Recorded(
            recording=str(self.wish.out),
            engine=seat.package,
            steps=self.written,
            ranks=len(seat.pipeline),
            replicas=seat.axes["data"][1] if "data" in seat.axes else None,
            overhead_share=self.overhead_share(),
        )

    def overhead_share(self) -> float:
        """The recorder's share of the job's time so far: ops by a cost that is tried here, steps as written."""
        tape = Tape()
        began = time.perf_counter_ns()
        for unit in range(_TRIED):
            tape.close(tape.open(0, 0, unit))
        an_op = (time.perf_counter_ns() - began) / _TRIED
        return (self._ops * an_op + self._own_ns) / max(time.monotonic_ns() - self._began, 1)

    # Pipelines on GPUs: the host only launches kernels, and its times of ops are not those of the device.

    def _times(self, owner: object) -> bool:
        """Whether a pipeline can be timed: all of a process are on CPUs, or all are on GPUs."""
        if owner in self._instances:
            return True
        on_gpu = is_on_gpu(owner)
        if self._on_gpu is None:
            self._on_gpu = on_gpu
            if on_gpu:
                self._events = self._make_clock()
                self.tape.use(self._events.now)
        if on_gpu != self._on_gpu:
            self.warn("pipelines on CPUs and on GPUs run in one process: only the first of them is recorded")
        return on_gpu == self._on_gpu

    def _write_late(self, clock: EventClock[_Ended | None], within_s: float = 0.0) -> None:
        """Write the steps whose events are over; at the end of a job, those that will be within a while."""
        for step, moments in clock.over(within_s):
            if step is None or not self.on:
                continue
            if moments is None:
                self._lose(f"{step.seat.package}: its events cannot be read")
            else:
                self._write(step, moments.take)
        if within_s and clock.pending:
            self._lose("the device was not done with the last ones when the job ended")

    def _lose(self, reason: str) -> None:
        """A step is not written."""
        self._lost[reason] = self._lost.get(reason, 0) + 1

    def _write(self, step: _Ended, resolve: Callable[[Ints], Ints] | None = None) -> None:
        """Write a step, once readings of its clock are nanoseconds or can be turned into them."""
        outside = {**step.rows.outside(resolve), "update": step.updates}
        self.take(step.seat, step.rows.measured(resolve), step.number, outside)

    # What a step is written with.

    def _who(self, seat: Seat) -> Process:
        if self.process is None:
            sample = None
            if self.wish.replicas is not None and "data" in seat.axes:  # else this one's replica is not known
                sample = list(self.wish.replicas)
            self.process = process_of(self._earlier(), sample)
            if not self._on_gpu:  # the job may use one for something else
                self.process = msgspec.structs.replace(self.process, device="cpu")
        return self.process

    def _earlier(self) -> str | None:
        """The run of which this is a restart, if an earlier start of it left a file here."""
        launch = launch_of()
        if not restarts() or not launch:
            return None
        rank = int(os.environ.get("RANK", "0"))
        heads = [head_of(file) for file in [track_path(self.wish.out, rank), *track_files(self.wish.out)[:1]]]
        return next((head.run for head in heads if head is not None and head.launch == launch), None)

    def _part(self, seat: Seat, measured: Measured) -> Part:
        order = (measured.kind.tobytes(), measured.stage.tobytes(), measured.unit.tobytes())
        key = (self._owner, measured.trains, seat.schedule, seat.microbatches, *order)
        if key not in self._parts:
            self._parts[key] = Part(
                number=0,
                engine=seat.engine,
                version=seat.version,
                switches=seat.switches,
                instance=self._owner,
                phase=TRAIN if measured.trains else EVALUATION,
                schedule=seat.schedule,
                microbatches=seat.microbatches,
                pipeline=list(seat.pipeline),
                axes=seat.axes,
                placement=pack(list(seat.placement), "i4"),
                kind=pack(measured.kind, "u1"),
                stage=pack(measured.stage, "i4"),
                unit=pack(measured.unit, "i4"),
                joined=None if measured.joined is None else pack(measured.joined, "u1"),
            )
        return self._parts[key]

    def _instance(self, owner: object) -> int:
        number = self._instances.get(owner)
        if number is None:
            number = self._instances[owner] = self._counted
            self._counted += 1
        return number

    def _asked(self) -> tuple[int, int, int | None]:
        return time.monotonic_ns(), time.process_time_ns(), queue_ns()

    def _pressure(self) -> dict[str, int | None]:
        """Processor time and time in its queue since it was last asked for, about once a second."""
        now = time.monotonic_ns()
        if self._evidence is None:
            self._evidence = self._asked()
        since, used, queued = self._evidence
        if now - since < _EVIDENCE_NS:
            return {}
        self._evidence = (_, used_now, queued_now) = self._asked()
        waited = None
        if queued is not None and queued_now is not None:
            waited = max(queued_now - queued, 0)  # a thread that has ended takes its share along
        return {"cpu": used_now - used, "queued": waited, "since": now - since}


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def _to_stderr(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(line)
        sys.stderr.flush()
