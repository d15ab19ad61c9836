"""Recordings of version 1, one MessagePack map a process with all its steps, read as what version 2 has."""

from __future__ import annotations

import msgspec
import numpy as np

from ..core.op import KINDS
from .recording_file import NOT_SENT, Former, Frame, Ints, Part, Process, Times, packed

_INT32, _INT64, _FLOAT64 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f8")


def former_frames(data: bytes) -> list[Frame]:
    """The frames that a file of version 1 would have today.

    Raises:
        ValueError: its columns do not fit each other.
        msgspec.DecodeError: it is cut, or no such map.
    """
    former = msgspec.msgpack.decode(data, type=Former)
    if wrong := _wrong(former):
        raise ValueError(wrong)
    first = former.replica * former.ranks
    process = Process(
        run=former.run,
        rank=first + former.rank,
        world=former.ranks * former.replicas,
        pid=former.pid,
        host=former.clock,
        clock=former.clock,
        wall_ns=0,
        clock_ns=0,
        anchor_ns=former.anchor,
        anchor_spread_ns=former.anchor_spread,
        samples=former.samples,
        tokens=former.tokens,
        paced=former.paced,
        predicted_ns=former.predicted_ns,
        hop_ns=former.hop_ns,
    )
    part = Part(
        number=0,
        engine="",  # it was not said: the runner's own, on torch's runtime
        schedule=former.schedule,
        microbatches=former.microbatches,
        pipeline=list(range(first, first + former.ranks)),
        axes={"pipeline": (former.rank, former.ranks), "data": (former.replica, former.replicas)},
        placement=former.placement,
        kind=former.kind,
        stage=former.stage,
        unit=former.unit,
        joined=former.joined,
    )
    return [process, part, *_steps(former)]


def _steps(former: Former) -> list[Frame]:
    start, end, waited = (_times(former, column) for column in ("start", "end", "waited"))
    begun, finished = (np.frombuffer(column, _INT64).tolist() for column in (former.begun, former.finished))
    losses = np.frombuffer(former.loss, _FLOAT64).tolist()
    made: list[Frame] = []
    for line, number in enumerate(np.frombuffer(former.steps, _INT32).tolist()):
        waits = np.zeros((3, len(former.kind)), np.int64)
        waits[0] = waited[line]  # it timed receives only
        times = Times(start[line], end[line], waits, np.full(len(former.kind), NOT_SENT))
        loss = losses[line] if losses[line] == losses[line] else None
        made.append(packed(number, 0, begun[line], finished[line], times, loss=loss))
    return made


def _times(former: Former, column: str) -> Ints:
    return np.frombuffer(getattr(former, column), _INT64).reshape(len(former.steps) // 4, len(former.kind))


def _wrong(former: Former) -> str:
    """What does not fit inside one file; empty if all does."""
    ops, steps = len(former.kind), len(former.steps) // 4
    lengths = {"steps": 4 * steps, "stage": 4 * ops, "unit": 4 * ops, "begun": 8 * steps, "finished": 8 * steps}
    lengths |= {"loss": 8 * steps, "start": 8 * steps * ops, "end": 8 * steps * ops, "waited": 8 * steps * ops}
    for column, length in lengths.items():
        if len(getattr(former, column)) != length:
            return f"{column} has {len(getattr(former, column))} bytes, not {length}"
    if former.joined is not None and len(former.joined) != ops:
        return f"joined has {len(former.joined)} bytes, not {ops}"
    if not (0 <= former.rank < former.ranks and 0 <= former.replica < former.replicas):
        return f"rank {former.rank} of {former.ranks}, replica {former.replica} of {former.replicas}"
    if len(former.placement) % 4 or max(former.kind, default=0) >= KINDS:
        return "placement or kind holds what cannot be"
    start, end = _times(former, "start"), _times(former, "end")
    joined = np.frombuffer(former.joined or bytes(ops), np.uint8) != 0
    if joined[:1].any() or (joined[1:] & joined[:-1]).any():
        return "joined holds what cannot be"
    free = np.where(joined[1:], start[:, :-1], end[:, :-1])
    if (start > end).any() or (start[:, 1:] < free).any() or (start < 0).any():
        return "ops end before they start, or overlap on one rank"
    return ""
