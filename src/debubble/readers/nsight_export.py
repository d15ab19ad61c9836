"""One Nsight Systems export (SQLite), a device at a time, as the rows that a Chrome trace would hold.

    NVTX_EVENTS .. text, or textId of StringIds     ->  ranges on the CPU, calls of NCCL with their peer
    CUPTI_ACTIVITY_KIND_RUNTIME                     ->  launches
    CUPTI_ACTIVITY_KIND_KERNEL                      ->  kernels, of one device each; several ranks share a file

Any of the tables may be missing or bear a suffix (``_V2``); columns differ between versions.

NCCL's ranges carry payloads, which say whom a send or receive talks to. A payload begins with 32 bytes (domain, schema,
sizes); after them come the fields that the export's own schema tables list. A peer is counted within its communicator;
which process that is, the ranges of its creation tell.
"""

# ruff: noqa: S608 - what is put into queries are names of tables that match a pattern, and columns of ours

from __future__ import annotations

import re
import sqlite3
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from ..core.errors import Fault, InputError
from .chrome import Events, Words
from .kineto.tables import Collector, Tables
from .kineto.work import EITHER

PROCESS = 1 << 24  # a globalTid is its globalPid plus the number of the thread
_CHUNK = 1 << 16  # rows at a time
_TABLES = {
    "kernels": re.compile(r"CUPTI_ACTIVITY_KIND_KERNEL(?:_V\d+)?"),
    "launches": re.compile(r"CUPTI_ACTIVITY_KIND_RUNTIME(?:_V\d+)?"),
    "ranges": re.compile(r"NVTX_EVENTS(?:_V\d+)?"),
}
_MISSING = {"kernels": "no kernels, so times are the CPU's", "ranges": "no NVTX ranges, so none names its ops"}
_ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
_SEND_RECEIVE = re.compile(r"nccl(?:Dev)?Kernel_SendRecv")
_CALLS = {"ncclSend": "send", "ncclRecv": "recv"}

