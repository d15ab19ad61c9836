"""The steps of a log from its lines: of one process, one progress bar and one count, by the first way that tells time.

A log says how long a step took in one of several ways; the first of these that it has is taken, and said:

    a figure of the step itself          elapsed time per iteration, train_step_timing, step time ..
    a timer of the whole step            DeepSpeed's train_batch
    timestamps of lines that number steps
    the parts of a step as timers        DeepSpeed's fwd + bwd + step
    a progress bar's clock               whole seconds, so several steps together
    steps per second                     fairseq's ups
    the time of the whole run            Hugging Face's train_runtime
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace

from .log_lines import RUNTIME, SECONDS, STEP, STEP_RATE, StepLine
from .log_timers import STEP_TIMER, TimerLines

Figures = dict[str, float]  # of a step, by our names

_BREAK = StepLine("", None, None, {})  # where a progress bar of something else stood

_CLEAR_SPAN = 20.0  # seconds of a clock of whole seconds, from which a step time is known to 5 %
_SAME_STEPS = 0.5  # share of the steps of two kinds of lines that must be the same for one of them to be set aside


def steps_of(rows: list[StepLine], timers: TimerLines, remarks: list[str]) -> list[Figures]:
    """The figures of each step, among them its seconds; empty if nothing tells them. Remarks say how they were told."""
    rows = _through_epochs(_of_one_bar(_of_one_process(rows, remarks), remarks))
    for way, rows_of in _WAYS:
        steps = rows_of(rows, timers)
        if not steps:
            continue
        numbered = sum(STEP in row.figures for row in rows)
        if way:
            remarks.append(f"step times are {way}")
        elif numbered > 2 * len(steps):
            remarks.append(f"{numbered} lines number a step, {len(steps)} of them tell its time")
        return steps
    return []


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
    return {each for each in counts if each != main and same[each] > _SAME_STEPS * counts[each]}


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
    for row in rows:
        if STEP in row.figures:
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
    telling = [row for row in rows if STEP in row.figures and SECONDS in row.figures]
    echoes = _echoes(telling, _shape)  # of two kinds of lines that both tell every step, one counts
    found: list[Figures] = []
    pending: Figures = {}
    for row in rows:
        if SECONDS in row.figures and (STEP in row.figures or not telling):
            if _shape(row) not in echoes:
                found.append(pending | row.figures)
                pending = {}
        elif STEP not in row.figures:
            pending |= {name: value for name, value in row.figures.items() if name != SECONDS}
    return found


def _timed(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    if any(name == STEP_TIMER for name, _ in timers.timings):
        return [{SECONDS: seconds} for seconds in timers.steps()]
    return []


def _parts(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    return [{SECONDS: seconds} for seconds in timers.steps()]


def _stamped(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    """Differences of timestamps over differences of step numbers."""
    return _differences(rows, lambda row: row.stamp, 0.0)


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
    rated = [row.figures for row in rows if STEP in row.figures and row.figures.get(STEP_RATE, 0.0) > 0]
    return [figures | {SECONDS: 1 / figures[STEP_RATE]} for figures in rated]


def _whole_run(rows: list[StepLine], timers: TimerLines) -> list[Figures]:  # noqa: ARG001
    steps = max((row.figures[STEP] for row in rows if STEP in row.figures), default=0.0)
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
    ("differences of its timestamps", _stamped),
    ("sums of its timers fwd, bwd and step", _parts),
    ("differences of its progress bar's clock, of 20 s or more", _clocked),
    ("the inverse of its steps per second", _rated),
    ("the time of the whole run over its steps", _whole_run),
)
