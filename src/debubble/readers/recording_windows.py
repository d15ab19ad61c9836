"""From the files of processes to windows of whole pipelines: kinds of steps, replicas and their members, one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError, Refusal
from ..core.laws import needs_of
from ..core.lower import lower
from ..core.observation import Link, Window
from ..core.program import Program, Timeline
from ..core.schedule import KINDS, NOTHING, Schedule
from ..reconstruct.pairing import split
from ..reconstruct.positions import Said
from .files import listed
from .recording_file import NOT_SENT, Ints, Part, Step, Times, Track, unpacked

_INT32 = np.dtype("<i4")
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
                # Four bytes each: a long recording has millions of receives.
                self._moved[sender, receiver].append(np.minimum(moved, MOST).astype(np.uint32))

    def _prepare(self, program: Program) -> None:
        schedule = program.schedule
        need = needs_of(schedule)[0]
        op = np.flatnonzero(need != NOTHING)
        self._needs[id(program)], self._links[id(program)] = need, []
        if not op.size:
            return
        rank = schedule.rank_of()
        # One number for each pair of ranks, so that one sort groups all receives by who sends to whom.
        pair = rank[need[op]].astype(np.int64) * schedule.ranks + rank[op]
        order = np.argsort(pair, kind="stable")
        pairs, first = np.unique(pair[order], return_index=True)
        rows = np.split(op[order], first[1:])
        for both, some in zip(pairs.tolist(), rows, strict=True):
            sender, receiver = divmod(int(both), schedule.ranks)
            self._links[id(program)].append((sender, receiver, some))

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
        self.outside: list[tuple[float | None, ...]] = []
        self.apart: list[int] = []  # of the ends of members of one stage, nanoseconds


def _outside(steps: Sequence[Step]) -> tuple[float | None, ...]:
    """Loading, reduction and optimizer of one step of a replica, nanoseconds; None for what no process shows.

    Processes wait for each other in a reduction, and in the norm of the gradients that an optimizer's step begins with:
    those that leave the pipeline early stand there, and the last to come shows what it takes.
    """
    load = [step.load for step in steps if step.load is not None]
    reduction = [step.reduction for step in steps if step.reduction is not None]
    optimizer = [step.optimizer for step in steps if step.optimizer is not None]
    return (fmean(load) if load else None), min(reduction, default=None), min(optimizer, default=None)


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
            key = _kind_of(part)
            if key not in mine:
                seats[key].append((track, part))
            mine[key] += len(some)
            spent[key] += sum(some)
        for key, count in mine.items():
            counts[key].append(count)
    kinds = []
    for key, held in seats.items():
        _, part = held[0]  # all parts of a kind are alike in what is read here
        kind = StepKind(
            engine=part.engine,
            phase=part.phase,
            schedule=part.schedule,
            microbatches=part.microbatches,
            positions=len(part.pipeline),
            steps=max(counts[key]),
            time_ns=spent[key],
            seats=tuple(held),
        )
        kinds.append(kind)
    return kinds


def _kind_of(part: Part) -> tuple[object, ...]:
    """What the orders of one kind of steps have in common, whichever rank they are of."""
    stages = len(part.placement) // 4
    return (part.engine, part.instance, part.phase, part.schedule, part.microbatches, stages, len(part.pipeline))


def replicas_of(kind: StepKind, said: Said) -> tuple[list[Replica], list[str]]:
    """The replicas that ran steps of a kind, and what is not known about them.

    Which pipelines are replicas and which are members of one (tensor, context parallel) is for the engine to say; bare
    process groups do not: [0, 2] and [1, 3] may be either.
    """
    ranks, remarks = kind.ranks, list[str]()
    unnamed = [part for _, part in kind.seats if "data" not in part.axes]
    share = 1
    if unnamed and len(ranks) > 1:
        replicas = said.data or len(ranks)
        if len(ranks) % replicas:
            rule = f"{len(ranks)} pipelines were recorded, which it does not divide"
            raise InputError(Fault(f"--data {replicas}", rule, "give a divisor of them"))
        share = len(ranks) // replicas  # neighbouring ranks are members: every framework puts the tensor axis innermost
        if said.data is None:
            remarks.append(
                f"{len(ranks)} pipelines were recorded, and nothing says whether they are replicas or members of one: "
                "they are taken as replicas (--data says how many there are)"
            )
    held: dict[int, list[list[Track]]] = {}
    for track, part in kind.seats:
        pipeline = tuple(part.pipeline)
        number = ranks.index(pipeline) // share if unnamed else part.axes["data"][0]
        if number not in held:
            held[number] = [[] for _ in range(kind.positions)]
        if track.process.rank not in pipeline:
            raise InputError(Fault(str(track.file), "its rank is not in its own pipeline", "record again"))
        held[number][pipeline.index(track.process.rank)].append(track)
    return [Replica(number, tuple(map(tuple, positions))) for number, positions in sorted(held.items())], remarks


# Windows.


def windows_of(source: str, kind: StepKind, replicas: Sequence[Replica]) -> Made:
    """Every step that all processes of some replicas have, as windows.

    Raises:
        InputError: there is no such step, or an order is no legal schedule.
    """
    made, steps = Made(source), _steps_by_number(kind, replicas)
    tracks: list[Track] = []
    for replica in replicas:
        tracks += chain.from_iterable(replica.members)
    measured = [steps[id(track)] for track in tracks]
    common = sorted(set(measured[0]).intersection(*measured[1:]))
    # Steps are compared by their numbers: a process that was killed lacks the last ones.
    if not common:
        rule = "no step is there that all ranks have measured"
        raise InputError(Fault(source, rule, "run again with more steps"))
    made.remarks += _left_out(tracks, measured, common)
    shift = _clocks(tracks, made)
    for replica in replicas:
        together = [steps[id(track)] for track in chain.from_iterable(replica.members)]
        made.outside += [_outside([each[number] for each in together]) for number in common]
        ranks = []  # of each position its rows, one for each common step
        for members in replica.members:
            decoded = []
            for track in members:
                mine = [steps[id(track)][number] for number in common]
                decoded.append(_decoded(track, mine, shift))
            ranks.append([_together(made, replica.number, rows) for rows in zip(*decoded, strict=True)])
        _add_windows(made, replica, common, list(zip(*ranks, strict=True)))
    if made.apart:
        made.remarks.append(
            f"devices of one stage were merged; their ends lie {np.median(made.apart) / 1e6:.3f} ms apart (median)"
        )
    return made


def _steps_by_number(kind: StepKind, replicas: Sequence[Replica]) -> dict[int, dict[int, Step]]:
    """The steps of a kind that each process has, by the identity of its track, then by number."""
    members = set()
    for replica in replicas:
        for tracks in replica.members:
            members |= set(map(id, tracks))
    found: dict[int, dict[int, Step]] = {}
    for track, part in kind.seats:
        if id(track) in members:
            alike = {number for number, other in track.parts.items() if _order_of(other) == _order_of(part)}
            found[id(track)] = {step.number: step for step in track.steps if step.part in alike}
    return found


def _order_of(part: Part) -> tuple[object, ...]:
    """What two parts of one process share whose steps can be shown together."""
    return part.engine, part.instance, part.phase, part.schedule, part.microbatches, part.placement


def _left_out(tracks: Sequence[Track], of: Sequence[dict[int, Step]], common: Sequence[int]) -> list[str]:
    """A sentence where some ranks have steps that others lack."""
    every = set().union(*of)
    gone = sorted(every.difference(common))
    if not gone:
        return []
    short = [track.process.rank for track, mine in zip(tracks, of, strict=True) if len(mine) < len(every)]
    which = f"step {gone[0]} is"
    if len(gone) > 1:
        which = f"steps {listed(gone)} are"
    return [f"{which} left out: not measured by process {listed(short)}"]


def _clocks(tracks: Sequence[Track], made: Made) -> dict[str, int]:
    """What to add to each clock: all passed the anchor at once, or showed the same time of day."""
    first: dict[str, Track] = {}
    for track in tracks:
        first.setdefault(track.process.clock, track)
    made.clocks = len(first)
    if made.clocks == 1:
        return dict.fromkeys(first, 0)
    # A barrier that all passed is the best witness of one moment; the time of day is what is left without it.
    anchors: dict[str, int] = {}
    times_of_day: dict[str, int] = {}
    for clock, track in first.items():
        process = track.process
        times_of_day[clock] = process.wall_ns - process.clock_ns
        if process.anchor_ns is not None:
            anchors[clock] = process.anchor_ns
    if len(anchors) == len(first):
        latest = max(anchors.values())
        made.uncertainty_ns = max(track.process.anchor_spread_ns for track in tracks)
        made.remarks.append(
            f"clocks of {len(first)} hosts were aligned at a barrier, to within {made.uncertainty_ns / 1e6:.2f} ms"
        )
        return {clock: latest - anchor for clock, anchor in anchors.items()}
    # Relative to the lowest, so that times stay those of one host's clock.
    least = min(times_of_day.values())
    return {clock: offset - least for clock, offset in times_of_day.items()}


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
    times, latest_first = first.times, first.times.end
    begun, finished = first.begun, first.finished
    for other in members[1:]:
        times = Times(
            start=np.minimum(times.start, other.times.start),
            end=np.maximum(times.end, other.times.end),
            waits=np.minimum(times.waits, other.times.waits),  # one that is early stands for its mates as well
            posted=np.maximum(times.posted, other.times.posted),
        )
        latest_first = np.minimum(latest_first, other.times.end)
        begun, finished = min(begun, other.begun), max(finished, other.finished)
    spread = times.end - latest_first
    made.apart.append(int(np.median(spread)) if spread.size else 0)
    return _Row(first.part, times, begun, finished)


def _add_windows(made: Made, replica: Replica, numbers: Sequence[int], steps: Sequence[Sequence[_Row]]) -> None:
    """The windows of one replica; its receives are added up. Steps of another order than the first are left out."""
    strange: list[int] = []
    for number, rows in zip(numbers, steps, strict=True):
        program = _program(made, [row.part for row in rows])
        # Another order is another schedule: its durations do not belong to the ops of this one.
        if program is not next(iter(made.programs.values())):
            strange.append(number)
            continue
        measured = [row.times for row in rows]
        start = np.concatenate([times.start for times in measured])
        end = np.concatenate([times.end for times in measured])
        posted = np.concatenate([times.posted for times in measured])
        waits = np.concatenate([times.waits for times in measured], axis=1)
        begun, finished = np.array([(row.begun, row.finished) for row in rows]).T
        length = int(finished.max() - begun.min())
        if rows[0].part.engine:
            # A job has no barrier as `run` has: one rank ends a step, and begins the next, long before another does.
            length = int((finished - begun).max())
        stood = _per_rank(waits, program.schedule.offsets)
        made.windows.append(Window(number, replica.number, Timeline(program, start, end, "measured"), length, stood))
        made.receives.add(program, start, waits[0] + waits[2], posted)
    if len(strange) == len(numbers):
        raise InputError(Fault(made.source, _other_order(steps[0], made, replica.number), "record again"))
    if strange:
        made.remarks.append(f"replica {replica.number}: steps that ran another order are left out: {listed(strange)}")


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
    # What lies before a rank's first op is warm-up and no wait; behind the last one it is cool-down.
    inner = waits.copy()
    opens = offsets[:-1][np.diff(offsets) > 0]
    inner[:, opens] = 0
    total = np.zeros((len(waits), waits.shape[1] + 1), np.int64)
    np.cumsum(inner, axis=1, out=total[:, 1:])
    return total[:, offsets[1:]] - total[:, offsets[:-1]]


# Orders.


def _program(made: Made, parts: Sequence[Part]) -> Program:
    """The schedule that the ranks of a pipeline ran, put together from their orders, and lowered once."""
    # Orders are bytes of a few kilobytes: as a key they are compared, not decoded, for each of thousands of steps.
    key = b"|".join(b"".join((part.kind, part.stage, part.unit, part.joined or b"")) for part in parts)
    if key not in made.programs:
        made.programs[key] = _lowered(made.source, parts)
    return made.programs[key]


def _lowered(source: str, parts: Sequence[Part]) -> Program:
    first, offsets = parts[0], [0]
    kind, stage, unit, joined = bytearray(), bytearray(), bytearray(), bytearray()
    for part in parts:
        _check(source, part)
        offsets.append(offsets[-1] + len(part.kind))
        kind += part.kind
        stage += part.stage
        unit += part.unit
        joined += part.joined or bytes(len(part.kind))
    pairs = np.frombuffer(joined, np.uint8) != 0
    try:
        return lower(
            Schedule(
                name=first.schedule or "recorded",
                source="recorded",
                microbatches=_microbatches(source, parts),
                placement=_placement(source, first)[None],
                offsets=np.array(offsets, np.int64),
                kind=np.frombuffer(kind, np.uint8),
                stage=np.frombuffer(stage, _INT32),
                unit=np.frombuffer(unit, _INT32),
                joined=pairs if pairs.any() else None,
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
    elif part.joined is not None and b"\1\1" in b"\1" + bytes(map(bool, part.joined)):  # three ops in one slot
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
