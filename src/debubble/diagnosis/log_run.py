"""A run as its log of steps tells it: its settings, the history of each, and what most of its steps did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..config.config import Config
from ..config.derive import settled
from ..core.errors import Fault, InputError
from ..core.step_log import StepLog
from ..core.units import counted, duration, percent
from .phases import LONGEST_STEP, History, LoneStep, Phase, history, later_run

UNSTEADY = 0.1  # of the level: what phases of one setting may differ by before its mean stands for nothing
_LISTED = 6  # phases or steps in a sentence


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Steps of one batch and number of micro-batches.

    Args:
        batch: samples of all replicas; None if the log does not say.
        microbatches: per pipeline; None likewise.
        seconds: of a step: time over steps of those that count.
        history: of its steps; None for a table, whose rows may be in any order.
        rows: indices of the rows that count, int64[rows].
    """

    batch: int | None
    microbatches: int | None
    seconds: float
    history: History | None
    rows: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """How many steps count."""
        return len(self.rows) if self.history is None else self.history.steps

    @property
    def unsteady(self) -> bool:
        """Whether its phases, or the ends of a trend, differ so much that no one number stands for its steps."""
        phases = self.history.phases if self.history is not None else ()
        levels = [level for phase in phases for level in _levels(phase)]
        return bool(levels) and max(levels) > (1 + UNSTEADY) * min(levels)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRun:
    """A run that a log tells of: what its job is, and what its steps did.

    Args:
        job: sizes and measured rates.
        history: of the steps; None for a table, whose rows may be in any order.
    """

    job: Config
    history: History | None


def logged_run(log: StepLog, config: Config) -> LoggedRun:
    """A log as a run that can be compared.

    Args:
        log: what was read.
        config: the job's sizes, as the log's head or options say them.

    Raises:
        InputError: no row has a step time, or the sizes do not fit the batch.
    """
    main = settings_of(log)[0]
    past = main.history
    if past is not None and (whole := history_of(log)) is not None:
        past = replace(past, restarts=whole.restarts)
    return LoggedRun(measured_config(log, config), past)


def settings_of(log: StepLog) -> list[Setting]:
    """Every setting of a log or table, the one that most steps have first; of equally many the largest.

    Raises:
        InputError: no row has a step time that is a number.
    """
    rows = np.flatnonzero(np.isfinite(log.seconds) & (log.seconds > 0) & (log.seconds < LONGEST_STEP))
    if not len(rows):
        rule = "none of its rows has a step time that is a number above 0 and below 116 days"
        raise InputError(Fault(log.source, rule, "give a log or table of steps that were measured"))
    step = log.step if log.step.size else np.full(len(log.seconds), np.nan)
    if log.ordered and np.isfinite(step[rows]).all():
        rows = later_run(step, log.seconds, rows)[1]
    setting = np.nan_to_num(np.stack([log.batch, log.microbatches])[:, rows], nan=-1.0)
    values, index = np.unique(setting, axis=1, return_inverse=True)
    found = []
    for number, (batch, microbatches) in enumerate(values.T.tolist()):
        mine = rows[index.reshape(-1) == number]
        past = history(step[mine], log.seconds[mine]) if log.ordered else None
        kept = mine if past is None else mine[past.rows]
        seconds = float(np.median(log.seconds[kept])) if past is None else past.seconds
        found.append(Setting(_whole(batch), _whole(microbatches), seconds, past, kept))
    return sorted(found, key=lambda each: (each.steps, each.batch or 0, each.microbatches or 0), reverse=True)


def measured_config(log: StepLog, config: Config) -> Config:
    """What most steps of a log did, as a job: batch, step and rates, evidence ``measured``.

    Args:
        log: what was read.
        config: the job's sizes, as the log's head or options say them.

    Raises:
        InputError: no row has a step time, or the sizes do not fit the batch.
    """
    main = settings_of(log)[0]
    batch = main.batch
    if batch is None and main.microbatches is None:
        batch = config.global_batch
    memory = log.memory[main.rows]
    return settled(
        config.changed(
            microbatches=main.microbatches,
            global_batch=batch,
            step=1e9 * main.seconds,
            tokens_per_second=_rate(log.tokens_per_second, log.seconds, main.rows),
            tokens_per_second_per_gpu=_rate(log.tokens_per_gpu, log.seconds, main.rows),
            tflops_per_gpu=_rate(log.tflops, log.seconds, main.rows),
            mfu=_rate(log.mfu, log.seconds, main.rows),
            peak_memory=int(np.nanmax(memory)) if np.isfinite(memory).any() else None,
            evidence="measured",
        )
    )


def _rate(rates: NDArray[np.float64], seconds: NDArray[np.float64], rows: NDArray[np.int64]) -> float | None:
    """The mean of a rate over time: work over time, as of the steps; None if no row has it."""
    if not rates.size:
        return None
    rows = rows[np.isfinite(rates[rows]) & (rates[rows] > 0)]
    if not len(rows):
        return None
    return float((rates[rows] * seconds[rows]).sum() / seconds[rows].sum())


def history_of(log: StepLog) -> History | None:
    """The history of all steps together, whatever their setting; None for a table."""
    return history(log.step, log.seconds) if log.ordered else None


def history_sentences(past: History) -> list[str]:
    """What is to be said of a run's steps, the most important first; nothing of steady ones."""
    return [*_trends(past), *_shifts(past), *_restarts(past), *_lone(past)]


def left_out_text(left_out: tuple[LoneStep, ...]) -> str:
    """Steps as a list that is not too long."""
    text = ", ".join(str(each.step) for each in left_out[:_LISTED])
    return f"{text}, .." if len(left_out) > _LISTED else text


def _trends(past: History) -> Iterator[str]:
    for phase in past.phases:
        if phase.from_ms is not None and phase.to_ms is not None:
            word = "grow" if phase.to_ms > phase.from_ms else "fall"
            ends = f"{duration(1e6 * phase.from_ms)} to {duration(1e6 * phase.to_ms)}"
            yield f"steps {word} from {ends} over steps {phase.first_step} to {phase.last_step}"


def _shifts(past: History) -> Iterator[str]:
    if len(past.phases) < 2:
        return
    fastest = min(phase.mean_ms for phase in past.phases)
    parts = [
        f"{phase.first_step} to {phase.last_step} take {duration(1e6 * phase.mean_ms)}"
        f" ({phase.mean_ms / fastest:.2f} x, {percent(phase.share)} of the time)"
        for phase in past.phases[:_LISTED]
    ]
    more = ", .." if len(past.phases) > _LISTED else ""
    yield f"steps come in {len(past.phases)} phases: {', '.join(parts)}{more}"


def _restarts(past: History) -> Iterator[str]:
    for restart in past.restarts[-_LISTED:]:
        lost = f"{duration(1e6 * restart.lost_ms)} of {counted(restart.steps, 'step')} were done again"
        yield f"the run began again at step {restart.step}: {lost}; the later run counts"


def _lone(past: History) -> Iterator[str]:
    lone = tuple(each for each in past.left_out if each.share)
    if lone:
        share = sum(each.share for each in lone)
        who = f"{counted(len(lone), 'step')} ({left_out_text(lone)})"
        yield f"{who} slow alone, as a checkpoint or validation is, do not count: {percent(share)} of the time"


def _levels(phase: Phase) -> tuple[float, ...]:
    if phase.from_ms is None or phase.to_ms is None:
        return (phase.mean_ms,)
    return phase.from_ms, phase.to_ms


def _whole(value: float) -> int | None:
    return int(value) if value > 0 else None