Row = tuple[str, str, int, int, int, dict[str, object]]  # category, name, lane, start, duration, arguments


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
    name: str
    correlation: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of ncclSend or ncclRecv: when, which, and the process at the other side."""

    moment: int
    sense: str
    peer: int | None


@dataclass(frozen=True, slots=True)
class Export:
    """One file: its connection and what it has.

    Args:
        path: of the file.
        connection: open for reading.
        names: of its tables, by what they hold.
        columns: of each of those tables.
        payloads: of NCCL's ranges.
        remarks: what it lacks.
    """

    path: Path
    connection: sqlite3.Connection
    names: dict[str, str]
    columns: dict[str, frozenset[str]]
    payloads: Payloads
    remarks: tuple[str, ...]

    def anchor(self) -> int | None:
        """The moment of the file's zero in nanoseconds since 1970; None where the export does not say."""
        try:
            row = self.connection.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1").fetchone()
        except sqlite3.OperationalError:
            return None
        return row[0] if row and isinstance(row[0], int) else None

    def devices(self) -> list[Device]:
        """Every device, or every process where there are no kernels."""
        if "kernels" in self.names:
            process = "globalPid" if "globalPid" in self.columns["kernels"] else "NULL"
            rows = self.connection.execute(f"SELECT DISTINCT {process}, deviceId FROM {self._table('kernels')}")
            return sorted((Device(*row) for row in rows), key=lambda one: (one.number, one.process or 0))
        rows = self.connection.execute(f"SELECT DISTINCT globalTid / {PROCESS} FROM {self._table('ranges')}")
        return [Device(process * PROCESS, i) for i, process in enumerate(sorted(row[0] for row in rows if row[0]))]

    def tables(self, device: Device) -> Tables:
        """All that a reader of pipelines needs of one device, as columns."""
        words = Words()
        collector = Collector(words)
        rows = self._rows(device)
        while chunk := list(islice(rows, _CHUNK)):
            times = np.array([row[3:5] for row in chunk], np.int64)
            collector.take(
                Events(
                    phase=np.full(len(chunk), ord("X"), np.uint8),
                    word=np.array([words.known[row[:2]] for row in chunk], np.int32),
                    lane=np.array([words.lanes[0, row[2]] for row in chunk], np.int32),
                    start=times[:, 0],
                    duration=times[:, 1],
                    link=np.zeros(len(chunk), np.int64),
                    args=[msgspec.Raw(msgspec.json.encode(row[5])) for row in chunk],
                )
            )
        return collector.tables()

    def _rows(self, device: Device) -> Iterator[Row]:
        """Launches, ranges and kernels of one device, and the calls by which it exchanges."""
        exchanges: list[_Exchange] = []
        for start, end, stream, correlation, name in self._kernels(device):
            if _SEND_RECEIVE.match(name):
                exchanges.append(_Exchange(start, start, end, stream, name, correlation))
            else:
                yield "kernel", name, stream, start, end - start, {"correlation": correlation}
        ours = {one.correlation for one in exchanges}
        launched: dict[int, int] = {}
        for start, end, thread, correlation in self._launches(device):
            if correlation in ours:
                launched[correlation] = start
            yield "cuda_runtime", "launch", thread, start, end - start, {"correlation": correlation}
        calls: list[_Call] = []
        apart: list[tuple[int, int]] = []  # spans of all-to-alls, whose sends and receives are no pipeline's
        for start, end, thread, text, blob in self._ranges(device):
            name = text.partition(", ")[0]  # what emit_nvtx puts behind a name are numbers of ops, and shapes
            if name in _CALLS:
                calls.append(_Call(start, _CALLS[name], self.payloads.peer(blob)))
            elif _ALL_TO_ALL.search(name):
                apart.append((start, end))
            else:
                yield "cpu_op" if "::" in name else "user_annotation", name, thread, start, end - start, {}
        moments = [one._replace(moment=launched.get(one.correlation, one.start)) for one in exchanges]
        yield from _exchanges(sorted(moments), sorted(calls, key=lambda call: call.moment), sorted(apart))

    def _launches(self, device: Device) -> Iterator[tuple[int, int, int, int]]:
        if "launches" in self.names:
            query = f'SELECT start, "end", globalTid, correlationId FROM {self._table("launches")}'
            yield from self.connection.execute(*self._of_process(query, device, "correlationId IS NOT NULL"))

    def _ranges(self, device: Device) -> Iterator[tuple[int, int, int, str, object]]:
        """Ranges that have ended, without the thousands that name operators of tensors."""
        if "ranges" in self.names:
            has = self.columns["ranges"]
            text = "text" if "text" in has else "NULL"
            by_id = "(SELECT value FROM StringIds WHERE id = textId)" if "textId" in has else "NULL"
            blob = "binaryData" if "binaryData" in has else "NULL"
            name = f"coalesce({text}, {by_id})"
            query = f'SELECT start, "end", globalTid, {name}, {blob} FROM {self._table("ranges")}'
            condition = f"eventType IN (59, 60) AND \"end\" IS NOT NULL AND {name} NOT LIKE 'aten::%'"
            yield from self.connection.execute(*self._of_process(query, device, condition))

    def _kernels(self, device: Device) -> Iterator[tuple[int, int, int, int, str]]:
        if "kernels" in self.names:
            name = "shortName" if "shortName" in self.columns["kernels"] else "demangledName"
            text = f"coalesce((SELECT value FROM StringIds WHERE id = {name}), '')"
            table, correlation = self._table("kernels"), "coalesce(correlationId, -1)"
            query = f'SELECT start, "end", streamId, {correlation}, {text} FROM {table} WHERE deviceId = ?'
            if device.process is None:
                yield from self.connection.execute(query, (device.number,))
            else:
                yield from self.connection.execute(f"{query} AND globalPid = ?", (device.number, device.process))

    def _of_process(self, query: str, device: Device, condition: str) -> tuple[str, tuple[int, ...]]:
        """A query of rows on the CPU, narrowed to the device's process where it is known."""
        if device.process is None:
            return f"{query} WHERE {condition}", ()
        return f"{query} WHERE {condition} AND globalTid / {PROCESS} = ?", (device.process // PROCESS,)

    def _table(self, role: str) -> str:
        return f'"{self.names[role]}"'


def open_export(connection: sqlite3.Connection, path: Path) -> Export:
    """Look what a database has.

    Raises:
        InputError: neither kernels nor ranges.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    present = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    names = {role: name for role, known in _TABLES.items() for name in sorted(present) if known.fullmatch(name)}
    if "kernels" not in names and "ranges" not in names:
        rule = f"it has neither kernels nor NVTX ranges, but {', '.join(present[:8]) or 'no table at all'}"
        raise InputError(Fault(str(path), rule, "record with nsys profile --trace=cuda,nvtx"))
    columns = {
        role: frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{name}")'))
        for role, name in names.items()
    }
    known = payloads(connection, names["ranges"], PROCESS) if "ranges" in names else Payloads({}, {})
    remarks = tuple(f"{path}: it has {what}" for role, what in _MISSING.items() if role not in names)
    return Export(path, connection, names, columns, known, remarks)


def _exchanges(kernels: list[_Exchange], calls: list[_Call], apart: list[tuple[int, int]]) -> Iterator[Row]:
    """Each kernel that sends or receives, and the calls it runs: those posted since the one launched before it.

    Without calls in the file a kernel is itself the moment at which a rank talks to another; which way is unknown.
    """
    reach = list(accumulate((end for _, end in apart), max))
    begins = [start for start, _ in apart]
    posted = 0
    for number, (moment, start, end, stream, name, correlation) in enumerate(kernels):
        behind = bisect_right(begins, moment)
        first = posted
        while posted < len(calls) and calls[posted].moment <= moment:
            posted += 1
        if behind and moment <= reach[behind - 1]:
            continue
        for call in calls[first:posted] or [_Call(moment, EITHER, None)]:
            said: dict[str, object] = {"Collective name": call.sense, "External id": number}
            if call.peer is not None:
                said["Dst Rank" if call.sense == "send" else "Src Rank"] = call.peer // PROCESS
            yield "cpu_op", "record_param_comms", 0, call.moment, 0, said
            yield "kernel", name, stream, start, end - start, {**said, "correlation": correlation}


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
