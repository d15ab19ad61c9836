"""``record`` measures the pipeline of your own job from inside, with no line of it changed; ``watch`` follows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..core.errors import Fault, InputError
from ..core.results import Json
from ..recorder.follow import AVERAGED, Follower, WatchedStep
from ..recorder.start import Recording, running
from ..recorder.wishes import wish_of
from .arguments import Duration, duration, share


def record(
    out: str | os.PathLike[str],
    *,
    steps: str = "",
    every: int | str = 1,
    keep: int | str = "",
    replicas: str = "",
    on_step: Callable[[dict[str, Json]], None] | None = None,
) -> Recording:
    """Record the pipeline of this process from now on: torch.distributed.pipelining, Megatron-Core, DeepSpeed.

        >>> with debubble.record("runs/now"):            # or, until the job ends: debubble.record("runs/now")
        ...     train()

    Every process of the job calls it, before or after it imports its engine. Nothing is raised into the job, no
    collective is called, no tensor is held. ``debubble diagnose runs/now`` reads what was written.

    Args:
        out: folder of the recording, the same for all processes; hosts without a shared disk have one each.
        steps: the first and the last, as in ``10:20``; by default all but the first of each pipeline, which connects.
        every: record one step in so many.
        keep: the most that each process keeps on disk: the newest so many steps, or a size as in ``20MB``.
        replicas: record a sample of the data-parallel replicas, as in ``0,7``.
        on_step: called in the first process, from a thread, with the keys of ``debubble watch --json`` for each step.

    Returns:
        The recording, which ends with the process, at the end of a ``with``, or with ``close()``.

    Raises:
        InputError: an option that cannot be, all at once.
    """
    if (already := running()) is not None:
        return already  # started by DEBUBBLE_RECORD or by the verb: one recording is enough
    wish = wish_of(os.fspath(out), steps=steps, every=every, keep=keep, replicas=replicas)
    return Recording(lambda: wish, None if on_step is None else partial(_follow, wish.out, on_step))


def _follow(folder: Path, on_step: Callable[[dict[str, Json]], None]) -> Callable[[], None]:
    from ..recorder.follow import follow

    def warn(line: str) -> None:
        recording = running()
        if recording is not None and recording.session is not None:
            recording.session.warn(line)

    return follow(folder, on_step, warn)


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
            # Only over ten whole steps: fewer are no average yet.
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
