"""What is kept of a trace file: a few columns for each role, gathered chunk by chunk.

Work on the CPU is thinned as it comes: a call inside another call of the same thread adds nothing, and dropping it
keeps a file of tens of millions of events within a few hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.units import MILLISECOND
from .chrome import FAR, Events, Words, arguments
from .op_names import Role, role_of, step_of, way_of

Ints = NDArray[np.int64]
_Columns = dict[str, NDArray[Any]]
UNLINKED = (1 << 32) - 1  # a correlation that is not there
SECOND = 1_000_000_000  # nanoseconds
_MOST_BYTES = 1 << 50  # that a device can hold
HOUR = 3600 * SECOND


class CommArgs(msgspec.Struct, gc=False):
    """Arguments of a collective or point-to-point call or kernel."""

    collective: str | None = msgspec.field(default=None, name="Collective name")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    target: int | None = msgspec.field(default=None, name="Dst Rank")
    group: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Name")
    members: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Ranks")
    size: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Group size")
    correlation: int = -1
    external: int = msgspec.field(default=-1, name="External id")


Number = int | float | str | None  # as tracers write one


class ToldArgs(msgspec.Struct, gc=False):
    """Arguments by which MegaScan, ByteDance's timelines and their kin say which op a span is."""

    iteration: Number = None
    step: Number = None
    microbatch: Number = None
    micro_batch: Number = None
    microbatch_id: Number = None
    mb_id: Number = None
    mb: Number = None
    model_chunk: Number = None
    chunk: Number = None
    stage: Number = None
    pp_rank: Number = None
    dp_rank: Number = None
    peer: Number = None


class _Correlation(msgspec.Struct, gc=False):
    correlation: int = -1


class _NameArgs(msgspec.Struct, gc=False):
    name: str = ""


