r"""The file of one process in a recording: its name, then one frame for the process, each order of ops and each step.

    debubble recording 2\n
    length  CRC-32  {"type": "process", ..}      whose file this is: run, host, clock, launcher
    length  CRC-32  {"type": "part", ..}         an order of ops: kind, stage and micro-batch of each, who ran it
    length  CRC-32  {"type": "step", ..}         times of the ops of a part, in one step
    length  CRC-32  {"type": "step", ..}
    ..

A frame is two little-endian u32 (length, and checksum of what follows) and a MessagePack map. A step is appended and
nothing is ever written again, so that the cost of a step does not grow with the run; whatever kills the writer, the
frames before are whole. Times of a step are differences, in 4 bytes each where they fit: at 64 micro-batches and one
chunk a step takes less than 4 KB. Version 1 was one MessagePack map (``Former``) that was rewritten after each step; it
is read as the frames of version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.schedule import KINDS

FORMAT = "debubble recording"
VERSION = 2
MAGIC = f"{FORMAT} {VERSION}\n".encode()
MOST_FRAME = 1 << 28  # bytes: a step of ten million ops; a length above it is damage

TRAIN, EVALUATION = "train", "evaluation"
AXES = ("pipeline", "data", "tensor", "context", "expert")
WAITS = ("received", "sent", "both")  # what a rank stood in: a receive, a send, one wait that covered both
NOT_SENT = -1  # in ``Times.posted``

_FRAME = struct.Struct("<II")
_NARROW, _WIDE = np.dtype("<u4"), np.dtype("<i8")
_INT32 = np.dtype("<i4")

Ints = NDArray[np.int64]
Whole = int | str | bool | None


class Process(msgspec.Struct, frozen=True, kw_only=True, tag="process"):
    """Whose file it is.

    Attributes:
        run: the same text in all files of one run.
        launch: names what started it, for a restart to know its own earlier parts; empty if nothing does.
        restart: how often the launcher had started it anew; each is a part of the run of its own.
        segment: number of this file among those of the process; older ones may have been deleted (``record --keep``).
        rank: of the job, from 0; ``world`` ranks in all.
        host: its name; ``clock`` names what its times are read from, the same for all processes of one host.
        wall_ns: time of day when the clock showed ``clock_ns``, nanoseconds; known only to a few milliseconds.
        anchor_ns: a moment that all ranks passed together (a barrier), nanoseconds of the clock; None without one.
        anchor_spread_ns: how long that barrier took: the uncertainty where clocks differ.
        cores: that the process may run on; ``processes`` of the run on the same host.
        samples: of all replicas in one step; ``tokens`` likewise.
        paced: whether ops were stretched to given durations.
        predicted_ns: makespan simulated before the run; None if there was none.
        hop_ns: delay put on each arrival.
        sample: replicas that were recorded; None if all were.
    """

    format: str = FORMAT
    version: int = VERSION
    run: str
    launch: str = ""
    restart: int = 0
    segment: int = 0
    rank: int
    world: int
    pid: int
    host: str
    clock: str
    wall_ns: int
    clock_ns: int
    anchor_ns: int | None = None
    anchor_spread_ns: int = 0
    device: str = "cpu"
    cores: int | None = None
    processes: int | None = None
    samples: int | None = None
    tokens: int | None = None
    paced: bool = False
    predicted_ns: int | None = None
    hop_ns: int = 0
    sample: list[int] | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, tag="part"):
    """An order of ops that the process ran in one or more steps, and its place in the job.

    Attributes:
        number: by which steps name it, from 0 in each file.
        engine: what ran it: ``torch``, ``megatron``, ``deepspeed``; ``version`` of its package.
        switches: of the engine, by its own names.
        instance: counts pipelines of the same ranks in one process (two models, say).
        phase: ``train`` or ``evaluation``.
        schedule: its name, if the engine says one.
        microbatches: in a step.
        pipeline: ranks of the job that make up this pipeline, by position.
        axes: index and size by name of ``AXES``; what is not there is not known.
        placement: position of each stage, int32[stages].
        kind: of each op of this process in order, uint8[ops]; ``stage`` and ``unit`` int32[ops].
        joined: bool[ops] where slots hold two ops, else None.
    """

    number: int
    engine: str
    version: str = ""
    switches: dict[str, Whole] = {}
    instance: int = 0
    phase: str = TRAIN
    schedule: str = ""
    microbatches: int
    pipeline: list[int]
    axes: dict[str, tuple[int, int]] = {}
    placement: bytes
    kind: bytes
    stage: bytes
    unit: bytes
    joined: bytes | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step", omit_defaults=True):
    """Times of one step of a part. Columns have one number an op, in 4 or 8 bytes; an empty one is all zero.

    Attributes:
        number: of the step, counted by the process for each instance from 0.
        part: that it is of.
        begun: when it began, with what lies outside the pipeline, nanoseconds of the clock; ``finished`` when it ended.
        gap: from the start of the op before, or from ``begun``, to the start of each op.
        length: of each op.
        received: how long the process stood in receives before each op; ``sent`` in sends; ``both`` in waits that
            covered a receive and a send.
        posted: one more than the time from the end of each op to the post of its output; 0 where none was sent.
        tail: the three waits behind the last op.
        load: time of the step spent in loading data; ``reduction`` of gradients, ``optimizer`` likewise; None if the
            engine does not show it.
        update: optimizer steps that the process had made when the step began; None if not seen.
        cpu: processor time of the process since its step before, nanoseconds; ``queued`` time in which it could have
            run and had no core; ``since`` the time that both are over. None if the system does not say.
        loss: mean over the replica's samples; None if the rank does not know it.
    """

    number: int
    part: int
    begun: int
    finished: int
    gap: bytes
    length: bytes
    received: bytes = b""
    sent: bytes = b""
    both: bytes = b""
    posted: bytes = b""
    tail: tuple[int, int, int] = (0, 0, 0)
    load: int | None = None
    reduction: int | None = None
    optimizer: int | None = None
    update: int | None = None
    cpu: int | None = None
    queued: int | None = None
    since: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """What one process wrote.

    Args:
        file: the first of its files.
        process: whose it is.
        parts: orders of ops, by number.
        steps: in the order in which they were written.
        damage: why what lies behind could not be read; empty if all could.
    """

    file: Path
    process: Process
    parts: dict[int, Part] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    damage: str = ""


class Former(msgspec.Struct, frozen=True, kw_only=True):
    """A file of version 1, by its own names: one map, whose columns are packed little-endian numbers."""

    format: str = FORMAT
    version: int = 1
    run: str
    rank: int
    ranks: int
    replica: int
    replicas: int
    schedule: str
    microbatches: int
    placement: bytes
    kind: bytes
    stage: bytes
    unit: bytes
    joined: bytes | None
    samples: int | None
    tokens: int | None
    paced: bool
    predicted_ns: int | None
    hop_ns: int
    clock: str
    pid: int
    anchor: int
    anchor_spread: int
    steps: bytes
    start: bytes
    end: bytes
    waited: bytes
    begun: bytes
    finished: bytes
    loss: bytes


Frame = Process | Part | Step

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """What a step measured, as columns.

    Args:
        start: of each op in the order of the part, int64[ops], nanoseconds of the clock.
        end: likewise.
        waits: before each op in receives, in sends, in both at once, int64[3, ops].
        posted: when the output of each op was posted, int64[ops]; ``NOT_SENT`` where none was.
        tail: the three waits behind the last op.
    """

    start: Ints
    end: Ints
    waits: Ints
    posted: Ints
    tail: tuple[int, int, int] = (0, 0, 0)


def track_path(folder: Path, rank: int, name: str = "") -> Path:
    """The file of one rank of the job; ``name`` tells it from others of the same rank."""
    if name:
        name = f".{name}"
    return folder / f"rank-{rank:05}{name}.msgpack"


def track_files(folder: Path) -> list[Path]:
    """All files of processes in a folder."""
    return sorted(folder.glob("rank-*.msgpack"))


def frame(of: Frame) -> bytes:
    """One frame, ready to be appended."""
    body = _encoder.encode(of)
    return _FRAME.pack(len(body), crc32(body)) + body


def frames(data: bytes | memoryview, at: int = 0) -> Iterator[tuple[Frame, int]]:
    """The whole frames of a file from a place on, and where each ends; what is cut at the end is passed over.

    Args:
        data: of the file, without what lies before ``at`` being looked at.
        at: where a frame begins.

    Raises:
        ValueError: a frame is damaged; says where.
    """
    view = memoryview(data)
    while at + _FRAME.size <= len(view):
        length, check = _FRAME.unpack_from(view, at)
        body = view[at + _FRAME.size : at + _FRAME.size + length]
        # A checksum is of a whole body only: a cut one is the end of the file, and no damage.
        if length > MOST_FRAME or (len(body) == length and crc32(body) != check):
            raise ValueError(f"the frame at byte {at:,} is damaged")
        if len(body) < length:
            return  # the writer was killed, or has not finished
        try:
            found = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ValueError(f"the frame at byte {at:,} is damaged ({error})") from None
        at += _FRAME.size + length
        yield found, at


def pack(values: Sequence[int] | Sequence[float] | NDArray[np.generic], kind: str) -> bytes:
    """A column as packed little-endian bytes; ``kind`` is a NumPy letter and size, as in ``i8``."""
    return np.ascontiguousarray(values, np.dtype(kind).newbyteorder("<")).tobytes()


def packed(number: int, part: int, begun: int, finished: int, times: Times, **outside: int | float | None) -> Step:
    """A step as it is written.

    Args:
        number: see ``Step``; so are ``part``, ``begun``, ``finished`` and what ``outside`` may hold.
        part: of the order.
        begun: nanoseconds of the clock.
        finished: likewise.
        times: what was measured; starts ascend.
        outside: attributes of ``Step`` from ``load`` on.
    """
    received, sent, both = times.waits
    # 0 is 'nothing was sent', so that a column of a rank that sends nothing takes no bytes at all.
    posted = np.where(times.posted == NOT_SENT, 0, np.maximum(times.posted - times.end, 0) + 1)
    columns = {
        # Differences are small where moments are not: 4 bytes an op instead of 8.
        "gap": np.diff(times.start, prepend=begun),
        "length": times.end - times.start,
        "received": received,
        "sent": sent,
        "both": both,
        "posted": posted,
    }
    lean = {name: _narrowed(column) for name, column in columns.items()}
    return Step(number=number, part=part, begun=begun, finished=finished, tail=times.tail, **lean, **outside)  # type: ignore[arg-type]


def unpacked(steps: Sequence[Step], ops: int) -> list[Times]:
    """The times of steps of one part.

    Raises:
        ValueError: a column has another number of ops, or times that cannot be.
    """
    made = []
    for step in steps:
        gap, length, received, sent, both, posted = (
            _widened(getattr(step, name), ops, name) for name in ("gap", "length", *WAITS, "posted")
        )
        start = step.begun + np.cumsum(gap)
        end = start + length
        # Ops of one rank run one after the other; what overlaps is damage that a checksum cannot see.
        if min(gap.min(initial=0), length.min(initial=0)) < 0:
            raise ValueError("ops end before they start, or start before the one before")
        posts = np.where(posted > 0, end + posted - 1, NOT_SENT)
        made.append(Times(start, end, np.stack([received, sent, both]), posts, step.tail))
    return made


def _narrowed(column: Ints) -> bytes:
    """A column in as few bytes as it needs: none where all is zero, 4 an op below 4.29 seconds, else 8."""
    if not column.any():
        return b""
    fits = column.min() >= 0 and column.max() <= np.iinfo(_NARROW).max
    return column.astype(_NARROW if fits else _WIDE).tobytes()


def _widened(column: bytes, ops: int, name: str) -> Ints:
    if not column:
        return np.zeros(ops, np.int64)
    if len(column) not in (4 * ops, 8 * ops):
        raise ValueError(f"{name} has {len(column)} bytes, not {4 * ops} or {8 * ops}")
    return np.frombuffer(column, _NARROW if len(column) == 4 * ops else _WIDE).astype(np.int64)


_INT64, _FLOAT64 = np.dtype("<i8"), np.dtype("<f8")


def former_frames(data: bytes) -> list[Frame]:
    """The frames that a file of version 1 would have today.

    Raises:
        ValueError: its columns do not fit each other.
        msgspec.DecodeError: it is cut, or no such map.
    """
    former = msgspec.msgpack.decode(data, type=Former)
    # Version 1 had no checksums: all that the columns must have in common is looked at instead.
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
        # NaN stood for a step without a loss.
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
    # An op that is joined with the one before may begin as soon as that one has.
    free = np.where(joined[1:], start[:, :-1], end[:, :-1])
    if (start > end).any() or (start[:, 1:] < free).any() or (start < 0).any():
        return "ops end before they start, or overlap on one rank"
    return ""
