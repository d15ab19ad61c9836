"""Step times from logs of Megatron-LM and DeepSpeed, or from a CSV of settings and seconds; timers where they stand.

Timers are sums over the micro-batches of a step without any order: enough for an imbalance and for a bound of the
idle share, not for a timeline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from .places import place
from .text_lines import lines

_MOST_ROWS = 10_000_000
_MOST_TIMERS = 10_000  # of one name and rank each
_MOST_REMARKS = 50
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

# Megatron-LM: | elapsed time per iteration (ms): 35770.1 | .. global batch size: 512 |
_ELAPSED = re.compile(rf"elapsed time per iteration \((ms|s)\):\s*{_NUMBER}")
_ITERATION = re.compile(r"iteration\s+(\d+)\s*/")
_BATCH = re.compile(r"global batch size:\s*(\d+)")
_ARGUMENTS = re.compile(r"using world size: \d+|-{4,} arguments -{4,}")  # long before its first step
# DeepSpeed's pipeline engine: steps: 10 loss: 3.1416 iter time (s): 3.210 samples/sec: 39.875
_DEEPSPEED = re.compile(rf"steps: (\d+) loss: .*? iter time \(s\): {_NUMBER} samples/sec: {_NUMBER}")
# Timers. Megatron-LM names are padded with dots; older ones and DeepSpeed's stand in one line behind "time (ms)".
_LINE_OF_TIMERS = re.compile(r"time \(ms\) \|(.*)")
_ONE_TIMER = re.compile(rf"([\w.\- ]+?):\s*{_NUMBER}")
_HEADING = re.compile(r"(?:\(min, max\) |max )?times? across ranks \(ms\):")
_RANGE = re.compile(rf"^\s*([\w\-]+)\s*\.*:\s*\({_NUMBER}, {_NUMBER}\)")
_MAXIMUM = re.compile(rf"^\s*([\w\-]+)\s*\.*:\s*{_NUMBER}\s*$")
_NAME = re.compile(r"^\s*([\w\-]+)\s*\.*:\s*$")
_RANK_OF_LINE = re.compile(r"[Rr]ank[ =](\d+)")
_RANK = re.compile(rf"^\s*rank\s+(\d+):\s*{_NUMBER}")

_SECONDS = {"seconds": 1.0, "second": 1.0, "sec": 1.0, "s": 1.0, "ms": 1e-3, "milliseconds": 1e-3}
_COLUMNS = {
    "batch": {"batch", "gbs", "global_batch", "global_batch_size", "batch_size", "samples"},
    "microbatches": {"microbatches", "micro_batches", "m", "gas", "chunks", "num_microbatches"},
    "memory": {"gb", "peak_gb", "memory_gb"},
    "step": {"step", "iteration"},
}
FORWARD = ("forward-compute", "fwd_microstep", "forward_microstep", "forward", "fwd", "pipe_fwd")
BACKWARD = ("backward-compute", "bwd_microstep", "backward_microstep", "backward", "bwd", "pipe_bwd")


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer of a log: seconds a step, over ranks, the median of its lines.

    Args:
        name: as in the log.
        low: on the rank with least, where the log says; else equal to ``high``.
        high: on the rank with most.
    """

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """Step times of a log or table, as columns; NaN where a row does not say.

    Args:
        source: the path.
        seconds: of each step (or of a mean of steps), float64[rows].
        batch: samples of all replicas in a step, float64[rows].
        microbatches: per pipeline and step, float64[rows].
        memory: peak bytes, float64[rows]; infinite where the run died of it.
        timers: what timers the log holds.
        remarks: what was left out.
    """

    source: str
    seconds: NDArray[np.float64]
    batch: NDArray[np.float64]
    microbatches: NDArray[np.float64]
    memory: NDArray[np.float64]
    timers: tuple[Timer, ...] = ()
    remarks: tuple[str, ...] = ()

    def timer(self, names: Iterable[str]) -> Timer | None:
        """The first timer of one of these names."""
        by_name = {timer.name: timer for timer in self.timers}
        return next((by_name[name] for name in names if name in by_name), None)


def is_log(head: bytes) -> bool:
    """Whether a file that begins like this is a log of steps, of a kind that is known."""
    text = head.decode("utf-8", "replace")
    return any(pattern.search(text) for pattern in (_ELAPSED, _DEEPSPEED, _LINE_OF_TIMERS, _HEADING, _ARGUMENTS))


def is_step_table(head: bytes) -> bool:
    """Whether a file begins with the header of a CSV of settings and step times (or peak memory)."""
    return _header(head.decode("utf-8-sig", "replace").split("\n")[0]) is not None


