"""Kineto and Chrome traces to devices: one file a rank, or many ranks in one; a bad file costs itself, and is named.

Large sets of files are read by several processes or by Ray, small ones by this process.

Whose work a file holds, its header says, else its name; of a file that holds many ranks, who launched what.
A clash of ranks is settled aloud or costs the file. Ids that join a launch with its kernel count from 1 in every
process, so in a file that was merged they collide. But a kernel never runs before its launch, and seldom long after it:
held against launches of another rank kernels do both.

    process 71   launch 1 ... launch 2                    device 0    kernel 1 ... kernel 2
    process 72         launch 1 ......... launch 2        device 1          kernel 1 ......... kernel 2     71 or 72?
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.schedule import Kind
from ..reconstruct.device_ops import UNKNOWN, UNTOLD, Ints, Memory, RankOps, Reading, Transfers
from .chrome import Told, Words, read_events
from .files import blocks, faults_alike, left_out, natural, progress, read_on_ray, source_of, why_unreadable
from .kineto_ops import Found, column, named_ops, runs_of, told
from .kineto_tables import Collector, Tables
from .kineto_work import Moves, Pieces, Posts, launches_of, messages_of, pieces_of, posts_of, steps_of
from .op_names import SKIPPED, Role, Way

_DAY = 86_400_000_000_000  # nanoseconds
_FAR = 1 << 62  # nanoseconds (146 years); a base time beyond is none


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """What one file held.

    Args:
        path: the file.
        header: keys of its root but the events.
        devices: one for each device; their rank is 0 until files are settled among each other, if there is one.
        many: whether the file tells its devices' ranks itself.
        remarks: what was lost or repaired, a sentence each.
        unusable: why it yields no device although it might hold a pipeline, a clause, or an empty string.
        parts: what it held of each rank, if it is one that was merged of many; then all else is there.
    """

    path: Path
    header: dict[str, Any]
    devices: tuple[RankOps, ...]
    many: bool
    remarks: tuple[str, ...]
    unusable: str = ""
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
    files: list[TraceFile] = []
    faults: list[Fault] = []
    for one in map(read_trace_or_fault, paths) if each is None else each(paths):
        if isinstance(one, TraceFile):
            files += one.parts or (one,)
        elif isinstance(one, Fault):
            faults.append(one)
    if not files:
        raise InputError(*faults_alike(faults))
    lost = [(fault.value, fault.rule) for fault in faults]
    devices: list[RankOps] = []
    single: list[TraceFile] = []
    remarks: list[str] = []
    for file in files:
        remarks += file.remarks
        if file.many:
            devices += file.devices
        else:
            single.append(file)
    ranks, doubts = settle([identity(file.path, file.header) for file in single])
    bases, guessed = _bases(single)
    for file, rank, base in zip(single, ranks, bases, strict=True):
        if rank is not None and file.devices:
            devices.append(_placed(file, rank, base))
        elif rank is not None:
            lost.append(
                (str(file.path), file.unusable or f"rank {rank} shows no forward and no backward of a pipeline")
            )
    if not any(map(len, devices)):
        raise _no_pipeline(files)
    said = (*left_out(lost), *remarks, *doubts, *guessed)
    return Reading(source_of(paths), tuple(devices), said, _world(single))


def read_trace_or_fault(path: Path) -> TraceFile | Fault:
    """Read one file, or say in one fault why it cannot be read."""
    try:
        return read_trace(path)
    except InputError as error:
        fault = error.faults[0]
        return Fault(str(path), fault.rule, fault.remedy)
    except OSError as error:
        return Fault(str(path), why_unreadable(error), "give a file that can be read")
    except Exception as error:  # whatever a stranger's file does, it costs this rank and not the run
        rule = f"its content is not what a trace holds ({type(error).__name__}: {error})"
        return Fault(str(path), rule, "export it again")


def read_trace(path: Path) -> TraceFile:
    """Read one file.

    Raises:
        InputError: it holds no list of events.
        OSError: it cannot be opened.
    """
    tables, said, remarks = _tables_of(path)
    # Nothing came out and something was lost: that is a damaged file, and no trace without work.
    if said.remarks and not any(len(table["start"]) for table in tables.columns.values()):
        raise InputError(Fault(str(path), "; ".join([*remarks, *said.remarks]), "export it again"))
    remarks += _of_file(path, said.remarks)
    for why, count in tables.set_aside.items():
        remarks.append(f"{path}: {count:,} events {why} were set aside")
    # Spans that say themselves which op they are come first: those files often hold all ranks.
    if len(tables.columns["told"]["start"]):
        devices, clauses = told(tables, str(path))
        if devices:
            on_its_clock = tuple(device.later(tables.zero) for device in devices)
            return TraceFile(path, said.header, on_its_clock, True, (*remarks, *_of_file(path, clauses)))
    merged = ranks_of(tables)
    if merged:
        remarks.append(f"{path}: it holds {len(merged)} ranks; what launched the work of each device told them apart")
        parts = [_of_rank(path, with_rank(said.header, rank), part) for rank, part in merged.items()]
        parts[0] = replace(parts[0], remarks=(*remarks, *parts[0].remarks))
        return TraceFile(path, said.header, (), False, (), parts=tuple(parts))
    one = _of_rank(path, said.header, tables)
    return replace(one, remarks=(*remarks, *one.remarks))


def _tables_of(path: Path) -> tuple[Tables, Told, list[str]]:
    """The columns of one file, which nobody else holds, what its root says, and what was lost or repaired."""
    words, remarks = Words(), list[str]()
    collector = Collector(words)
    said = read_events(blocks(path, remarks), collector.take, words, skip=SKIPPED, worth=collector.worth)
    return collector.tables(), said, remarks


def _of_rank(path: Path, header: dict[str, Any], tables: Tables) -> TraceFile:
    """What a file, or its part, holds of one rank."""
    if why := _unfit(tables, header):
        return TraceFile(path, header, (), False, (), why)
    device, clauses = device_of(tables, str(path))
    remarks = tuple(_of_file(path, clauses))
    if len(device):
        return TraceFile(path, header, (device.later(tables.zero),), False, remarks)
    return TraceFile(path, header, (), False, remarks, device.untold)


def _of_file(path: Path, clauses: Sequence[str]) -> list[str]:
    """Clauses as sentences that say which file they are about."""
    return [f"{path}: {clause}" for clause in clauses]


def _unfit(tables: Tables, header: dict[str, Any]) -> str:
    """Why a file cannot be read as one rank's work, as a clause, or an empty string."""
    lanes = np.unique(tables.columns["kernels"]["lane"]).tolist()
    devices = {tables.lanes[lane][0] for lane in lanes}
    if len(devices) > 1:
        return f"it holds kernels of {len(devices)} devices: ranks that were merged cannot be told apart any more"
    if not lanes and (len(tables.columns["launches"]["start"]) or header.get("deviceProperties")):
        return "it ran on a device, but no kernel is in the file: times on the CPU are not those of the work"
    return ""


