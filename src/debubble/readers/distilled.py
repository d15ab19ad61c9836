"""Distilled traces: the ops and transfers of each device, kilobytes instead of the megabytes they were read from.

Each host distils the files of its own ranks into one folder, and whoever reads that folder gets the devices as the
traces gave them, to the nanosecond; merging, aligning and all else is done then. A file is one MessagePack map
(a ``Distilled``) whose columns are packed little-endian numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..core.atomic import replacing
from ..core.errors import Fault, InputError
from ..reconstruct.device_ops import Bare, Clock, RankOps, Reading, Transfers, Undirected
from .stream import blocks

FORMAT = "debubble distilled trace"
VERSION = 1
_MOST_BYTES = 1 << 30  # of one file
_AGAIN = "distil the trace again with --distil"
_COLUMNS = {"step": "<i8", "kind": "<u1", "start": "<i8", "end": "<i8"}
_OPTIONAL = {"stage": "<i4", "chunk": "<i4", "unit": "<i4"}
_RUNS = dict.fromkeys(("step", "start", "end", "first_end", "second_start"), "<i8")
_MOVES = {"step": "<i8", "send": "<?", "forward": "<i1", "peer": "<i4", "start": "<i8", "end": "<i8"}


class Distilled(msgspec.Struct, frozen=True, kw_only=True):
    """One device: what a ``RankOps`` or a ``Bare`` holds, and what was said when it was read.

    Attributes:
        columns: of its ops; those that a trace does not tell are missing.
        transfers: columns of its sends and receives; None where the trace has none.
        runs: columns of its work, in place of ops, where only the other ranks can tell their directions.
        run: of each transfer, the one of these that it belongs to.
        why: then what its trace lacks.
        doubt: and why its transfers cannot be told apart, if they cannot.
        world: ranks of the job, where the trace says it.
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
    columns: dict[str, bytes]
    transfers: dict[str, bytes] | None
    talks: bool = False
    runs: dict[str, bytes] | None = None
    run: bytes = b""
    why: str = ""
    doubt: str = ""
    world: int | None = None
    remarks: list[str]


def is_distilled(head: bytes) -> bool:
    """Whether a file that begins like this is one."""
    return FORMAT.encode() in head[:200]


def distil(reading: Reading, folder: Path) -> list[Path]:
    """Write one file for each device into a folder, which is made where it is not there.

    Raises:
        InputError: the folder holds the same rank of another trace, or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in (*map(_packed, reading.devices), *map(_packed_bare, reading.bare)):
        path = folder / f"ops-{one.rank:05}.msgpack"
        _keep_others(path, one)
        with replacing(path) as stream:
            said = msgspec.structs.replace(one, remarks=list(reading.remarks), world=reading.world)
            stream.write(msgspec.msgpack.encode(said))
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
        raise InputError(*faults)
    said = [remark for one in found.values() for remark in one.remarks]
    lost = [f"{fault.value}: {fault.rule}; it was left out" for fault in faults]
    return Reading(
        source,
        tuple(_device(one) for one in found.values() if one.runs is None),
        (*lost, *dict.fromkeys(said)),
        tuple(_bare(one, one.runs) for one in found.values() if one.runs is not None),
        max((one.world for one in found.values() if one.world is not None), default=None),
    )


def _keep_others(path: Path, one: Distilled) -> None:
    """Refuse to write over another trace's rank."""
    if path.exists() and (there := _read(path)).source != one.source:
        rule = f"it holds rank {one.rank} of another trace, {there.source}"
        raise InputError(Fault(str(path), rule, "give another folder, or delete it"))


def _packed(device: RankOps) -> Distilled:
    columns = {name: getattr(device, name) for name in (*_COLUMNS, *_OPTIONAL)}
    kinds = _COLUMNS | _OPTIONAL
    return Distilled(
        rank=device.rank,
        source=device.source,
        position=device.position,
        replica=device.replica,
        clock=device.clock.value,
        step_ns=device.step_ns,
        columns={name: _bytes(column, kinds[name]) for name, column in columns.items() if column is not None},
        transfers=None if device.transfers is None else _all(device.transfers, _MOVES),
        talks=device.talks,
        remarks=[],
    )


