"""Distilled traces: the ops and transfers of each device, kilobytes instead of the megabytes they were read from.

Each host distils the files of its own ranks into one folder, and whoever reads that folder gets the devices as the
traces gave them, to the nanosecond; merging, aligning and all else is done then. A file is one MessagePack map
(a ``Distilled``) whose columns are packed little-endian numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..core.errors import Fault, InputError
from ..core.safe_output import replacing
from ..reconstruct.device_ops import Clock, Collectives, Memory, RankOps, Reading, Transfers
from .files import blocks, faults_alike, left_out

FORMAT = "debubble distilled trace"
VERSION = 2
_MOST_BYTES = 1 << 30  # of one file
_AGAIN = "distil the trace again with --distil"
# Columns by name, with their type; optional ones may be missing. Little-endian, whatever machine wrote them.
_OPS = {"step": "<i8", "kind": "<u1", "start": "<i8", "end": "<i8"}
_OPTIONAL_OPS = {"stage": "<i4", "chunk": "<i4", "unit": "<i4", "first_end": "<i8", "second_start": "<i8"}
_MOVES = {"step": "<i8", "send": "<?", "forward": "<i1", "peer": "<i4", "start": "<i8", "end": "<i8"}
_OPTIONAL_MOVES = {"group": "<i8", "op": "<i8", "stream": "<i8"}
_JOINT = {"step": "<i8", "members": "<i8", "size": "<i4", "start": "<i8", "end": "<i8"}
_HELD = {"time": "<i8", "held": "<i8"}

Columns = dict[str, bytes]


class Distilled(msgspec.Struct, frozen=True, kw_only=True):
    """One device: what a ``RankOps`` holds, and what was said when it was read.

    Attributes:
        columns: of its ops; those that a trace does not tell are missing.
        transfers: columns of its sends and receives; None if the trace has none.
        collectives: likewise.
        memory: likewise.
        counted: whether micro-batches were counted, and are no labels.
        steps_counted: whether steps were.
        untold: what its trace lacks to tell directions.
        world: ranks of the job, if the trace says it.
        chunks: stages a rank, if a configuration beside the trace says it.
        remarks: of the whole reading, the same in all its files.
    """

    format: str = FORMAT
    version: int = VERSION
    rank: int
    source: str
    position: int | None
    replica: int | None
    clock: str
    step_ns: dict[int, int]
    columns: Columns
    transfers: Columns | None
    collectives: Columns | None = None
    memory: Columns | None = None
    counted: bool = False
    steps_counted: bool = False
    talks: bool = False
    untold: str = ""
    world: int | None = None
    chunks: int | None = None
    remarks: list[str]


def is_distilled(head: bytes) -> bool:
    """Whether a file that begins like this is one."""
    return FORMAT.encode() in head[:200]


def distil(reading: Reading, folder: Path) -> list[Path]:
    """Write one file for each device into a folder, which is made if it is not there.

    Raises:
        InputError: the folder holds the same rank of another trace, or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for device in reading.devices:
        path = folder / f"ops-{device.rank:05}.msgpack"
        one = _packed(device, reading)
        # Two traces into one folder would mix ranks of two runs, and nobody would see it.
        _keep_others(path, one)
        with replacing(path) as stream:
            stream.write(msgspec.msgpack.encode(one))
        written.append(path)
    return written


def read_distilled(paths: Sequence[Path], source: str) -> Reading:
    """Read devices from their files; a file that cannot be read costs its device, aloud.

    Raises:
        InputError: not one can be read, or two hold the same rank.
    """
    found: dict[int, Distilled] = {}
    faults: list[Fault] = []
    for path in paths:
        try:
            one = _read(path)
        except InputError as error:
            faults += error.faults
            continue
        if one.rank in found:
            rule = f"it holds rank {one.rank}, which another file has"
            raise InputError(Fault(str(path), rule, "keep one of them"))
        found[one.rank] = one
    if not found:
        raise InputError(*faults_alike(faults))
    said = dict.fromkeys(left_out((fault.value, fault.rule) for fault in faults))
    worlds, chunks = [], None
    for one in found.values():
        said |= dict.fromkeys(one.remarks)  # of the whole reading: every file of a host repeats them
        if one.world is not None:
            worlds.append(one.world)
        if chunks is None:
            chunks = one.chunks
    devices = tuple(map(_device, found.values()))
    return Reading(source, devices, tuple(said), max(worlds, default=None), chunks)


def _keep_others(path: Path, one: Distilled) -> None:
    """Refuse to write over another trace's rank."""
    if path.exists() and (there := _read(path)).source != one.source:
        rule = f"it holds rank {one.rank} of another trace, {there.source}"
        raise InputError(Fault(str(path), rule, "give another folder, or delete it"))


