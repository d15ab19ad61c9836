"""A run as its log of steps tells it: phases, trends, lone steps and restarts; settings, and what most steps did.

    |      x            x = a lone step (checkpoint, validation): left out, and said
    |            ____
    |___________|    |____/   level, shift, level, trend: each a phase with its share of the time
    +------------------------> step

Phases come from a change-point search: the cut into pieces, each a level or a straight line, whose squared distances
and number together cost least (optimal partitioning: Jackson et al., https://arxiv.org/abs/math/0309285). A piece costs
as much as BIC would charge, several times over, since steps of real runs are not independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..config.config import Config
from ..config.derive import settled
from ..core.errors import Fault, InputError
from ..core.observation import StepLog
from ..core.units import counted, duration, percent

LONE = 1.25  # times what comes before and after, from which a step stands alone
CLEAR = 6.0  # standard deviations of luck by which it must do so
MOST_TOGETHER = 2  # slow steps in a row that are lone; three are a phase
NEIGHBOURS = 5  # steps before and after that say what is usual
SHIFT = 0.03  # of the level: what phases differ by at least
DRIFT = 0.05  # of the level: what a trend changes over its steps at least
FEW_STEPS = 3  # of a phase, at least
FEW_FOR_A_TREND = 4
FINE = 0.002  # of the level: what logs round to, and noise is not below it
STRICT = 6.0  # times log(n) of the noise's variance that one more piece costs; BIC says 2
MOST_POINTS = 1000  # of the search, whose time grows with their square; longer runs are averaged first
LONGEST_STEP = 1e7  # seconds: 116 days; a longer one is a fault of its log
SLOW_START = 1.1  # times the usual, from which a first row that is a mean of several steps holds the start-up

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps in a row that took equally long, or ever longer.

    Args:
        first_step: number of its first step.
        last_step: number of its last step.
        mean_ms: of its steps.
        share: of the time of all steps that count or were left out as lone.
        from_ms: at its begin, if it is a trend; else None.
        to_ms: at its end, likewise.
    """

    first_step: int
    last_step: int
    mean_ms: float
    share: float
    from_ms: float | None = None
    to_ms: float | None = None


@dataclass(frozen=True, slots=True)
class LoneStep:
    """A step that does not count.

    Args:
        step: its number.
        ms: how long it took.
        reason: why not, a clause.
        share: of the time of all steps; 0 for steps that are not of the run that counts.
    """

    step: int
    ms: float
    reason: str
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Restart:
    """A run that began again.

    Args:
        step: from which it went on.
        lost_ms: time of the steps that were done again.
        steps: how many those were.
    """

    step: int
    lost_ms: float
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """A run's steps in their order.

    Args:
        seconds: of a step: time over steps of all that count.
        steps: how many count.
        phases: in their order.
        left_out: steps that do not count.
        restarts: at which the run began again; what is before the last one does not count.
        rows: indices of the rows that count, int64[rows].
    """

    seconds: float
    steps: int
    phases: tuple[Phase, ...]
    left_out: tuple[LoneStep, ...]
    restarts: tuple[Restart, ...]
    rows: NDArray[np.int64]

    @property
    def steady(self) -> bool:
        """Whether all steps that count took equally long, but for noise."""
        return len(self.phases) == 1 and self.phases[0].from_ms is None


def history(step: Seconds, seconds: Seconds) -> History | None:
    """The history of steps in the order in which they ran; None if no row has a time.

    Args:
        step: number of the last step of each row, float64[rows]; NaN if it is not known.
        seconds: of a step, the mean of the row's steps, float64[rows].
    """
    rows = np.flatnonzero(np.isfinite(seconds) & (seconds > 0) & (seconds < LONGEST_STEP))
    if not len(rows):
        return None
    number = np.arange(1.0, len(seconds) + 1)
    if len(step) and np.isfinite(step[rows]).all():
        number = step
    restarts, rows = later_run(number, seconds, rows)
    covers = _steps_of_rows(number[rows])
    left_out: list[LoneStep] = []
    starts_up = _starts_up(number[rows], covers, seconds[rows])
    if starts_up:
        left_out.append(LoneStep(int(number[rows[0]]), 1e3 * float(seconds[rows[0]]), "the first step of the run"))
        rows, covers = rows[1:], covers[1:]
    lone = lone_steps(seconds[rows])
    whole = float((seconds[rows] * covers).sum())
    for row, count in zip(rows[lone].tolist(), covers[lone].tolist(), strict=True):
        share = float(seconds[row]) * count / whole
        left_out.append(LoneStep(int(number[row]), 1e3 * float(seconds[row]), "slow alone among its neighbours", share))
    rows, covers = rows[~lone], covers[~lone]
    cuts = change_points(seconds[rows])
    phases = [_phase(number[rows], covers, seconds[rows], whole, piece) for piece in cuts]
    mean = float((seconds[rows] * covers).sum() / covers.sum())
    return History(mean, round(covers.sum()), tuple(phases), tuple(left_out), restarts, rows)


