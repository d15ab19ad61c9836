"""Whose work a file holds: the rank in its header, else in its name; of a file that holds many, who launched what.

A clash of ranks is settled aloud or costs the file. Ids that join a launch with its kernel count from 1 in every
process, so in a file that was merged they collide. But a kernel never runs before its launch, and seldom long after it:
held against launches of another rank kernels do both.

    process 71   launch 1 ... launch 2                    device 0    kernel 1 ... kernel 2
    process 72         launch 1 ......... launch 2        device 1          kernel 1 ......... kernel 2     71 or 72?
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..op_names import Role
from ..run_files import natural
from .tables import Tables
from .work import launches_of

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
