"""Evidence: who is slow and since when, who starts late, which hop is dear, and who waits for whom.

    log work = stage + replica's micro-batches in that step + slow rank + straggler + luck

    stage       the same in all replicas and steps              a heavy stage: move layers
    row         the same on all ranks of a replica in a step    longer micro-batches: nobody is slow
    slow rank   one rank of one replica, in all steps           a slow GPU: needs replicas to compare with
    straggler   one rank of one replica, in some steps          a passing fault: needs steps to compare with

Faults only ever make things slower, and they are few. So what is usual is the *lower* median of what should be alike:
of two replicas that is the faster one, of two ranks the one that lost less, and a fault never drags the usual along.
With one replica a slow rank leaves the same mark as a heavy stage; then they are one finding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account
from ..core.laws import needs_of
from ..core.observation import Window
from ..core.program import Timeline
from ..core.schedule import NOTHING, Kind
from .causes import Summary, hops, lane_free, spent

SLOWER = 1.05  # times the same stage elsewhere, from which a rank is called slow: twice what luck does in real runs
SLOWER_ONCE = 1.2  # the same with so few steps that luck is not known
FITFUL = 1.1  # the same for single steps of one rank, which luck reaches sooner
CLEAR = 6  # standard deviations of luck by which anything must stand out; a lower median takes up one of them
MOST_STEPS = 0.9  # share of the steps in which a rank that is slow all the time must be slower, or all but one
FEW_STEPS = 4  # below it, steps are too few to say what is usual
UNEVEN = 1.02  # a stage heavier than this is worth a line if it costs the window something
_SIGMA = 1.4826  # standard deviation over the median distance from the median, of normal noise

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that is slow.

    Args:
        replica: its data-parallel replica.
        rank: its position in the pipeline.
        factor: its time over that of the same stage elsewhere, beyond what all of its replica shows.
        steps: the steps in which it was slow; empty if it was so all the time.
    """

    replica: int
    rank: int
    factor: float
    steps: tuple[int, ...] = ()

    def shows(self, replica: int, step: int) -> bool:
        """Whether it was slow in the window of this replica and step."""
        return replica == self.replica and (not self.steps or step in self.steps)


