"""The tape: what one process measures in a step, as integers in memory that was taken beforehand.

    row     code     start   end    posted      an op: kind, stage, micro-batch; when its output was posted
    0       F 0 0    t0      t1     t2
    1       F 0 1    ..
    wait    code     began   ended              a wait: what was waited for, and before which row

A tape knows no engine and no file. Times are what its clock reads: nanoseconds of the monotonic clock, or numbers of
CUDA events that are turned into nanoseconds later, so that nothing in a step waits for a device.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.schedule import Kind
from ..readers.recording_file import NOT_SENT, Ints, Times

LOAD, REDUCTION, OPTIMIZER = OUTSIDE = "load", "reduction", "optimizer"  # what a process does beside its pipeline
RECEIVE, SEND, BOTH = range(3)  # what a wait was for, the rows of ``Times.waits``
_ROW, _WAIT = 4, 3  # integers of an op, of a wait
_OPS = 4096  # for which there is room from the beginning; it doubles
# One integer for kind, stage and micro-batch: a tuple would be an object an op.
_KINDS, _STAGES = 8, 1 << 20  # a code is (unit * _STAGES + stage) * _KINDS + 2 * kind + joined


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One step of one process, in the order in which its ops started.

    Args:
        kind: uint8[ops].
        stage: int32[ops]; ``unit`` the micro-batch likewise.
        joined: bool[ops], true where an op shares its slot with the one before; None if none does.
        times: of the ops, nanoseconds.
        begun: when the step began; ``finished`` when it ended.
    """

    kind: NDArray[np.uint8]
    stage: NDArray[np.int32]
    unit: NDArray[np.int32]
    joined: NDArray[np.bool_] | None
    times: Times
    begun: int
    finished: int

    @property
    def trains(self) -> bool:
        """Whether a backward ran."""
        return bool((self.kind != Kind.F).any())

    def missing(self, stages: Sequence[int], microbatches: int) -> str:
        """What is not there of a whole step, a clause; empty if all is.

        A whole step has F of each stage and micro-batch, and then no backward, B of each, or I and W of each.

        Args:
            stages: of this process.
            microbatches: of a step.
        """
        cells = {stage * microbatches + unit for stage in stages for unit in range(microbatches)}
        key = self.stage.astype(np.int64) * microbatches + self.unit
        seen = [key[self.kind == kind].tolist() for kind in (Kind.F, Kind.I, Kind.W, Kind.B)]
        forward, halves, weights, whole = map(set, seen)
        if len(self.kind) != sum(map(len, (forward, halves, weights, whole))):
            return "an op ran twice"
        if self.unit.max(initial=0) >= microbatches or not forward >= cells:
            return f"{len(forward)} of {len(cells)} forwards were seen"
        if halves & whole or halves | whole not in (set(), cells) or halves != weights:
            return f"{len(whole) + len(halves)} of {len(cells)} backwards and {len(weights)} weight gradients were seen"
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a tape holds of a step, as it was written: readings of its clock, which may not be nanoseconds.

    Args:
        ops: code, start, end and post of each op, int64[ops, 4].
        waits: code, beginning and end of each wait, int64[waits, 3].
        bounds: beginning and end of the step, int64[2].
        spans: beginning and end of each time outside the pipeline, int64[.., 2], by what it was for; what the engine
            never shows is not in it.
    """

    ops: Ints
    waits: Ints
    bounds: Ints
    spans: dict[str, Ints]

    def measured(self, resolve: Callable[[Ints], Ints] | None = None) -> Measured:
        """The ops as columns; ``resolve`` turns readings into nanoseconds."""
        return columns(self.ops, self.waits, self.bounds, resolve)

    def outside(self, resolve: Callable[[Ints], Ints] | None = None) -> dict[str, int | None]:
        """Time outside the pipeline by what it was for, nanoseconds; None where it is not known."""
        spent: dict[str, int | None] = dict.fromkeys(OUTSIDE)
        for what, spans in self.spans.items():
            if resolve is not None:
                spans = resolve(spans)
            spent[what] = int((spans[:, 1] - spans[:, 0]).sum())
        return spent


class Tape:
    """Room for the ops and waits of a step.

    Args:
        now: reads the clock.
    """

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self.now = now
        self._ops, self._waits = array("q", bytes(8 * _ROW * _OPS)), array("q", bytes(8 * _WAIT * _OPS))
        self._rows: dict[int, int] = {}  # of each code, for posts
        self._spans: dict[str, list[int]] = {}  # outside the pipeline, since the step before; of all that was ever seen
        self.count = self._waited = 0
        self.begun = 0

    def begin(self) -> None:
        """A step begins: forget the one before."""
        self.count = self._waited = 0
        self._rows.clear()
        self.begun = self.now()

    def open(self, kind: int, stage: int, unit: int, at: int | None = None, joined: bool = False) -> int:
        """An op starts, now or at a given time; returns its row."""
        row = self.count
        at_row = row * _ROW
        if at_row + _ROW > len(self._ops):
            self._ops.extend(self._ops)  # only the first steps of a job ever come here
        code = (unit * _STAGES + stage) * _KINDS + 2 * kind + joined
        ops = self._ops
        ops[at_row] = code
        ops[at_row + 1] = ops[at_row + 2] = self.now() if at is None else at
        ops[at_row + 3] = NOT_SENT
        self._rows[code >> 1] = row
        self.count = row + 1
        return row

    def close(self, row: int, at: int | None = None) -> None:
        """The op of a row ends, now or at a given time; called again, it ends later."""
        self._ops[row * _ROW + 2] = self.now() if at is None else at

    def extend(self, kind: int, stage: int, unit: int) -> None:
        """An op that was closed goes on until now: its loss, say."""
        row = self._rows.get(((unit * _STAGES + stage) * _KINDS + 2 * kind) >> 1)
        if row is not None:
            self.close(row)

    def post(self, kind: int, stage: int, unit: int) -> None:
        """The output of an op is handed to whoever sends it; the first time counts."""
        row = self._rows.get(((unit * _STAGES + stage) * _KINDS + 2 * kind) >> 1)
        if row is not None and self._ops[row * _ROW + 3] == NOT_SENT:
            self._ops[row * _ROW + 3] = self.now()

    def wait(self, which: int, began: int, ended: int | None = None) -> None:
        """The process stood in a wait of one of ``RECEIVE, SEND, BOTH`` since ``began``."""
        at = self._waited * _WAIT
        if at + _WAIT > len(self._waits):
            self._waits.extend(self._waits)
        waits = self._waits
        waits[at] = self.count * 3 + which
        waits[at + 1] = began
        waits[at + 2] = self.now() if ended is None else ended
        self._waited += 1

    def use(self, now: Callable[[], int]) -> None:
        """Read another clock from now on: what the one before told is of no use beside it."""
        self.now = now
        self._spans.clear()

    def outside(self, what: str, began: int) -> None:
        """The process was outside the pipeline since ``began``, in one of ``OUTSIDE``."""
        self._spans.setdefault(what, []).extend((began, self.now()))

    def take(self, begun: int, finished: int) -> Rows:
        """The step as it is; times outside the pipeline are counted anew from here.

        Args:
            begun: when it began, on the tape's clock; ``finished`` when it ended.
            finished: likewise.
        """
        spans = {what: np.array(ends, np.int64).reshape(-1, 2) for what, ends in self._spans.items()}
        for ends in self._spans.values():
            ends.clear()
        return Rows(*self.rows(), np.array([begun, finished], np.int64), spans)

    def repeats(self, kind: int, stage: int, unit: int) -> bool:
        """Whether an op is on the tape already: then another step has begun without a word."""
        return ((unit * _STAGES + stage) * _KINDS + 2 * kind) >> 1 in self._rows

    def last_end(self) -> int:
        """When the op that was opened last ended; when the step began if there is none."""
        return self._ops[self.count * _ROW - 2] if self.count else self.begun

    def units(self) -> int:
        """How many micro-batches ran, if their numbers begin at 0."""
        return 1 + max((code // (_KINDS // 2) // _STAGES for code in self._rows), default=-1)

    def read(self, begun: int, finished: int, resolve: Callable[[Ints], Ints] | None = None) -> Measured:
        """The step as columns.

        Args:
            begun: when it began, on the tape's clock; ``finished`` when it ended.
            finished: likewise.
            resolve: turns readings of the clock into nanoseconds; None where they are such.
        """
        return columns(*self.rows(), np.array([begun, finished], np.int64), resolve)

    def rows(self) -> tuple[Ints, Ints]:
        """The rows of the ops and of the waits so far, as they are: int64[ops, 4] and int64[waits, 3]."""
        ops = np.array(self._ops[: self.count * _ROW], np.int64).reshape(-1, _ROW)
        waits = np.array(self._waits[: self._waited * _WAIT], np.int64).reshape(-1, _WAIT)
        return ops, waits


def columns(ops: Ints, waits: Ints, bounds: Ints, resolve: Callable[[Ints], Ints] | None = None) -> Measured:
    """Rows of a tape as columns, by the start of the ops.

    Args:
        ops: code, start, end and post of each op, int64[ops, 4].
        waits: code, beginning and end of each wait, int64[waits, 3].
        bounds: beginning and end of the step, int64[2].
        resolve: turns readings of the clock into nanoseconds.
    """
    code, sent = ops[:, 0], ops[:, 3] != NOT_SENT
    start, end, posted = ops[:, 1], ops[:, 2], ops[:, 3]
    stood = waits[:, 2] - waits[:, 1]
    if resolve is not None:
        start, end, bounds = resolve(start), resolve(end), resolve(bounds)
        posted = np.where(sent, resolve(np.where(sent, posted, 0)), NOT_SENT)
        stood = resolve(waits[:, 2]) - resolve(waits[:, 1])
    summed = np.zeros((3, len(ops) + 1), np.int64)
    np.add.at(summed, (waits[:, 0] % 3, waits[:, 0] // 3), np.maximum(stood, 0))
    joined = (code & 1).astype(np.bool_)
    cell = code // _KINDS
    times = Times(start, end, summed[:, :-1], posted, (int(summed[0, -1]), int(summed[1, -1]), int(summed[2, -1])))
    return Measured(
        kind=((code >> 1) % (_KINDS // 2)).astype(np.uint8),
        stage=(cell % _STAGES).astype(np.int32),
        unit=(cell // _STAGES).astype(np.int32),
        joined=joined if joined.any() else None,
        times=times,
        begun=int(bounds[0]),
        finished=int(bounds[1]),
    )
