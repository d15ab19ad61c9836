"""Nsight Systems exports: every device of every file, on one clock, its ops found as in any trace."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..core.errors import Fault, InputError, Refusal
from ..core.schedule import Kind
from ..reconstruct.device_ops import UNTOLD, Clock, RankOps, Reading
from ..reconstruct.pairing import in_line, with_senses
from .kineto.read import device_of
from .nsight_export import PROCESS, Device, open_export
from .op_names import Role
from .run_files import faults_alike, left_out
from .stream import local

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
