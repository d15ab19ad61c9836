"""Nsight Systems exports: every device of every file, on one clock, its ops found as in any trace."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..core.errors import Fault, InputError, Refusal
from ..core.op import Kind
from ..reconstruct.device_ops import Bare, Clock, RankOps, Reading
from ..reconstruct.partners import chains
from .kineto.names import Role
from .kineto.pieces import pieces_of
from .kineto.read import device_of
from .kineto.send_or_receive import with_senses
from .kineto.steps import steps_of
from .kineto.tables import Tables
from .kineto.undirected import Untold, runs_of, untold_work
from .kineto.unusable import untold
from .nsight_export import PROCESS, Device, open_export
from .places import local

_RANK = re.compile(r"rank[-_]?\[?(\d+)", re.IGNORECASE)
_DOWN = 0.9  # share of forwards that must come behind the same one upstream; else names of kernels have misled


@dataclass(frozen=True, slots=True, eq=False)
class _Device:
    """One device.

    Args:
        ops: of it; none where nothing in its file tells their directions.
        silent: then its work, which the transfers of the other ranks can tell; its transfers are those of ``ops``.
        why: then what its file lacks.
    """

    ops: RankOps
    silent: Untold | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """What one export held.

    Args:
        devices: with ranks counted within the file.
        anchor: the moment of its zero, nanoseconds since 1970; None where it does not say.
        named: whether ranges name its ops; else the direction of kernels tells.
        remarks: what was left out.
    """

    devices: tuple[_Device, ...]
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
        raise InputError(*faults)
    found = _on_one_clock(_numbered(files), len(files))
    devices = [one.ops for one in found if len(one.ops)]
    bare = _bare([one for one in found if one.silent is not None])
    if devices and not (all(file.named for file in files) or _flows_down(devices)):
        devices = []
    if not devices and not bare:
        raise Refusal(
            f"{source}: there is no pipeline here: no range names a forward or backward of a micro-batch, "
            "and no ranks hand results on to each other; if one ran, name its ops with debubble.annotate"
        )
    lost = [f"{fault.value}: {fault.rule}; it was left out" for fault in faults]
    said = [remark for file in files for remark in file.remarks]
    return Reading(source, tuple(devices), (*said, *lost), tuple(bare))


def _bare(silent: Sequence[_Device]) -> list[Bare]:
    """The devices of which only transfers between ranks can tell what they did."""
    works = [replace(one.silent, transfers=one.ops.transfers) for one in silent if one.silent and one.ops.transfers]
    sure, doubts = with_senses(works)
    return [
        Bare(one.ops.rank, one.ops.source, runs_of(work), why=one.why, doubt=doubts.get(i, ""))
        for i, (one, work) in enumerate(zip(silent, sure, strict=True))
    ]


def _read(path: Path) -> _File:
    try:
        with local(path) as here, closing(sqlite3.connect(_address(here), uri=True)) as connection:
            export = open_export(connection, path)
            found: dict[Device, _Device] = {}
            remarks = list(export.remarks)
            named = False
            for one in export.devices():
                tables = export.tables(one)
                named |= bool((tables.roles == Role.LABEL).any())
                found[one], clauses = _device(tables, path)
                remarks += [f"{path}: device {one.number}: {clause}" for clause in clauses]
            ranks = _ranks(list(found), path)
            devices = [_with_rank(found[one], rank, ranks) for one, rank in ranks.items()]
            whole = [one if named else replace(one, ops=_by_order(one.ops)) for one in devices]
            return _File(tuple(whole), export.anchor(), named, tuple(remarks))
    except sqlite3.Error as error:
        raise InputError(Fault(str(path), f"it cannot be read as an export: {error}", "export it again")) from error


def _device(tables: Tables, path: Path) -> tuple[_Device, list[str]]:
    """The ops of one device, or its work where nothing tells their directions; and what was left out, a clause each."""
    ops, clauses = device_of(tables, str(path))
    if len(ops):
        return _Device(ops), clauses
    pieces = pieces_of(tables)
    why = untold(tables, pieces)
    return _Device(
        ops, untold_work(tables, pieces, steps_of(tables)) if why else None, why and f"{path}: {why}"
    ), clauses


def _address(path: Path) -> str:
    return f"{path.resolve().as_uri()}?mode=ro&immutable=1"


def _ranks(devices: Sequence[Device], path: Path) -> dict[Device, int]:
    """A rank for each device of a file: by the file's name where it holds one, else by the device's number."""
    name = _RANK.search(path.name)
    if name and len(devices) == 1:
        return {devices[0]: int(name[1])}
    numbers = [device.number for device in devices]
    alone = len(set(numbers)) == len(numbers)
    return {device: device.number if alone else i for i, device in enumerate(devices)}


def _with_rank(device: _Device, rank: int, ranks: dict[Device, int]) -> _Device:
    """A device under its rank, with its peers as ranks where payloads name them as processes."""
    ops, by_process = device.ops, {one.process // PROCESS: n for one, n in ranks.items() if one.process is not None}
    peer = [] if ops.transfers is None else [by_process.get(process, -1) for process in ops.transfers.peer.tolist()]
    moves = ops.transfers and replace(ops.transfers, peer=np.array(peer, np.int32))
    return replace(device, ops=replace(ops, rank=rank, transfers=moves))


def _by_order(device: RankOps) -> RankOps:
    """Without labels and steps, micro-batches count from the start of the trace: leave them to the steps."""
    return replace(device, unit=None) if (device.step < 0).any() else device


def _numbered(files: Sequence[_File]) -> list[tuple[_Device, int | None]]:
    """All devices with their file's anchor; ranks that several files count from 0 are counted on."""
    found: list[tuple[_Device, int | None]] = []
    for file in files:
        taken = {device.ops.rank for device, _ in found}
        clash = any(device.ops.rank in taken for device in file.devices)
        shift = max(taken) + 1 if clash else 0
        for device in file.devices:
            ops = device.ops
            moves = ops.transfers and replace(
                ops.transfers, peer=np.where(ops.transfers.peer < 0, -1, ops.transfers.peer + shift)
            )
            found.append((replace(device, ops=replace(ops, rank=ops.rank + shift, transfers=moves)), file.anchor))
    return found