def _packed(device: RankOps, reading: Reading) -> Distilled:
    return Distilled(
        rank=device.rank,
        source=device.source,
        position=device.position,
        replica=device.replica,
        clock=device.clock.value,
        step_ns=device.step_ns,
        columns=_bytes(device, _OPS | _OPTIONAL_OPS) or {},
        transfers=_bytes(device.transfers, _MOVES | _OPTIONAL_MOVES),
        collectives=_bytes(device.collectives, _JOINT),
        memory=_bytes(device.memory, _HELD),
        counted=device.counted,
        steps_counted=device.steps_counted,
        talks=device.talks,
        untold=device.untold,
        world=reading.world,
        chunks=reading.chunks,
        remarks=list(reading.remarks),
    )


def _bytes(noun: object | None, kinds: Mapping[str, str]) -> Columns | None:
    """The columns of a noun that are there, packed; None of nothing."""
    if noun is None:
        return None
    packed: Columns = {}
    for name, kind in kinds.items():
        column = getattr(noun, name)
        if column is not None:
            packed[name] = np.ascontiguousarray(column, np.dtype(kind)).tobytes()
    return packed


def _read(path: Path) -> Distilled:
    remarks: list[str] = []
    try:
        data = b""
        for block in blocks(path, remarks):
            data += block
            if len(data) > _MOST_BYTES:
                raise _fault(path, "it is larger than a distilled trace can be", _AGAIN)
        # The version before all else: what another version holds need not fit the struct of this one.
        version = msgspec.msgpack.decode(data, type=_Version)
        if (version.format, version.version) != (FORMAT, VERSION):
            raise _fault(path, f"it is of version {version.version}, this debubble reads {VERSION}", _AGAIN)
        one = msgspec.msgpack.decode(data, type=Distilled)
    except msgspec.MsgspecError as error:
        raise _fault(path, f"the file is cut or damaged ({error})", _AGAIN) from None
    except OSError as error:
        raise _fault(path, f"it cannot be read ({error.strerror})", "look at its permissions") from None
    if not _fits(one):
        raise _fault(path, "its columns do not fit each other", _AGAIN)
    return one


class _Version(msgspec.Struct):
    """What is read first, because all else depends on it."""

    format: str = ""
    version: int = 0


def _fault(path: Path, rule: str, remedy: str) -> InputError:
    return InputError(Fault(str(path), rule, remedy))


def _fits(one: Distilled) -> bool:
    """Whether all columns are there, are known and are equally long, and each transfer's op is there."""
    tables: tuple[tuple[Columns | None, Mapping[str, str], Mapping[str, str]], ...] = (
        (one.columns, _OPS, _OPTIONAL_OPS),
        (one.transfers, _MOVES, _OPTIONAL_MOVES),
        (one.collectives, _JOINT, {}),
        (one.memory, _HELD, {}),
    )
    for columns, needed, more in tables:
        if columns is not None and _rows(columns, needed, more) < 0:
            return False
    ops = np.frombuffer((one.transfers or {}).get("op", b""), "<i8")  # the op of each transfer, an index
    if ops.max(initial=-1) >= _rows(one.columns, _OPS, _OPTIONAL_OPS):
        return False
    return one.clock in {clock.value for clock in Clock}


def _rows(columns: Columns, needed: Mapping[str, str], more: Mapping[str, str]) -> int:
    """How many rows the columns have; -1 if one is missing, not known, not whole, or of another length."""
    kinds = {**needed, **more}
    if not needed.keys() <= columns.keys() <= kinds.keys():
        return -1
    lengths = {len(data) / np.dtype(kinds[name]).itemsize for name, data in columns.items()}
    length = lengths.pop()
    if lengths or not length.is_integer():
        return -1
    return int(length)


def _device(one: Distilled) -> RankOps:
    columns: dict[str, Any] = _unpacked(one.columns, _OPS | _OPTIONAL_OPS)
    moves, joint, held = one.transfers, one.collectives, one.memory
    return RankOps(
        rank=one.rank,
        source=one.source,
        position=one.position,
        replica=one.replica,
        clock=Clock(one.clock),
        step_ns=one.step_ns,
        counted=one.counted,
        steps_counted=one.steps_counted,
        talks=one.talks,
        untold=one.untold,
        transfers=None if moves is None else Transfers(**_unpacked(moves, _MOVES | _OPTIONAL_MOVES)),
        collectives=None if joint is None else Collectives(**_unpacked(joint, _JOINT)),
        memory=None if held is None else Memory(**_unpacked(held, _HELD)),
        **columns,
    )


def _unpacked(columns: Columns, kinds: Mapping[str, str]) -> dict[str, Any]:
    return {name: np.frombuffer(data, kinds[name]) for name, data in columns.items()}