@dataclass(frozen=True, slots=True)
class Heavy:
    """A stage with more work than the others.

    Args:
        stage: its number; of a rank whose stages are all as heavy, the first.
        rank: where it lives.
        factor: its time over the mean of the stages that are not heavy.
        whole_rank: whether all stages of its rank are as heavy.
        others: further heavy stages, each with its factor.
    """

    stage: int
    rank: int
    factor: float
    whole_rank: bool
    others: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Work of every cell; NaN if a window is missing.

    Args:
        steps: numbers of the steps that count.
        by_rank: float64[steps, replicas, ranks], nanoseconds.
        by_stage: float64[steps, replicas, stages], nanoseconds.
        home: rank of each stage, int32[stages].
        luck: standard deviation of a cell's work over its mean, from ops of the median window.
    """

    steps: tuple[int, ...]
    by_rank: Table
    by_stage: Table
    home: NDArray[np.int32]
    luck: float


def work_of(summary: Summary) -> Work:
    """The work of every step, replica and rank that was measured."""
    steps = sorted({window.step for window in summary.windows})
    line = {step: i for i, step in enumerate(steps)}
    replicas = max(window.replica for window in summary.windows) + 1
    schedule = summary.window.timeline.program.schedule
    # NaN and not 0: a window that is missing must not look like a rank without work.
    by_rank = np.full((len(steps), replicas, schedule.ranks), np.nan)
    by_stage = np.full((len(steps), replicas, schedule.stages), np.nan)
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        mine = window.timeline.program.schedule
        by_rank[line[window.step], window.replica] = account.compute
        by_stage[line[window.step], window.replica] = np.bincount(mine.stage, spent(window.timeline), mine.stages)
    return Work(tuple(steps), by_rank, by_stage, schedule.placement[0], _luck_of_a_cell(summary))


def slow_ranks(work: Work) -> list[Slow]:
    """Every slow rank, the slowest first: those that are slow all the time, then those that are so in some steps."""
    # Single bad steps first: they would raise the level that a rank which is always slow is held against.
    fitful = _against_steps(work)
    always = _against_replicas(_without(work, fitful)) if work.by_rank.shape[1] > 1 else []
    return sorted([*always, *fitful], key=lambda slow: -slow.factor)


def _without(work: Work, slow: list[Slow]) -> Work:
    """The work without what a rank was slow in: a replica that has a bad step must not hide a slow rank of another."""
    by_rank = work.by_rank.copy()
    line = {step: row for row, step in enumerate(work.steps)}
    for each in slow:
        by_rank[[line[step] for step in each.steps], each.replica, each.rank] = np.nan
    return replace(work, by_rank=by_rank)


def heavy_stage(work: Work, slow: list[Slow]) -> Heavy | None:
    """The heaviest stage, judged by what its ranks take while they are not slow; None if all weigh the same."""
    log = _logs(work.by_stage)
    if log.shape[2] < 2:
        return None
    for each in slow:
        mine = np.flatnonzero(work.home == each.rank)
        for row, step in enumerate(work.steps):
            # A slow GPU is no heavy stage: its times are brought to what the stage takes elsewhere.
            if each.shows(each.replica, step):
                log[row, each.replica, mine] -= np.log(each.factor)
    log -= _median(log, axis=2)[:, :, None]  # longer micro-batches are longer on every stage
    level = _median(log.reshape(-1, log.shape[2]), axis=0)
    least = np.log1p(max(UNEVEN - 1, CLEAR * _luck_of_a_mean(work, log - level)))
    # The lower median is usual as long as fewer than half of the stages are heavy; the mean would rise with them.
    usual = level <= _lower_median(level, axis=0) + least
    if usual.all():
        return None
    factor = np.exp(level - np.log(np.exp(level[usual]).mean()))
    stage = int(factor.argmax())
    rank = int(work.home[stage])
    together = np.flatnonzero(work.home == rank)
    # With chunks, a rank whose stages are all heavy is slow or overloaded as a whole; one heavy stage is layers.
    whole_rank = bool((factor[together] > (1 + factor[stage]) / 2).all())
    others = tuple((int(s), float(factor[s])) for s in np.flatnonzero(~usual) if work.home[s] != rank)
    if whole_rank:
        stage = int(together[0])
    size = float(factor[together].mean()) if whole_rank else float(factor[stage])
    return Heavy(stage, rank, size, whole_rank, others)


def _against_replicas(work: Work) -> list[Slow]:
    """Ranks that are slower than the same stage of the other replicas, in nearly every step."""
    log = _logs(work.by_rank)
    level = _median(log, axis=0)
    beyond = _beyond_stage_and_row(level[None])[0]
    each_step = _beyond_stage_and_row(log)
    seen = np.isfinite(each_step) & (np.isfinite(log).sum(axis=1, keepdims=True) > 1)
    # In a single step half of that is enough: luck hides some of it, and the median over steps has the last word.
    slower = (np.where(seen, each_step, 0.0) > np.log1p((SLOWER - 1) / 2)).sum(axis=0)
    steps = seen.sum(axis=0)
    clear = np.nan_to_num(beyond) > np.log(np.where(steps < FEW_STEPS, SLOWER_ONCE, SLOWER))
    needed = np.where(steps < FEW_STEPS, steps, np.minimum(MOST_STEPS * steps, steps - 1))
    found = np.argwhere(clear & (slower > 0) & (slower >= needed))
    return [Slow(int(q), int(rank), float(np.exp(beyond[q, rank]))) for q, rank in found]


def _beyond_stage_and_row(log: Table) -> Table:
    """What is left of log work, [steps, replicas, ranks], without the stage and without the replica's own batches."""
    stage = _lower_median(log, axis=1)[:, None, :]
    row = _lower_median(log - stage, axis=2)[:, :, None]
    return log - stage - row


def _against_steps(work: Work) -> list[Slow]:
    """Ranks that are slower in a few steps than in most."""
    if len(work.steps) < FEW_STEPS or work.by_rank.shape[2] < 2:
        return []
    log = _logs(work.by_rank)
    raw = log - _median(log, axis=0)
    away = raw - _lower_median(raw, axis=2)[:, :, None]
    luck = _luck_of_ranks(raw)
    slower = np.nan_to_num(away) > np.maximum(np.log(FITFUL), CLEAR * luck)
    count = slower.sum(axis=0)
    found = []
    for q, rank in np.argwhere((count > 0) & (count < len(work.steps) / 2)):  # of half and half, neither is usual
        rows = np.flatnonzero(slower[:, q, rank])
        usual = _median(np.where(slower[:, q, rank], np.nan, away[:, q, rank]), axis=0)
        factor = float(np.exp(np.median(away[rows, q, rank]) - usual))
        found.append(Slow(int(q), int(rank), factor, tuple(work.steps[row] for row in rows)))
    return found