def _on_one_clock(devices: Sequence[tuple[_Device, int | None]], files: int) -> list[_Device]:
    """Times since 1970 where every file says when it began; else clocks of their own, where there are several."""
    anchors = [anchor for _, anchor in devices]
    if files == 1:
        return [device for device, _ in devices]
    if None in anchors:
        return [replace(device, ops=replace(device.ops, clock=Clock.OWN)) for device, _ in devices]
    return [_moved(device, anchor or 0) for device, anchor in devices]


def _moved(device: _Device, by: int) -> _Device:
    ops = device.ops
    moves = ops.transfers and ops.transfers.later(by)
    later = replace(ops, start=ops.start + by, end=ops.end + by, transfers=moves)
    return replace(device, ops=later, silent=device.silent and device.silent.later(by))


def _flows_down(devices: Sequence[RankOps]) -> bool:
    """Whether the k-th forward of each rank comes behind the k-th of the rank before: kernels' names alone mislead.

    Kernels called ``softmax_forward`` beside an all-to-all look like a pipeline; there all ranks run at the same time.
    """
    pairs = [(devices[a], devices[b]) for chain in chains(devices) for a, b in pairwise(chain)]
    behind: list[bool] = []
    for first, second in pairs:
        ended, begun = (np.sort(time[d.kind == Kind.F]) for d, time in ((first, first.end), (second, second.start)))
        count = min(len(ended), len(begun))
        behind += (begun[:count] >= ended[:count]).tolist()
    return bool(behind) and sum(behind) >= _DOWN * len(behind)
