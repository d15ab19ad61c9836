"""``watch``: follows a recording while its job runs, a line a step."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import Fault, InputError
from ..recorder.follow import AVERAGED, Follower, WatchedStep
from .arguments import Duration, duration, share

_POLL_S = 0.5
_SECOND = 1e9


def watch(
    recording: str | os.PathLike[str], *, wait: Duration = "1min", gate: str | float | None = None
) -> Iterator[WatchedStep]:
    """Follow a recording that grows, and one that is finished to its end.

        >>> for step in debubble.watch("runs/now"):
        ...     print(step.step, step.idle_share, step.slowest_rank)

    Each step comes once, when all ranks of its pipelines have written it; nothing is read twice. It ends when the job
    has.

    Args:
        recording: folder of the recording.
        wait: for the first step, if nothing is there yet.
        gate: the most that the last 10 steps may idle, as in ``30%``; the first step above it is the last that comes.

    Raises:
        InputError: no recording appears.
    """
    limit = None if gate is None else share(gate, "gate")
    folder, until = Path(recording), time.monotonic() + duration(wait, "wait") / _SECOND
    follower, seen = Follower(folder), False
    while True:
        growing = follower.growing  # asked before the poll: what is written in between is read by it
        for step in follower.poll():
            seen = True
            yield step
            if limit is not None and step.recent_steps == AVERAGED and step.recent_idle_share > limit:
                return
        if not growing and (seen or any(folder.glob("rank-*.msgpack")) or time.monotonic() > until):
            break
        time.sleep(_POLL_S)
    for step in follower.rest():
        seen = True
        yield step
    if not seen:
        raise InputError(Fault(str(folder), "no step of a recording is there", "give the folder that record writes to"))
