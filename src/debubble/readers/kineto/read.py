"""Kineto and Chrome traces to devices: one file a rank, or many ranks in one; a bad file costs itself, and is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import Fault, InputError, Refusal
from ...reconstruct.device_ops import Bare, RankOps, Reading, Undirected
from ..chrome import Words, read_events
from ..stream import blocks
from .argument_ops import told
from .identity import identity, place_in_groups, settle, with_rank
from .labelled import labelled
from .merged import holds_several, ranks_of
from .names import SKIPPED
from .ops import column
from .p2p import transfers_of
from .pieces import pieces_of
from .posts import posts_of
from .steps import steps_of
from .tables import Collector, Tables
from .undirected import undirected
from .unlabelled import unlabelled
from .unusable import unfit, untold

_DAY = 86_400_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """What one file held.

    Args:
        path: the file.
        header: keys of its root but the events.
        devices: one for each device; their rank is 0 until files are settled among each other, where there is one.
        many: whether the file tells its devices' ranks itself.
        remarks: what was lost or repaired, a sentence each.
        unusable: why it yields no device although it might hold a pipeline, or an empty string.
        bare: its work without directions, which only the other ranks' traces can tell; None where it has them.
        parts: what it held of each rank, where it is one that was merged of many; then all else is there.
    """

    path: Path
    header: dict[str, Any]
    devices: tuple[RankOps, ...]
    many: bool
    remarks: tuple[str, ...]
    unusable: str = ""
    bare: Undirected | None = None
    parts: tuple[TraceFile, ...] = ()


def read_traces(paths: Sequence[Path], *, each: Callable[[Sequence[Path]], Sequence[object]] | None = None) -> Reading:
    """Read traces, one file a rank or many ranks in one, into one ``RankOps`` a device.

    Args:
        paths: files.
        each: maps ``read_trace_or_fault`` over the paths, to read them in parallel; one after the other by default.

    Raises:
        InputError: not one file could be read.
        Refusal: they could be read, and none shows a pipeline.
    """
    results = [read_trace_or_fault(path) for path in paths] if each is None else each(paths)
    files = [part for one in results if isinstance(one, TraceFile) for part in one.parts or (one,)]
    faults = [one for one in results if isinstance(one, Fault)]
    if not files:
        raise InputError(*faults)
    remarks = [f"{fault.value}: {fault.rule}; it was left out" for fault in faults]
    remarks += [remark for file in files for remark in file.remarks]
    devices = [device for file in files if file.many for device in file.devices]
    single = [file for file in files if not file.many]
    ranks, doubts = settle([identity(file.path, file.header) for file in single])
    bases, guessed = _bases(single)
    bare = [one for row in zip(single, ranks, bases, strict=True) if (one := _bare(*row)) is not None]
    for file, rank, base in zip(single, ranks, bases, strict=True):
        if rank is not None and file.devices:
            devices.append(_placed(file, rank, base))
        elif rank is not None and file.bare is None:
            why = file.unusable or f"{file.path}: rank {rank} shows no forward and no backward of a pipeline"
            remarks.append(f"{why}; it was left out")
    if not any(map(len, devices)) and not bare:
        raise _no_pipeline(files)
    return Reading(_source(paths), tuple(devices), (*remarks, *doubts, *guessed), tuple(bare), _world(single))


def read_trace_or_fault(path: Path) -> TraceFile | Fault:
    """Read one file, or say in one fault why it cannot be read."""
    try:
        return read_trace(path)
    except InputError as error:
        fault = error.faults[0]
        return Fault(str(path), fault.rule, fault.remedy)
    except OSError as error:
        return Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a file that can be read")


def read_trace(path: Path) -> TraceFile:
    """Read one file.

    Raises:
        InputError: it holds no list of events.
        OSError: it cannot be opened.
    """
    words, remarks = Words(), list[str]()
    collector = Collector(words)
    said = read_events(blocks(path, remarks), collector.take, words, skip=SKIPPED, worth=collector.worth)
    tables = collector.tables()
    if said.remarks and not any(len(table["start"]) for table in tables.columns.values()):
        raise InputError(Fault(str(path), "; ".join([*remarks, *said.remarks]), "export it again"))
    remarks += [f"{path}: {clause}" for clause in said.remarks]
    remarks += [f"{path}: {count:,} events {why} were set aside" for why, count in tables.set_aside.items()]
    if len(tables.columns["told"]["start"]):
        devices, clauses = told(tables, str(path))
        if devices:
            return TraceFile(path, said.header, tuple(devices), True, (*remarks, *(f"{path}: {c}" for c in clauses)))
    if merged := ranks_of(tables) if holds_several(tables) else {}:
        remarks.append(f"{path}: it holds {len(merged)} ranks; what launched the work of each device told them apart")
        parts = [_of_rank(path, with_rank(said.header, rank), part) for rank, part in merged.items()]
        parts[0] = replace(parts[0], remarks=(*remarks, *parts[0].remarks))
        return TraceFile(path, said.header, (), False, (), parts=tuple(parts))
    one = _of_rank(path, said.header, tables)
    return replace(one, remarks=(*remarks, *one.remarks))


def _of_rank(path: Path, header: dict[str, Any], tables: Tables) -> TraceFile:
    """What a file, or its part, holds of one rank."""
    if why := unfit(tables, header):
        return TraceFile(path, header, (), False, (), f"{path}: {why}")
    device, clauses = device_of(tables, str(path))
    remarks = tuple(f"{path}: {clause}" for clause in clauses)
    if len(device):
        return TraceFile(path, header, (device,), False, remarks)
    pieces = pieces_of(tables)
    why = untold(tables, pieces)
    bare = undirected(tables, pieces, steps_of(tables)) if why else None
    return TraceFile(path, header, (), False, remarks, why and f"{path}: {why}", bare)


def device_of(tables: Tables, source: str) -> tuple[RankOps, list[str]]:
    """The device of one rank, without its rank, and what was left out, a clause each."""
    steps = steps_of(tables)
    pieces = pieces_of(tables)
    found = labelled(tables, pieces)
    if not len(found) and not found.remarks:
        found = unlabelled(tables, pieces, steps)
    step = steps.of(found.launched)
    keep = (step >= 0) | (not len(steps.number))
    clauses = list(found.remarks)
    if not keep.all():
        clauses.append(f"{int((~keep).sum()):,} ops outside every step were left out")
    if pieces.unlaunched:
        clauses.append(f"{pieces.unlaunched:,} kernels whose launch is not in the file were left out")
    device = RankOps(
        rank=0,
        source=source,
        step=step[keep],
        kind=found.kind[keep],
        start=found.start[keep],
        end=found.end[keep],
        stage=column(found.stage[keep]),
        unit=column(found.unit[keep]),
        step_ns=steps.lengths(),
        transfers=transfers_of(tables, pieces, steps),
        talks=len(posts_of(tables)) > 0,
    )
    return device, clauses


def _placed(file: TraceFile, rank: int, base: int) -> RankOps:
    """The file's device under its rank, on the common clock, at its place in the process groups."""
    device = file.devices[0]
    position, replica = place_in_groups(file.header, rank)
    moved = device.transfers and device.transfers.later(base)
    return replace(
        device,
        rank=rank,
        start=device.start + base,
        end=device.end + base,
        transfers=moved,
        position=position,
        replica=replica,
    )


