"""Many ranks in one file: told apart by which process launched what each device ran.

Ids that join a launch with its kernel count from 1 in every process, so in a file that was merged they collide. But a
kernel never runs before its launch, and seldom long after it: held against launches of another rank kernels do both.

    process 71   launch 1 ... launch 2                    device 0    kernel 1 ... kernel 2
    process 72         launch 1 ......... launch 2        device 1          kernel 1 ......... kernel 2     71 or 72?
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .names import Role
from .tables import Tables
from .work import launches_of

_EARLY = 0.05  # of the kernels of a device may start before their launch: clocks of GPUs are read with an error
_KNOWN = 0.5  # of the kernels whose launches the fullest process has; another may have been cut
_LATER = 2.0  # times as long behind its launch as at best: a longer queue is another rank's
_RANK = re.compile(r"rank[-_ ]?\[?(\d+)", re.IGNORECASE)
_OWN = (Role.LABEL, Role.SEND, Role.RECEIVE, Role.POST)  # what every rank of a pipeline does on its CPU
Process = int | str
Lag = tuple[int, float]  # kernels whose launch is known, and how long after it they began, nanoseconds, the median
Table = dict[str, NDArray[Any]]


def holds_several(tables: Tables) -> bool:
    """Whether a file holds work of several ranks: of several devices or, without devices, of several processes."""
    return len(_devices(tables) or _talking(tables)) > 1


def ranks_of(tables: Tables) -> dict[int, Tables]:
    """The rows of each rank by its number; empty where it is not certain which process a device belongs to."""
    devices = _devices(tables)
    owner: Mapping[Process, Process] = _owners(tables, devices) if devices else {one: one for one in _talking(tables)}
    return {rank: _part(tables, {one, owner[one]}) for rank, one in _numbered(list(owner)).items() if len(owner) > 1}


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
    named = [match and int(match[1]) for match in (_RANK.search(str(one)) for one in devices)]
    if None not in named and len(set(named)) == len(named):
        return {rank: one for rank, one in zip(named, devices, strict=True) if rank is not None}
    return dict(enumerate(sorted(devices, key=_natural)))


def _natural(name: Process) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(name)) if part]


def _owners(tables: Tables, devices: list[Process]) -> dict[Process, Process]:
    """The one process whose launches each device can have run; empty where another choice is possible too."""
    table = tables.columns["kernels"]
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
    return _only_choice({device: _close(some) for device, some in lags.items()})


def _close(lags: dict[Process, Lag]) -> set[Process]:
    """The processes that launched most of a device's kernels, and not long before they ran."""
    most = max((known for known, _ in lags.values()), default=0)
    full = {process: lag for process, (known, lag) in lags.items() if known >= _KNOWN * most}
    least = min(full.values(), default=0.0)
    return {process for process, lag in full.items() if lag <= _LATER * least}


def _only_choice(possible: dict[Process, set[Process]]) -> dict[Process, Process]:
    """A process of its own for each device, if there is exactly one way: then some device always has one left."""
    chosen: dict[Process, Process] = {}
    while len(chosen) < len(possible):
        left = {device: some - set(chosen.values()) for device, some in possible.items() if device not in chosen}
        device = min(left, key=lambda one: len(left[one]))
        if len(left[device]) != 1:
            return {}
        chosen[device] = left[device].pop()
    return chosen


def _part(tables: Tables, processes: set[Process]) -> Tables:
    """The rows of some processes."""
    told, comms = (np.flatnonzero(_of(tables, tables.columns[name], processes)) for name in ("told", "comms"))
    return replace(
        tables,
        columns={name: _rows(tables, table, processes) for name, table in tables.columns.items()},
        told_args=[tables.told_args[row] for row in told],
        comm_args=[tables.comm_args[row] for row in comms],
    )


def _rows(tables: Tables, table: Table, processes: set[Process]) -> Table:
    keep = _of(tables, table, processes)
    return {column: values[keep] for column, values in table.items()}


def _of(tables: Tables, table: Table, processes: set[Process]) -> NDArray[np.bool_]:
    """Which rows of a table are of some processes, bool[rows]."""
    ours = np.array([lane[0] in processes for lane in tables.lanes] or [False], np.bool_)
    kept: NDArray[np.bool_] = ours[table["lane"]]
    return kept
