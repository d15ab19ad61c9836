"""CUDA: when kernels ran, told by events beside them; nothing in a job ever waits for its device.

    host     record e1, launch F, record e2, ..               the clock gives out numbers: one event for each
    stream        .. e1 [F..........] e2 ..                   they are read when the last event of a step is over

An event is a moment of the device's own clock. What ties that to the host's is that no event is over before the host
has recorded it: of the events of the last second, the one that waited least in the stream's queue tells the difference.
It is right to some microseconds if the queue ran empty once, as where a loop reads its loss, and early by the shortest
wait if it never does. Differences within one device are those of the events, whatever the host did.

The one file that knows events. A clock takes what makes them, so that tests play a device.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ..readers.recording_file import Ints

_TIED_NS = 10**9  # for longer the two clocks may not be taken to run at one speed: 20 in a million are 20 us a second
_LOOK_S = 0.005  # between two looks at the end of a job
_NS = 1e6  # in a millisecond, in which events count

Step = TypeVar("Step")  # what is kept with the events of a step


class Event(Protocol):
    """What ``torch.cuda.Event(enable_timing=True)`` is to us."""

    def record(self) -> None:
        """Put it at the end of the current stream."""

    def query(self) -> bool:
        """Whether the stream has come to it."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""


@dataclass(frozen=True, slots=True, eq=False)
class _Batch(Generic[Step]):
    """The events of one step: the first is that which ended the step before, some may come behind ``last``, its own."""

    step: Step
    events: Sequence[Event]
    hosts: Ints  # the host's clock just before each was recorded, nanoseconds
    last: int


class EventClock(Generic[Step]):
    """A clock whose readings are numbers of events, which become nanoseconds when their step is over.

    Args:
        make: makes an event.
        host: the host's clock, nanoseconds.
    """

    def __init__(self, make: Callable[[], Event], host: Callable[[], int] = time.monotonic_ns) -> None:
        self._make, self._host = make, host
        self._free: list[Event] = []
        self._events: list[Event] = []
        self._hosts = array("q")
        self._cut: deque[_Batch[Step]] = deque()
        self._passed = 0  # device time from the first event of all to the first of the next batch, nanoseconds
        self._offsets: deque[tuple[int, int]] = deque()  # of the last batches: device time, host minus device

    def now(self) -> int:
        """Record an event on the current stream; its number in this step."""
        event = self._free.pop() if self._free else self._make()
        self._hosts.append(self._host())  # before the event: it cannot be over any earlier
        event.record()
        self._events.append(event)
        return len(self._events) - 1

    def cut(self, last: int, step: Step) -> None:
        """A step ends with an event, which is number 0 of the next; the step is kept until its events are over."""
        batch = _Batch(step, self._events, np.array(self._hosts, np.int64), last)
        self._events, self._hosts = [batch.events[last]], array("q", [int(batch.hosts[last])])
        self._cut.append(batch)

    @property
    def pending(self) -> bool:
        """Whether a step was cut whose events are not over."""
        return bool(self._cut)

    def over(self, within_s: float = 0.0) -> Iterator[tuple[Step, Ints | None]]:
        """The steps whose events are over, in their order, with nanoseconds by number of event.

        Args:
            within_s: looks again and again for so long, at the end of a job; else only once.

        Yields:
            Each step; None for its moments if its events tell none, as those in a CUDA graph.
        """
        until = time.monotonic() + within_s
        while self._cut and not is_capturing():  # asking for an event would break the capture
            batch = self._cut[0]
            try:
                # All are of one stream, or of streams that wait for each other: the latest is over last.
                is_over, moments = batch.events[-1].query(), None
                if is_over:
                    moments = self._read(batch)
            except (RuntimeError, ValueError):  # torch raises the latter for events that it cannot time
                is_over, moments = True, None
                self._offsets.clear()
            if is_over:
                self._cut.popleft()
                if moments is not None:  # else whatever the events are part of may hold them
                    self._free.extend(event for number, event in enumerate(batch.events) if number != batch.last)
                yield batch.step, moments
            elif time.monotonic() >= until:
                return
            else:
                time.sleep(_LOOK_S)

    def _read(self, batch: _Batch[Step]) -> Ints:
        """When each event of a batch was over, on the host's clock."""
        first = batch.events[0]
        device = np.array([first.elapsed_time(event) * _NS for event in batch.events]).round().astype(np.int64)
        device += self._passed
        self._passed = int(device[batch.last])
        self._offsets.append((self._passed, int((batch.hosts - device).max())))
        while self._offsets[0][0] < self._passed - _TIED_NS:
            self._offsets.popleft()
        found: Ints = device + max(offset for _, offset in self._offsets)
        return found


def event_clock() -> EventClock[Any]:
    """A clock of the current device; only for a process whose job has imported torch and uses it."""
    cuda = sys.modules["torch"].cuda
    return EventClock(lambda: cuda.Event(enable_timing=True))


def is_capturing() -> bool:
    """Whether what runs now goes into a CUDA graph, where events tell no time."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_current_stream_capturing())