def later_run(
    number: Seconds, seconds: Seconds, rows: NDArray[np.int64]
) -> tuple[tuple[Restart, ...], NDArray[np.int64]]:
    """The restarts, and the rows of the last run of two rows or more: step numbers that go back begin another.

    Args:
        number: of the last step of each row, float64[rows].
        seconds: of a step, float64[rows].
        rows: indices of rows with a time, int64[rows].
    """
    # A number that comes twice is a restart, too: it was done again.
    begins = np.flatnonzero(np.diff(number[rows]) <= 0) + 1
    runs = np.split(rows, begins)
    covers = np.concatenate([_steps_of_rows(number[run]) for run in runs])
    restarts = []
    for begin in begins.tolist():
        again = np.flatnonzero(number[rows[:begin]] >= number[rows[begin]])
        lost = float((seconds[rows[again]] * covers[again]).sum())
        restarts.append(Restart(int(number[rows[begin]]), 1e3 * lost, round(covers[again].sum())))
    # The last run counts: an earlier one may have run in another setting. But one step of it alone tells nothing yet.
    last = runs[-1]
    for run in runs:
        if len(run) >= MOST_TOGETHER:
            last = run
    return tuple(restarts), last


def _steps_of_rows(number: Seconds) -> Seconds:
    """How many steps each row is the mean of: the distance of its number from the one before."""
    if len(number) < 2:
        return np.ones(len(number))
    between = np.maximum(np.diff(number), 1.0)
    # The first row has none before it: it covers as many steps as the others do, but none before step 1.
    first = min(float(np.median(between)), max(1.0, float(number[0])))
    return np.concatenate([[first], between])


def _starts_up(number: Seconds, covers: Seconds, seconds: Seconds) -> bool:
    """Whether the first row is the start of the run: its step 0 or 1, or a mean with them that is longer than usual."""
    if len(number) < 2 or number[0] - covers[0] > 0:
        return False
    return number[0] <= 1 or float(seconds[0]) > SLOW_START * float(np.median(seconds[1:]))


def lone_steps(seconds: Seconds) -> NDArray[np.bool_]:
    """Steps that took far longer than those before and those after, one or two in a row, bool[rows]."""
    count = len(seconds)
    lone = np.zeros(count, np.bool_)
    if count < 2 * FEW_STEPS:
        return lone
    before = np.full(count, np.nan)
    after = np.full(count, np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(seconds, NEIGHBOURS, constant_values=np.nan), NEIGHBOURS)
    before[1:] = np.nanmedian(windows[1:count], axis=1)
    after[:-1] = np.nanmedian(windows[NEIGHBOURS + 1 : NEIGHBOURS + count], axis=1)
    # The larger of both sides: at a shift one side is the other level, and no step there is alone.
    usual = np.fmax(before, after)
    least = usual * max(LONE, 1 + CLEAR * _noise(seconds) / float(np.median(seconds)))
    high = np.flatnonzero(seconds > least)
    for run in np.split(high, np.flatnonzero(np.diff(high) > 1) + 1):
        if not 0 < len(run) <= MOST_TOGETHER:
            continue
        # A step that the one beside it nearly reaches is the top of a slope.
        beside = [row for row in (run[0] - 1, run[-1] + 1) if 0 <= row < count]
        if all(seconds[row] <= least[run].min() for row in beside):
            lone[run] = True
    return lone


def change_points(seconds: Seconds) -> list[slice]:
    """Rows of each phase; phases that differ by less than 3 % are one."""
    count = len(seconds)
    every = math.ceil(count / MOST_POINTS)
    points = seconds / float(np.median(seconds))
    if every > 1:
        ends = np.arange(0, count, every)
        points = np.add.reduceat(points, ends) / np.diff(np.append(ends, count))
    begins = [begin * every for begin in _partition(points)]
    if every > 1:
        # Means of several rows find a cut to within some rows only.
        begins = [0, *(_sharpened(seconds, begin, every) for begin in begins[1:])]
    pieces = [slice(a, b) for a, b in pairwise([*begins, count])]
    return _merged(seconds, pieces)