def device_of(tables: Tables, source: str) -> tuple[RankOps, list[str]]:
    """The device of one rank, without its rank, and what was left out, a clause each.

    If nothing in the file tells the directions of its work, ``untold`` says why; it has no ops at all if it has no
    messages either, by which the other ranks could tell.
    """
    posts = posts_of(tables)
    steps = steps_of(tables, posts.moment)
    pieces = pieces_of(tables)
    moves, collectives = messages_of(tables, steps)
    found = named_ops(tables, pieces, posts)
    # Ranges count even if they led to no op: then their kernels lack, and runs would be guesses beside them.
    if not len(found) and not found.remarks:
        found = runs_of(tables, pieces, steps, posts) or found
    why = ""
    if len(posts) and _lacks_directions(pieces, found):
        why = _untold(posts)
        if moves is None:  # other ranks tell directions by matching messages; there is nothing to match here
            found = found.only(np.zeros(len(found), np.bool_))
    step = steps.of(found.launched)
    # Where no step is marked, nothing lies outside of one.
    keep = (step >= 0) | (not len(steps.number))
    clauses = list(found.remarks)
    if not keep.all():
        clauses.append(f"{int((~keep).sum()):,} ops outside every step were left out")
    if pieces.unlaunched:
        clauses.append(f"{pieces.unlaunched:,} kernels whose launch is not in the file were left out")
    ops = found.only(keep)
    device = RankOps(
        rank=0,
        source=source,
        step=step[keep],
        kind=ops.kind,
        start=ops.start,
        end=ops.end,
        stage=column(ops.stage),
        chunk=column(ops.chunk),
        unit=column(ops.unit),
        counted=ops.counted,
        steps_counted=steps.counted,
        step_ns=steps.lengths(),
        transfers=None if moves is None else _linked(moves, ops, step[keep]),
        talks=len(posts) > 0,
        collectives=collectives,
        memory=_memory(tables),
        first_end=ops.first_end,
        second_start=ops.second_start,
        untold=why,
    )
    return device, clauses


