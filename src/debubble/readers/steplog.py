"""Step times from a training log, whichever framework wrote it, or from a CSV of settings and seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.step_log import StepLog
from . import log_lines as line_of
from .log_lines import StepLine, plain, step_line
from .log_steps import steps_of
from .log_timers import TimerLines, is_of_timers
from .places import place
from .step_table import MOST_ROWS, header_of, read_table
from .stream import lines

_ARGUMENTS = re.compile(r"using world size: \d+|-{4,} arguments -{4,}")  # Megatron-LM, long before its first step
_STAMPED_STEPS = 3  # stamped lines whose step number grows, from which a file is a log that says nothing else
_MOST_HEAD_LINES = 400  # that tell whether a file is a log


def is_log(head: bytes) -> bool:
    """Whether a file that begins like this is a log of steps."""
    text = head.decode("utf-8", "replace")
    if _ARGUMENTS.search(text):
        return True
    stamped, growing, last = 0, 0, -1.0
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
        if found.stamp is not None and found.figures.get(line_of.STEP, -1.0) > last:
            growing, last = growing + 1, found.figures[line_of.STEP]
    return stamped > 1 or growing >= _STAMPED_STEPS


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
    return replace(
        _columns(steps_of(rows, timers, remarks), path), timers=tuple(timers.timers()), remarks=tuple(remarks)
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
