"""Primus ``pp_rank_N.json``: starts and ends of forwards and backwards by iteration, each rank on its own clock.

One file a rank of the pipeline: ``{"1": {"fwd_start": [..], "fwd_end": [..], "bwd_start": [..], "bwd_end": [..],
"total": .., "memory": ..}, "2": ..}``, milliseconds of GPU events since an event of that rank and iteration. No
micro-batch and no chunk is named; their order tells, and ``config.json`` beside them (``pp_size``, ``vp_size``,
``num_mbs``) says how many there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.schedule import Kind
from ..reconstruct.device_ops import Clock, RankOps, Reading
from .files import blocks, left_out, mended

_MOST_BLOCKS = 256  # of 1 MiB at most
_HEAD = re.compile(rb'\s*\{\s*"\d+"\s*:\s*\{')
_COLUMNS = re.compile(rb'"(?:fwd|bwd)_(?:start|end)"\s*:\s*\[')
_NAME = re.compile(r"pp_rank_(\d+)")


class _Config(msgspec.Struct):
    """What ``config.json`` says of the run; the keys are the file's."""

    vp_size: int = 1
    num_mbs: int | None = None


class _Iteration(msgspec.Struct):
    """What one rank timed in one iteration, milliseconds; the keys are the file's."""

    fwd_start: list[float | None] = []
    fwd_end: list[float | None] = []
    bwd_start: list[float | None] = []
    bwd_end: list[float | None] = []


def is_primus(head: bytes) -> bool:
    """Whether a file that begins like this is one of ours; 4 kB are enough."""
    return _HEAD.match(head) is not None and _COLUMNS.search(head) is not None


def read_primus(paths: Sequence[Path], source: str) -> Reading:
    """Read the files of all ranks.

    A file that cannot be read costs its rank, an iteration whose lists are not whole costs that iteration.

    Args:
        paths: one file a rank; the number in its name is its place in the pipeline.
        source: what the user gave, for messages.

    Raises:
        InputError: no file can be used.
    """
    devices: dict[int, RankOps] = {}
    remarks: list[str] = []
    lost: list[tuple[str, str]] = []
    for path in sorted(paths):
        try:
            device = _device(path, remarks)
        except InputError as error:
            lost += [(fault.value, fault.rule) for fault in error.faults]
            continue
        except OSError as error:
            lost.append((str(path), f"it cannot be read: {error.strerror or error}"))
            continue
        # Two files of one rank: runs that were written into one folder. The first in order of names counts.
        first = devices.setdefault(device.rank, device)
        if first is not device:
            remarks.append(f"{path}: rank {device.rank} was read from {first.source} already; this file was left out")
    remarks += left_out(lost)
    if not devices:
        rule = "; ".join(remarks) or "no pp_rank_N.json is there"
        raise InputError(Fault(source, rule, "export the ranks again"))
    chunks, doubts = _chunks(paths[0].parent / "config.json", list(devices.values()))
    return Reading(source, tuple(devices.values()), (*remarks, *doubts), chunks=chunks)


def _chunks(path: Path, devices: Sequence[RankOps]) -> tuple[int | None, list[str]]:
    """Stages a rank by the configuration of the run, if it is there and fits what ran; and why not, a sentence."""
    if not path.exists():
        return None, []
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except (msgspec.MsgspecError, OSError) as error:
        return None, [f"{path}: it cannot be read ({error}); chunks are told by nothing else here (--chunks)"]
    forwards = {
        int((device.kind[device.step == step] == Kind.F).sum()) for device in devices for step in device.step[:1]
    }
    # The file says what was planned; if as many forwards ran, it was run that way.
    passes = config.vp_size * (config.num_mbs or 0)
    if config.vp_size < 1 or (config.num_mbs is not None and forwards != {passes}):
        said = f"vp_size {config.vp_size} and num_mbs {config.num_mbs}"
        return None, [f"{path}: {said} do not fit {', '.join(map(str, sorted(forwards)))} forwards; it was not used"]
    return config.vp_size, []


def _device(path: Path, remarks: list[str]) -> RankOps:
    named = _NAME.search(path.name)
    if named is None:
        raise InputError(Fault(str(path), "its name does not say its rank", "call it pp_rank_N.json"))
    steps, kinds, starts, ends = [], [], [], []
    for iteration, row in _decoded(path, remarks).items():
        times = _times(row)
        if not iteration.isdecimal() or times is None:
            remarks.append(f"{path}: iteration {iteration[:20]} was left out: its lists are not whole")
            continue
        kind, start, end = times
        steps.append(np.full(len(kind), int(iteration[:18]), np.int64))
        kinds.append(kind)
        starts.append(start)
        ends.append(end)
    if not steps:
        raise InputError(Fault(str(path), "no iteration of it is whole", "export it again"))
    return RankOps(
        rank=int(named[1]),
        source=str(path),
        step=np.concatenate(steps),
        kind=np.concatenate(kinds),
        start=np.concatenate(starts),
        end=np.concatenate(ends),
        position=int(named[1]),
        clock=Clock.STEP,
    )


def _decoded(path: Path, remarks: list[str]) -> dict[str, _Iteration]:
    parts = list(islice(blocks(path, remarks), _MOST_BLOCKS + 1))
    if len(parts) > _MOST_BLOCKS:
        raise InputError(Fault(str(path), f"it is longer than {_MOST_BLOCKS} MiB", "export fewer iterations"))
    whole = mended(b"".join(parts))  # NaN becomes null
    head = whole.rpartition(b"},")[0] + b"}}"  # without the last iteration
    # A rank that was killed while it wrote leaves half an iteration: all before it is whole.
    for json, cut in ((whole, False), (head, True)):
        try:
            found = msgspec.json.decode(json, type=dict[str, _Iteration])
        except msgspec.DecodeError:
            continue
        if cut:
            remarks.append(f"{path}: it is cut off behind iteration {list(found)[-1][:20]}")
        return found
    raise InputError(Fault(str(path), "it is not JSON of iterations", "export it again"))


def _times(row: _Iteration) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]] | None:
    """Kind, start and end of all ops of an iteration in nanoseconds; None where a time is missing or runs backwards."""
    forwards, backwards = len(row.fwd_start), len(row.bwd_start)
    if len(row.fwd_end) != forwards or len(row.bwd_end) != backwards or not forwards:
        return None
    start, end = (
        np.array([*f, *b], np.float64) for f, b in ((row.fwd_start, row.bwd_start), (row.fwd_end, row.bwd_end))
    )
    if not (np.isfinite(start).all() and np.isfinite(end).all() and (end >= start).all() and np.abs(end).max() < 1e12):
        return None
    # Backwards are whole here (B): Primus times no gradients of weights apart.
    kind = np.repeat(np.array([Kind.F, Kind.B], np.uint8), [forwards, backwards])
    return kind, np.rint(start * 1e6).astype(np.int64), np.rint(end * 1e6).astype(np.int64)
