"""Watches: when each op of one rank starts and ends, and how long it stands in a receive before it.

    receive   began -------- input is there
    op                                       start ---- end

A CPU watch reads the monotonic clock, which all processes of one host share. It can also *pace*: the rank then plays
a device whose ops take given durations. Such a device starts an op the moment the one before it has ended and its
input is there, a hop after it was made, as a GPU with a queue of kernels does. What Python, sockets and the overshoot
of sleeps add is made up for: each op is reckoned from when it was due, not from when Python came to it. But only up
to a tenth of an op; beyond that the machine was too slow to play the device, and the op really starts or ends late.

A CUDA watch records events on the current stream, behind the receive that the stream waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..recorder.tape import BOTH, RECEIVE, SEND
from .heartbeat import Pulse, State

_STANDS = {RECEIVE: State.RECEIVE, SEND: State.SEND, BOTH: State.BOTH}

# A tenth of an op is made up for. With less, the overshoot of each sleep would add up along the pipeline; with more, a
# machine that cannot keep up would look like one that can.
_MADE_UP = 10


class Watch(Protocol):
    """What the engine tells a watch, in the order in which it happens."""

    def begin_step(self) -> None:
        """Forget the step before."""

    def receive(self, works: Sequence[dist.Work], sent: Callable[[], int]) -> None:
        """Wait for an input; ``sent`` says, once it has come, when it was made, in nanoseconds."""

    def begin(self) -> None:
        """The next op starts to compute."""

    def end(self) -> None:
        """It has computed."""

    def last_end(self) -> int:
        """When the latest op ended, nanoseconds."""

    def moment(self) -> int:
        """When the rank would be where it is, were its device as it is paced, nanoseconds."""

    def stand(self, complete: Callable[[], int], which: int) -> None:
        """Wait for transfers; ``complete`` says when they end, ``which`` is one of ``RECEIVE, SEND, BOTH``."""

    def times(self) -> NDArray[np.int64]:
        """Start, end and time waited in receives, in sends and in both of each op, int64[5, ops], nanoseconds."""


class Noted:
    """A watch that notes besides what the process is in.

    Args:
        watch: that measures.
        pulse: where to note it.
    """

    def __init__(self, watch: Watch, pulse: Pulse) -> None:
        self._watch, self._pulse, self._row = watch, pulse, 0

    def begin_step(self) -> None:
        """Forget the step before."""
        self._row = 0
        self._watch.begin_step()

    def receive(self, works: Sequence[dist.Work], sent: Callable[[], int]) -> None:
        """Wait for an input."""
        self._pulse.enter(State.RECEIVE, self._row)
        self._watch.receive(works, sent)
        self._pulse.enter(State.BETWEEN, self._row)

    def begin(self) -> None:
        """The next op starts to compute."""
        self._pulse.enter(State.OP, self._row)
        self._watch.begin()

    def end(self) -> None:
        """It has computed."""
        self._watch.end()
        self._row += 1
        self._pulse.enter(State.BETWEEN, self._row)

    def last_end(self) -> int:
        """When the latest op ended, nanoseconds."""
        return self._watch.last_end()

    def moment(self) -> int:
        """When the rank would be where it is."""
        return self._watch.moment()

    def stand(self, complete: Callable[[], int], which: int) -> None:
        """Wait for transfers."""
        self._pulse.enter(_STANDS[which], self._row)
        self._watch.stand(complete, which)
        self._pulse.enter(State.BETWEEN, self._row)

    def times(self) -> NDArray[np.int64]:
        """Start, end and three times waited of each op, int64[5, ops], nanoseconds."""
        return self._watch.times()


class CpuWatch:
    """Reads the monotonic clock; stretches ops and delays arrivals where asked to.

    Args:
        ops: of this rank in one step.
        pace: duration of each, nanoseconds, int64[ops], or None.
        hops: delay of the arrival of each op's input, nanoseconds, int64[ops], or None.
    """

    def __init__(self, ops: int, pace: NDArray[np.int64] | None = None, hops: NDArray[np.int64] | None = None) -> None:
        self._pace = None if pace is None else [int(duration) for duration in pace]
        self._hops = [0] * ops if hops is None else [int(hop) for hop in hops]
        self._start, self._end = [0] * ops, [0] * ops
        self._waited = np.zeros((3, ops), np.int64)
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the step before."""
        self._row = -1
        self._arrived = 0
        self._stood = [0, 0, 0]  # before the next op: in receives, in sends, in both at once
        self._ended = self._due = 0

    def receive(self, works: Sequence[dist.Work], sent: Callable[[], int]) -> None:
        """Wait for an input, and until a hop after it was made.

        The rank stands still meanwhile, but it could do nothing else: the order of its ops is fixed and the next one
        needs this input. An input that was made long ago is not delayed again.
        """
        began = time.monotonic_ns()
        for work in works:
            work.wait()
        made = sent()
        hop = self._hops[self._row + 1]  # of the op that comes next
        if hop:
            _sleep_until(made + hop)
        now = time.monotonic_ns()
        self._stood[RECEIVE] += now - began
        self._arrived = now
        if made:
            self._arrived = made + hop

    def begin(self) -> None:
        """The next op starts: now, or, paced, as soon as its device is free and its input there."""
        self._row += 1
        now = time.monotonic_ns()
        if self._pace is None:
            self._start[self._row] = now
        else:
            tenth = self._pace[self._row] // _MADE_UP
            nominal = now  # of the first op: the step begins when Python comes to it
            if self._row:
                nominal = max(self._due, self._arrived, now - tenth)
            self._start[self._row] = max(nominal, self._ended)
            # From when it was due, not from when Python came to it: else each op would pass its lateness on.
            self._due = nominal + self._pace[self._row]
        self._waited[:, self._row] = self._stood
        self._stood, self._arrived = [0, 0, 0], 0

    def end(self) -> None:
        """The op has computed; paced, it lasts until it is due."""
        if self._pace is not None:
            _sleep_until(self._due)
        self._ended = self._end[self._row] = time.monotonic_ns()
        if self._pace is not None:
            self._due = max(self._due, self._ended - self._pace[self._row] // _MADE_UP)

    def last_end(self) -> int:
        """When the latest op ended, nanoseconds."""
        return self._ended

    def moment(self) -> int:
        """When the rank would be where it is: now, or, paced, when what it did last was due."""
        due = max(self._due, self._arrived)
        if self._pace is None or not due:
            return time.monotonic_ns()
        return due

    def stand(self, complete: Callable[[], int], which: int) -> None:
        """Wait for transfers until they end by their links; one that ended long ago delays nothing."""
        began = time.monotonic_ns()
        ends = complete()
        _sleep_until(ends)
        self._stood[which] += time.monotonic_ns() - began
        self._arrived = max(self._arrived, ends)

    def times(self) -> NDArray[np.int64]:
        """Start, end and three times waited, int64[5, ops]."""
        return np.vstack([np.array([self._start, self._end], np.int64), self._waited])


class CudaWatch:
    """Records events and reads them after the step; kernels of an op lie between its two.

    Args:
        ops: of this rank in one step.
    """

    def __init__(self, ops: int) -> None:
        self._starts, self._ends = _events(ops), _events(ops)
        self._waits, self._arrivals = _events(ops), _events(ops)
        (self._origin,) = _events(1)
        self.begin_step()

    def begin_step(self) -> None:
        """Tie the stream's clock to the host's."""
        self._row, self._received = 0, [False] * len(self._starts)
        torch.cuda.synchronize()  # this job is ours; in anybody else's nothing ever waits for a device
        self._origin.record()
        self._origin_ns = time.monotonic_ns()

    def receive(self, works: Sequence[dist.Work], sent: Callable[[], int]) -> None:  # noqa: ARG002 - hops are for CPUs
        """Let the stream wait; the host does not."""
        self._waits[self._row].record()
        for work in works:
            work.wait()
        self._arrivals[self._row].record()
        self._received[self._row] = True

    def begin(self) -> None:
        """The next op's kernels follow."""
        self._starts[self._row].record()

    def end(self) -> None:
        """They are enqueued."""
        self._ends[self._row].record()
        self._row += 1

    def last_end(self) -> int:
        """Not known before the stream has been waited for."""
        return 0

    def moment(self) -> int:
        """Not asked for: links are slow on CPUs only."""
        return time.monotonic_ns()

    def stand(self, complete: Callable[[], int], which: int) -> None:
        """Not asked for either."""

    def times(self) -> NDArray[np.int64]:
        """Start, end and three times waited, int64[5, ops], on the host's clock."""
        torch.cuda.synchronize()
        measured = np.zeros((5, len(self._starts)), np.int64)
        for row, received in enumerate(self._received):
            measured[0, row] = self._origin_ns + self._since(self._starts[row])
            measured[1, row] = self._origin_ns + self._since(self._ends[row])
            if received:  # the events of a receive that never was were not recorded in this step
                measured[2, row] = self._since(self._arrivals[row]) - self._since(self._waits[row])
        return measured

    def _since(self, event: torch.cuda.Event) -> int:
        return round(float(self._origin.elapsed_time(event)) * 1e6)


def _events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]


def _sleep_until(moment: int) -> None:
    left = moment - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)