def _partition(points: Seconds) -> list[int]:
    """Where the pieces begin that cost least: squared distances from a level or a line, and a price for each piece."""
    count = len(points)
    # Logs are rounded: equal numbers in a row would make noise nothing, and each last digit a phase.
    noise = max(_noise(points), FINE)
    price = STRICT * noise**2 * math.log(max(count, 3))
    x = np.arange(count, dtype=np.float64)
    # Prefix sums, so that any piece's squares are a few subtractions.
    s1, sx, sxx, sy, sxy, syy = (np.concatenate([[0.0], np.cumsum(each)]) for each in (
        np.ones(count), x, x * x, points, x * points, points * points
    ))  # fmt: skip
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    came_from = np.zeros(count + 1, np.int64)
    for end in range(FEW_STEPS, count + 1):
        begin = np.arange(0, end - FEW_STEPS + 1)
        n, tx, txx, ty, txy, tyy = (each[end] - each[begin] for each in (s1, sx, sxx, sy, sxy, syy))
        level = tyy - ty * ty / n
        spread = txx - tx * tx / n
        along = txy - tx * ty / n
        line = level - along * along / spread
        line = np.where(n >= FEW_FOR_A_TREND, line + price / 2, np.inf)  # one more number to choose
        cost = best[begin] + np.maximum(np.minimum(level, line), 0.0) + price
        came_from[end] = int(cost.argmin())
        best[end] = cost[came_from[end]]
    if not np.isfinite(best[count]):
        return [0]
    begins = []
    end = count
    while end > 0:
        end = int(came_from[end])
        begins.append(end)
    return begins[::-1]


def _sharpened(seconds: Seconds, begin: int, reach: int) -> int:
    """A cut that was found among means, to the row: where two levels beside it leave the least squares."""
    low, high = max(0, begin - 2 * reach), min(len(seconds), begin + 2 * reach)
    near = seconds[low:high]
    cuts = np.arange(1, len(near))
    total, squares = np.cumsum(near), float((near**2).sum())
    left = total[cuts - 1]
    # Squares around two means, by sums alone: sum(x^2) - (sum left)^2/n - (sum right)^2/m.
    rest = squares - left**2 / cuts - (total[-1] - left) ** 2 / (len(near) - cuts)
    return low + int(cuts[rest.argmin()])


def _merged(seconds: Seconds, pieces: Sequence[slice]) -> list[slice]:
    """Pieces without those that hardly differ from their neighbour."""
    kept = list(pieces)
    while len(kept) > 1:
        # The least first: each merge changes what its neighbours are held against.
        steps = [_step_between(seconds, a, b) for a, b in pairwise(kept)]
        least = int(np.argmin(steps))
        if steps[least] >= SHIFT:
            break
        kept[least : least + 2] = [slice(kept[least].start, kept[least + 1].stop)]
    return kept


def _step_between(seconds: Seconds, a: slice, b: slice) -> float:
    """By how much two pieces differ, relative: in level, or where one ends and the other begins."""
    end, begin = _ends(seconds[a])[1], _ends(seconds[b])[0]
    levels = abs(float(seconds[a].mean() - seconds[b].mean()))
    return max(levels, abs(end - begin)) / float(seconds[a.start : b.stop].mean())


def _ends(seconds: Seconds) -> tuple[float, float]:
    """Where a piece begins and ends: on a straight line if it changes by 5 % or more, else at its mean."""
    mean = float(seconds.mean())
    if len(seconds) < FEW_FOR_A_TREND:
        return mean, mean
    x = np.arange(len(seconds)) - (len(seconds) - 1) / 2
    slope = float((x * seconds).sum() / (x * x).sum())
    change = slope * (len(seconds) - 1)
    away = seconds - mean - slope * x
    luck = math.sqrt(float((away**2).sum()) / (len(seconds) - 2) / float((x * x).sum()))
    # Both: a trend that matters, and that chance does not make.
    if abs(change) < DRIFT * mean or abs(slope) < CLEAR * luck:
        return mean, mean
    return mean - change / 2, mean + change / 2


def _noise(seconds: Seconds) -> float:
    """Standard deviation of luck from step to step, whatever shifts and trends there are."""
    if len(seconds) < 2:
        return 0.0
    # Differences of neighbours hold no level, and twice the variance; the median passes over the few shifts.
    return float(1.4826 / math.sqrt(2) * np.median(np.abs(np.diff(seconds))))


