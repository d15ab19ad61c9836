"""Recordings: what ``debubble run`` measured, one small file a rank, read back as an observation.

A recording is a folder with one ``rank-00000.msgpack`` a process. A file is one MessagePack map (a ``Track``) whose
columns are packed little-endian numbers. Each file holds its rank's whole order of ops, so that the schedule can be
put together again and proved legal from nothing but the files. A file is rewritten after each step, to a temporary
name and then renamed: whatever kills a run, the files say what was measured until then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.lower import lower
from ..core.observation import Observation, Window
from ..core.op import KINDS
from ..core.program import Program
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from .places import place

FORMAT = "debubble recording"
VERSION = 1
MOST_BYTES = 1 << 30  # of all files together

_INT32, _INT64, _FLOAT64 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f8")


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measured: a header, the order of its ops, and a line of times for each step.

    Attributes:
        run: the same text in all files of one run.
        rank: in the pipeline, from 0; ``replica`` and ``replicas`` likewise count data-parallel replicas.
        schedule: its name.
        placement: rank of each stage, int32[stages].
        kind: of each op of this rank in order, uint8[ops]; ``stage`` and ``unit`` int32[ops].
        joined: bool[ops] where slots hold two ops, else None.
        samples: of all replicas in one step; ``tokens`` likewise.
        paced: whether ops were stretched to given durations.
        predicted_ns: makespan simulated before the run, nanoseconds; None where there was none.
        hop_ns: delay put on each arrival, nanoseconds.
        clock: names the clock that the times are of; the same for all processes of one host.
        pid: number of the process.
        anchor: a moment that all ranks passed together (a barrier), nanoseconds of this clock.
        anchor_spread: how long that barrier took, nanoseconds: the uncertainty where clocks differ.
        steps: number of each step, int32[steps].
        start: of each op, int64[steps, ops], nanoseconds; ``end`` likewise.
        waited: how long the rank stood in the receive before each op, int64[steps, ops], nanoseconds.
        begun: when the step began, with what lies outside the pipeline, int64[steps]; ``finished`` when it ended.
        loss: mean over the replica's samples, float64[steps]; NaN where the rank does not know it.
    """

    format: str = FORMAT
    version: int = VERSION
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

    def lines(self) -> dict[int, int]:
        """The line of each step that this rank has, by the step's number."""
        return {int(step): line for line, step in enumerate(np.frombuffer(self.steps, _INT32))}

    def times(self, column: str) -> NDArray[np.int64]:
        """One of ``start``, ``end``, ``waited`` as int64[steps, ops]."""
        return np.frombuffer(getattr(self, column), _INT64).reshape(len(self.steps) // 4, len(self.kind))


class _Head(msgspec.Struct):
    """The two keys that every version has."""

    format: str = ""
    version: int = 0


def pack(values: Sequence[int] | Sequence[float] | NDArray[np.generic], kind: str) -> bytes:
    """A column as packed little-endian bytes; ``kind`` is a NumPy letter and size, as in ``i8``."""
    return np.ascontiguousarray(values, np.dtype(kind).newbyteorder("<")).tobytes()


def track_path(folder: Path, process: int) -> Path:
    """The file of one process, numbered over all replicas."""
    return folder / f"rank-{process:05}.msgpack"


def write_track(folder: Path, track: Track) -> Path:
    """Write one rank's file, so that a reader finds either the old one or the new one, whole.

    Raises:
        OSError: the folder cannot be written.
    """
    path = track_path(folder, track.replica * track.ranks + track.rank)
    unfinished = path.with_suffix(".unfinished")  # one name a rank: a killed writer leaves one file, the next takes it
    unfinished.write_bytes(msgspec.msgpack.encode(track))
    os.replace(unfinished, path)
    return path


def clear(folder: Path) -> None:
    """Delete the files of an earlier run from a folder, if there are any."""
    for file in _files(folder):
        file.unlink(missing_ok=True)


def is_recording(path: str | Path) -> bool:
    """Whether a folder holds at least one rank's file."""
    return bool(_files(place(path)))


def read_recording(path: str | Path) -> Observation:
    """All windows of a recording: each step that every rank has, for each replica.

    Raises:
        InputError: no recording, a file that is cut, of another version, of another run, or at odds with the rest.
    """
    folder = place(path)
    tracks = read_tracks(folder)
    first = tracks[0]
    lines = [track.lines() for track in tracks]
    steps = sorted(set.intersection(*map(set, lines)))
    if not steps:
        raise _fault(folder, "no step is there that all ranks have measured", "run again with more steps")
    program = _program(folder, tracks)
    shift, uncertainty, remarks = _clocks(tracks)
    return Observation(
        source=str(path),
        windows=tuple(
            _window(program, step, [(track, at[step]) for track, at in _pipeline(tracks, lines, replica)], shift)
            for step in steps
            for replica in range(first.replicas)
        ),
        remarks=(*_left_out(lines, steps), *remarks),
        gpus=len(tracks),
        samples=first.samples,
        tokens=first.tokens,
        paced=first.paced,
        predicted_ns=first.predicted_ns,
        hop_ns=first.hop_ns,
        clock_uncertainty_ns=uncertainty,
    )


def read_tracks(folder: Path) -> list[Track]:
    """The files of a recording by process: replica after replica, rank after rank.

    Raises:
        InputError: as for ``read_recording``; all bad files at once.
    """
    files = _files(folder)
    if not files:
        raise _fault(folder, "no recording is here", "give a folder that `debubble run --out` wrote")
    if (size := sum(file.stat().st_size for file in files)) > MOST_BYTES:
        raise _fault(folder, f"{size:,} bytes are more than a recording has ({MOST_BYTES:,})", "record fewer steps")
    tracks: list[Track] = []
    faults: list[Fault] = []
    for file in files:
        try:
            tracks.append(_read_track(file))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(*faults)
    _check_together(folder, tracks)
    return sorted(tracks, key=lambda track: (track.replica, track.rank))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank-*.msgpack"))


def _fault(path: Path, rule: str, remedy: str) -> InputError:
    return InputError(Fault(str(path), rule, remedy))


def _read_track(file: Path) -> Track:
    """Decode one file and check that its columns fit each other."""
    again = "run again, or leave this recording out"
    try:
        data = file.read_bytes()
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.format != FORMAT:
            raise _fault(file, "this is not a debubble recording", "give a folder that `debubble run --out` wrote")
        if head.version != VERSION:
            remedy = f"this debubble reads version {VERSION}: record again, or install the one that wrote it"
            raise _fault(file, f"the recording is of version {head.version}", remedy)
        track = msgspec.msgpack.decode(data, type=Track)
    except msgspec.DecodeError as error:
        raise _fault(file, f"the file is cut or damaged ({error})", again) from None
    except OSError as error:
        raise _fault(file, f"it cannot be read ({error.strerror})", "look at its permissions") from None
    if wrong := _wrong_column(track):
        raise _fault(file, f"the file is damaged: {wrong}", again)
    return track


def _wrong_column(track: Track) -> str | None:
    """What does not fit inside one file, or None."""
    ops, steps = len(track.kind), len(track.steps) // 4
    lengths = {"steps": 4 * steps, "stage": 4 * ops, "unit": 4 * ops, "begun": 8 * steps, "finished": 8 * steps}
    lengths |= {"loss": 8 * steps, "start": 8 * steps * ops, "end": 8 * steps * ops, "waited": 8 * steps * ops}
    for column, length in lengths.items():
        if len(getattr(track, column)) != length:
            return f"{column} has {len(getattr(track, column))} bytes, not {length}"
    if track.joined is not None and len(track.joined) != ops:
        return f"joined has {len(track.joined)} bytes, not {ops}"
    if not (0 <= track.rank < track.ranks and 0 <= track.replica < track.replicas):
        return f"rank {track.rank} of {track.ranks}, replica {track.replica} of {track.replicas}"
    if len(track.placement) % 4 or max(track.kind, default=0) >= KINDS:
        return "placement or kind holds what cannot be"
    start, end = track.times("start"), track.times("end")
    joined = np.frombuffer(track.joined or bytes(ops), np.uint8) != 0
    if joined[:1].any() or (joined[1:] & joined[:-1]).any():
        return "joined holds what cannot be"
    free = np.where(joined[1:], start[:, :-1], end[:, :-1])
    if (start > end).any() or (start[:, 1:] < free).any() or (start < 0).any():
        return "ops end before they start, or overlap on one rank"
    return None


def _check_together(folder: Path, tracks: Sequence[Track]) -> None:
    """All files are of one run, and none is missing."""
    first = tracks[0]
    together = ("run", "ranks", "replicas", "schedule", "microbatches", "placement")
    for name in together:
        if any(getattr(track, name) != getattr(first, name) for track in tracks):
            raise _fault(folder, f"files of two runs lie here (they differ in {name})", "move one of them elsewhere")
    here = {(track.replica, track.rank) for track in tracks}
    everyone = [(replica, rank) for replica in range(first.replicas) for rank in range(first.ranks)]
    missing = [
        track_path(folder, replica * first.ranks + rank).name
        for replica, rank in everyone
        if (replica, rank) not in here
    ]
    if missing or len(here) != len(tracks):
        shown = ", ".join(missing[:8]) + (" .." if len(missing) > 8 else "")
        rule = f"{len(everyone)} ranks took part and {shown or 'one of them twice'} is missing"
        raise _fault(folder, rule, "copy all files of the run here")


def _program(folder: Path, tracks: Sequence[Track]) -> Program:
    """The schedule that all replicas ran, put together from the orders of their ranks, and lowered."""
    first = tracks[0]
    pipeline = tracks[: first.ranks]
    for track in tracks[first.ranks :]:
        mate = pipeline[track.rank]
        if (track.kind, track.stage, track.unit, track.joined) != (mate.kind, mate.stage, mate.unit, mate.joined):
            raise _fault(folder, f"rank {track.rank} has another order in replica {track.replica}", "record again")
    joined = None
    if any(track.joined is not None for track in pipeline):
        joined = np.frombuffer(b"".join(t.joined or bytes(len(t.kind)) for t in pipeline), np.uint8).astype(np.bool_)
    try:
        return lower(
            Schedule(
                name=first.schedule,
                source="recorded",
                microbatches=_microbatches(folder, pipeline),
                placement=_placement(folder, first)[None],
                offsets=np.cumsum([0, *(len(track.kind) for track in pipeline)], dtype=np.int64),
                kind=np.frombuffer(b"".join(track.kind for track in pipeline), np.uint8).copy(),
                stage=np.frombuffer(b"".join(track.stage for track in pipeline), _INT32).copy(),
                unit=np.frombuffer(b"".join(track.unit for track in pipeline), _INT32).copy(),
                joined=joined,
            )
        )
    except Refusal as error:
        rule = "the recorded order is not a legal schedule (" + " ".join(str(error).split()) + ")"
        raise _fault(folder, rule, "record again") from None


def _microbatches(folder: Path, pipeline: Sequence[Track]) -> int:
    """The claimed number, once it is one that the ops bear out: tables are made from it."""
    claimed, ops = pipeline[0].microbatches, sum(len(track.kind) for track in pipeline)
    stages = len(pipeline[0].placement) // 4
    if claimed < 1 or claimed * stages > ops:  # each stage has a forward of each micro-batch
        raise _fault(folder, f"{claimed} micro-batches of {stages} stages cannot be in {ops} ops", "record again")
    return claimed


def _placement(folder: Path, track: Track) -> NDArray[np.int32]:
    placement = np.frombuffer(track.placement, _INT32).copy()
    if not placement.size or placement.min() < 0 or placement.max() >= track.ranks:
        raise _fault(folder, f"stages live on ranks that {track.ranks} ranks do not have", "record again")
    return placement


def _clocks(tracks: Sequence[Track]) -> tuple[dict[str, int], int, tuple[str, ...]]:
    """What to add to each clock so that all passed the anchor at once, how far that may be off, and a remark.

    On one host all processes read the same monotonic clock and nothing is added.
    """
    anchors: dict[str, int] = {}
    for track in tracks:
        anchors.setdefault(track.clock, track.anchor)
    if len(anchors) == 1:
        return dict.fromkeys(anchors, 0), 0, ()
    uncertainty = max(track.anchor_spread for track in tracks)
    latest = max(anchors.values())
    remark = f"clocks of {len(anchors)} hosts were aligned at a barrier, to within {uncertainty / 1e6:.2f} ms"
    return {clock: latest - anchor for clock, anchor in anchors.items()}, uncertainty, (remark,)


def _pipeline(
    tracks: Sequence[Track], lines: Sequence[dict[int, int]], replica: int
) -> list[tuple[Track, dict[int, int]]]:
    """The ranks of one replica with the lines of their steps."""
    return [(track, at) for track, at in zip(tracks, lines, strict=True) if track.replica == replica]


def _window(program: Program, step: int, pipeline: Sequence[tuple[Track, int]], shift: dict[str, int]) -> Window:
    """One step of one replica, from the line that each of its ranks has of it."""
    start, end = (
        np.concatenate([track.times(column)[line] + shift[track.clock] for track, line in pipeline])
        for column in ("start", "end")
    )
    begun, finished = (
        [int(np.frombuffer(getattr(track, column), _INT64)[line]) + shift[track.clock] for track, line in pipeline]
        for column in ("begun", "finished")
    )
    timeline = Timeline(program, start, end, "measured")
    return Window(step, pipeline[0][0].replica, timeline, max(finished) - min(begun))


def _left_out(lines: Sequence[dict[int, int]], steps: Sequence[int]) -> tuple[str, ...]:
    """A sentence where some ranks have steps that others lack."""
    every = sorted(set().union(*lines))
    gone = [str(step) for step in every if step not in steps]
    if not gone:
        return ()
    short = [str(process) for process, at in enumerate(lines) if len(at) < len(every)]
    which = f"steps {', '.join(gone)} are" if len(gone) > 1 else f"step {gone[0]} is"
    return (f"{which} left out: not measured by process {', '.join(short[:8])}{' ..' if len(short) > 8 else ''}",)
