"""Nsight Systems exports (SQLite): every device of every file, on one clock, its ops found as in any trace.

A file is read a device at a time, by columns:

    NVTX_EVENTS .. text, or textId of StringIds     ->  ranges on the CPU, calls of NCCL with their peer
    CUPTI_ACTIVITY_KIND_RUNTIME                     ->  launches
    CUPTI_ACTIVITY_KIND_KERNEL                      ->  kernels, of one device each; several ranks share a file

Any of the tables may be missing or bear a suffix (``_V2``); columns differ between versions. Rows come as integers, and
names by their number in StringIds, so that a row costs less than a microsecond.

NCCL's ranges carry payloads, which say whom a send or receive talks to. A payload begins with 32 bytes (domain, schema,
sizes); after them come the fields that the export's own schema tables list. A peer is counted within its communicator;
which process that is, the ranges of its creation tell.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.schedule import Kind
from ..reconstruct.device_ops import UNTOLD, Clock, RankOps, Reading
from ..reconstruct.pairing import in_line, with_senses
from .chrome import Events, Words
from .files import faults_alike, left_out, local
from .kineto import device_of
from .kineto_tables import Collector, Tables
from .kineto_work import EITHER
from .op_names import Role, is_pith, ops_of_pith

_RANK = re.compile(r"rank[-_]?\[?(\d{1,9})", re.IGNORECASE)
_MOST_NAMED = 4  # remarks of a refusal
_DOWN = 0.9  # share of forwards that must come behind the same one upstream; else names of kernels have misled


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """What one export held.

    Args:
        devices: with ranks counted within the file.
        anchor: the moment of its zero, nanoseconds since 1970; None if it does not say.
        named: whether ranges name its ops; else the direction of kernels tells.
        remarks: what was left out.
    """

    devices: tuple[RankOps, ...]
    anchor: int | None
    named: bool
    remarks: tuple[str, ...]


def is_nsight(head: bytes) -> bool:
    """Whether a file that begins like this is an SQLite database."""
    return head.startswith(b"SQLite format 3\0")


def read_nsight(paths: Sequence[Path], source: str) -> Reading:
    """Read exports into one ``RankOps`` a device.

    Args:
        paths: SQLite files that ``nsys export --type sqlite`` wrote, one a rank or one a host.
        source: what the user gave, for messages.

    Raises:
        InputError: none of them can be read.
        Refusal: they could be read, and show no pipeline.
    """
    files: list[_File] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            files.append(_read(path))
        except InputError as error:
            faults += error.faults
    if not files:
        raise InputError(*faults_alike(faults))
    found = _on_one_clock(_numbered(files), len(files))
    told, untold = list[RankOps](), list[RankOps]()
    for device in found:
        (untold if (device.kind == UNTOLD).any() else told).append(device)
    # Names of kernels are the weakest witness: they count if forwards do run down the line.
    if any(map(len, told)) and not (all(file.named for file in files) or _flows_down(told)):
        found = untold
    remarks: list[str] = []
    for file in files:
        remarks += file.remarks
    remarks += left_out((fault.value, fault.rule) for fault in faults)
    if not any(map(len, found)):
        why = "; ".join(["", *remarks[:_MOST_NAMED]])
        raise Refusal(
            f"{source}: there is no pipeline here: no range names a forward or backward of a micro-batch, and no ranks "
            f"hand results on to each other; if one ran, name its ops with debubble.annotate{why}"
        )
    return Reading(source, tuple(found), tuple(remarks))


def _read(path: Path) -> _File:
    try:
        # sqlite3 opens files of this machine only; what lies behind an address is copied for as long as it is read.
        with local(path) as here, closing(sqlite3.connect(_address(here), uri=True)) as connection:
            export = open_export(connection, path)
            found: dict[Device, RankOps] = {}
            remarks = list(export.remarks)
            named = False
            for one in export.devices():
                tables, pith = export.tables(one)
                named |= bool((tables.roles == Role.LABEL).any())
                found[one], clauses = device_of(tables, str(path))
                remarks += [f"{path}: device {one.number}: {clause}" for clause in (*pith, *clauses)]
            ranks = _ranks(list(found), path)
            devices = [_with_rank(found[one], rank, ranks) for one, rank in ranks.items()]
            return _File(tuple(devices), export.anchor(), named, tuple(remarks))
    except sqlite3.Error as error:
        raise InputError(Fault(str(path), f"it cannot be read as an export: {error}", "export it again")) from error
    except (InputError, OSError):
        raise
    except Exception as error:  # whatever a stranger's database holds, it costs this file and not the run
        rule = f"its content is not what an export holds ({type(error).__name__}: {error})"
        raise InputError(Fault(str(path), rule, "export it again")) from error


def _address(path: Path) -> str:
    # Nothing is written beside a user's file, no journal and no lock.
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


def _ranks(devices: Sequence[Device], path: Path) -> dict[Device, int]:
    """A rank for each device of a file: by the file's name if it holds one, else by the device's number."""
    name = _RANK.search(path.name)
    if name and len(devices) == 1:
        return {devices[0]: int(name[1])}
    numbers = {device: device.number for device in devices}
    if len(set(numbers.values())) == len(devices):
        return numbers
    # Processes that each see their GPU as device 0 (CUDA_VISIBLE_DEVICES): ranks in the order of processes.
    return {device: i for i, device in enumerate(devices)}


def _with_rank(device: RankOps, rank: int, ranks: dict[Device, int]) -> RankOps:
    """A device under its rank, with its peers as ranks if payloads name them as processes."""
    by_process = {one.process // PROCESS: number for one, number in ranks.items() if one.process is not None}
    moves = device.transfers
    if moves is not None:
        peer = [by_process.get(process, -1) for process in moves.peer.tolist()]
        moves = replace(moves, peer=np.array(peer, np.int32))
    return replace(device, rank=rank, transfers=moves)


def _numbered(files: Sequence[_File]) -> list[tuple[RankOps, int | None]]:
    """All devices with their file's anchor; ranks that several files count from 0 are counted on."""
    found: list[tuple[RankOps, int | None]] = []
    for file in files:
        taken = {device.rank for device, _ in found}
        shift = 0
        if not taken.isdisjoint({device.rank for device in file.devices}):
            shift = max(taken) + 1
        for device in file.devices:
            moves = device.transfers
            if moves is not None:
                moves = replace(moves, peer=np.where(moves.peer < 0, -1, moves.peer + shift).astype(np.int32))
            found.append((replace(device, rank=device.rank + shift, transfers=moves), file.anchor))
    return found


