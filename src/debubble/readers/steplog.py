"""Step times from a training log, whichever framework wrote it, or from a CSV of settings and seconds.

A log says how long a step took in one of several ways; the first of these that it has is taken, and said:

    a figure of the step itself          elapsed time per iteration, train_step_timing, step time ..
    a timer of the whole step            DeepSpeed's train_batch
    timestamps of lines that number steps
    the parts of a step as timers        DeepSpeed's fwd + bwd + step
    a progress bar's clock               whole seconds, so several steps together
    steps per second                     fairseq's ups
    the time of the whole run            Hugging Face's train_runtime

The lines are first brought down to those of one process, one progress bar and one count of steps. A table has a header
that names ``batch`` or ``microbatches``, and ``seconds``.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError
from ..core.observation import StepLog
from . import log_lines as line_of
from .files import lines, place, why_unreadable
from .log_lines import (
    CLOCK,
    RUNTIME,
    SECONDS,
    STEP,
    STEP_RATE,
    STEP_TIMER,
    StepLine,
    TimerLines,
    head_batch,
    is_of_timers,
    plain,
    step_line,
)
from .torchtitan_log import steps_of_titan, titan_files

# What tells a log long before its first step: Megatron-LM's arguments; the script that modded-nanogpt puts above its
# own log, by the line that prints the steps.
_ARGUMENTS = re.compile(r"using world size: \d+|-{4,} arguments -{4,}|\bstep_avg:")
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
        timed = found.elapsed is not None or line_of.CLOCK in figures or found.opens
        if line_of.STEP in figures and (timed or (found.stamp is not None and len(figures) > 1)):
            stamped += 1
        if found.stamp is not None and found.figures.get(line_of.STEP, -1.0) > last:
            growing, last = growing + 1, found.figures[line_of.STEP]
    return stamped > 1 or growing >= _STAMPED_STEPS


def is_step_table(head: bytes) -> bool:
    """Whether a file begins with the header of a CSV of settings and step times (or peak memory)."""
    return header_of(head.decode("utf-8-sig", "replace").split("\n")[0]) is not None


def read_steps(path: Path | str) -> StepLog:
    """Read step times (and timers) from a log, or rows of settings and seconds from a CSV.

    A CSV needs a header that names ``batch`` or ``microbatches``, and ``seconds`` (or ``ms``), or ``gb``. Only the
    structured logs of torchtitan may be a folder: each rank writes one.

    Raises:
        InputError: the file holds no step time.
    """
    path, remarks = place(path), list[str]()
    try:
        if structured := titan_files(path):
            return steps_of_titan(structured)
        text = lines(path, remarks)
        first = next(text, "")
        header = header_of(first)
        if header is not None:
            found = read_table(header, text, path, remarks)
        else:
            found = _log(chain([first], text), path, remarks)
    except OSError as error:
        raise InputError(Fault(str(path), why_unreadable(error), "give a log")) from error
    if not len(found.seconds):
        rule = "; ".join(["no step time stands in it", *remarks])
        remedy = "give a log of a training run, or a CSV with the columns batch or microbatches, and seconds"
        raise InputError(Fault(str(path), rule, remedy))
    return found


def _log(text: Iterable[str], path: Path, remarks: list[str]) -> StepLog:
    timers, rows, batch = TimerLines(), list[StepLine](), math.nan
    for line in plain(text):
        if timers.take(line):
            continue
        found = step_line(line)
        if not rows:
            batch = head_batch(line) or batch
        if found is None or len(rows) >= MOST_ROWS:
            continue
        if rows and found.continues(rows[-1]):
            rows[-1] = replace(rows[-1], figures=found.figures | rows[-1].figures)
        else:
            rows.append(found)
    columns = _columns(steps_of(rows, timers, remarks), path, batch)
    remarks += _averages(columns.step, rows)
    return replace(columns, timers=tuple(timers.timers()), remarks=tuple(remarks))


def _averages(step: NDArray[np.float64], rows: list[StepLine]) -> list[str]:
    """A sentence if lines that tell the time of a step come once in several steps."""
    if not any(SECONDS in row.figures for row in rows) or not np.isfinite(step).all():
        return []
    apart = np.diff(step)
    if not (apart > 1).any():
        return []
    usual = float(np.median(apart[apart > 0]))
    return [f"a line comes each {usual:g} steps: its time counts as the mean of all since the line before"]


def _columns(steps: list[dict[str, float]], path: Path, said: float) -> StepLog:
    """The rows as columns; a batch that no row says follows from samples so far, the log's head, or samples a second.

    Args:
        steps: the figures of each row.
        path: of the log.
        said: samples of a step, as a line before the first step has them; NaN if none does.
    """

    def column(name: str) -> NDArray[np.float64]:
        return np.fromiter([row.get(name, math.nan) for row in steps], np.float64, len(steps))

    step, seconds, samples = column(line_of.STEP), column(line_of.SECONDS), column(line_of.SAMPLES)
    batch = column(line_of.BATCH)
    if len(steps) > 1 and np.isnan(batch).all():
        rows = np.diff(step)
        each = np.diff(samples) / np.where(rows > 0, rows, np.nan)
        batch[1:] = np.where(each > 0, each, np.nan)
        # The first row has no row before it; a count that its neighbour's batch divides fits the same batch.
        if samples[0] % batch[1] == 0:
            batch[0] = batch[1]
    if np.isnan(batch).all():
        batch[:] = said
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


Figures = dict[str, float]  # of a step, by our names

_BREAK = StepLine("", None, None, {})  # where a progress bar of something else stood

_CLEAR_SPAN = 20.0  # seconds of a clock of whole seconds, from which a step time is known to 5 %
_SAME_STEPS = 0.5  # share of the steps of two kinds of lines that must be the same for one of them to be set aside


def steps_of(rows: list[StepLine], timers: TimerLines, remarks: list[str]) -> list[Figures]:
    """The figures of each step, among them its seconds; empty if nothing tells them. Remarks say how they were told."""
    # In this order: bars are told apart within one process, and epochs within one bar.
    rows = _through_epochs(_of_one_bar(_of_one_process(rows, remarks), remarks))
    for way, rows_of in _WAYS:
        steps = rows_of(rows, timers)
        if not steps:
            continue
        numbered = len(_named(rows, STEP))
        if way:
            remarks.append(f"step times are {way}")
        elif numbered > 2 * len(steps):
            remarks.append(f"{numbered} lines number a step, {len(steps)} of them tell its time")
        return steps
    return []


def _named(rows: list[StepLine], *names: str) -> list[StepLine]:
    """The lines that have all of these figures."""
    return [row for row in rows if row.figures.keys() >= set(names)]


def _shape(row: StepLine) -> frozenset[str]:
    """Which figures it tells: lines of one kind tell the same."""
    return frozenset(row.figures)


def _echoes(rows: list[StepLine], key: Callable[[StepLine], Hashable]) -> set[Hashable]:
    """Keys whose lines report mostly the steps that the lines of another key report, which has more of them."""
    counts = Counter(key(row) for row in rows)
    if len(counts) < 2:
        return set()
    main = max(counts, key=lambda each: (counts[each], _telling(each)))
    steps = {row.figures[STEP] for row in rows if key(row) == main}
    same = Counter(key(row) for row in rows if row.figures[STEP] in steps)
    echoes = {each for each, count in counts.items() if same[each] > _SAME_STEPS * count}
    return echoes - {main}


def _telling(key: Hashable) -> int:
    """Of two kinds of lines that are equally many, the one with more figures is kept."""
    if isinstance(key, frozenset):
        return len(key)
    return 0


def _of_one_process(rows: list[StepLine], remarks: list[str]) -> list[StepLine]:
    """Without the lines of processes that report the same steps as the one with most lines.

    Only lines of one shape are compared: one process prints several kinds of lines for a step, and what stands before
    them differs (GPT-NeoX prints DeepSpeed's lines with their stamps, then its own).
    """
    by_shape = defaultdict[frozenset[str], list[StepLine]](list)
    for row in _named(rows, STEP):
        by_shape[_shape(row)].append(row)
    echoes = {shape: _echoes(alike, lambda row: row.label) for shape, alike in by_shape.items()}
    kept = [row for row in rows if row.label not in echoes.get(_shape(row), ())]
    if len(kept) < len(rows):
        others = len(set[Hashable]().union(*echoes.values()))
        remarks.append(f"{len(rows) - len(kept)} lines of {others} more processes report the same steps")
    return kept


def _of_one_bar(rows: list[StepLine], remarks: list[str]) -> list[StepLine]:
    """With the progress bars of something else as breaks: the clock of training goes on for longest.

    Loading of checkpoints, maps over a data set, and evaluation between steps show bars of the same form, while the
    clock of the training's own bar goes on.
    """
    before, spans = dict[str, float](), Counter[str]()
    for row in rows:
        if row.bar and row.elapsed is not None:
            spans[row.bar] += round(max(0.0, row.elapsed - before.get(row.bar, row.elapsed)))
            before[row.bar] = row.elapsed
    if len(spans) < 2:
        return rows
    main = spans.most_common(1)[0][0]
    found = []
    for row in rows:
        if row.bar in ("", main):
            found.append(row)
        elif not found or found[-1] is not _BREAK:
            found.append(_BREAK)
    remarks.append(f"{len(spans) - 1} other progress bars (evaluation, loading ..): time across them is of no step")
    return found


def _through_epochs(rows: list[StepLine]) -> list[StepLine]:
    """With steps that are counted on where an epoch begins its count again: that is no restart."""
    found = []
    epoch, last, before = -1, 0.0, 0.0
    for row in rows:
        step = row.figures.get(STEP)
        if step is None:
            found.append(row)
            continue
        if row.epoch is not None and row.epoch > epoch >= 0 and before + step <= last:
            before = last
            if step == 0:  # it counts from 0, so that its last step stands one below their number
                before += 1
        if row.epoch is not None:
            epoch = row.epoch
        last = before + step
        found.append(replace(row, figures=row.figures | {STEP: last}))
    return found


def _said(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001 - one signature for all ways
    """Lines that say how long their step took; figures of lines in between belong to the next of them."""
    telling = _named(rows, STEP, SECONDS)
    echoes = _echoes(telling, _shape)  # of two kinds of lines that both tell every step, one counts
    found: list[Figures] = []
    pending: Figures = {}
    for row in rows:
        if SECONDS in row.figures and (STEP in row.figures or not telling):
            if _shape(row) not in echoes:
                found.append(pending | row.figures)
                pending = {}
        elif STEP not in row.figures:
            pending = pending | row.figures
            pending.pop(SECONDS, None)  # of no step that is known
    return found


def _timed(rows: list[StepLine], timers: TimerLines) -> list[Figures]:
    if STEP_TIMER in {name for name, _ in timers.timings}:
        return _parts(rows, timers)
    return []


def _parts(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    return [{SECONDS: seconds} for seconds in timers.steps()]


def _stamped(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    """Differences of timestamps over differences of step numbers."""
    return _differences(rows, lambda row: row.stamp, 0.0)


def _ticked(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    """The same of the time that went by so far, which lines show as a figure; it may stand still in evaluations."""
    return _differences(rows, lambda row: row.figures.get(CLOCK), 0.0)


def _clocked(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    """The same of a progress bar, whose clock has whole seconds."""
    return _differences(rows, lambda row: row.elapsed, _CLEAR_SPAN) or _differences(rows, lambda row: row.elapsed, 1.0)


def _differences(rows: list[StepLine], clock: Callable[[StepLine], float | None], least: float) -> list[Figures]:
    """A row for each stretch of steps over which a clock went on by ``least`` seconds; by half of it before a break."""
    found: list[Figures] = []
    begin: tuple[float, float] | None = None  # clock and step at which the stretch began
    so_far: tuple[float, Figures] | None = None  # its length, and what its row would be if it ended here
    for row in [*rows, _BREAK]:
        now, step = clock(row), row.figures.get(STEP)
        if row is not _BREAK and (now is None or step is None):
            continue
        if now is None or step is None or (begin is not None and (step < begin[1] or now < begin[0])):
            if so_far is not None and so_far[0] > least / 2:
                found.append(so_far[1])
            begin = so_far = None  # a break, or a run that began again
        if now is None or step is None:
            continue
        if begin is None:
            begin = now, step
        elif step == begin[1]:
            if found:  # another line of the same step, with other figures
                found[-1] = row.figures | found[-1]
        else:
            length = now - begin[0]
            so_far = length, row.figures | {SECONDS: length / (step - begin[1])}
            if length > least:
                found.append(so_far[1])
                begin, so_far = (now, step), None
    return found


def _rated(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    found = []
    for row in _named(rows, STEP, STEP_RATE):
        rate = row.figures[STEP_RATE]
        if rate > 0:
            found.append(row.figures | {SECONDS: 1 / rate})
    return found


def _whole_run(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    steps = max((row.figures[STEP] for row in _named(rows, STEP)), default=0.0)
    for row in rows:
        runtime, rate = row.figures.get(RUNTIME), row.figures.get(STEP_RATE)
        if not runtime or not rate:
            continue
        count = runtime * rate
        if steps and abs(steps / count - 1) < 0.1:  # the rate is printed with few digits
            count = steps
        return [row.figures | {SECONDS: runtime / count, STEP: round(count)}]
    return []


_WAYS: tuple[tuple[str, Callable[[list[StepLine], TimerLines], list[Figures]]], ...] = (
    ("", _said),
    ("DeepSpeed's timer train_batch", _timed),
    ("differences of its clock of training", _ticked),
    ("differences of its timestamps", _stamped),
    ("sums of its timers fwd, bwd and step", _parts),
    ("differences of its progress bar's clock, of 20 s or more", _clocked),
    ("the inverse of its steps per second", _rated),
    ("the time of the whole run over its steps", _whole_run),
)


MOST_ROWS = 10_000_000
_MOST_REMARKS = 50
_SECONDS = {"seconds": 1.0, "second": 1.0, "sec": 1.0, "s": 1.0, "ms": 1e-3, "milliseconds": 1e-3}
_COLUMNS = {
    "batch": {"batch", "gbs", "global_batch", "global_batch_size", "batch_size", "samples"},
    "microbatches": {"microbatches", "micro_batches", "m", "gas", "chunks", "num_microbatches"},
    "memory": {"gb", "peak_gb", "memory_gb"},
    "step": {"step", "iteration"},
}
_FACTORS = {"memory": 1e9}  # to bytes
_READ = ("seconds", "batch", "microbatches", "memory", "step")

Header = dict[str, tuple[int, float]]  # our name of a column -> its place, and its factor to seconds or bytes


def header_of(line: str) -> Header | None:
    """The columns that a first line names; None if it is no header of such a table."""
    names = [cell.strip().strip('"').lower() for cell in line.split(_separator(line))]
    found: Header = {}
    for column, name in enumerate(names):
        unit = re.split(r"[_ (]", name.rstrip(")"))[-1]
        for ours, known in _COLUMNS.items():
            if name in known:
                found[ours] = (column, _FACTORS.get(ours, 1.0))
        if unit in _SECONDS and "seconds" not in found:
            found["seconds"] = (column, _SECONDS[unit])
    if found.keys() & {"batch", "microbatches"} and found.keys() & {"seconds", "memory"}:
        return found
    return None


def read_table(header: Header, text: Iterable[str], path: Path, remarks: list[str]) -> StepLog:
    """The rows below a header; a row that holds no numbers costs itself and is said.

    Raises:
        InputError: too much of it is no table of numbers.
    """
    rows: list[list[float]] = []
    for number, line in enumerate(text, start=2):
        if not line.strip():
            continue
        cells = line.split(_separator(line))
        try:
            row = [_cell(cells, *header[name]) if name in header else math.nan for name in _READ]
        except (ValueError, IndexError):
            remarks.append(f"{path}: line {number} was left out: {line[:60]!r} is no row of numbers")
        else:
            if any(row[_READ.index(name)] < 1 for name in ("batch", "microbatches")):
                remarks.append(f"{path}: line {number} was left out: {line[:60]!r}; a step has one sample at least")
            else:
                rows.append(row)
        if len(remarks) > _MOST_REMARKS or len(rows) > MOST_ROWS:
            raise InputError(Fault(str(path), "it is no table of step times", "give one row a setting"))
    seconds, batch, microbatches, memory, step = np.array(rows, np.float64).reshape(-1, len(_READ)).T
    ordered = "step" in header
    return StepLog(str(path), seconds, batch, microbatches, memory, step, ordered, remarks=tuple(remarks))


def _separator(line: str) -> str:
    return max(",;\t", key=line.count)


def _cell(cells: list[str], place: int, factor: float) -> float:
    text = cells[place].strip().strip('"')
    if not text:
        return math.nan
    return float(text) * factor