def _lacks_directions(pieces: Pieces, found: Found) -> bool:
    return bool((found.kind == UNTOLD).all()) and bool((pieces.way == Way.UNTOLD).any())


def _untold(posts: Posts) -> str:
    """Why no direction was found although a rank does send and receive, a clause."""
    return (
        f"it posts {len(posts):,} sends and receives, but nothing tells its forward work from its backward: "
        "no range or kernel names a direction, and no work of the autograd engine is in it (profile CPU activities too)"
    )


def _linked(moves: Moves, ops: Found, step: Ints) -> Transfers:
    """Transfers with their ops: a send carries what the one before it made, a receive feeds the next one.

    Both are of one step. Where a file is cut, ops of its first step are gone and messages of it are left: these belong
    to none, and not to the first op of the next step.

    Args:
        moves: in the order of their launch.
        ops: of the file.
        step: of each op, int64[ops].
    """
    # By the first launch of each op: a kernel may run long after, and messages are launched in this order as well.
    order = np.argsort(ops.worked, kind="stable")
    send = moves.transfers.send
    at = np.searchsorted(ops.worked[order], moves.launched, side="right") - send
    known = (at >= 0) & (at < len(order)) & (moves.launched >= 0)
    op = np.where(known, np.append(order, UNKNOWN)[np.clip(at, 0, len(order))], UNKNOWN)
    op = np.where(np.append(step, UNKNOWN)[op] == moves.transfers.step, op, UNKNOWN)
    kind = np.append(ops.kind, UNTOLD)[op]
    forward = np.where((op < 0) | (kind == UNTOLD), UNKNOWN, kind == Kind.F).astype(np.int8)
    return replace(moves.transfers, op=op, forward=forward)


def _memory(tables: Tables) -> Memory | None:
    table = tables.columns["memory"]
    if not len(table["start"]):
        return None
    order = np.argsort(table["start"], kind="stable")
    return Memory(table["start"][order], table["held"][order])


def _placed(file: TraceFile, rank: int, base: int) -> RankOps:
    """The file's device under its rank, on the common clock, at its place in the process groups."""
    position, replica = place_in_groups(file.header, rank)
    return replace(file.devices[0].later(base), rank=rank, position=position, replica=replica)


def _bases(files: Sequence[TraceFile]) -> tuple[list[int], list[str]]:
    """The base time of each file, nanoseconds; that of the others if a file lacks it and its times fit theirs."""
    said = [_base(file.header) for file in files]
    bases = [base or 0 for base in said]
    common = {base for base in bases if base}
    remarks: list[str] = []
    if len(common) != 1 or None not in said:
        return bases, remarks
    middles = np.array([_middle(file) for file in files])
    known = np.array([base is not None for base in said])
    for i in np.flatnonzero(~known).tolist():
        # Times count from the base: those of a file without one fit the others' only if they lie near theirs.
        if np.isfinite(middles[i]) and (np.abs(middles[known] - middles[i]) < _DAY).any():
            (bases[i],) = common
            lacks = "it has no base time"
            if "baseTimeNanoseconds" in files[i].header:
                lacks = "its base time cannot be"
            remarks.append(f"{files[i].path}: {lacks}; that of the other ranks was taken, which its times fit")
    return bases, remarks


def _base(header: dict[str, Any]) -> int | None:
    base = header.get("baseTimeNanoseconds")
    if isinstance(base, int | float) and abs(base) < _FAR:
        return int(base)
    return None