def _on_one_clock(devices: Sequence[tuple[RankOps, int | None]], files: int) -> list[RankOps]:
    """Times since 1970 if every file says when it began; else clocks of their own, if there are several."""
    anchors = [anchor for _, anchor in devices]
    if files == 1:
        return [device for device, _ in devices]
    if None in anchors:
        return [replace(device, clock=Clock.OWN) for device, _ in devices]
    return [device.later(anchor or 0) for device, anchor in devices]


def _flows_down(devices: Sequence[RankOps]) -> bool:
    """Whether the k-th forward of each rank comes after the k-th of the rank before: kernels' names alone mislead.

    Kernels called ``softmax_forward`` beside an all-to-all look like a pipeline; there all ranks run at the same time.
    """
    behind: list[bool] = []
    sure, _ = with_senses([device for device in devices if len(device)])
    for first, second in in_line(sure):
        ended = np.sort(first.end[first.kind == Kind.F])
        begun = np.sort(second.start[second.kind == Kind.F])
        # A trace that begins within a step has one forward more on a rank than on the next: compare what both have.
        count = min(len(ended), len(begun))
        behind += (begun[:count] >= ended[:count]).tolist()
    return bool(behind) and sum(behind) >= _DOWN * len(behind)


# ruff: noqa: S608 - what is put into queries are names of tables that match a pattern, and columns of ours