def _luck_of_ranks(raw: Table) -> Table:
    """Standard deviation of each rank against the others of its replica from step to step, float64[replicas, ranks].

    Of its own steps, but no less than that of all ranks together: few steps may look steadier than they are.
    """
    ranks = raw.shape[2]
    away = np.abs(raw - _median(raw, axis=2)[:, :, None])
    own = _SIGMA * _median(away, axis=0)
    both = math.sqrt(ranks / (ranks - 1))  # what a rank is held against has luck of its own: as much, if there are two
    luck: Table = both * np.maximum(own, _spread(away))
    return luck


def _luck_of_a_mean(work: Work, away: Table) -> float:
    """Standard deviation of a stage's level: from cell to cell if there are enough of them, else from op to op."""
    cells = int(np.isfinite(away).all(axis=2).sum())
    if cells < FEW_STEPS:
        return work.luck / math.sqrt(max(1, cells))
    return _spread(away) / math.sqrt(cells)


def _luck_of_a_cell(summary: Summary) -> float:
    """What jitter of ops leaves in a rank's work: forwards without what their micro-batch and stage explain."""
    timeline = summary.window.timeline
    schedule = timeline.program.schedule
    rows = schedule.kind == Kind.F
    table = np.full((schedule.stages, schedule.units), np.nan)
    table[schedule.stage[rows], schedule.unit[rows]] = spent(timeline)[rows]
    log = _logs(table)
    log = log - _median(log, axis=1)[:, None]
    log = log - _median(log, axis=0)[None, :]
    return _spread(log) / math.sqrt(schedule.units)


def _spread(away: Table) -> float:
    """Standard deviation of normal noise with these distances from its middle."""
    return float(_SIGMA * _median(np.abs(away).reshape(-1), axis=0))


def _logs(table: Table) -> Table:
    """Logarithms; NaN for what is missing or took no time."""
    log: Table = np.log(np.where(table > 0, table, np.nan))
    return log


def _median(table: Table, axis: int) -> Table:
    """The median of what is there along an axis; NaN if nothing is."""
    low, high = _middle_two(table, axis)
    return (low + high) / 2


def _lower_median(table: Table, axis: int) -> Table:
    """The same, but the lower one of two in the middle."""
    return _middle_two(table, axis)[0]