def _middle(file: TraceFile) -> float:
    """The median start of a file's work; infinite if it has none."""
    if not file.devices:
        return float("inf")
    return float(np.median(file.devices[0].start))


def _world(files: Sequence[TraceFile]) -> int | None:
    """How many ranks the job has, as far as headers tell."""
    worlds = []
    for file in files:
        info = file.header.get("distributedInfo")
        size = info.get("world_size") if isinstance(info, dict) else None
        if isinstance(size, int):
            worlds.append(size)
    return max(worlds, default=None)


def _no_pipeline(files: Sequence[TraceFile]) -> Refusal:
    for file in files:
        if file.unusable:
            return Refusal(f"there is no pipeline to be seen here; {file.path}: {file.unusable}")
    names = f"{files[0].path}"
    if len(files) > 1:
        names = f"{len(files)} files, {files[0].path.name} and others"
    return Refusal(
        f"{names}: there is no pipeline here: no range names a forward or backward of a stage and micro-batch, "
        "and no rank sends to or receives from another (an all-to-all is no pipeline transfer); if one ran, name its "
        "ops with debubble.annotate"
    )


_WORTH = 200 << 20  # bytes of JSON; a second process costs .3 s of start and 60 MB
_PACKED = 12  # times that gzip shrinks a trace


def in_processes(paths: Sequence[Path]) -> list[TraceFile | Fault]:
    """What each file holds, in their order, read by as many processes as there are cores and files.

    The caller's main module must be importable without side effects, as a command line's is.
    """
    workers = min(len(paths), os.cpu_count() or 1)
    if workers < 2 or _bytes(paths) < _WORTH:
        return list(map(read_trace_or_fault, paths))
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    found = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for path, one in zip(paths, pool.map(read_trace_or_fault, paths), strict=True):
            found.append(one)
            progress.get()(path.stat().st_size if path.exists() else 0)
    return found


def on_ray(paths: Sequence[Path]) -> Sequence[object]:
    """What each file holds, in their order, read by one Ray task each.

    Raises:
        InputError: Ray is not installed, or its cluster does not answer.
    """
    return read_on_ray(read_trace_or_fault, paths)


def _bytes(paths: Sequence[Path]) -> int:
    """About how much JSON the files hold."""
    total = 0
    for path in paths:
        if path.exists():
            times = _PACKED if path.suffix == ".gz" else 1
            total += times * path.stat().st_size
    return total