PROCESS = 1 << 24  # a globalTid is its globalPid plus the number of the thread
_CHUNK = 1 << 16  # rows at a time
_UNLINKED = -1  # a kernel or call without a correlation id
_TABLES = {
    "kernels": re.compile(r"CUPTI_ACTIVITY_KIND_KERNEL(?:_V\d+)?"),
    "launches": re.compile(r"CUPTI_ACTIVITY_KIND_RUNTIME(?:_V\d+)?"),
    "ranges": re.compile(r"NVTX_EVENTS(?:_V\d+)?"),
}
_MISSING = {"kernels": "no kernels, so times are the CPU's", "ranges": "no NVTX ranges, so none names its ops"}
# Types of NVTX_EVENTS (NvtxPushPopRange, NvtxStartEndRange); marks and the like have no duration.
_RANGE_TYPES = "(59, 60)"
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_SEND_RECEIVE = re.compile(r"nccl(?:Dev)?Kernel_SendRecv")
_CALLS = {"ncclSend": "send", "ncclRecv": "recv"}
_NO_ARGUMENTS = msgspec.Raw(b"{}")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Device:
    """One device of one process; a process of None where the export does not tell processes apart."""

    process: int | None
    number: int


class _Exchange(NamedTuple):
    """A kernel that sends or receives; its moment is that of its launch, or of its start where that is not known."""

    moment: int
    start: int
    end: int
    stream: int
    correlation: int
    name: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of ncclSend or ncclRecv: when, which, and the process at the other side."""

    moment: int
    sense: str
    peer: int | None


@dataclass(slots=True, frozen=True)
class _Talk:
    """How one device talks to others, gathered from all tables.

    Args:
        kernels: that send or receive.
        launched: when kernels were launched, by correlation id: of those that send or receive.
        calls: of NCCL.
        apart: spans of all-to-alls, whose sends and receives are no pipeline's.
        pith: PithTrain's ranges, whose ops only their order tells: start, end, thread and name.
    """

    kernels: list[_Exchange] = field(default_factory=list)
    launched: dict[int, int] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    apart: list[tuple[int, int]] = field(default_factory=list)
    pith: list[tuple[int, int, int, str]] = field(default_factory=list)


class _Sink:
    """Takes rows of an export as events of a trace, and gives out the tables."""

    def __init__(self) -> None:
        self._words = Words()
        self._collector = Collector(self._words)
        self.tables = self._collector.tables

    def take(
        self,
        category: str | Sequence[str],
        names: Sequence[str],
        which: Ints,
        lane: Ints,
        times: tuple[Ints, Ints],
        *,
        correlation: Ints | None = None,
        args: list[msgspec.Raw] | None = None,
    ) -> None:
        """Rows of one chunk.

        Args:
            category: of all names, or of each.
            names: that rows may have.
            which: the name of each row, an index.
            lane: thread or stream of each row.
            times: start and end of each, nanoseconds.
            correlation: of each, -1 without one; None if no row has one.
            args: of each, as JSON; empty ones if they are None.
        """
        if not len(which):
            return
        words = []
        for number, name in enumerate(names):
            own = category if isinstance(category, str) else category[number]
            words.append(self._words.known[own, name])
        threads, thread = np.unique(lane, return_inverse=True)
        lanes = np.array([self._words.lanes[0, each] for each in threads.tolist()], np.int32)
        start, end = times
        self._collector.take(
            Events(
                phase=np.full(len(which), ord("X"), np.uint8),
                word=np.array(words, np.int32)[which],
                lane=lanes[thread.reshape(-1)],
                start=start,
                duration=end - start,
                link=np.zeros(len(which), np.int64),
                args=args or [_NO_ARGUMENTS] * len(which),
                correlation=correlation,
            )
        )


@dataclass(frozen=True, slots=True)
class Export:
    """One file: its connection and what it has.

    Args:
        path: of the file.
        connection: open for reading.
        names: of its tables, by what they hold.
        columns: of each of those tables.
        strings: names of kernels and registered ranges, by number.
        payloads: of NCCL's ranges.
        remarks: what it lacks.
    """

    path: Path
    connection: sqlite3.Connection
    names: dict[str, str]
    columns: dict[str, frozenset[str]]
    strings: dict[int, str]
    payloads: Payloads
    remarks: tuple[str, ...]

    def anchor(self) -> int | None:
        """The moment of the file's zero in nanoseconds since 1970; None where the export does not say."""
        try:
            row = self.connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1").fetchone()
        except sqlite3.OperationalError:
            return None
        if row and isinstance(row[0], int):
            return row[0]
        return None

    def devices(self) -> list[Device]:
        """Every device, or every process where there are no kernels."""
        if "kernels" in self.names:
            process = self._has("kernels", "globalPid")
            # SQLite stores what it is given in any column: a device without a number is none.
            sound = f"typeof(deviceId) = 'integer' AND coalesce(typeof({process}), 'null') IN ('integer', 'null')"
            query = f"SELECT DISTINCT {process}, deviceId FROM {self._table('kernels')} WHERE {sound}"
            rows = self.connection.execute(f"{query} ORDER BY deviceId, {process}")
            return [Device(*row) for row in rows]
        rows = self.connection.execute(f"SELECT DISTINCT globalTid / {PROCESS} FROM {self._table('ranges')}")
        processes = sorted(process for (process,) in rows if process)
        return [Device(process * PROCESS, i) for i, process in enumerate(processes)]

    def tables(self, device: Device) -> tuple[Tables, list[str]]:
        """All that a reader of pipelines needs of one device, as columns; and what was left out, a clause each."""
        sink, talk = _Sink(), _Talk()
        # Kernels first: once it has seen one, the collector keeps no work of the CPU.
        if "kernels" in self.names:
            self._take_kernels(device, sink, talk)
        if "launches" in self.names:
            self._take_launches(device, sink, talk)
        if "ranges" in self.names:
            self._take_ranges(device, sink, talk)
        _take_exchanges(sink, talk)
        clauses = _take_pith(sink, talk)
        return sink.tables(), clauses

    def _take_kernels(self, device: Device, sink: _Sink, talk: _Talk) -> None:
        """Kernels, but for those that send or receive: what these are, calls tell."""
        name = "shortName" if "shortName" in self.columns["kernels"] else "demangledName"
        query = f'SELECT start, "end", streamId, coalesce(correlationId, {_UNLINKED}), coalesce({name}, -1)'
        condition, values = "deviceId = ?", [device.number]
        if device.process is not None:
            condition, values = f"{condition} AND globalPid = ?", [device.number, device.process]
        for start, end, stream, correlation, number in self._columns("kernels", query, condition, values):
            names, which = self._named(number)
            exchanging = np.array([bool(_SEND_RECEIVE.match(each)) for each in names], np.bool_)[which]
            rows = np.flatnonzero(~exchanging)
            sink.take(
                "kernel", names, which[rows], stream[rows], (start[rows], end[rows]), correlation=correlation[rows]
            )
            for row in np.flatnonzero(exchanging).tolist():
                begun, spent = int(start[row]), (int(start[row]), int(end[row]), int(stream[row]))
                talk.kernels.append(_Exchange(begun, *spent, int(correlation[row]), names[which[row]]))

    def _take_launches(self, device: Device, sink: _Sink, talk: _Talk) -> None:
        ours = np.array([kernel.correlation for kernel in talk.kernels], np.int64)
        query = 'SELECT start, "end", globalTid, correlationId'
        condition, values = self._of_process(device, "correlationId IS NOT NULL")
        for start, end, thread, correlation in self._columns("launches", query, condition, values):
            sink.take(
                "cuda_runtime",
                ["launch"],
                np.zeros(len(start), np.int64),
                thread,
                (start, end),
                correlation=correlation,
            )
            own = np.isin(correlation, ours)
            talk.launched.update(zip(correlation[own].tolist(), start[own].tolist(), strict=True))

    def _take_ranges(self, device: Device, sink: _Sink, talk: _Talk) -> None:
        """Ranges that have ended, without the thousands that name operators of tensors."""
        text, by_id = self._has("ranges", "text"), self._has("ranges", "textId")
        query = f'SELECT start, "end", globalTid, rowid, coalesce({by_id}, -1)'
        ended = f'eventType IN {_RANGE_TYPES} AND "end" IS NOT NULL'
        by_number = np.array([number for number, name in self.strings.items() if not name.startswith("aten::")])
        condition, values = self._of_process(device, f"{ended} AND {text} IS NULL")
        for start, end, thread, rowid, number in self._columns("ranges", query, condition, values):
            rows = np.flatnonzero(np.isin(number, by_number))
            names, which = self._named(number[rows])
            self._take_named(sink, talk, (names, which), (start[rows], end[rows], thread[rows], rowid[rows]))
        query = f'SELECT start, "end", globalTid, rowid, {text}'
        condition, values = self._of_process(device, f"{ended} AND {text} NOT LIKE 'aten::%'")
        for start, end, thread, rowid, texts in self._columns("ranges", query, condition, values, text=True):
            known: dict[str, int] = {}
            which = np.fromiter([known.setdefault(each, len(known)) for each in texts.tolist()], np.int64, len(texts))
            self._take_named(sink, talk, (list(known), which), (start, end, thread, rowid))

    def _take_named(self, sink: _Sink, talk: _Talk, named: tuple[Sequence[str], Ints], columns: Sequence[Ints]) -> None:
        """Ranges of one chunk: names and the index of each row's, and start, end, thread and rowid of each row."""
        start, end, thread, rowid = columns
        # What emit_nvtx puts behind a name are numbers of ops, and shapes.
        names, which = [name.partition(", ")[0] for name in named[0]], named[1]
        calls = np.array([name in _CALLS for name in names], np.bool_)
        apart = np.array([bool(_ALL_TO_ALL.search(name)) for name in names], np.bool_) & ~calls
        pith = np.array([is_pith(name) for name in names], np.bool_)
        categories = ["cpu_op" if "::" in name else "user_annotation" for name in names]
        kept = np.flatnonzero(~(calls | apart | pith)[which])
        sink.take(categories, names, which[kept], thread[kept], (start[kept], end[kept]))
        for row in np.flatnonzero(calls[which]).tolist():
            sense, peer = _CALLS[names[which[row]]], self._peer(int(rowid[row]))
            talk.calls.append(_Call(int(start[row]), sense, peer))
        for row in np.flatnonzero(pith[which]).tolist():
            talk.pith.append((int(start[row]), int(end[row]), int(thread[row]), names[which[row]]))
        beside = apart[which]
        talk.apart.extend(zip(start[beside].tolist(), end[beside].tolist(), strict=True))

    def _peer(self, rowid: int) -> int | None:
        """The process that a call of NCCL talks to, by the payload of its range."""
        if not self.payloads.offsets or "binaryData" not in self.columns["ranges"]:
            return None
        query = f"SELECT binaryData FROM {self._table('ranges')} WHERE rowid = ?"
        (blob,) = self.connection.execute(query, (rowid,)).fetchone()
        return self.payloads.peer(blob)

    def _named(self, numbers: Ints) -> tuple[list[str], Ints]:
        """The names that some numbers stand for, and the index of each; an unknown number is an empty name."""
        known, which = np.unique(numbers, return_inverse=True)
        return [self.strings.get(number, "") for number in known.tolist()], which.reshape(-1)

    def _columns(
        self, role: str, query: str, condition: str, values: Sequence[int], *, text: bool = False
    ) -> Iterator[list[NDArray[Any]]]:
        """Rows of a table as columns, some at a time, int64[rows] each; with ``text`` the last one is of strings."""
        cursor = self.connection.execute(f"{query} FROM {self._table(role)} WHERE {condition}", tuple(values))
        width = len(cursor.description)
        while True:
            # One stream of cells: rows are never a list, so that each tuple takes the place of the one before it.
            cells = chain.from_iterable(islice(cursor, _CHUNK))
            if text:
                rows = np.fromiter(cells, object).reshape(-1, width).T
                columns = [*rows[:-1].astype(np.int64), rows[-1]]
            else:
                columns = list(np.fromiter(cells, np.int64).reshape(-1, width).T)
            if not len(columns[0]):
                return
            yield columns

    def _of_process(self, device: Device, condition: str) -> tuple[str, tuple[int, ...]]:
        """A condition on rows of the CPU, narrowed to the device's process where it is known."""
        if device.process is None:
            return condition, ()
        return f"{condition} AND globalTid / {PROCESS} = ?", (device.process // PROCESS,)

    def _has(self, role: str, column: str) -> str:
        """A column for a query, or NULL in the place of one that this version does not write."""
        if column in self.columns[role]:
            return column
        return "NULL"

    def _table(self, role: str) -> str:
        return f'"{self.names[role]}"'


def open_export(connection: sqlite3.Connection, path: Path) -> Export:
    """Look what a database has.

    Raises:
        InputError: neither kernels nor ranges.
    """
    connection.execute("PRAGMA trusted_schema = OFF")  # views and triggers of a stranger's file call no functions
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    present = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    names: dict[str, str] = {}
    for role, known in _TABLES.items():
        for name in filter(known.fullmatch, sorted(present)):
            names[role] = name  # of several versions the latest
    if "kernels" not in names and "ranges" not in names:
        rule = f"it has neither kernels nor NVTX ranges, but {', '.join(present[:8]) or 'no table at all'}"
        raise InputError(Fault(str(path), rule, "record with nsys profile --trace=cuda,nvtx"))
    columns, known_payloads = {}, Payloads({}, {})
    for role, name in names.items():
        columns[role] = frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{name}")'))
    # Kernels' and registered ranges' names, thousands in an export of millions of rows: read once.
    strings: dict[int, str] = {}
    if "StringIds" in present:
        strings = dict(connection.execute("SELECT id, value FROM StringIds"))
    if "ranges" in names:
        known_payloads = payloads(connection, names["ranges"], PROCESS)
    remarks = tuple(f"{path}: it has {what}" for role, what in _MISSING.items() if role not in names)
    return Export(path, connection, names, columns, strings, known_payloads, remarks)


def _take_pith(sink: _Sink, talk: _Talk) -> list[str]:
    """PithTrain's ranges under the labels of their ops; two that overlap take half of their range each."""
    rows = sorted(talk.pith)
    labels, clauses = ops_of_pith([name for *_, name in rows])
    words: dict[str, int] = {}
    which, lane, starts, ends = [], [], [], []
    for row, some in labels.items():
        start, end, thread, _ = rows[row]
        cuts = np.linspace(start, end, len(some) + 1).astype(np.int64).tolist()
        for number, label in enumerate(some):
            which.append(words.setdefault(label, len(words)))
            lane.append(thread)
            starts.append(cuts[number])
            ends.append(cuts[number + 1])
    times = np.array(starts, np.int64), np.array(ends, np.int64)
    sink.take("user_annotation", list(words), np.array(which, np.int64), np.array(lane, np.int64), times)
    if any(len(some) > 1 for some in labels.values()):
        clauses.append("of a forward and a backward that overlap each counts half of their time")
    return clauses


def _take_exchanges(sink: _Sink, talk: _Talk) -> None:
    """Each kernel that sends or receives, and the calls it runs: those posted since the one launched before it.

    Without calls in the file a kernel is itself the moment at which a rank talks to another; which way is unknown.
    """
    # Kernels run behind each other on one stream; calls were posted in the order in which they were launched.
    kernels = sorted(one._replace(moment=talk.launched.get(one.correlation, one.start)) for one in talk.kernels)
    calls = sorted(talk.calls, key=lambda call: call.moment)
    apart = sorted(talk.apart)
    reach = list(accumulate((end for _, end in apart), max))
    begins = [start for start, _ in apart]
    posted = 0
    pairs: list[tuple[int, _Exchange, _Call]] = []
    for number, kernel in enumerate(kernels):
        behind = bisect_right(begins, kernel.moment)
        first = posted
        while posted < len(calls) and calls[posted].moment <= kernel.moment:
            posted += 1
        if behind and kernel.moment <= reach[behind - 1]:
            continue
        for call in calls[first:posted] or [_Call(kernel.moment, EITHER, None)]:
            pairs.append((number, kernel, call))
    _take_pairs(sink, pairs)


def _take_pairs(sink: _Sink, pairs: Sequence[tuple[int, _Exchange, _Call]]) -> None:
    """Kernels, each with one of its calls, as a trace of PyTorch's profiler has them: they share an External id."""
    posts, runs = [], []  # arguments of the calls, and of the kernels
    which: list[int] = []
    names: dict[str, int] = {}
    for number, kernel, call in pairs:
        said: dict[str, object] = {"Collective name": call.sense, "External id": number}
        if call.peer is not None:
            said["Dst Rank" if call.sense == "send" else "Src Rank"] = call.peer // PROCESS
        posts.append(_arguments(said))
        runs.append(_arguments({**said, "correlation": kernel.correlation}))
        which.append(names.setdefault(kernel.name, len(names)))
    times = [(call.moment, kernel.start, kernel.end, kernel.stream) for _, kernel, call in pairs]
    moment, start, end, stream = np.array(times, np.int64).reshape(-1, 4).T
    none = np.zeros(len(pairs), np.int64)
    sink.take("cpu_op", ["record_param_comms"], none, none, (moment, moment), args=posts)
    sink.take("kernel", list(names), np.array(which, np.int64), stream, (start, end), args=runs)


def _arguments(said: dict[str, object]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(said))


_HEADER = struct.Struct("<IIIIQQ")
_PEER, _COMMUNICATOR, _OWN = "Peer rank", "NCCL communicator ID", "Rank"
_FORMATS = {_PEER: "<i", _COMMUNICATOR: "<Q", _OWN: "<i"}


@dataclass(frozen=True, slots=True)
class Payloads:
    """How to read payloads.

    Args:
        offsets: of each field behind the header, by schema, then by its name.
        processes: which process (``globalPid``) is a rank of a communicator.
    """

    offsets: dict[int, dict[str, int]]
    processes: dict[tuple[int, int], int]

    def peer(self, blob: object) -> int | None:
        """The process at the other side of a send or receive; None where the payload does not tell."""
        said = _fields(blob, self.offsets)
        if said is None or _PEER not in said or _COMMUNICATOR not in said:
            return None
        return self.processes.get((said[_COMMUNICATOR], said[_PEER]))


def payloads(connection: sqlite3.Connection, ranges: str, process: int) -> Payloads:
    """Learn the schemas and communicators of an export; empty where it has none.

    Args:
        connection: to the export.
        ranges: name of its table of NVTX events.
        process: bits of a ``globalTid`` below the process.
    """
    try:
        rows = connection.execute(
            'SELECT DISTINCT schemaId, name, "offset" FROM NVTX_PAYLOAD_SCHEMA_ENTRIES'
        ).fetchall()
        blobs = connection.execute(f'SELECT globalTid, binaryData FROM "{ranges}" WHERE binaryData IS NOT NULL')
        offsets: dict[int, dict[str, int]] = {}
        for schema, name, offset in rows:
            if name in _FORMATS:
                offsets.setdefault(schema, {})[name] = offset or 0
        processes = {}
        for thread, blob in blobs:
            said = _fields(blob, offsets)
            if said and _OWN in said and _COMMUNICATOR in said:
                processes[said[_COMMUNICATOR], said[_OWN]] = thread // process * process
    except sqlite3.OperationalError:  # an export without payload tables
        return Payloads({}, {})
    return Payloads(offsets, processes)


def _fields(blob: object, offsets: dict[int, dict[str, int]]) -> dict[str, int] | None:
    """The fields of a payload that are known; None where it is not one."""
    if isinstance(blob, str):
        try:
            blob = bytes.fromhex(blob)
        except ValueError:
            return None
    if not isinstance(blob, bytes) or len(blob) < _HEADER.size:
        return None
    schema = _HEADER.unpack_from(blob)[2]
    try:
        return {
            name: struct.unpack_from(_FORMATS[name], blob, _HEADER.size + offset)[0]
            for name, offset in offsets.get(schema, {}).items()
        }
    except struct.error:
        return None