def _bare(file: TraceFile, rank: int | None, base: int) -> Bare | None:
    """The file's work without directions under its rank, on the common clock."""
    if rank is None or (runs := file.bare) is None:
        return None
    cut = runs.first_end >= 0
    moved = replace(
        runs,
        start=runs.start + base,
        end=runs.end + base,
        first_end=np.where(cut, runs.first_end + base, -1),
        second_start=np.where(cut, runs.second_start + base, -1),
        transfers=runs.transfers.later(base),
    )
    return Bare(rank, str(file.path), moved, place_in_groups(file.header, rank)[1], file.unusable)


def _bases(files: Sequence[TraceFile]) -> tuple[list[int], list[str]]:
    """The base time of each file, nanoseconds; that of the others where a file lacks it and its times fit theirs."""
    said = [base if isinstance(base := file.header.get("baseTimeNanoseconds"), int) else None for file in files]
    common = {base for base in said if base}
    remarks: list[str] = []
    if len(common) != 1 or None not in said:
        return [base or 0 for base in said], remarks
    base = common.pop()
    middles = [_middle(file) for file, own in zip(files, said, strict=True) if own is not None]
    bases: list[int] = []
    for file, own in zip(files, said, strict=True):
        fits = own is None and any(abs(_middle(file) - middle) < _DAY for middle in middles)
        bases.append(base if fits else own or 0)
        if fits:
            remarks.append(f"{file.path}: it has no base time; that of the other ranks was taken, which its times fit")
    return bases, remarks


def _middle(file: TraceFile) -> float:
    """The median start of a file's work; infinite where it has none."""
    work = next((one for one in (*file.devices, file.bare) if one is not None and len(one)), None)
    return float("inf") if work is None else float(np.median(work.start))


def _world(files: Sequence[TraceFile]) -> int | None:
    """How many ranks the job has, as far as headers tell."""
    infos = [info for file in files if isinstance(info := file.header.get("distributedInfo"), dict)]
    return max((size for info in infos if isinstance(size := info.get("world_size"), int)), default=None)


def _no_pipeline(files: Sequence[TraceFile]) -> Refusal:
    why = [file.unusable for file in files if file.unusable]
    if why:
        return Refusal(f"there is no pipeline to be seen here; {why[0]}")
    names = f"{files[0].path}" if len(files) == 1 else f"{len(files)} files, {files[0].path.name} and others"
    return Refusal(
        f"{names}: there is no pipeline here: no range names a forward or backward of a stage and micro-batch, "
        "and no rank sends to or receives from another (an all-to-all is no pipeline transfer); if one ran, name its "
        "ops with debubble.annotate"
    )


def _source(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else str(paths[0].parent)