_IN_NAME = re.compile(r"(?:rank|worker)[-_]?\[?(\d{1,9})", re.IGNORECASE)
_MOST_RANKS = 1 << 31  # a larger number is no rank
_MERGED = "merged of many ranks"  # key of a header that is not of the file
_PIPELINE = re.compile(r"PIPELINE_MODEL_PARALLEL_GROUP|(?:mesh_)?pp", re.IGNORECASE)
_DATA = re.compile(r"DATA_PARALLEL_GROUP(?:_WITH_CP)?|(?:mesh_)?dp(?:_replicate|_shard)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Identity:
    """What one file says of whose it is.

    Args:
        path: the file.
        header: the rank in its header, or None.
        named: the rank in its name, or None.
    """

    path: Path
    header: int | None
    named: int | None


def identity(path: Path, header: dict[str, Any]) -> Identity:
    """Read the rank from ``distributedInfo`` and from the name of a file."""
    rank, named = _info(header).get("rank"), None
    if not isinstance(rank, int) or not 0 <= rank < _MOST_RANKS:
        rank = None
    match = _IN_NAME.search(path.name)
    if match is not None and not header.get(_MERGED):
        named = int(match[1])
    return Identity(path, rank, named)


def _info(header: dict[str, Any]) -> dict[str, Any]:
    """What Kineto writes of ``torch.distributed``; empty where a job did not initialise it, or wrote something else."""
    info = header.get("distributedInfo")
    if isinstance(info, dict):
        return info
    return {}


def with_rank(header: dict[str, Any], rank: int) -> dict[str, Any]:
    """The header of a file that was merged of many ranks, for one of them; its name then says nothing."""
    return {**header, "distributedInfo": {**_info(header), "rank": rank}, _MERGED: True}


def settle(files: Sequence[Identity]) -> tuple[list[int | None], list[str]]:
    """A rank for each file, None for one that must be left out, and what was doubtful, a sentence each."""
    wanted = [one.named if one.header is None else one.header for one in files]
    claims = Counter(wanted)
    ranks: list[int | None] = [None] * len(files)
    remarks: list[str] = []
    # Files whose header and name agree have the first say, then those with a header.
    sure = sorted(range(len(files)), key=lambda i: (files[i].named != wanted[i], files[i].header is None))
    owner: dict[int, Identity] = {}
    for i in sure:
        one, want = files[i], wanted[i]
        others = claims[one.named] - (one.named == want)
        free = one.named is not None and one.named not in owner and not others
        if want is not None and want not in owner:
            ranks[i] = want
        elif want is None and len(files) == 1:
            ranks[i] = 0
        elif want is None:
            remarks.append(f"{one.path}: neither its header nor its name tells its rank; it was left out")
        elif free:
            ranks[i] = one.named
            rule = f"its header says rank {want}, which is {owner[want].path.name}"
            remarks.append(f"{one.path}: {rule}; it was taken as rank {one.named}, as its name says")
        else:
            remarks.append(f"{one.path}: it claims rank {want}, which {owner[want].path.name} has; it was left out")
        if (rank := ranks[i]) is not None:
            owner[rank] = one
    by_name = []
    for one in files:
        if one.header is None and one.named is not None:
            by_name.append(f"{one.path}: its header has no rank; its name says rank {one.named}")
    if len(by_name) > 2:
        by_name = [f"{by_name[0]}; so for {len(by_name)} files"]
    return ranks, by_name + remarks


def place_in_groups(header: dict[str, Any], rank: int) -> tuple[int | None, int | None]:
    """Position in the pipeline and replica of a rank by the process groups in its header; None where they are not told.

    Megatron calls its groups ``PIPELINE_MODEL_PARALLEL_GROUP``, torchtitan ``mesh_pp``; their ranks are in order.
    """
    groups = _info(header).get("pg_config")
    position = replica = None
    if not isinstance(groups, list):
        return None, None
    for group in groups:
        members = _members(group)
        if rank not in members or len(members) < 2:
            continue
        name = str(group.get("pg_desc", ""))
        if _PIPELINE.fullmatch(name):
            position = members.index(rank)
        elif _DATA.fullmatch(name):
            replica = members.index(rank)
    if position is None:  # without a position a replica is of no use
        return None, None
    return position, replica


def _members(group: object) -> list[int]:
    """The ranks of a group, which some versions write as a string."""
    ranks = group.get("ranks") if isinstance(group, dict) else None
    if isinstance(ranks, str):
        return list(map(int, re.findall(r"\d{1,18}", ranks)))
    if not isinstance(ranks, list):
        return []
    return [rank for rank in ranks if isinstance(rank, int)]


_EARLY = 0.05  # of the kernels of a device may start before their launch: clocks of GPUs are read with an error
_KNOWN = 0.5  # of the kernels whose launches the fullest process has; another may have been cut
_LATER = 2.0  # times as long behind its launch as at best: a longer queue is another rank's
_RANK = re.compile(r"rank[-_ ]?\[?(\d+)", re.IGNORECASE)
_OWN = (Role.LABEL, Role.SEND, Role.RECEIVE, Role.POST)  # what every rank of a pipeline does on its CPU
Process = int | str
Lag = tuple[int, float]  # kernels whose launch is known, and how long after it they began, nanoseconds, the median
Table = dict[str, NDArray[Any]]


def ranks_of(tables: Tables) -> dict[int, Tables]:
    """The rows of each rank by its number; empty if it is one rank, or if it is not certain what ran where.

    A file holds several ranks if kernels ran on several devices or, without kernels, if several processes do what only
    a rank of a pipeline does.
    """
    devices = _devices(tables)
    processes = devices or _talking(tables)
    if len(processes) < 2:
        return {}
    owner = dict(zip(processes, processes, strict=True))
    if devices:
        owner = _owners(tables, devices)
    if len(owner) < 2:
        return {}
    return {rank: _part(tables, {one, owner[one]}) for rank, one in _numbered(list(owner)).items()}


def _devices(tables: Tables) -> list[Process]:
    """What the file calls the devices that ran kernels."""
    return _processes(tables, tables.columns["kernels"]["lane"])


def _talking(tables: Tables) -> list[Process]:
    """Processes that name ops, or send and receive."""
    table = tables.columns["marks"]
    return _processes(tables, table["lane"][np.isin(tables.roles[table["word"]], _OWN)])


def _processes(tables: Tables, lanes: NDArray[Any]) -> list[Process]:
    return list(dict.fromkeys(tables.lanes[lane][0] for lane in np.flatnonzero(np.bincount(lanes)).tolist()))


def _numbered(devices: list[Process]) -> dict[int, Process]:
    """A rank for each: the one in its name where all have one, else by the order of devices."""
    named: dict[int, Process] = {}
    for one in devices:
        if (match := _RANK.search(str(one))) is not None:
            named[int(match[1])] = one
    if len(named) == len(devices):
        return named
    return dict(enumerate(sorted(devices, key=lambda one: natural(str(one)))))


def _owners(tables: Tables, devices: list[Process]) -> dict[Process, Process]:
    """The one process whose launches each device can have run; empty where another choice is possible too."""
    table = tables.columns["kernels"]
    # Each process against each device: a file of 8 ranks is 64 joins of ids, which are columns.
    rows = {device: np.flatnonzero(_of(tables, table, {device})) for device in devices}
    lags: dict[Process, dict[Process, Lag]] = {device: {} for device in devices}
    for process in _processes(tables, tables.columns["launches"]["lane"]):
        launches = _rows(tables, tables.columns["launches"], {process})
        own = replace(tables, columns={"launches": launches})  # all that tells a launch; the rest is not copied
        for device, mine in rows.items():
            launched, _ = launches_of(own, table["correlation"][mine])
            lag = (table["start"][mine] - launched)[launched >= 0]
            if len(lag) and float((lag < 0).mean()) <= _EARLY:
                lags[device][process] = len(lag), float(np.median(lag))
    possible = {device: _close(some) for device, some in lags.items()}
    return _only_choice(possible)


def _close(lags: dict[Process, Lag]) -> set[Process]:
    """The processes that launched most of a device's kernels, and not long before they ran."""
    if not lags:
        return set()
    processes, (known, lag) = list(lags), np.array(list(lags.values())).T
    full = known >= _KNOWN * known.max()
    close = full & (lag <= _LATER * lag[full].min())
    return {processes[i] for i in np.flatnonzero(close).tolist()}


def _only_choice(possible: dict[Process, set[Process]]) -> dict[Process, Process]:
    """A process of its own for each device, if there is exactly one way: then some device always has one left."""
    chosen: dict[Process, Process] = {}
    while len(chosen) < len(possible):
        taken = set(chosen.values())
        sure = [device for device in possible if device not in chosen and len(possible[device] - taken) == 1]
        if not sure:
            return {}
        device = sure[0]
        (chosen[device],) = possible[device] - taken
    return chosen


def _part(tables: Tables, processes: set[Process]) -> Tables:
    """The rows of some processes."""
    told = _of(tables, tables.columns["told"], processes).tolist()
    comms = _of(tables, tables.columns["comms"], processes).tolist()
    return replace(
        tables,
        columns={name: _rows(tables, table, processes) for name, table in tables.columns.items()},
        told_args=list(compress(tables.told_args, told)),
        comm_args=list(compress(tables.comm_args, comms)),
    )


def _rows(tables: Tables, table: Table, processes: set[Process]) -> Table:
    keep = _of(tables, table, processes)
    return {column: values[keep] for column, values in table.items()}


def _of(tables: Tables, table: Table, processes: set[Process]) -> NDArray[np.bool_]:
    """Which rows of a table are of some processes, bool[rows]."""
    ours = np.array([lane[0] in processes for lane in tables.lanes] or [False], np.bool_)
    kept: NDArray[np.bool_] = ours[table["lane"]]
    return kept