def _middle_two(table: Table, axis: int) -> tuple[Table, Table]:
    """The two values in the middle (the same one of an odd number) of what is there along an axis."""
    whole = np.moveaxis(table, axis, -1)
    there = np.isfinite(whole)
    # Infinity goes behind all that is there, so places count from the least.
    ordered = np.sort(np.where(there, whole, np.inf), axis=-1)
    count = there.sum(axis=-1)
    picked = []
    for place in (np.maximum(count - 1, 0) // 2, np.maximum(count, 1) // 2):
        value = np.take_along_axis(ordered, place[..., None], -1)[..., 0]
        picked.append(np.where(count > 0, value, np.nan))
    return picked[0], picked[1]


@dataclass(frozen=True, slots=True)
class Hop:
    """One way between two ranks.

    Args:
        sender: rank whose op made the input.
        receiver: rank whose op needs it.
        forward: whether activations travel, or gradients.
        ops: how many of the receiver's ops wait for it.
        usual_ns: from the end of the input to the start of the op, the median, nanoseconds.
        row: the op that waited longest, in the schedule's numbering.
    """

    sender: int
    receiver: int
    forward: bool
    ops: int
    usual_ns: int
    row: int


@dataclass(frozen=True, slots=True)
class Late:
    """A rank whose ops start late though its lane is free and its inputs are there.

    Args:
        rank: position in the pipeline.
        late_ns: over the whole window, nanoseconds.
        row: the latest op, in the schedule's numbering.
        row_ns: how late it was.
    """

    rank: int
    late_ns: int
    row: int
    row_ns: int


def dearest_hop(timeline: Timeline) -> Hop | None:
    """The way between two ranks whose delays add up to most; None where there is none."""
    schedule = timeline.program.schedule
    need = needs_of(schedule)[0]
    rows = np.flatnonzero(need != NOTHING)
    delay = hops(timeline)[rows]
    if not delay.any():
        return None
    rank = schedule.rank_of()
    forward = schedule.kind[rows] == Kind.F
    # One number a way: sender, receiver and what travels; activations and gradients may take different paths.
    way = (rank[need[rows]].astype(np.int64) * schedule.ranks + rank[rows]) * 2 + forward
    ways, index = np.unique(way, return_inverse=True)
    best = int(np.bincount(index, delay).argmax())
    mine = index == best
    pair, ahead = divmod(int(ways[best]), 2)
    longest = int(rows[mine][delay[mine].argmax()])
    usual = round(float(np.median(delay[mine])))
    return Hop(*divmod(pair, schedule.ranks), bool(ahead), int(mine.sum()), usual, longest)


def latest_rank(timeline: Timeline) -> Late | None:
    """The rank that loses most to late starts; None where no op starts late."""
    schedule = timeline.program.schedule
    late = lateness(timeline)
    if not late.any():
        return None
    by_rank = np.bincount(schedule.rank_of(), late, schedule.ranks)
    rank = int(by_rank.argmax())
    rows = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    row = rows.start + int(late[rows].argmax())
    return Late(rank, int(by_rank[rank]), row, int(late[row]))


def lateness(timeline: Timeline) -> NDArray[np.int64]:
    """How long after its lane was free and its inputs had come each op started, int64[ops], nanoseconds.

    The first op of a rank without an input from elsewhere is late by nothing: nothing says when it could have started.
    """
    schedule = timeline.program.schedule
    start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
    need = needs_of(schedule)[0]
    come = np.where(need != NOTHING, end[need] + hops(timeline), np.iinfo(np.int64).min // 2)
    could = np.maximum(lane_free(schedule, end), come)
    # Long ago is half of the least integer: adding a delay to it does not wrap around.
    known = could > np.iinfo(np.int64).min // 4
    late: NDArray[np.int64] = np.maximum(np.where(known, start - could, 0), 0)
    return late


UNLIKE = 0.05  # standard deviation of a micro-batch's length over the mean, from which lengths differ
SHARED = 0.5  # share of the spread that stages must have in common: jitter of ops has nothing in common
NEARLY_ALWAYS = 0.9  # share of the steps in which the same replica comes last, from which it is not chance
_MOST_WINDOWS = 64  # that are looked at for lengths


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    """One data-parallel replica over all its steps.

    Args:
        number: from 0.
        windows: how many were measured.
        makespan_ns: median length of its pipeline window, nanoseconds.
        idle_share: mean over its windows.
        stage_ns: mean work of each stage in a step, float64[stages], nanoseconds.
    """

    number: int
    windows: int
    makespan_ns: float
    idle_share: float
    stage_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tail:
    """What replicas wait for each other at the end of a step.

    Args:
        cost_ns: the longest window over the mean one, the mean over steps: what even replicas would save.
        slowest: the replica that came last most often.
        times: in how many steps.
        steps: that all replicas have.
        slow: the slow rank that most of it comes from; None if it does not come from one.
        lengths_share: what replicas would wait for micro-batches of unlike length alone, over what they wait.
    """

    cost_ns: float
    slowest: int
    times: int
    steps: int
    slow: Slow | None = None
    lengths_share: float = 0.0

    @property
    def always_the_same(self) -> bool:
        """Whether one replica was last far more often than by chance."""
        return self.steps > 1 and self.times >= NEARLY_ALWAYS * self.steps


@dataclass(frozen=True, slots=True)
class Lengths:
    """How micro-batches differ.

    Args:
        spread: standard deviation over the mean of their lengths, over all windows that were looked at.
        common_share: of the forwards' variance that all stages have in common.
        longest: micro-batch of the median window that takes longest.
        factor: its time over the mean.
    """

    spread: float
    common_share: float
    longest: int
    factor: float

    @property
    def differ(self) -> bool:
        """Whether micro-batches differ in length, and not only in luck."""
        return self.spread > UNLIKE and self.common_share > SHARED


def replicas(summary: Summary) -> tuple[Replica, ...]:
    """Every replica, by number."""
    by_number: dict[int, list[tuple[Window, Account]]] = {}
    for window, account in zip(summary.windows, summary.accounts, strict=True):
        by_number.setdefault(window.replica, []).append((window, account))
    return tuple(_replica(number, each) for number, each in sorted(by_number.items()))


def _replica(number: int, windows: list[tuple[Window, Account]]) -> Replica:
    return Replica(
        number=number,
        windows=len(windows),
        makespan_ns=median(account.window for _, account in windows),
        idle_share=fmean(account.idle_share for _, account in windows),
        stage_ns=np.mean([_stage_work(window) for window, _ in windows], axis=0),
    )


def _stage_work(window: Window) -> NDArray[np.float64]:
    schedule = window.timeline.program.schedule
    return np.bincount(schedule.stage, spent(window.timeline), schedule.stages).astype(np.float64)


def tail(summary: Summary, slow: Sequence[Slow] = ()) -> Tail | None:
    """What replicas wait for each other, and for what; None if fewer than two were measured in the same steps."""
    cost, last = 0.0, Counter[int]()
    by_slow: dict[Slow, float] = {}
    by_lengths = 0.0
    steps = {step: rows for step, rows in _by_step(summary).items() if len(rows) == summary.replicas > 1}
    if not steps:
        return None
    for step, rows in steps.items():
        lengths = {summary.windows[row].replica: summary.accounts[row].window for row in rows}
        slowest = max(lengths, key=lambda replica: lengths[replica])
        # Work can be moved between replicas, not removed: even ones would all take the mean.
        wait = max(lengths.values()) - fmean(lengths.values())
        cost += wait
        last[slowest] += 1
        culprit = next((each for each in slow if each.shows(slowest, step)), None)
        if culprit is not None:
            by_slow[culprit] = by_slow.get(culprit, 0.0) + wait
        else:
            by_lengths += min(wait, _wait_for_lengths(summary, rows))
    slowest, times = last.most_common(1)[0]
    blamed = max(by_slow, key=lambda each: by_slow[each], default=None)
    return Tail(
        cost_ns=cost / len(steps),
        slowest=slowest,
        times=times,
        steps=len(steps),
        # A rank is named only if most of the waiting is for it.
        slow=blamed if blamed is not None and by_slow[blamed] > cost / 2 else None,
        lengths_share=by_lengths / cost if cost else 0.0,
    )


def _by_step(summary: Summary) -> dict[int, list[int]]:
    """Indices of the windows of each step."""
    rows: dict[int, list[int]] = {}
    for row, window in enumerate(summary.windows):
        rows.setdefault(window.step, []).append(row)
    return rows


def _wait_for_lengths(summary: Summary, rows: Sequence[int]) -> float:
    """What replicas of one step would wait if their windows were as long as the work that all their ranks share."""
    work = np.stack([summary.accounts[row].compute.astype(np.float64) for row in rows])
    batches = np.median(work / np.maximum(work.mean(axis=0), 1), axis=1)
    return float((batches.max() - batches.mean()) * fmean(summary.accounts[row].window for row in rows))


def lengths(summary: Summary) -> Lengths | None:
    """How micro-batches differ in length; None if there are too few stages or micro-batches to tell."""
    schedule = summary.window.timeline.program.schedule
    if schedule.stages < 2 or schedule.units < 2:
        return None
    every = max(1, len(summary.windows) // _MOST_WINDOWS)
    tables = [_forwards(window.timeline) for window in summary.windows[::every]]
    common, whole = (float(np.mean(column)) for column in zip(*map(_variances, tables), strict=True))
    mine = _forwards(summary.window.timeline).mean(axis=0)
    longest = int(mine.argmax())
    share = common / whole if whole else 0.0
    return Lengths(common**0.5, share, longest // schedule.slices, float(mine[longest]))


def _forwards(timeline: Timeline) -> NDArray[np.float64]:
    """Each forward over the mean of its stage, float64[stages, units]."""
    schedule = timeline.program.schedule
    table = np.zeros((schedule.stages, schedule.units))
    rows = schedule.kind == Kind.F
    table[schedule.stage[rows], schedule.unit[rows]] = spent(timeline)[rows]
    mean = table.mean(axis=1, keepdims=True)
    relative: NDArray[np.float64] = np.divide(table, mean, out=np.ones_like(table), where=mean > 0)
    return relative


def _variances(table: NDArray[np.float64]) -> Iterator[float]:
    """Variance that stages have in common (of pairs of stages, so that jitter adds nothing), and all of it."""
    stages = len(table)
    away = table - 1
    whole = float((away**2).mean())
    total = float((away.sum(axis=0) ** 2).mean())
    yield max(0.0, (total - stages * whole) / (stages * (stages - 1)))
    yield whole