class _MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of ``[memory]``; a device of type 0 is the CPU."""

    held: int = msgspec.field(default=0, name="Total Allocated")
    device: int = msgspec.field(default=0, name="Device Type")


_CORRELATIONS = msgspec.json.Decoder(list[_Correlation], strict=False)
_COMM_ARGS = msgspec.json.Decoder(list[CommArgs], strict=False)
_TOLD_ARGS = msgspec.json.Decoder(list[ToldArgs], strict=False)
_NAME_ARGS = msgspec.json.Decoder(list[_NameArgs], strict=False)
_MEMORY_ARGS = msgspec.json.Decoder(list[_MemoryArgs], strict=False)


def _of(*roles: Role) -> NDArray[np.bool_]:
    """Whether each role is among these, bool[roles], so that one look tells it of many events."""
    return np.isin(np.arange(len(Role)), roles)


# Columns of each table; `told` and `comms` have a list of decoded arguments beside them.
_SHAPES = {
    "marks": ("word", "lane", "start", "end"),
    "calls": ("word", "lane", "start", "end"),
    "kernels": ("way", "lane", "start", "end", "correlation"),
    "launches": ("lane", "start", "correlation"),
    "flows": ("lane", "start", "link", "ends"),
    "told": ("word", "lane", "start", "end", "phase"),
    "comms": ("word", "lane", "start", "end"),
    "memory": ("lane", "start", "held"),
}
_NARROW: dict[str, type[np.generic]] = {
    "word": np.int16,
    "lane": np.int16,
    "way": np.int8,
    "ends": np.bool_,
    "phase": np.uint8,
    "correlation": np.uint32,
}
_MARK = _of(Role.LABEL, Role.STEP, Role.OPTIMIZER, Role.RANGE, Role.SEND, Role.RECEIVE, Role.POST)
_CALL = _of(Role.ENGINE, Role.CALL)


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """One file's columns by table, as ``_SHAPES`` lists them; times are nanoseconds of the file's own clock.

    Args:
        columns: by table, then by column; int64 but for ``_NARROW``, and wider than that where a number needs it.
        roles: of each word, uint8.
        ways: of each word, int8, a ``Way``.
        names: of each word.
        told_args: arguments of each row of ``told``.
        comm_args: arguments of each row of ``comms``.
        threads: what the file calls a lane, by lane.
        processes: what it calls a process, by pid.
        lanes: pid and tid of each lane.
        set_aside: rows with times that cannot be true, by what is wrong with them.
        zero: what the file's clock shows where ``columns`` have 0, nanoseconds: below 0 if it was set while it ran.
    """

    columns: dict[str, dict[str, NDArray[Any]]]
    roles: NDArray[np.uint8]
    ways: NDArray[np.int8]
    names: list[str]
    told_args: list[ToldArgs]
    comm_args: list[CommArgs]
    threads: dict[int, str]
    processes: dict[int | str, str]
    lanes: list[tuple[int | str, int | str]]
    set_aside: dict[str, int]
    zero: int = 0

    def taken(self, name: str) -> dict[str, NDArray[Any]]:
        """The columns of a table that nobody else will ask for: here it is empty from now on, so that rows can go."""
        table = self.columns[name]
        self.columns[name] = {key: column[:0].copy() for key, column in table.items()}
        return table


class _Column:
    """A column that grows in place: pieces that are joined at the end would hold everything twice."""

    def __init__(self, kind: type[np.generic]) -> None:
        self._rows, self._size = np.empty(1024, kind), 0

    def extend(self, values: NDArray[Any]) -> None:
        if values.itemsize > self._rows.itemsize and values.max(initial=0) > np.iinfo(self._rows.dtype).max:
            self._rows = self._rows.astype(values.dtype)
        size = self._size + len(values)
        if size > len(self._rows):
            self._rows.resize(size + size // 8, refcheck=False)  # in place, where the system can move pages
        self._rows[self._size : size] = values
        self._size = size

    def whole(self) -> NDArray[Any]:
        """All rows so far, without room for more; the column must not grow while they are in use."""
        self._rows.resize(self._size, refcheck=False)
        return self._rows

    def only(self, keep: NDArray[np.bool_]) -> None:
        """Forget all other rows."""
        self._rows = self.whole()[keep]
        self._size = len(self._rows)


class Collector:
    """Takes the chunks of one file and keeps what a reader of pipelines needs."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._roles, self._ways = np.empty(0, np.uint8), np.empty(0, np.int8)
        self._kept: dict[str, dict[str, _Column]] = {}
        for table, names in _SHAPES.items():
            self._kept[table] = {name: _Column(_NARROW.get(name, np.int64)) for name in names}
        self._told: list[ToldArgs] = []
        self._comms: list[CommArgs] = []
        self._wanted = np.ones(len(Role), np.bool_)  # by role
        self._wanted[Role.NONE] = False
        self._threads: dict[int, str] = {}
        self._processes: dict[int | str, str] = {}

    def worth(self) -> NDArray[np.bool_]:
        """Which of the words known by now are kept, bool[words]; calls on the CPU are not where a device works."""
        self._learn()
        return self._wanted[self._roles]

    def take(self, events: Events) -> None:
        """Keep the rows of one chunk, table by table."""
        self._learn()
        role = self._roles[events.word]
        span, end = events.phase == ord("X"), events.start + events.duration
        columns: _Columns = {"word": events.word, "lane": events.lane, "phase": events.phase}
        columns |= {"start": events.start, "end": end}
        marks = np.flatnonzero(span & _MARK[role])
        self._keep("marks", columns, marks)
        # Most events of the CPU are calls, and most calls lie inside another one.
        calls = np.flatnonzero(span & _CALL[role] & self._wanted[role])
        calls = calls[outermost(events.lane[calls], events.start[calls], end[calls])]
        self._keep("calls", columns, calls)
        kernels = np.flatnonzero(span & (role == Role.KERNEL))
        way = self._ways[events.word[kernels]]
        self._keep("kernels", columns, kernels, way=way, correlation=_correlations(events, kernels))
        launches = np.flatnonzero(span & (role == Role.LAUNCH))
        self._keep("launches", columns, launches, correlation=_correlations(events, launches))
        flows = np.flatnonzero((role == Role.FLOW) & ~span)
        self._keep("flows", columns, flows, link=events.link[flows], ends=events.phase[flows] == ord("f"))
        self._take_spoken(events, role, columns)
        self._take_memory(events, role, columns)
        if len(kernels) and self._wanted[Role.CALL]:
            self._see_device()

    def _see_device(self) -> None:
        """From now on work on the CPU is no work of a stage, but for that of the autograd engine; nor was it before."""
        self._wanted[Role.CALL] = False
        calls = self._kept["calls"]
        engine = self._roles[calls["word"].whole()] == Role.ENGINE
        for column in calls.values():
            column.only(engine)

    def _take_spoken(self, events: Events, role: NDArray[np.uint8], columns: _Columns) -> None:
        """The rows whose arguments speak: ops that are told, communication, names of threads."""
        told = np.flatnonzero((role == Role.TOLD) & np.isin(events.phase, list(b"XBE")))
        self._keep("told", columns, told)
        self._told += _said(events, told, _TOLD_ARGS)
        comms = np.flatnonzero((events.phase == ord("X")) & ((role == Role.COMMS) | (role == Role.COMM_KERNEL)))
        self._keep("comms", columns, comms)
        self._comms += _said(events, comms, _COMM_ARGS)
        titles = np.flatnonzero((events.phase == ord("M")) & ((role == Role.THREAD) | (role == Role.PROCESS)))
        said = _said(events, titles, _NAME_ARGS)
        lanes = list(self._words.lanes) if len(titles) else []
        for lane, which, title in zip(events.lane[titles].tolist(), role[titles].tolist(), said, strict=True):
            if which == Role.THREAD:
                self._threads[lane] = title.name
            else:
                self._processes[lanes[lane][0] or 0] = title.name

    def _take_memory(self, events: Events, role: NDArray[np.uint8], columns: _Columns) -> None:
        """What the device held, thinned to the most of each millisecond: allocators report thousands of times more."""
        rows = np.flatnonzero(role == Role.MEMORY)
        said = _said(events, rows, _MEMORY_ARGS)
        on_device = np.fromiter([one.device != 0 for one in said], np.bool_, len(said))
        total = np.fromiter([min(max(one.held, 0), _MOST_BYTES) for one in said], np.int64, len(said))
        rows, held = rows[on_device], total[on_device]
        # Within a millisecond the largest comes first, and is the one that stays.
        order = np.lexsort((-held, events.start[rows] // MILLISECOND))
        moment = events.start[rows][order] // MILLISECOND
        first = order[np.diff(moment, prepend=moment[:1] - 1) != 0]
        self._keep("memory", columns, rows[first], held=held[first])

    def _learn(self) -> None:
        """Find what the words say that came up since the last chunk."""
        if len(self._words.known) > len(self._roles):
            roles, ways = [], []
            for category, name in islice(self._words.known, len(self._roles), None):
                roles.append(role_of(category, name))
                ways.append(way_of(name))
            self._roles = np.append(self._roles, np.array(roles, np.uint8))
            self._ways = np.append(self._ways, np.array(ways, np.int8))

    def _keep(self, table: str, columns: _Columns, rows: NDArray[np.intp], **more: NDArray[Any]) -> None:
        """Keep some rows of a chunk's columns, and ``more`` columns that hold these rows alone."""
        for name, kept in self._kept[table].items():
            kept.extend(more[name] if name in more else columns[name][rows])

    def tables(self) -> Tables:
        """What was kept, without the rows whose times cannot be true."""
        columns: dict[str, _Columns] = {}
        for table, kept in self._kept.items():
            columns[table] = {name: column.whole() for name, column in kept.items()}
        aside: dict[str, int] = {}
        names = [name for _, name in self._words.known]
        zero = _zero(columns)
        first = _first_below_zero(columns, self._roles, names)
        keep = {}
        for table, its in columns.items():
            keep[table] = _plausible(its, zero, first, aside)
            columns[table] = _only(its, keep[table])
        if first:
            _move(columns, -first)
        return Tables(
            columns=columns,
            roles=self._roles,
            ways=self._ways,
            names=names,
            told_args=list(compress(self._told, keep["told"].tolist())),
            comm_args=list(compress(self._comms, keep["comms"].tolist())),
            threads=self._threads,
            processes=self._processes,
            lanes=[(pid or 0, tid or 0) for pid, tid in self._words.lanes],
            set_aside=aside,
            zero=first,
        )


def outermost(lane: NDArray[np.integer[Any]], start: Ints, end: Ints) -> NDArray[np.intp]:
    """Rows that do not lie inside another row of the same lane, in order of lane and start."""
    order = np.lexsort((-end, start, lane))
    if not len(order):
        return order
    # One running maximum for all lanes: shift each lane beyond the one before it.
    reach = int(end.max() - start.min()) + 1
    if reach * (int(lane.max()) + 1) >= 1 << 62:
        return order  # an absurd time is among them: keep all, they are set aside later
    shifted = end[order] - start.min() + lane[order].astype(np.int64) * reach
    before = np.concatenate([[-1], np.maximum.accumulate(shifted)[:-1]])
    result: NDArray[np.intp] = order[shifted > before]
    return result


def _said(events: Events, rows: NDArray[np.intp], decoder: msgspec.json.Decoder[Any]) -> list[Any]:
    args = events.args
    return arguments([args[row] for row in rows.tolist()], decoder)


def _correlations(events: Events, rows: NDArray[np.intp]) -> NDArray[np.uint32]:
    if events.correlation is not None:
        return linked(events.correlation[rows])
    return linked([one.correlation for one in _said(events, rows, _CORRELATIONS)])


def linked(correlations: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint32]:
    """Correlation ids, which are 32 bits wide, as a column; -1 is ``UNLINKED``."""
    try:
        return (np.array(correlations, np.int64) & UNLINKED).astype(np.uint32)
    except OverflowError:  # wider ones are no ids of the runtime, and link nothing
        sound = [one if -1 <= one < 1 << 63 else -1 for one in correlations]
        # Ids count up and wrap at 32 bits: the low bits are what launch and kernel have in common.
        return (np.array(sound, np.int64) & UNLINKED).astype(np.uint32)


def _zero(columns: dict[str, dict[str, NDArray[Any]]]) -> bool:
    """Whether a time of 0 cannot be true here: most events lie hours behind it."""
    parts = [np.empty(0, np.int64)]
    for table in columns.values():
        start = table["start"]
        parts.append(start[:: max(len(start) // 1000, 1)])  # a thousand of each table tell enough
    sample = np.concatenate(parts)
    sample = sample[sample != 0]  # there may be thousands of zeros
    return len(sample) > 0 and abs(float(np.median(sample))) > HOUR


def _first_below_zero(columns: dict[str, dict[str, NDArray[Any]]], roles: NDArray[np.uint8], names: list[str]) -> int:
    """The first time of a file whose clock was set to 0 while it ran, or behind it; 0 for any other file.

    A clock that is behind by seconds shows times below 0, and is a clock still as long as it runs forwards: kernels run
    after their launch, and steps in the order of their numbers. A time far from all others is a fault, not the first.
    """
    starts = [table["start"] for table in columns.values()]
    least = min(int(start.min(initial=0)) for start in starts)
    if least == 0 or not _runs_forwards(columns, roles, names):
        return 0
    usual = np.concatenate(starts)
    near = usual[np.abs(usual - np.median(usual)) <= 24 * HOUR]
    return min(int(near.min(initial=0)), 0)


def _runs_forwards(columns: dict[str, dict[str, NDArray[Any]]], roles: NDArray[np.uint8], names: list[str]) -> bool:
    """Whether causes come before what they cause, by launches or else by steps; False if nothing tells."""
    kernels, launches, marks = columns["kernels"], columns["launches"], columns["marks"]
    # A sample of one kernel an id is enough: a clock runs backwards for all or for none.
    ids, ran, launched = np.intersect1d(kernels["correlation"], launches["correlation"], return_indices=True)
    known = ids != UNLINKED
    if known.any():
        return float(np.median(kernels["start"][ran[known]] - launches["start"][launched[known]])) > 0
    rows = np.flatnonzero(roles[marks["word"]] == Role.STEP)
    rows = rows[np.argsort(marks["start"][rows], kind="stable")]
    number = [step_of(names[word]) for word in marks["word"][rows].tolist()]
    return len(number) > 1 and number == sorted(number) and number[0] < number[-1]


def _move(columns: dict[str, dict[str, NDArray[Any]]], by: int) -> None:
    """Add to all times, in place."""
    for table in columns.values():
        for name in {"start", "end"} & table.keys():
            table[name] += by


def _only(table: dict[str, NDArray[Any]], keep: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    if keep.all():  # as nearly always: nothing is copied then
        return table
    return {name: column[keep] for name, column in table.items()}


def _plausible(table: dict[str, NDArray[Any]], zero: bool, first: int, aside: dict[str, int]) -> NDArray[np.bool_]:
    start = table["start"]
    good = np.ones(len(start), np.bool_)

    def leave(bad: NDArray[np.bool_], why: str) -> None:
        if bad.any():
            aside[why] = aside.get(why, 0) + int((bad & good).sum())
            good[bad] = False

    if zero:
        leave(np.asarray(start == 0), "with the time 0")
    leave(np.asarray(start < first), "with a negative time")
    leave(np.asarray(start >= FAR), "at a time that cannot be")
    if "end" in table and "phase" not in table:
        spent = table["end"] - start
        leave(spent < 0, "with a negative duration")
        leave(spent > 24 * HOUR, "of more than a day")
        if "correlation" in table and good.any():
            sound = spent
            if not good.all():
                sound = spent[good]
            usual = 1000 * float(np.median(sound))
            leave(spent > max(SECOND, usual), "of more than a second, far more than most")
    return good