def _packed_bare(bare: Bare) -> Distilled:
    return Distilled(
        rank=bare.rank,
        source=bare.source,
        position=None,
        replica=bare.replica,
        clock=Clock.SHARED.value,
        step_ns=bare.runs.lengths,
        columns=dict.fromkeys(_COLUMNS, b""),
        transfers=_all(bare.runs.transfers, _MOVES),
        talks=True,
        runs=_all(bare.runs, _RUNS),
        run=_bytes(bare.runs.run, "<i8"),
        why=bare.why,
        doubt=bare.doubt,
        remarks=[],
    )


def _all(columns: object, kinds: dict[str, str]) -> dict[str, bytes]:
    return {name: _bytes(getattr(columns, name), kind) for name, kind in kinds.items()}


def _bytes(column: Any, kind: str) -> bytes:
    return np.ascontiguousarray(column, np.dtype(kind)).tobytes()


def _read(path: Path) -> Distilled:
    remarks: list[str] = []
    try:
        data = b""
        for block in blocks(path, remarks):
            data += block
            if len(data) > _MOST_BYTES:
                raise _fault(path, "it is larger than a distilled trace can be", _AGAIN)
        one = msgspec.msgpack.decode(data, type=Distilled)
    except msgspec.DecodeError as error:
        raise _fault(path, f"the file is cut or damaged ({error})", _AGAIN) from None
    except OSError as error:
        raise _fault(path, f"it cannot be read ({error.strerror})", "look at its permissions") from None
    if (one.format, one.version) != (FORMAT, VERSION):
        raise _fault(path, f"it is of version {one.version}, this debubble reads {VERSION}", _AGAIN)
    if not _fits(one):
        raise _fault(path, "its columns do not fit each other", _AGAIN)
    return one


def _fault(path: Path, rule: str, remedy: str) -> InputError:
    return InputError(Fault(str(path), rule, remedy))


def _fits(one: Distilled) -> bool:
    """Whether all columns are there, are known and are equally long."""
    ops = _lengths(one.columns, _COLUMNS | _OPTIONAL)
    moves = {0} if one.transfers is None else _lengths(one.transfers, _MOVES)
    whole = one.transfers is None or one.transfers.keys() == _MOVES.keys()
    if one.runs is not None and not _runs_fit(one, one.runs, moves):
        return False
    known = one.clock in {clock.value for clock in Clock}
    return known and whole and one.columns.keys() >= _COLUMNS.keys() and len(ops) == len(moves) == 1


def _runs_fit(one: Distilled, runs: dict[str, bytes], moves: set[int]) -> bool:
    """Whether the columns of work are whole, and each transfer belongs to a run that is there."""
    rows = _lengths(runs, _RUNS)
    if one.transfers is None or runs.keys() != _RUNS.keys() or len(rows) != 1 or len(one.run) != 8 * max(moves):
        return False
    return bool((np.frombuffer(one.run, "<i8") < max(rows)).all())


def _lengths(columns: dict[str, bytes], kinds: dict[str, str]) -> set[int]:
    """Rows of each column; -1 beside others for one that is not known or not whole."""
    found = set()
    for name, data in columns.items():
        size = np.dtype(kinds.get(name, "<i8")).itemsize
        found.add(len(data) // size if name in kinds and len(data) % size == 0 else -1)
    return found if -1 not in found else {-1, 0}


def _device(one: Distilled) -> RankOps:
    columns: dict[str, Any] = _unpacked(one.columns, _COLUMNS | _OPTIONAL)
    return RankOps(
        rank=one.rank,
        source=one.source,
        position=one.position,
        replica=one.replica,
        clock=Clock(one.clock),
        step_ns=one.step_ns,
        talks=one.talks,
        transfers=None if one.transfers is None else Transfers(**_unpacked(one.transfers, _MOVES)),
        **columns,
    )


def _bare(one: Distilled, runs: dict[str, bytes]) -> Bare:
    work = Undirected(
        transfers=Transfers(**_unpacked(one.transfers or {}, _MOVES)),
        run=np.frombuffer(one.run, "<i8"),
        lengths=one.step_ns,
        **_unpacked(runs, _RUNS),
    )
    return Bare(one.rank, one.source, work, one.replica, one.why, one.doubt)


def _unpacked(columns: dict[str, bytes], kinds: dict[str, str]) -> dict[str, Any]:
    return {name: np.frombuffer(data, kinds[name]) for name, data in columns.items()}
