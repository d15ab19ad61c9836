"""Recordings of simulated runs: what the processes of one would have written, in today's form and in the former."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from debubble.core.costs import Costs, Rates, costs_of
from debubble.core.lower import lower
from debubble.core.schedule import Schedule
from debubble.core.simulate import simulate
from debubble.readers.recording_file import (
    MAGIC,
    NOT_SENT,
    Former,
    Part,
    Process,
    Step,
    Times,
    frame,
    pack,
    packed,
    track_path,
)

MS = 1_000_000
LATE = 5 * MS  # the second replica runs that much later
RATES = Rates(2 * MS, 4 * MS, transfer=MS)


@dataclass(frozen=True)
class File:
    """What one process writes: itself, one order of ops, steps of it."""

    process: Process
    part: Part
    steps: list[Step] = field(default_factory=list)

    def data(self) -> bytes:
        return MAGIC + b"".join(frame(each) for each in (self.process, self.part, *self.steps))

    def of(self, **process: object) -> "File":
        return replace(self, process=msgspec.structs.replace(self.process, **process))

    def by(self, **part: object) -> "File":
        return replace(self, part=msgspec.structs.replace(self.part, **part))

    def later(self, by: int) -> "File":
        moved = [msgspec.structs.replace(s, begun=s.begun + by, finished=s.finished + by) for s in self.steps]
        return replace(self, steps=moved)


def files(
    schedule: Schedule,
    replicas: int = 1,
    steps: int = 2,
    members: int = 1,
    first: int = 1,
    costs: Costs | None = None,
    **header: object,
) -> list[File]:
    """The files of a run by rank: replica after replica, position after position, member after member."""
    timeline = simulate(lower(schedule), costs or costs_of(RATES, schedule))
    length, made = timeline.makespan + 10 * MS, []
    world = schedule.ranks * replicas * members
    for replica in range(replicas):
        for position in range(schedule.ranks):
            rows = slice(schedule.offsets[position], schedule.offsets[position + 1])
            for member in range(members):
                rank = (replica * schedule.ranks + position) * members + member
                process = Process(
                    **(
                        {
                            **{"run": "one", "rank": rank, "world": world, "pid": 1, "host": "here", "clock": "here"},
                            **{"wall_ns": 1, "clock_ns": 1, "anchor_ns": 0, "samples": 16, "tokens": 512},
                            **{"paced": True, "predicted_ns": timeline.makespan, "hop_ns": MS},
                        }
                        | header
                    )
                )
                pipeline = [(replica * schedule.ranks + p) * members + member for p in range(schedule.ranks)]
                made.append(File(process, part_of(schedule, rows, pipeline, position, replica, replicas)))
                for number in range(first, first + steps):
                    by = number * length + replica * LATE
                    start, end = timeline.start[rows] + by, timeline.end[rows] + by
                    ops = len(start)
                    times = Times(start, end, np.zeros((3, ops), np.int64), np.full(ops, NOT_SENT))
                    begun, finished = number * length - MS, number * length + timeline.makespan + 3 * MS
                    made[-1].steps.append(packed(number, 0, begun, finished + replica * LATE, times, loss=2.5))
    return made


def part_of(schedule: Schedule, rows: slice, pipeline: list[int], position: int, replica: int, replicas: int) -> Part:
    return Part(
        number=0,
        engine="torch",
        schedule=schedule.name,
        microbatches=schedule.microbatches,
        pipeline=pipeline,
        axes={"pipeline": (position, schedule.ranks), "data": (replica, replicas)},
        placement=pack(schedule.placement[0], "i4"),
        kind=pack(schedule.kind[rows], "u1"),
        stage=pack(schedule.stage[rows], "i4"),
        unit=pack(schedule.unit[rows], "i4"),
        joined=None if schedule.joined is None else pack(schedule.joined[rows], "u1"),
    )


def record(folder: Path, made: list[File]) -> Path:
    """Write files as their processes would."""
    for each in made:
        track_path(folder, each.process.rank).write_bytes(each.data())
    return folder


def former(schedule: Schedule, replicas: int = 1, steps: int = 2, **header: object) -> list[Former]:
    """The files of the same run in version 1."""
    timeline = simulate(lower(schedule), costs_of(RATES, schedule))
    length, made = timeline.makespan + 10 * MS, []
    shift = np.arange(1, steps + 1)[:, None] * length
    for replica in range(replicas):
        for rank in range(schedule.ranks):
            rows = slice(schedule.offsets[rank], schedule.offsets[rank + 1])
            start, end = (column[None, rows] + shift + replica * LATE for column in (timeline.start, timeline.end))
            given = {
                "run": "one",
                "rank": rank,
                "ranks": schedule.ranks,
                "replica": replica,
                "replicas": replicas,
                "schedule": schedule.name,
                "microbatches": schedule.microbatches,
                "placement": pack(schedule.placement[0], "i4"),
                "kind": pack(schedule.kind[rows], "u1"),
                "stage": pack(schedule.stage[rows], "i4"),
                "unit": pack(schedule.unit[rows], "i4"),
                "joined": None if schedule.joined is None else pack(schedule.joined[rows], "u1"),
                "samples": 16,
                "tokens": 512,
                "paced": True,
                "predicted_ns": timeline.makespan,
                "hop_ns": MS,
                "clock": "here",
                "pid": 1,
                "anchor": 0,
                "anchor_spread": 0,
                "steps": pack(range(1, steps + 1), "i4"),
                "start": pack(start, "i8"),
                "end": pack(end, "i8"),
                "waited": pack(np.zeros_like(start), "i8"),
                "begun": pack(shift[:, 0] - MS, "i8"),
                "finished": pack(shift[:, 0] + timeline.makespan + 3 * MS, "i8"),
                "loss": pack(np.full(steps, 2.5), "f8"),
            }
            made.append(Former(**(given | header)))
    return made


def record_former(folder: Path, made: list[Former]) -> Path:
    for each in made:
        track_path(folder, each.replica * each.ranks + each.rank).write_bytes(msgspec.msgpack.encode(each))
    return folder
