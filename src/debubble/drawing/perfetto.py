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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..core.engine import Lane
from ..core.laws import needs_of, transfers
from ..core.program import Timeline, one_by_one
from ..core.safe_output import replacing
from ..core.schedule import Kind, Schedule

Times = NDArray[np.int64]
Rows = NDArray[np.int64]

WORDS = ("forward", "input gradient", "weight gradient", "backward")  # by kind
LETTERS = tuple(kind.name for kind in Kind)


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
        for text in _events(timeline):
            stream.write(text)
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


def _events(timeline: Timeline) -> Iterator[bytes]:
    """All events after the first, as text, each with the comma before it."""
    start, end = _drawn(timeline)
    yield from _heads(0, [f"rank {rank}" for rank in range(timeline.program.schedule.ranks)])
    yield from _work(timeline, start, end)
    yield from _gaps(timeline, start, end)
    yield from _lanes(timeline)
    yield from _arrows(timeline, start, end)


def _heads(first: int, names: Sequence[str]) -> Iterator[bytes]:
    """Names of threads, and that they are listed in order."""
    for thread, name in enumerate(names, first):
        for event in (_named("thread_name", thread, name), _named("thread_sort_index", thread, thread)):
            yield b",\n" + json.dumps(event).encode()


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


def _work(timeline: Timeline, start: Times, end: Times) -> Iterator[bytes]:
    """A slice for each slot; an overlapped pair is one."""
    schedule = timeline.program.schedule
    rank = schedule.rank_of()
    slots, first = _slots(schedule)
    for rows, category, name in (
        (slots, Words(WORDS, schedule.kind[slots]), _names(schedule, slots)),
        (first, b"overlapped", (b"(", *_names(schedule, first), b";", *_names(schedule, first + 1), b")")),
    ):
        microbatch = Digits(schedule.unit[rows] // schedule.slices)
        arguments = (b'"stage":', Digits(schedule.stage[rows]), b',"microbatch":', microbatch)
        yield from _slices(rank[rows], (start[rows], end[rows]), category, name, arguments)


def _slots(schedule: Schedule) -> tuple[Rows, Rows]:
    """Ops that run alone, and the first of each pair that runs together."""
    if schedule.joined is None:
        return np.arange(len(schedule)), np.zeros(0, np.int64)
    first = np.flatnonzero(schedule.joined) - 1
    alone = ~schedule.joined
    alone[first] = False
    return np.flatnonzero(alone), first


def _gaps(timeline: Timeline, start: Times, end: Times) -> Iterator[bytes]:
    """Everything between the slices of a rank: warm-up, waiting and then transfer of what was waited for, cool-down."""
    schedule, window = timeline.program.schedule, timeline.makespan
    rank = schedule.rank_of()
    rows = np.concatenate(_slots(schedule))
    rows.sort()
    cause, made = _made(timeline, rows)
    begins, before = start[rows], np.roll(end[rows], 1)
    opens = np.flatnonzero(np.diff(rank[rows], prepend=-1))  # the first slot of each rank that has any
    before[opens] = 0
    middle = np.clip(made, before, begins)  # until then it is not made yet: waiting; from then on it is on its way
    middle[opens] = before[opens]
    warm_up = np.zeros(len(rows), np.bool_)
    warm_up[opens] = True
    for chosen, (begin, stop), words in (
        (warm_up & (begins > before), (before, begins), ("warm-up", "")),
        (~warm_up & (middle > before), (before, middle), ("waiting", "waiting for ")),
        (~warm_up & (begins > middle), (middle, begins), ("transfer", "transfer of ")),
    ):
        for known in (True, False):
            there = chosen & ((cause >= 0) == known)
            yield from _idle(schedule, rank[rows[there]], (begin[there], stop[there]), words, cause[there])
    yield from _ends(schedule, rank[rows], end[rows], window)


def _idle(
    schedule: Schedule, rank: NDArray[np.int32], times: tuple[Times, Times], words: tuple[str, str], cause: Rows
) -> Iterator[bytes]:
    """Gaps of one kind, all with a cause or all without one: then the host was late."""
    category, verb = words
    known = len(cause) > 0 and cause[0] >= 0
    name: tuple[Part, ...] = (category.encode(),)
    if verb:
        name = (verb.encode(), *(_names(schedule, cause) if known else (b"the host",)))
    reason: tuple[Part, ...] = ()
    if known:
        of = Digits(schedule.rank_of()[cause])
        reason = (b'"waits_for":"', *_names(schedule, cause), b'","of":"rank ', of, b'"')
    yield from _slices(rank, times, category.encode(), name, reason)


def _ends(schedule: Schedule, rank: NDArray[np.int32], end: Times, window: int) -> Iterator[bytes]:
    """From the last slice of each rank to the end of the window; a rank without work warms up all along."""
    free = np.zeros(schedule.ranks, np.int64)
    np.maximum.at(free, rank, end)
    busy = np.bincount(rank, minlength=schedule.ranks) > 0
    for name, works in ((b"cool-down", True), (b"warm-up", False)):
        ranks = np.flatnonzero((busy == works) & (free < window))
        yield from _slices(ranks, (free[ranks], np.full(len(ranks), window)), name, (name,), ())


def _made(timeline: Timeline, rows: Rows) -> tuple[Rows, Times]:
    """For each slot the output that it waited for last, and when that was on its way; -1 and "late" without one."""
    program = timeline.program
    if len(program.producer) and program.engine.meets:
        return _carried(timeline, rows)
    needs = needs_of(program.schedule)[:, rows]
    when = np.where(needs >= 0, timeline.end[needs] - timeline.window[0], -1)
    latest = when.argmax(axis=0)
    slots = np.arange(len(rows))
    cause = needs[latest, slots].astype(np.int64)
    return cause, np.where(cause >= 0, when[latest, slots], np.iinfo(np.int64).max)


def _carried(timeline: Timeline, rows: Rows) -> tuple[Rows, Times]:
    """The same where both sides have to come to a transfer: the last to end of those that hold each slot."""
    program, ops = timeline.program, len(timeline.program.schedule)
    cause, when = np.full(ops, -1, np.int64), np.full(ops, np.iinfo(np.int64).max)
    for held in program.holds:
        order = np.argsort(timeline.end[ops:], kind="stable")
        order = order[held[order] >= 0]
        op = held[order]
        last = np.full(ops, -1, np.int64)
        last[op] = order  # what is written last, ends last
        found = np.flatnonzero(last >= 0)
        ends = timeline.end[ops + last[found]]
        later = found[(cause[found] < 0) | (ends > timeline.end[ops + np.maximum(cause[found], 0)])]
        cause[later], when[later] = last[later], timeline.start[ops + last[later]] - timeline.window[0]
    made = np.append(program.producer, np.int32(-1)).astype(np.int64)
    return made[cause[rows]], when[rows]


def _lanes(timeline: Timeline) -> Iterator[bytes]:
    """A thread for each lane, or for each sender and receiver, with its transfers, where these have times of their own.

    A lane that a rank shares among its peers is a thread a rank, so that each transfer is on two.
    """
    program, ops = timeline.program, len(timeline.program.schedule)
    schedule, rank_of, lane = program.schedule, program.schedule.rank_of(), program.engine.lane
    sender, receiver = (rank_of[ends].astype(np.int64) for ends in (program.producer, program.consumer))
    move = np.arange(len(sender))
    if lane is Lane.GROUP:
        sender, receiver, move = (
            np.concatenate([sender, receiver]),
            np.concatenate([sender, receiver]),
            np.tile(move, 2),
        )
    elif lane is Lane.PAIR:
        sender, receiver = np.minimum(sender, receiver), np.maximum(sender, receiver)
    way = sender * schedule.ranks + receiver
    order = np.lexsort((timeline.start[ops + move], way))
    ways, thread = np.unique(way[order], return_inverse=True)
    yield from _heads(schedule.ranks, [_lane_name(lane, *divmod(each, schedule.ranks)) for each in ways.tolist()])
    rows, begin = ops + move[order], timeline.window[0]
    times = (timeline.start[rows] - begin, timeline.end[rows] - begin)
    names = _names(schedule, program.producer[move[order]])
    yield from _slices(schedule.ranks + thread, times, b"transfer", names, ())


def _lane_name(lane: Lane, sender: int, receiver: int) -> str:
    if lane is Lane.GROUP:
        return f"lane of rank {sender}"
    if lane is Lane.PAIR:
        return f"lane {sender} - {receiver}"
    return f"{'link' if lane is Lane.WAY else 'sends'} {sender} -> {receiver}"


def _arrows(timeline: Timeline, start: Times, end: Times) -> Iterator[bytes]:
    """A flow for each transfer, from the last nanosecond of one slice to the first of the other."""
    schedule = timeline.program.schedule
    producer, consumer = transfers(schedule)
    rank = schedule.rank_of()
    number = Digits(np.arange(len(producer)))
    what = Words(("gradients", "activations"), (schedule.kind[consumer] == Kind.F).view(np.uint8))
    same: tuple[Part, ...] = (b'"pid":0,"cat":"transfer","name":"', what, b'","id":', number, b',"tid":')
    leaves = np.maximum(end[producer] - 1, start[producer])
    out = (Digits(rank[producer]), b',"ts":', *microseconds(leaves), b"}")
    into = (Digits(rank[consumer]), b',"ts":', *microseconds(start[consumer]), b"}")
    yield from lines((b',\n{"ph":"s",', *same, *out), len(producer))
    yield from lines((b',\n{"ph":"f","bp":"e",', *same, *into), len(producer))


def _slices(
    thread: NDArray[np.integer],
    times: tuple[Times, Times],
    category: Part,
    name: Sequence[Part],
    arguments: Sequence[Part],
) -> Iterator[bytes]:
    start, end = times
    yield from lines(
        (
            b',\n{"ph":"X","pid":0,"tid":',
            Digits(thread),
            b',"ts":',
            *microseconds(start),
            b',"dur":',
            *microseconds(end - start),
            b',"cat":"',
            category,
            b'","name":"',
            *name,
            b'","args":{',
            *arguments,
            b"}}",
        ),
        len(thread),
    )


def _names(schedule: Schedule, rows: NDArray[np.integer]) -> tuple[Part, ...]:
    """Ops as they are written: ``2F0``, or ``2F0.1`` where sequences are sliced."""
    microbatch, piece = np.divmod(schedule.unit[rows], schedule.slices)
    sliced: tuple[Part, ...] = (b".", Digits(piece)) if schedule.slices > 1 else ()
    return Digits(schedule.stage[rows]), Words(LETTERS, schedule.kind[rows]), Digits(microbatch), *sliced


Bytes = NDArray[np.uint8]

BATCH = 1 << 15  # lines laid out at once: some megabytes, which stay in a processor's cache
_GROUP = 10_000  # four digits are looked up together: a division for each digit would cost three times as much
_DIGITS = np.array([f"{number:04}" for number in range(_GROUP)], "S4").view(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Whole numbers in decimal, at least 0.

    Args:
        values: integers[lines].
        width: digits that are always written, with zeros in front; by default as many as a number has.
    """

    values: NDArray[np.integer]
    width: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """One of some words.

    Args:
        words: ASCII, each without a zero byte.
        which: integers[lines], the number of the word.
    """

    words: Sequence[str]
    which: NDArray[np.integer]


Part = bytes | Digits | Words


def microseconds(nanoseconds: NDArray[np.int64]) -> tuple[Part, ...]:
    """Microseconds with three decimals, exact to the nanosecond."""
    whole = nanoseconds // 1000
    return Digits(whole), b".", Digits(nanoseconds - 1000 * whole, 3)


def lines(parts: Sequence[Part], count: int) -> Iterator[bytes]:
    """The text of so many lines, a batch at a time; a line ends where its parts do."""
    for first in range(0, count, BATCH):
        rows = slice(first, min(first + BATCH, count))
        tables = [_table(part, rows) for part in parts]
        laid = np.empty((rows.stop - first, sum(table.shape[1] for table in tables)), np.uint8)
        left = 0
        for table in tables:
            laid[:, left : left + table.shape[1]] = table
            left += table.shape[1]
        yield laid.tobytes().translate(None, b"\0")


def _table(part: Part, rows: slice) -> Bytes:
    """One part of each line, uint8[lines or 1, width]."""
    if isinstance(part, bytes):
        return np.frombuffer(part, np.uint8)[None]
    if isinstance(part, Words):
        words = np.array([word.encode("ascii") for word in part.words], "S")
        letters: Bytes = words.view(np.uint8).reshape(len(words), -1)[part.which[rows]]
        return letters
    return _decimal(part.values[rows], part.width)


def _decimal(values: NDArray[np.integer], width: int) -> Bytes:
    """Numbers as digits, right-aligned; a zero byte for each leading zero that is not asked for."""
    longest = max(len(str(int(values.max(initial=0)))), width)
    groups = -(-longest // 4)
    fours = np.empty((len(values), groups), np.uint32)
    rest = values.astype(np.uint64)
    for column in range(groups - 1, -1, -1):
        above = rest // _GROUP
        fours[:, column] = _DIGITS[rest - above * _GROUP]
        rest = above
    digits = fours.view(np.uint8)[:, 4 * groups - longest :]
    for column in range(longest - width):
        digits[:, column] *= values >= 10 ** (longest - 1 - column)
    return digits
