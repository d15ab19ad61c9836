"""Timers of Megatron-LM and DeepSpeed in a log: sums over a step's micro-batches, by rank or least and most."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..core.step_log import Timer

_MOST_TIMERS = 10_000  # of one name and rank each
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

# Megatron-LM names are padded with dots; older ones and DeepSpeed's are in one line after "time (ms)".
_LINE_OF_TIMERS = re.compile(r"time \(ms\) \|(.*)")
_ONE_TIMER = re.compile(rf"([\w.\- ]+?):\s*{_NUMBER}")
_HEADING = re.compile(r"(?:\(min, max\) |max )?times? across ranks \(ms\):")
_RANGE = re.compile(rf"^\s*([\w\-]+)\s*\.*:\s*\({_NUMBER}, {_NUMBER}\)")
_MAXIMUM = re.compile(rf"^\s*([\w\-]+)\s*\.*:\s*{_NUMBER}\s*$")
_NAME = re.compile(r"^\s*([\w\-]+)\s*\.*:\s*$")
_RANK_OF_LINE = re.compile(r"[Rr]ank[ =](\d+)")
_RANK = re.compile(rf"^\s*rank\s+(\d+):\s*{_NUMBER}")
# What launchers put before a line; not every word with a colon, since a timer is one, too.
_LABEL = re.compile(r"^\s*(?:(?:\[[^\]]*\](?:<std\w+>)?:?|\([^)]*pid=[^)]*\):?|[\w.-]+\s?\||[\w.-]*\d:(?=\s))\s?)+")

STEP_TIMER = "train_batch"  # DeepSpeed's pipeline engine: the whole step
PARTS_OF_STEP = ("fwd", "bwd", "step")  # DeepSpeed's engine without a pipeline, over the micro-batches of a step

Timing = tuple[str, str, float]  # timer, rank (or ``min``, ``max``), milliseconds


def is_of_timers(line: str) -> bool:
    """Whether a line holds timers, or is the heading above some."""
    return bool(_LINE_OF_TIMERS.search(line) or _HEADING.search(line))


class TimerLines:
    """The timers of a log, gathered line by line."""

    __slots__ = ("listed", "name", "timings")

    def __init__(self) -> None:
        self.timings: dict[tuple[str, str], list[float]] = {}  # milliseconds of each timer and rank
        self.name = ""  # heading of the lines of ranks that follow
        self.listed = False  # whether a heading was read and its lines last

    def take(self, line: str) -> bool:
        """Read a line; whether it was one of timers."""
        if _HEADING.search(line):
            self.name, self.listed = "", True
            return True
        of_timers = "time (ms)" in line
        if not self.listed and not of_timers:
            return False
        found = _timings(_LABEL.sub("", line) if self.listed else line, self.name)
        if self.listed and not found:
            heads = _NAME.match(_LABEL.sub("", line))
            self.name, self.listed = (heads[1], True) if heads else ("", False)
        for timer, rank, milliseconds in found:
            if (timer, rank) in self.timings or len(self.timings) < _MOST_TIMERS:
                self.timings.setdefault((timer, rank), []).append(milliseconds)
        return self.listed or of_timers

    def timers(self) -> Iterator[Timer]:
        """The median of each rank's timings, then the least and the most over ranks, in seconds."""
        for name in dict.fromkeys(timer for timer, _ in self.timings):
            medians = [float(np.median(ms)) / 1e3 for (timer, _), ms in self.timings.items() if timer == name]
            yield Timer(name, min(medians), max(medians))

    def steps(self) -> list[float]:
        """Seconds of each step as the first rank's timers have them; empty if no timer is of a whole step."""
        ranks = [rank for timer, rank in self.timings if timer in (STEP_TIMER, *PARTS_OF_STEP)]
        if not ranks:
            return []
        by_name = {timer: ms for (timer, rank), ms in self.timings.items() if rank == ranks[0]}
        if STEP_TIMER in by_name:
            return [ms / 1e3 for ms in by_name[STEP_TIMER]]
        parts = [by_name.get(name, []) for name in PARTS_OF_STEP]
        return [sum(each) / 1e3 for each in zip(*parts, strict=False)]


def _timings(line: str, name: str) -> list[Timing]:
    """All timings in one line."""
    if listed := _LINE_OF_TIMERS.search(line):
        said = _RANK_OF_LINE.findall(line[: listed.start()])
        own = ""
        if said:  # the last is DeepSpeed's own; the first may be a launcher's label, which counts nodes or workers
            own = said[-1]
        return [(n.strip(), own, float(value)) for n, value in _ONE_TIMER.findall(listed[1])]
    if pair := _RANGE.match(line):
        return [(pair[1], "min", float(pair[2])), (pair[1], "max", float(pair[3]))]
    if rank := _RANK.match(line):
        return [(name, rank[1], float(rank[2]))] if name else []
    if most := _MAXIMUM.match(line):
        return [(most[1], "max", float(most[2]))]
    return []
