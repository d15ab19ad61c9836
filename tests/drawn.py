"""Drawings: a schedule as people draw it, and the same drawing as its file shows it."""

import inspect
import sys

import numpy as np

from debubble import Costs, lower, simulate
from debubble.core.schedule import KINDS, Kind


def draw(schedule, backward):
    """One line a rank; a slot is a forward of one chunk, small letters are odd chunks, a dot is an idle slot."""
    durations = np.ones((KINDS, schedule.stages, 1), np.int64)
    durations[Kind.B] = backward
    timeline = simulate(lower(schedule), Costs(durations, np.zeros_like(durations)))
    width = 3 if schedule.slices == 1 else 4  # characters a slot
    lines = []
    for rank, (first, last) in enumerate(zip(schedule.offsets[:-1], schedule.offsets[1:], strict=True)):
        line = list(" . ".ljust(width) * timeline.makespan)
        for row in range(first, last):
            begin, end = timeline.start[row] * width, timeline.end[row] * width
            mate = schedule.joined is not None and row + 1 < last and schedule.joined[row + 1]
            if schedule.joined is None or not schedule.joined[row]:
                text = cell(schedule, row) + ("&" + cell(schedule, row + 1) if mate else "")
                line[begin:end] = text.ljust(end - begin - 1, "-") + " "
        lines.append(f"rank {rank}  {''.join(line).rstrip()}")
    return lines


def cell(schedule, row):
    op = schedule.op(row)
    odd = schedule.placement.shape[0] == 1 and op.stage // schedule.ranks % 2
    letter = op.kind.name.lower() if odd else op.kind.name
    unit = divmod(op.microbatch, schedule.slices)
    return letter + (f"{unit[0]}" if schedule.slices == 1 else f"{unit[0]}{'abcdefgh'[unit[1]]}")


def written(build):
    """The drawing above a generator; that in the docstring of its file where the file holds no other schedule."""
    text = (inspect.getcomments(build) or "").replace("#", " ")
    if "rank 0" not in text:
        text = sys.modules[build.__module__].__doc__
    return [line.strip() for line in text.splitlines() if line.strip().startswith("rank ") and "  " in line.strip()]