def _phase(number: Seconds, covers: Seconds, seconds: Seconds, whole: float, piece: slice) -> Phase:
    mine, count = seconds[piece], covers[piece]
    level = Phase(
        first_step=int(number[piece][0] - count[0] + 1),
        last_step=int(number[piece][-1]),
        mean_ms=1e3 * float((mine * count).sum() / count.sum()),
        share=float((mine * count).sum()) / whole,
    )
    begin, end = _ends(mine)
    if begin == end:
        return level
    return replace(level, from_ms=1e3 * begin, to_ms=1e3 * end)


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
        if self.history is None:  # a row of a table is one measurement, whatever steps it is the mean of
            return len(self.rows)
        return self.history.steps

    @property
    def unsteady(self) -> bool:
        """Whether its phases, or the ends of a trend, differ so much that no one number stands for its steps."""
        if self.history is None:
            return False
        # Both ends of a trend count: its mean is a step that was hardly ever taken.
        levels = [level for phase in self.history.phases for level in _levels(phase)]
        return max(levels) > (1 + UNSTEADY) * min(levels)


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
    # Restarts are of the log, not of one of its settings: a new run may have begun with another batch.
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
    step = log.step
    if not step.size:
        step = np.full(len(log.seconds), np.nan)
    if log.ordered and np.isfinite(step[rows]).all():  # the last run of all, before its settings are told apart
        rows = later_run(step, log.seconds, rows)[1]
    setting = np.nan_to_num(np.stack([log.batch, log.microbatches])[:, rows], nan=-1.0)  # NaN is not equal to itself
    values, index = np.unique(setting, axis=1, return_inverse=True)
    found = []
    for number, (batch, microbatches) in enumerate(values.T.tolist()):
        mine = rows[index.reshape(-1) == number]
        past = None
        if log.ordered:
            past = history(step[mine], log.seconds[mine])
        kept, seconds = mine, float(np.median(log.seconds[mine]))
        if past is not None:  # of steps in their order all that count do, so that time over steps is the throughput
            kept, seconds = mine[past.rows], past.seconds
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
    peak = None
    if np.isfinite(memory).any():
        peak = int(np.nanmax(memory))
    return settled(
        config.changed(
            microbatches=main.microbatches,
            global_batch=batch,
            step=1e9 * main.seconds,
            tokens_per_second=_rate(log.tokens_per_second, log.seconds, main.rows),
            tokens_per_second_per_gpu=_rate(log.tokens_per_gpu, log.seconds, main.rows),
            tflops_per_gpu=_rate(log.tflops, log.seconds, main.rows),
            mfu=_rate(log.mfu, log.seconds, main.rows),
            peak_memory=peak,
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
    # Weighted by time: the mean of rates would count short steps too much.
    return float((rates[rows] * seconds[rows]).sum() / seconds[rows].sum())


def history_of(log: StepLog) -> History | None:
    """The history of all steps together, whatever their setting; None for a table."""
    if not log.ordered:
        return None
    return history(log.step, log.seconds)


def history_sentences(past: History) -> list[str]:
    """What is to be said of a run's steps, the most important first; nothing of steady ones."""
    return [*_trends(past), *_shifts(past), *_restarts(past), *_lone(past)]


def left_out_text(left_out: tuple[LoneStep, ...]) -> str:
    """Steps as a list that is not too long."""
    return _shortened([str(each.step) for each in left_out])


def _shortened(parts: Sequence[str]) -> str:
    text = ", ".join(parts[:_LISTED])
    if len(parts) > _LISTED:
        text += ", .."
    return text


def _trends(past: History) -> Iterator[str]:
    for phase in past.phases:
        if phase.from_ms is not None and phase.to_ms is not None:
            word = "fall"
            if phase.to_ms > phase.from_ms:
                word = "grow"
            ends = f"{duration(1e6 * phase.from_ms)} to {duration(1e6 * phase.to_ms)}"
            yield f"steps {word} from {ends} over steps {phase.first_step} to {phase.last_step}"


def _shifts(past: History) -> Iterator[str]:
    if len(past.phases) < 2:
        return
    fastest = min(phase.mean_ms for phase in past.phases)
    parts = [
        f"{phase.first_step} to {phase.last_step} take {duration(1e6 * phase.mean_ms)}"
        f" ({phase.mean_ms / fastest:.2f} x, {percent(phase.share)} of the time)"
        for phase in past.phases
    ]
    yield f"steps come in {len(past.phases)} phases: {_shortened(parts)}"


def _restarts(past: History) -> Iterator[str]:
    # The latest: they are what the run that counts began with.
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
    """A size as the setting holds it: -1 stood for one that nobody said."""
    if value <= 0:
        return None
    return int(value)
