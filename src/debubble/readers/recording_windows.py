"""From the files of processes to windows of whole pipelines: kinds of steps, replicas and their members, one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.laws import NOTHING, needs_of
from ..core.lower import lower
from ..core.observation import Link, Window
from ..core.op import KINDS
from ..core.program import Program
from ..core.schedule import Schedule
from ..core.timeline import Timeline
from ..reconstruct.pairing import split
from ..reconstruct.positions import Said
from .recording_file import NOT_SENT, Ints, Part, Step, Times, Track, unpacked

_INT32 = np.dtype("<i4")
_MOST_NAMED = 8


MOST = 2**32 - 1  # nanoseconds of one transfer that are kept, 4.29 s: millions of them are, for their median


class Receives:
    """Receives of all windows, split by their sends and added up by sender and receiver.

    A receive begins when the rank starts to wait for it and ends when the op that needs it starts; when its output was
    posted, the sender says.
    """

    def __init__(self) -> None:
        self._links: dict[int, list[tuple[int, int, Ints]]] = {}  # by program: sender, receiver and rows of its ops
        self._needs: dict[int, NDArray[np.int32]] = {}
        self._waiting: dict[tuple[int, int], int] = defaultdict(int)
        self._moved: dict[tuple[int, int], list[NDArray[np.uint32]]] = defaultdict(list)

    def add(self, program: Program, start: Ints, stood: Ints, posted: Ints) -> None:
        """Take in one window.

        Args:
            program: whose ops the columns are of, int64[ops] each.
            start: of each op, nanoseconds.
            stood: how long its rank stood in receives before it.
            posted: when its output was posted; ``NOT_SENT`` where none was.
        """
        if id(program) not in self._links:
            self._prepare(program)
        need = self._needs[id(program)]
        for sender, receiver, op in self._links[id(program)]:
            sent = posted[need[op]]
            told = op[sent != NOT_SENT]
            if len(told):
                waited, moved = split(sent[sent != NOT_SENT], start[told] - stood[told], start[told])
                self._waiting[sender, receiver] += int(waited.sum())
                self._moved[sender, receiver].append(np.minimum(moved, MOST).astype(np.uint32))

    def _prepare(self, program: Program) -> None:
        schedule = program.schedule
        need = needs_of(schedule)[0]
        op = np.flatnonzero(need != NOTHING)
        self._needs[id(program)], self._links[id(program)] = need, []
        if not op.size:
            return
        rank = schedule.rank_of()
        pair = rank[need[op]].astype(np.int64) * schedule.ranks + rank[op]
        order = np.argsort(pair, kind="stable")
        pairs, first = np.unique(pair[order], return_index=True)
        rows = np.split(op[order], first[1:])
        self._links[id(program)] = [
            (int(both) // schedule.ranks, int(both) % schedule.ranks, some)
            for both, some in zip(pairs.tolist(), rows, strict=True)
        ]

    def links(self) -> tuple[Link, ...]:
        """The sums; none if no sender says when it posted."""
        found = []
        for (sender, receiver), parts in sorted(self._moved.items()):
            moved = np.concatenate(parts)
            waited, usual = self._waiting[sender, receiver], round(float(np.median(moved)))
            found.append(Link(sender, receiver, len(moved), waited, int(moved.sum(dtype=np.int64)), usual))
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class StepKind:
    """Steps that belong together: of one engine, phase, model and number of micro-batches.

    Args:
        engine: by the name of a table of engines; empty if unknown.
        phase: ``train`` or ``evaluation``.
        schedule: as the engine calls it.
        microbatches: in a step.
        positions: ranks of a pipeline.
        steps: how many the process with most of them has.
        time_ns: that they took, over all processes.
        seats: each process that ran such steps, with their part of it.
    """

    engine: str
    phase: str
    schedule: str
    microbatches: int
    positions: int
    steps: int
    time_ns: int
    seats: tuple[tuple[Track, Part], ...]

    @property
    def ranks(self) -> list[tuple[int, ...]]:
        """The pipelines that ran them, each the ranks of the job by position."""
        return sorted({tuple(part.pipeline) for _, part in self.seats})


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    """One data-parallel replica: by position of its pipeline, the processes that hold the same stages."""

    number: int
    members: tuple[tuple[Track, ...], ...]

    @property
    def whole(self) -> bool:
        """Whether every position was measured."""
        return all(self.members)


class Made:
    """What becomes of the files of a kind of steps: windows, and what was measured around them.

    Args:
        source: of the recording, for errors.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.windows: list[Window] = []
        self.programs: dict[bytes, Program] = {}  # by the orders of all ranks
        self.clocks, self.uncertainty_ns = 1, 0
        self.remarks: list[str] = []
        self.receives = Receives()
        self.outside: list[tuple[int | None, ...]] = []
        self.apart: list[int] = []  # of the ends of members of one stage, nanoseconds


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One position in one step: its order, and its times on the common clock."""

    part: Part
    times: Times
    begun: int
    finished: int


# Who is who.


def kinds_of(tracks: Sequence[Track]) -> list[StepKind]:
    """The kinds of steps that a job ran."""
    seats: dict[tuple[object, ...], list[tuple[Track, Part]]] = defaultdict(list)
    counts: dict[tuple[object, ...], list[int]] = defaultdict(list)
    spent: dict[tuple[object, ...], int] = defaultdict(int)
    for track in tracks:
        lengths: dict[int, list[int]] = defaultdict(list)
        for step in track.steps:
            lengths[step.part].append(step.finished - step.begun)
        mine: dict[tuple[object, ...], int] = defaultdict(int)
        for number, some in lengths.items():
            part = track.parts[number]
            stages, positions = len(part.placement) // 4, len(part.pipeline)
            key: tuple[object, ...] = (
                part.engine,
                part.instance,
                part.phase,
                part.schedule,
                part.microbatches,
                stages,
                positions,
            )
            if key not in mine:
                seats[key].append((track, part))
            mine[key] += len(some)
            spent[key] += sum(some)
        for key, count in mine.items():
            counts[key].append(count)
    return [
        StepKind(
            engine=some[0][1].engine,
            phase=some[0][1].phase,
            schedule=some[0][1].schedule,
            microbatches=some[0][1].microbatches,
            positions=len(some[0][1].pipeline),
            steps=max(counts[key]),
            time_ns=spent[key],
            seats=tuple(some),
        )
        for key, some in seats.items()
    ]


def replicas_of(kind: StepKind, said: Said) -> tuple[list[Replica], list[str]]:
    """The replicas that ran steps of a kind, and what is not known about them.

    Which pipelines are replicas and which are members of one (tensor, context parallel) is for the engine to say; bare
    process groups do not: [0, 2] and [1, 3] may be either.
    """
    ranks, remarks = kind.ranks, list[str]()
    known = all("data" in part.axes for _, part in kind.seats)
    of_pipeline = {pipeline: number for number, pipeline in enumerate(ranks)}
    if not known and len(ranks) > 1:
        replicas = said.data or len(ranks)
        if len(ranks) % replicas:
            rule = f"{len(ranks)} pipelines were recorded, which it does not divide"
            raise InputError(Fault(f"--data {replicas}", rule, "give a divisor of them"))
        share = len(ranks) // replicas  # neighbouring ranks are members: every framework puts the tensor axis innermost
        of_pipeline = {pipeline: number // share for number, pipeline in enumerate(ranks)}
        if said.data is None:
            remarks.append(
                f"{len(ranks)} pipelines were recorded, and nothing says whether they are replicas or members of one: "
                "they are taken as replicas (--data says how many there are)"
            )
    held: dict[int, list[list[Track]]] = {}
    for track, part in kind.seats:
        pipeline = tuple(part.pipeline)
        number = part.axes["data"][0] if known else of_pipeline[pipeline]
        positions = held.setdefault(number, [[] for _ in range(kind.positions)])
        if track.process.rank not in pipeline:
            raise InputError(Fault(str(track.file), "its rank is not in its own pipeline", "record again"))
        positions[pipeline.index(track.process.rank)].append(track)
    return [Replica(number, tuple(map(tuple, held[number]))) for number in sorted(held)], remarks


# Windows.


def windows_of(source: str, kind: StepKind, replicas: Sequence[Replica]) -> Made:
    """Every step that all processes of some replicas have, as windows.

    Raises:
        InputError: there is no such step, or an order is no legal schedule.
    """
    made, parts = Made(source), {id(track): part for track, part in kind.seats}
    steps: dict[int, dict[int, Step]] = {}
    tracks = [track for replica in replicas for members in replica.members for track in members]
    for track in tracks:
        alike = parts[id(track)]
        steps[id(track)] = {step.number: step for step in track.steps if _same_kind(track.parts[step.part], alike)}
    common = sorted(set.intersection(*(set(steps[id(track)]) for track in tracks)))
    if not common:
        rule = "no step is there that all ranks have measured"
        raise InputError(Fault(source, rule, "run again with more steps"))
    made.remarks += _left_out(tracks, [steps[id(track)] for track in tracks], common)
    shift = _clocks(tracks, made)
    for replica in replicas:
        rows = []
        for members in replica.members:
            decoded = [_decoded(track, [steps[id(track)][number] for number in common], shift) for track in members]
            rows.append([_together(made, replica.number, some) for some in zip(*decoded, strict=True)])
            mine = [steps[id(track)][number] for track in members for number in common]
            made.outside += [(step.load, step.reduction, step.optimizer) for step in mine]
        _add_windows(made, replica, common, list(zip(*rows, strict=True)))
    if made.apart:
        made.remarks.append(
            f"devices of one stage were merged; their ends lie {np.median(made.apart) / 1e6:.3f} ms apart (median)"
        )
    return made


def _same_kind(part: Part, other: Part) -> bool:
    names = ("engine", "instance", "phase", "schedule", "microbatches", "placement")
    return all(getattr(part, name) == getattr(other, name) for name in names)


def _left_out(tracks: Sequence[Track], of: Sequence[dict[int, Step]], common: Sequence[int]) -> list[str]:
    """A sentence where some ranks have steps that others lack."""
    every = set().union(*of)
    gone = [str(step) for step in sorted(every.difference(common))]
    if not gone:
        return []
    shown = ", ".join(gone[:_MOST_NAMED]) + (" .." if len(gone) > _MOST_NAMED else "")
    short = [str(track.process.rank) for track, mine in zip(tracks, of, strict=True) if len(mine) < len(every)]
    which = f"steps {shown} are" if len(gone) > 1 else f"step {shown} is"
    return [f"{which} left out: not measured by process {', '.join(short[:8])}{' ..' if len(short) > 8 else ''}"]


def _clocks(tracks: Sequence[Track], made: Made) -> dict[str, int]:
    """What to add to each clock: all passed the anchor at once, or showed the same time of day."""
    first: dict[str, Track] = {}
    for track in tracks:
        first.setdefault(track.process.clock, track)
    made.clocks = len(first)
    if made.clocks == 1:
        return dict.fromkeys(first, 0)
    anchors = {clock: track.process.anchor_ns for clock, track in first.items()}
    if None not in anchors.values():
        latest = max(anchor for anchor in anchors.values() if anchor is not None)
        made.uncertainty_ns = max(track.process.anchor_spread_ns for track in tracks)
        made.remarks.append(
            f"clocks of {len(first)} hosts were aligned at a barrier, to within {made.uncertainty_ns / 1e6:.2f} ms"
        )
        return {clock: latest - (anchor or 0) for clock, anchor in anchors.items()}
    offsets = {clock: track.process.wall_ns - track.process.clock_ns for clock, track in first.items()}
    least = min(offsets.values())
    return {clock: offset - least for clock, offset in offsets.items()}


def _decoded(track: Track, steps: Sequence[Step], shift: dict[str, int]) -> list[_Row]:
    """The steps of one process on the common clock."""
    by, made = shift[track.process.clock], list[_Row]()
    try:
        for step in steps:
            part = track.parts[step.part]
            (times,) = unpacked([step], len(part.kind))
            if by:
                posted = np.where(times.posted == NOT_SENT, NOT_SENT, times.posted + by)
                times = Times(times.start + by, times.end + by, times.waits, posted, times.tail)
            made.append(_Row(part, times, step.begun + by, step.finished + by))
    except ValueError as error:
        raise InputError(Fault(str(track.file), f"the file is damaged: {error}", "record again")) from None
    return made


def _together(made: Made, replica: int, members: Sequence[_Row]) -> _Row:
    """The processes of one position as one rank: each op from its earliest start to its latest end."""
    first = members[0]
    if len(members) == 1:
        return first
    for other in members[1:]:
        if (other.part.kind, other.part.stage, other.part.unit) != (first.part.kind, first.part.stage, first.part.unit):
            rank = first.part.pipeline.index(first.part.pipeline[0])
            rule = f"members of one stage ran different orders in replica {replica}, rank {rank}"
            raise InputError(Fault(made.source, rule, "record again"))
    start, end = (np.stack([getattr(row.times, name) for row in members]) for name in ("start", "end"))
    waits = np.stack([row.times.waits for row in members]).min(axis=0)
    posted = np.stack([row.times.posted for row in members]).max(axis=0)
    made.apart.append(int(np.median(np.ptp(end, axis=0))) if end.size else 0)
    times = Times(start.min(axis=0), end.max(axis=0), waits, posted)
    return _Row(first.part, times, min(row.begun for row in members), max(row.finished for row in members))


def _add_windows(made: Made, replica: Replica, numbers: Sequence[int], steps: Sequence[Sequence[_Row]]) -> None:
    """The windows of one replica; its receives are added up. Steps of another order than the first are left out."""
    strange: list[int] = []
    for number, rows in zip(numbers, steps, strict=True):
        program = _program(made, [row.part for row in rows])
        if program is not next(iter(made.programs.values())):
            strange.append(number)
            continue
        start, end, posted = (
            np.concatenate([getattr(row.times, name) for row in rows]) for name in ("start", "end", "posted")
        )
        waits = np.concatenate([row.times.waits for row in rows], axis=1)
        length = max(row.finished for row in rows) - min(row.begun for row in rows)
        if rows[0].part.engine:
            # A job has no barrier as `run` has: one rank ends a step, and begins the next, long before another does.
            length = max(row.finished - row.begun for row in rows)
        stood = _per_rank(waits, program.schedule.offsets)
        made.windows.append(Window(number, replica.number, Timeline(program, start, end, "measured"), length, stood))
        made.receives.add(program, start, waits[0] + waits[2], posted)
    if len(strange) == len(numbers):
        raise InputError(Fault(made.source, _other_order(steps[0], made, replica.number), "record again"))
    if strange:
        shown = ", ".join(map(str, strange[:_MOST_NAMED])) + (" .." if len(strange) > _MOST_NAMED else "")
        made.remarks.append(f"replica {replica.number}: steps that ran another order are left out: {shown}")


def _other_order(rows: Sequence[_Row], made: Made, replica: int) -> str:
    """Which rank runs another order than its mate in the replica before."""
    mates = next(iter(made.programs.values())).schedule
    for rank, row in enumerate(rows):
        mine = slice(int(mates.offsets[rank]), int(mates.offsets[rank + 1]))
        if np.frombuffer(row.part.unit, _INT32).tolist() != mates.unit[mine].tolist() or (
            np.frombuffer(row.part.kind, np.uint8).tolist() != mates.kind[mine].tolist()
        ):
            return f"rank {rank} has another order in replica {replica}"
    return f"replica {replica} has another order"


def _per_rank(waits: Ints, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """What each rank stood in between its own first and last op, int64[3, ranks]."""
    inner = waits.copy()
    opens = offsets[:-1][np.diff(offsets) > 0]
    inner[:, opens] = 0
    total = np.zeros((len(waits), waits.shape[1] + 1), np.int64)
    np.cumsum(inner, axis=1, out=total[:, 1:])
    return total[:, offsets[1:]] - total[:, offsets[:-1]]


# Orders.


def _program(made: Made, parts: Sequence[Part]) -> Program:
    """The schedule that the ranks of a pipeline ran, put together from their orders, and lowered once."""
    key = b"|".join(b"".join((part.kind, part.stage, part.unit, part.joined or b"")) for part in parts)
    if key not in made.programs:
        made.programs[key] = _lowered(made.source, parts)
    return made.programs[key]


def _lowered(source: str, parts: Sequence[Part]) -> Program:
    first, joined = parts[0], None
    for part in parts:
        _check(source, part)
    if any(part.joined is not None for part in parts):
        joined = np.frombuffer(b"".join(p.joined or bytes(len(p.kind)) for p in parts), np.uint8).astype(np.bool_)
    try:
        return lower(
            Schedule(
                name=first.schedule or "recorded",
                source="recorded",
                microbatches=_microbatches(source, parts),
                placement=_placement(source, first)[None],
                offsets=np.cumsum([0, *(len(part.kind) for part in parts)], dtype=np.int64),
                kind=np.frombuffer(b"".join(part.kind for part in parts), np.uint8).copy(),
                stage=np.frombuffer(b"".join(part.stage for part in parts), _INT32).copy(),
                unit=np.frombuffer(b"".join(part.unit for part in parts), _INT32).copy(),
                joined=joined,
            )
        )
    except Refusal as error:
        rule = "the recorded order is not a legal schedule (" + " ".join(str(error).split()) + ")"
        raise InputError(Fault(source, rule, "record again")) from None


def _check(source: str, part: Part) -> None:
    """The columns of an order fit each other: files may be damaged, and tables are made from them."""
    ops, wrong = len(part.kind), ""
    if len(part.stage) != 4 * ops or len(part.unit) != 4 * ops or len(part.placement) % 4:
        wrong = f"stage or unit has another number of ops than {ops}"
    elif max(part.kind, default=0) >= KINDS:
        wrong = "kind holds what cannot be"
    elif part.joined is not None and len(part.joined) != ops:
        wrong = f"joined has {len(part.joined)} bytes, not {ops}"
    elif part.joined is not None and any(one and other for one, other in pairwise(b"\1" + part.joined)):
        wrong = "joined holds what cannot be"
    if wrong:
        raise InputError(Fault(source, f"a file is damaged: {wrong}", "record again"))


def _microbatches(source: str, parts: Sequence[Part]) -> int:
    """The claimed number, once it is one that the ops bear out: tables are made from it."""
    claimed, ops = parts[0].microbatches, sum(len(part.kind) for part in parts)
    stages = len(parts[0].placement) // 4
    if claimed < 1 or claimed * stages > ops:  # each stage has a forward of each micro-batch
        rule = f"{claimed} micro-batches of {stages} stages cannot be in {ops} ops"
        raise InputError(Fault(source, rule, "record again"))
    return claimed


def _placement(source: str, part: Part) -> NDArray[np.int32]:
    placement = np.frombuffer(part.placement, _INT32).copy()
    ranks = len(part.pipeline)
    if not placement.size or placement.min() < 0 or placement.max() >= ranks:
        rule = f"stages live on ranks that {ranks} ranks do not have"
        raise InputError(Fault(source, rule, "record again"))
    return placement
