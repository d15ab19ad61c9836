"""Chrome's trace format, for ui.perfetto.dev: a thread a rank, every gap with what it waits for, an arrow a transfer.

On each thread the slices tile the window without overlap:

    rank 1  | warm-up | 1F0 | 1F1 | waiting for 2B0 | transfer of 2B0 | 1B0 | .. | cool-down |

Times are microseconds with three decimals, exact to the nanosecond; the format asks for a start and a duration, and
the duration written is the difference of the exact start and end. An overlapped pair is one slice. Where a transfer
takes up a link or a rank, it has its slice on a thread for its two ranks, below those of all ranks:

    link 0 -> 1  | 0F0 | 0F1 | .. |

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..core.atomic import replacing
from ..core.exchange import transfers
from ..core.op import Kind
from ..core.program import Sends
from ..core.schedule import Schedule
from ..core.timeline import Timeline, one_by_one

Times = NDArray[np.int64]

WORDS = {Kind.F: "forward", Kind.I: "input gradient", Kind.W: "weight gradient", Kind.B: "backward"}


def write(timeline: Timeline, path: Path | str, *, title: str = "") -> None:
    """Write a timeline as a trace; gzipped where the name ends in ``.gz``.

    Args:
        timeline: what to write.
        path: where to.
        title: name of the process in the trace; the schedule's name and the evidence where empty.

    Raises:
        InputError: the path cannot be written.
    """
    title = title or f"{timeline.program.schedule.name} ({timeline.evidence})"
    with replacing(path) as raw, _packed(raw, str(path)) as stream:
        stream.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        stream.write(json.dumps(_named("process_name", 0, title)).encode())
        for chunk in _chunks(timeline):
            stream.write(b",\n" + ",\n".join(chunk).encode())
        stream.write(b"\n]}\n")


def _packed(raw: BinaryIO, name: str) -> AbstractContextManager[BinaryIO]:
    if not name.endswith(".gz"):
        return nullcontext(raw)
    try:
        module: Any = import_module("isal.igzip")
    except ImportError:
        module = gzip
    opened: AbstractContextManager[BinaryIO] = module.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
    return opened


def _named(what: str, rank: int, name: str | int) -> dict[str, Any]:
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "pid": 0, "tid": rank, "name": what, "args": {key: name}}


def _chunks(timeline: Timeline) -> Iterator[list[str]]:
    """Events as text, some thousands at a time."""
    start, end = _drawn(timeline)
    for rank in range(timeline.program.schedule.ranks):
        heads = (_named("thread_name", rank, f"rank {rank}"), _named("thread_sort_index", rank, rank))
        yield [json.dumps(head) for head in heads]
        yield from _batches(_slices(timeline, rank, start, end))
    yield from _lanes(timeline)
    yield from _batches(_arrows(timeline, start, end))


def _lanes(timeline: Timeline) -> Iterator[list[str]]:
    """A thread for each sender and receiver with the transfers between them, where these have a time of their own."""
    program, ops = timeline.program, len(timeline.program.schedule)
    schedule, rank_of = program.schedule, program.schedule.rank_of()
    begin, what = timeline.window[0], "link" if program.sends is Sends.LINK else "sends"
    way = rank_of[program.producer].astype(np.int64) * schedule.ranks + rank_of[program.consumer]
    order = np.lexsort((timeline.start[ops:], way))
    ways, first = np.unique(way[order], return_index=True)
    for thread, pair, rows in zip(count(schedule.ranks), ways.tolist(), np.split(order, first[1:]), strict=False):
        sender, receiver = divmod(pair, schedule.ranks)
        name = f"{what} {sender} -> {receiver}"
        heads = (_named("thread_name", thread, name), _named("thread_sort_index", thread, thread))
        yield [json.dumps(head) for head in heads]
        times = (timeline.start[ops + rows] - begin, timeline.end[ops + rows] - begin, program.producer[rows])
        columns = zip(*(column.tolist() for column in times), strict=True)
        yield from _batches(
            _slice(thread, start, end, "transfer", _text(schedule, producer)) for start, end, producer in columns
        )


def _batches(events: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(events, 4096)):
        yield batch


def _drawn(timeline: Timeline) -> tuple[Times, Times]:
    """Start and end of each op from the start of the window; both ops of a pair share theirs.

    An op that was measured to start before the op before it had ended is drawn from that end on.
    """
    schedule = timeline.program.schedule
    start, end = one_by_one(timeline)
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        start[second], end[second - 1] = start[second - 1], end[second]
    return start, end


def _slices(timeline: Timeline, rank: int, start: Times, end: Times) -> Iterator[str]:
    """Ops of one rank and the gaps between them, in order."""
    schedule = timeline.program.schedule
    first, last = schedule.offsets[rank : rank + 2].tolist()
    rows = np.arange(first, last)
    if schedule.joined is not None:
        rows = rows[~schedule.joined[first:last]]
    blame, made = _made(timeline, rows)
    free = 0
    columns = (rows, start[rows], end[rows], blame, made)
    for row, begins, ends, cause, when in zip(*(column.tolist() for column in columns), strict=True):
        if begins > free and row == first:
            yield _slice(rank, free, begins, "warm-up", "warm-up", **_reason(schedule, cause))
        elif begins > free:
            yield from _gap(schedule, rank, (free, min(max(when, free), begins), begins), cause)
        yield _work(schedule, rank, row, begins, ends)
        free = ends
    window = timeline.makespan
    if window > free:
        name = "cool-down" if last > first else "warm-up"
        yield _slice(rank, free, window, name, name)


def _made(timeline: Timeline, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], Times]:
    """For each slot the input from another rank that was made last, and when it was made; -1 and "late" without one."""
    program, ops = timeline.program, len(timeline.program.schedule)
    needs = program.needs_by_op()[:, rows]
    carried = needs >= ops  # by a transfer that occupies a lane: what it carries was made before
    needs[carried] = program.producer[needs[carried] - ops]
    when = np.where(needs >= 0, timeline.end[needs] - timeline.window[0], -1)
    latest = when.argmax(axis=0)
    slots = np.arange(len(rows))
    cause = needs[latest, slots]
    return cause, np.where(cause >= 0, when[latest, slots], np.iinfo(np.int64).max)


def _gap(schedule: Schedule, rank: int, times: tuple[int, int, int], cause: int) -> Iterator[str]:
    """Waiting until the input is made, then its transfer; without an input the host was late."""
    free, made, begins = times
    reason = _reason(schedule, cause)
    if made > free:
        name = f"waiting for {_text(schedule, cause)}" if cause >= 0 else "waiting for the host"
        yield _slice(rank, free, made, "waiting", name, **reason)
    if begins > made:
        yield _slice(rank, made, begins, "transfer", f"transfer of {_text(schedule, cause)}", **reason)


def _reason(schedule: Schedule, cause: int) -> dict[str, str]:
    if cause < 0:
        return {}
    rank = int(np.searchsorted(schedule.offsets, cause, side="right")) - 1
    return {"waits_for": _text(schedule, cause), "of": f"rank {rank}"}


def _text(schedule: Schedule, row: int) -> str:
    return schedule.op(row).text(schedule.slices)


def _work(schedule: Schedule, rank: int, row: int, start: int, end: int) -> str:
    kind = Kind(schedule.kind[row])
    args = {"stage": int(schedule.stage[row]), "microbatch": int(schedule.unit[row]) // schedule.slices}
    if schedule.joined is not None and row + 1 < len(schedule) and schedule.joined[row + 1]:
        name = f"({_text(schedule, row)};{_text(schedule, row + 1)})"
        return _slice(rank, start, end, "overlapped", name, **args)
    return _slice(rank, start, end, WORDS[kind], _text(schedule, row), **args)


def _slice(rank: int, start: int, end: int, category: str, name: str, **args: str | int) -> str:
    times = f'"ts":{_us(start)},"dur":{_us(end - start)}'
    return f'{{"ph":"X","pid":0,"tid":{rank},{times},"cat":"{category}","name":"{name}","args":{json.dumps(args)}}}'


def _arrows(timeline: Timeline, start: Times, end: Times) -> Iterator[str]:
    """A flow for each transfer, from the last nanosecond of one slice to the first of the other."""
    schedule = timeline.program.schedule
    producer, consumer = transfers(timeline.program)
    rank = schedule.rank_of()
    leaves = np.maximum(end[producer] - 1, start[producer])
    columns = (rank[producer], leaves, rank[consumer], start[consumer], schedule.kind[consumer] == Kind.F)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (source, sent, target, used, forward) in enumerate(rows):
        name = "activations" if forward else "gradients"
        same = f'"pid":0,"cat":"transfer","name":"{name}","id":{number}'
        yield f'{{"ph":"s",{same},"tid":{source},"ts":{_us(sent)}}}'
        yield f'{{"ph":"f","bp":"e",{same},"tid":{target},"ts":{_us(used)}}}'


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
