"""Step times from a training log, whichever framework wrote it, or from a CSV of settings and seconds.

A log says how long a step took in one of several ways; the first of these that it has is taken, and said:

    a figure of the step itself          elapsed time per iteration, train_step_timing, step time ..
    a timer of the whole step            DeepSpeed's train_batch
    timestamps of lines that number steps
    the parts of a step as timers        DeepSpeed's fwd + bwd + step
    a progress bar's clock               whole seconds, so several steps together
    the time of the whole run            Hugging Face's train_runtime
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.step_log import StepLog
from . import log_lines as line_of
from .log_lines import StepLine, plain, step_line
from .log_timers import STEP_TIMER, TimerLines, is_of_timers
from .places import place
from .step_table import MOST_ROWS, header_of, read_table
from .text_lines import lines

_ARGUMENTS = re.compile(r"using world size: \d+|-{4,} arguments -{4,}")  # Megatron-LM, long before its first step
_CLEAR_SPAN = 20.0  # seconds of a clock of whole seconds, from which a step time is known to 5 %
_SAME_STEPS = 0.5  # share of the steps of two processes that must be the same for one of them to be set aside
_MOST_HEAD_LINES = 400  # that tell whether a file is a log


def is_log(head: bytes) -> bool:
    """Whether a file that begins like this is a log of steps."""
    text = head.decode("utf-8", "replace")
    if _ARGUMENTS.search(text):
        return True
    stamped = 0
    for line in plain(text.split("\n")[:_MOST_HEAD_LINES]):
        if is_of_timers(line):
            return True
        found = step_line(line)
        if found is None:
            continue
        figures = found.figures
        if line_of.RUNTIME in figures or (line_of.SECONDS in figures and len(figures) > 1):
            return True
        if line_of.STEP in figures and (found.elapsed is not None or (found.stamp is not None and len(figures) > 1)):
            stamped += 1
    return stamped > 1


def is_step_table(head: bytes) -> bool:
    """Whether a file begins with the header of a CSV of settings and step times (or peak memory)."""
    return header_of(head.decode("utf-8-sig", "replace").split("\n")[0]) is not None


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
        header = header_of(first)
        found = read_table(header, text, path, remarks) if header else _log(_again(first, text), path, remarks)
    except OSError as error:
        raise InputError(Fault(str(path), f"it cannot be read: {error.strerror or error}", "give a log")) from error
    if not len(found.seconds):
        why = "".join(f"; {remark}" for remark in remarks)
        rule = f"no step time stands in it{why}"
        remedy = "give a log of a training run, or a CSV with the columns batch or microbatches, and seconds"
        raise InputError(Fault(str(path), rule, remedy))
    return found


def _again(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _log(text: Iterable[str], path: Path, remarks: list[str]) -> StepLog:
    timers, rows = TimerLines(), list[StepLine]()
    for line in plain(text):
        if timers.take(line):
            continue
        found = step_line(line)
        if found is not None and len(rows) < MOST_ROWS:
            rows.append(found)
    rows = _of_one_process(rows, remarks)
    steps, way = _steps(rows, timers)
    if way:
        remarks.append(f"step times are {way}")
    numbered = sum(line_of.STEP in row.figures for row in rows)
    if steps and not way and numbered > 2 * len(steps):
        remarks.append(f"{numbered} lines number a step, {len(steps)} of them tell its time")
    return replace(_columns(steps, path), timers=tuple(timers.timers()), remarks=tuple(remarks))


def _steps(rows: list[StepLine], timers: TimerLines) -> tuple[list[dict[str, float]], str]:
    """The figures of each step by the first way that yields any, and what that way is."""
    for way, rows_of in _WAYS:
        if steps := rows_of(rows, timers):
            return steps, way
    return [], ""


def _of_one_process(rows: list[StepLine], remarks: list[str]) -> list[StepLine]:
    """Without the lines of processes that report the same steps as the one with most lines."""
    count = Counter(row.label for row in rows if line_of.STEP in row.figures)
    if len(count) < 2:
        return rows
    main = count.most_common(1)[0][0]
    steps = {row.figures[line_of.STEP] for row in rows if row.label == main and line_of.STEP in row.figures}
    same = Counter(row.label for row in rows if row.figures.get(line_of.STEP) in steps)
    echoes = {label for label in count if label != main and same[label] > _SAME_STEPS * count[label]}
    kept = [row for row in rows if row.label not in echoes]
    if len(kept) < len(rows):
        remarks.append(f"{len(rows) - len(kept)} lines of {len(echoes)} more processes report the same steps")
    return kept


def _said(rows: list[StepLine], timers: TimerLines) -> list[dict[str, float]]:  # noqa: ARG001 - one shape for all ways
    """Lines that say how long their step took; figures of lines in between belong to the next of them."""
    found: list[dict[str, float]] = []
    numbered = any(line_of.STEP in row.figures and line_of.SECONDS in row.figures for row in rows)
    pending: dict[str, float] = {}
    for row in rows:
        whole = line_of.SECONDS in row.figures and (line_of.STEP in row.figures or not numbered)
        if whole:
            found.append(pending | row.figures)
            pending = {}
        elif line_of.STEP not in row.figures:
            pending |= {name: value for name, value in row.figures.items() if name != line_of.SECONDS}
    return found


def _timed(rows: list[StepLine], timers: TimerLines) -> list[dict[str, float]]:  # noqa: ARG001
    if any(name == STEP_TIMER for name, _ in timers.timings):
        return [{line_of.SECONDS: seconds} for seconds in timers.steps()]
    return []


def _parts(rows: list[StepLine], timers: TimerLines) -> list[dict[str, float]]:  # noqa: ARG001
    return [{line_of.SECONDS: seconds} for seconds in timers.steps()]


def _stamped(rows: list[StepLine], timers: TimerLines) -> list[dict[str, float]]:  # noqa: ARG001
    """Differences of timestamps over differences of step numbers."""
    return _differences(rows, lambda row: row.stamp, 0.0)


def _clocked(rows: list[StepLine], timers: TimerLines) -> list[dict[str, float]]:  # noqa: ARG001
    """The same of a progress bar, whose clock has whole seconds."""
    return _differences(rows, lambda row: row.elapsed, _CLEAR_SPAN) or _differences(rows, lambda row: row.elapsed, 1.0)


def _differences(
    rows: list[StepLine], clock: Callable[[StepLine], float | None], least: float
) -> list[dict[str, float]]:
    """A row for each stretch of steps over which a clock went on by ``least`` seconds or more."""
    found = []
    before: tuple[float, float] | None = None
    for row in rows:
        now, step = clock(row), row.figures.get(line_of.STEP)
        if now is None or step is None:
            continue
        if before is None or step < before[1] or now < before[0]:
            before = now, step  # the first line, or a run that began again
        elif step > before[1] and now - before[0] > least:
            seconds = (now - before[0]) / (step - before[1])
            found.append(row.figures | {line_of.SECONDS: seconds})
            before = now, step
    return found


def _whole_run(rows: list[StepLine], timers: TimerLines) -> list[dict[str, float]]:  # noqa: ARG001
    steps = max((row.figures[line_of.STEP] for row in rows if line_of.STEP in row.figures), default=0.0)
    for row in rows:
        runtime, rate = row.figures.get(line_of.RUNTIME), row.figures.get(line_of.STEP_RATE)
        if runtime and rate:
            count = steps if steps and abs(steps / (runtime * rate) - 1) < 0.1 else runtime * rate
            return [row.figures | {line_of.SECONDS: runtime / count, line_of.STEP: round(count)}]
    return []


_WAYS: tuple[tuple[str, Callable[[list[StepLine], TimerLines], list[dict[str, float]]]], ...] = (
    ("", _said),
    ("DeepSpeed's timer train_batch", _timed),
    ("differences of its timestamps", _stamped),
    ("sums of its timers fwd, bwd and step", _parts),
    ("differences of its progress bar's clock, of 20 s or more", _clocked),
    ("the time of the whole run over its steps", _whole_run),
)


def _columns(steps: list[dict[str, float]], path: Path) -> StepLog:
    """The rows as columns; a batch that is not said follows from samples so far, or from samples a second."""

    def column(name: str) -> NDArray[np.float64]:
        return np.array([row.get(name, math.nan) for row in steps], np.float64)

    step, seconds, samples = column(line_of.STEP), column(line_of.SECONDS), column(line_of.SAMPLES)
    batch = column(line_of.BATCH)
    if len(steps) > 1 and np.isnan(batch).all():
        rows = np.diff(step)
        each = np.diff(samples) / np.where(rows > 0, rows, np.nan)
        batch[1:] = np.where(each > 0, each, np.nan)
        if samples[0] % batch[1] == 0:
            batch[0] = batch[1]
    if np.isnan(batch).all():
        batch = np.rint(seconds * column(line_of.SAMPLE_RATE))
    return StepLog(
        str(path),
        seconds,
        batch,
        column(line_of.MICROBATCHES),
        column(line_of.MEMORY),
        step,
        tflops=column(line_of.TFLOPS),
        mfu=column(line_of.MFU),
        tokens_per_second=column(line_of.TOKENS),
        tokens_per_gpu=column(line_of.TOKENS_PER_GPU),
    )