def read_steps(path: Path | str) -> StepLog:
    """Read step times (and timers) from a log, or rows of settings and seconds from a CSV.

    A CSV needs a header that names ``batch`` or ``microbatches``, and ``seconds`` (or ``ms``), or ``gb``.

    Raises:
        InputError: the file holds no step time.
    """
    path, remarks = place(path), list[str]()
    try:
        text = lines(path, remarks)
        first = next(text, "")
        header = _header(first)
        found = _table(header, text, path, remarks) if header else _log(_again(first, text), path)
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a log")) from error
    if not len(found.seconds):
        why = "".join(f"; {remark}" for remark in remarks)
        rule = f"no step time stands in it{why}"
        remedy = "give a log of Megatron-LM or DeepSpeed, or a CSV with the columns batch or microbatches, and seconds"
        raise InputError(Fault(str(path), rule, remedy))
    return found


def _again(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _log(text: Iterable[str], path: Path) -> StepLog:
    rows: list[tuple[float, float]] = []
    timings: dict[tuple[str, str], list[float]] = {}
    name, listed = "", False  # listed: below a heading, as long as its lines last
    for line in text:
        if (step := _step_of(line)) and len(rows) < _MOST_ROWS:
            rows.append(step)
        if _HEADING.search(line):
            name, listed = "", True
            continue
        found = _timings(line, name) if listed or "time (ms)" in line else []
        if listed and not found:
            heads = _NAME.match(line)
            name, listed = (heads[1], True) if heads else ("", False)
        for timer, who, milliseconds in found:
            if (timer, who) in timings or len(timings) < _MOST_TIMERS:
                timings.setdefault((timer, who), []).append(milliseconds / 1e3)
    columns = np.array(rows, np.float64).reshape(-1, 2)
    blank = np.full(len(rows), np.nan)
    return StepLog(str(path), columns[:, 0], columns[:, 1], blank, blank, tuple(_timers(timings)))


def _step_of(line: str) -> tuple[float, float] | None:
    """Seconds and batch (NaN where it is not said) of the step that a line reports, or None."""
    if elapsed := _ELAPSED.search(line):
        batch = _BATCH.search(line)
        return float(elapsed[2]) * _SECONDS[elapsed[1]], float(batch[1]) if batch else math.nan
    if steps := _DEEPSPEED.search(line):
        seconds = float(steps[2])
        return seconds, float(round(seconds * float(steps[3])))
    return None


def _timings(line: str, name: str) -> list[tuple[str, str, float]]:
    """Timer, rank (or ``min``, ``max``) and milliseconds of all timings in one line."""
    if listed := _LINE_OF_TIMERS.search(line):
        rank = _RANK_OF_LINE.search(line)
        return [(n.strip(), rank[1] if rank else "", float(value)) for n, value in _ONE_TIMER.findall(listed[1])]
    if pair := _RANGE.match(line):
        return [(pair[1], "min", float(pair[2])), (pair[1], "max", float(pair[3]))]
    if rank := _RANK.match(line):
        return [(name, rank[1], float(rank[2]))] if name else []
    if most := _MAXIMUM.match(line):
        return [(most[1], "max", float(most[2]))]
    return []


def _timers(timings: dict[tuple[str, str], list[float]]) -> Iterator[Timer]:
    """The median of each rank's timings, then the least and the most over ranks."""
    for name in dict.fromkeys(timer for timer, _ in timings):
        medians = [float(np.median(seconds)) for (timer, _), seconds in timings.items() if timer == name]
        yield Timer(name, min(medians), max(medians))


def _header(line: str) -> dict[str, tuple[int, float]] | None:
    """Where each column of a table of steps is, and its factor to seconds or bytes; None for any other line."""
    separator = max(",;\t", key=line.count)
    names = [cell.strip().strip('"').lower() for cell in line.split(separator)]
    found: dict[str, tuple[int, float]] = {}
    for at, name in enumerate(names):
        unit = re.split(r"[_ (]", name.rstrip(")"))[-1]
        for ours, known in _COLUMNS.items():
            if name in known:
                found[ours] = (at, 1e9 if ours == "memory" else 1.0)
        if unit in _SECONDS and "seconds" not in found:
            found["seconds"] = (at, _SECONDS[unit])
    settings = found.keys() & {"batch", "microbatches"}
    return found if settings and found.keys() & {"seconds", "memory"} else None


def _table(header: dict[str, tuple[int, float]], text: Iterable[str], path: Path, remarks: list[str]) -> StepLog:
    rows: list[list[float]] = []
    names = ("seconds", "batch", "microbatches", "memory")
    for number, line in enumerate(text, start=2):
        if not line.strip():
            continue
        cells = line.split(max(",;\t", key=line.count))
        try:
            rows.append([_cell(cells, *header[name]) if name in header else math.nan for name in names])
        except (ValueError, IndexError):
            remarks.append(f"{path}: line {number} was left out: {line[:60]!r} is no row of numbers")
        if len(remarks) > _MOST_REMARKS or len(rows) > _MOST_ROWS:
            raise InputError(Fault(str(path), "it is no table of step times", "give one row a setting"))
    seconds, batch, microbatches, memory = np.array(rows, np.float64).reshape(-1, 4).T
    return StepLog(str(path), seconds, batch, microbatches, memory, (), tuple(remarks))


def _cell(cells: list[str], at: int, factor: float) -> float:
    text = cells[at].strip().strip('"')
    return float(text) * factor if text else math.nan
