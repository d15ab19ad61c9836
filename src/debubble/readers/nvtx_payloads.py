"""Payloads of NCCL's NVTX ranges: which rank a send or receive talks to, where an export kept its blobs.

A payload begins with 32 bytes (domain, schema, sizes); behind them stand the fields that the export's own schema
tables list. A peer is counted within its communicator; which process that is, the ranges of its creation tell.
"""

from __future__ import annotations

import sqlite3
import struct
from dataclasses import dataclass

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
        blobs = connection.execute(f'SELECT globalTid, binaryData FROM "{ranges}" WHERE binaryData IS NOT NULL')  # noqa: S608 - a name of the schema
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
