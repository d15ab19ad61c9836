"""The windows of a run, in one summary; the costs that its median window shows, op by op; and the causes of its length.

Causes are found by simulating with these costs again. Each cause is a difference of two windows, with one thing changed
at a time, so that all of them sum to the measured window, to the nanosecond:

    mean work of a rank                                            -> ideal
    observed order, one mean per kind                   - ideal    -> schedule
    observed order, a mean per stage and kind           - before   -> imbalance
    observed order, each op's own time                  - before   -> variation
    .. and each hop's own delay                         - before   -> transfer
    the window as it was measured                       - before   -> unexplained

Under an engine that is known, a hop is the least that was seen on its link, and one part more is what the engine makes
of it: ranks that stand still, transfers that take turns.

    .. and the least hop of each link, as a latency     - before   -> transfer
    .. under the engine                                 - before   -> engine

The order of the steps is part of the definition: what two causes share is charged to the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, account
from ..core.costs import Costs
from ..core.engine import Engine, Occupies
from ..core.errors import Fault, InputError
from ..core.laws import needs_of
from ..core.lower import lower
from ..core.observation import Observation, Window
from ..core.program import Program, Timeline
from ..core.schedule import KINDS, NOTHING, Kind, Schedule
from ..core.simulate import simulate
from ..core.units import MILLISECOND

SLOW = 1.5  # leading steps longer than this times the median are the run's own warm-up


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a run's windows have in common.

    Args:
        windows: the windows that count.
        accounts: one for each of them.
        middle: index of the median window (the shorter one of two in the middle).
        left_out: numbers of leading steps that were left out as warm-up.
    """

    windows: tuple[Window, ...]
    accounts: tuple[Account, ...]
    middle: int
    left_out: tuple[int, ...]

    @property
    def window(self) -> Window:
        """The median window."""
        return self.windows[self.middle]

    @property
    def account(self) -> Account:
        """Where time went in the median window."""
        return self.accounts[self.middle]

    @property
    def makespan_ns(self) -> int:
        """Length of the median window, nanoseconds: one that was, so that the times of its ranks sum to it."""
        return self.account.window

    @property
    def median_ns(self) -> float:
        """Median length of the windows, nanoseconds; of an even number the mean of the two in the middle."""
        return median(each.window for each in self.accounts)

    @property
    def idle_shares(self) -> list[float]:
        """Idle share of each window."""
        return [each.idle_share for each in self.accounts]

    @property
    def bubble_ratios(self) -> list[float]:
        """Idle over busy of each window."""
        return [each.bubble_ratio for each in self.accounts]

    @property
    def idle_share(self) -> float:
        """Mean idle share."""
        return sum(self.idle_shares) / len(self.idle_shares)

    @property
    def bubble_ratio(self) -> float:
        """Mean of idle over busy."""
        return sum(self.bubble_ratios) / len(self.bubble_ratios)

    @property
    def pooled_idle_share(self) -> float:
        """Idle over ranks x window, all windows taken together."""
        whole = sum(each.window * len(each.compute) for each in self.accounts)
        if not whole:
            return 0.0
        return 1 - sum(int(each.compute.sum()) for each in self.accounts) / whole

    @property
    def step_ns(self) -> float | None:
        """Median length of a whole step, nanoseconds; None where it was not measured."""
        steps = [each.step_ns for each in self.windows if each.step_ns is not None]
        if not steps:
            return None
        return median(steps)

    @property
    def outside_ns(self) -> float | None:
        """Median of what a step holds beside its pipeline window, nanoseconds."""
        # Each step with its own window: medians of the two apart need not be of one step.
        gaps = [w.step_ns - a.window for w, a in zip(self.windows, self.accounts, strict=True) if w.step_ns is not None]
        if not gaps:
            return None
        return max(0, median(gaps))  # clocks that disagree may end a step before its window

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return len({each.replica for each in self.windows})

    @property
    def steps(self) -> int:
        """Steps that count."""
        return len({each.step for each in self.windows})


def summarise(observation: Observation) -> Summary:
    """Leave out the run's warm-up, account for every window that is left, and find the median one.

    Raises:
        InputError: there is no complete step.
    """
    if not observation.windows:
        fault = Fault(observation.source, "it holds no complete step", "record more steps, or name the ranks it lacks")
        raise InputError(fault)
    left_out = _warm_up(observation.windows)
    kept = tuple(window for window in observation.windows if window.step not in left_out)
    accounts = tuple(account(window.timeline) for window in kept)
    lengths = [each.window for each in accounts]
    if not any(each.compute.any() for each in accounts):
        raise InputError(Fault(observation.source, "its ops take no time", "record again"))
    return Summary(kept, accounts, lengths.index(median_low(lengths)), left_out)


def median_window(summary: Summary, rows: Sequence[int]) -> int:
    """Of some windows, given by their index, the index of the median one (the shorter one of two in the middle)."""
    lengths = [summary.accounts[row].window for row in rows]
    return rows[lengths.index(median_low(lengths))]


def _warm_up(windows: Sequence[Window]) -> tuple[int, ...]:
    """Leading steps that took longer than 1.5 times the median step."""
    longest: dict[int, int] = {}
    for window in windows:
        length = window.timeline.makespan if window.step_ns is None else window.step_ns
        # Of all replicas the longest, for which the others wait.
        longest[window.step] = max(longest.get(window.step, 0), length)
    usual = median(longest.values())
    leading = []
    for step in sorted(longest):
        # Leading ones only: a slow step later is a finding, not a warm-up.
        if longest[step] <= SLOW * usual:
            break
        leading.append(step)
    return tuple(leading)


def fitted(timeline: Timeline) -> Costs:
    """Every op's own duration and every hop's own delay, so that simulating with them shows the run again.

    Returns:
        durations and transfers int64[kinds, stages, units], nanoseconds; 0 where the schedule has no such op.
    """
    schedule = timeline.program.schedule
    own = (schedule.kind, schedule.stage, schedule.unit)
    durations, transfers = (np.zeros((KINDS, schedule.stages, schedule.units), np.int64) for _ in range(2))
    durations[own] = spent(timeline)
    transfers[own] = hops(timeline)
    return Costs(durations, transfers, timeline.evidence)


def spent(timeline: Timeline) -> NDArray[np.int64]:
    """Time that each op occupied its rank, int64[ops], nanoseconds: sums to ``compute`` of the account.

    Where two ops of a rank overlap, the later one begins when the earlier ends; a slot of two ops is halved.
    """
    schedule = timeline.program.schedule
    start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
    before = np.concatenate([end[:1], end[:-1]])
    opens = schedule.offsets[:-1][np.diff(schedule.offsets) > 0]
    # The first op of a rank has nobody before it; the row above it is the last op of another rank.
    before[opens] = start[opens]
    own = np.asarray(end - np.maximum(start, before), np.int64)
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        # Which of two joined ops took how long is not seen; what they took together is.
        slot = own[second - 1] + own[second]
        own[second - 1], own[second] = slot - slot // 2, slot // 2
    return own


def hops(timeline: Timeline) -> NDArray[np.int64]:
    """Delay between the end of each op's input on another rank and its arrival, int64[ops], nanoseconds.

    Where the rank was free before its input had been made, the whole delay shows, and is taken as it is. Elsewhere it
    hides behind work: there it is the median of what shows at the same kind and stage (where nothing shows, the least
    of them), and never more than the op's own start allows. So a simulation with these delays starts no op later than
    it did start; what it lacks (a late host) stays unexplained.
    """
    schedule = timeline.program.schedule
    start, end = timeline.start[: len(schedule)], timeline.end[: len(schedule)]
    need = needs_of(schedule)[0]
    needed = need != NOTHING
    since = np.maximum(start - end[need], 0)
    free = start - lane_free(schedule, end)
    shows = needed & (since <= free)
    group = schedule.kind.astype(np.int64) * schedule.stages + schedule.stage
    # Groups in which no delay shows keep their least one: an upper bound of the hop is all that is known there.
    usual = np.full(KINDS * schedule.stages, np.iinfo(np.int64).max)
    _set_least(usual, group[needed], since[needed])
    _set_median(usual, group[shows], since[shows])
    return np.where(shows, since, np.where(needed, np.minimum(since, usual[group]), 0))


def lane_free(schedule: Schedule, end: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the rank of each op had nothing else to do, int64[ops]; long ago for its first op."""
    free = np.concatenate([[0], end[:-1]])
    free[schedule.offsets[:-1][np.diff(schedule.offsets) > 0]] = np.iinfo(np.int64).min // 2
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        # The second op of a slot starts with the first: the rank was free for both when it was for that one.
        free[second] = free[second - 1]
    return free


def _set_least(table: NDArray[np.int64], group: NDArray[np.int64], value: NDArray[np.int64]) -> None:
    np.minimum.at(table, group, value)


def _set_median(table: NDArray[np.int64], group: NDArray[np.int64], value: NDArray[np.int64]) -> None:
    order = np.lexsort((value, group))
    named, first, count = np.unique(group[order], return_index=True, return_counts=True)
    # The lower of two in the middle: a delay that did occur.
    table[named] = value[order][first + (count - 1) // 2]


def least_hops(timeline: Timeline) -> Costs:
    """Ops as they were measured, and for each link the least hop that was seen, in either direction."""
    schedule, ops, rank = timeline.program.schedule, len(timeline.program.schedule), timeline.program.schedule.rank_of()
    need = needs_of(schedule)[0]
    needed = np.flatnonzero(need != NOTHING)
    since = np.maximum(timeline.start[:ops][needed] - timeline.end[need[needed]], 0)
    # Either direction tells of the link: an activation is as large as its gradient.
    ends = np.sort(np.stack([rank[need[needed]], rank[needed]]), axis=0).astype(np.int64)
    link = ends[0] * schedule.ranks + ends[1]
    least = np.full(schedule.ranks**2, np.iinfo(np.int64).max)
    np.minimum.at(least, link, since)
    costs = fitted(timeline)
    hops = np.zeros_like(costs.transfers)
    hops[schedule.kind[needed], schedule.stage[needed], schedule.unit[needed]] = least[link]
    return replace(costs, transfers=hops)


def kind_means(costs: Costs, schedule: Schedule) -> Costs:
    """One duration for each kind, the mean over all its ops; free transfers."""
    there = present(schedule)
    count = there.sum(axis=(1, 2), keepdims=True)
    mean = _mean(costs.durations, there, count, (1, 2))
    return Costs(np.where(there.any(axis=2, keepdims=True), mean, 0), np.zeros((KINDS, schedule.stages, 1), np.int64))


def stage_means(costs: Costs, schedule: Schedule) -> Costs:
    """One duration and one delay for each kind and stage, the mean over micro-batches."""
    there = present(schedule)
    count = there.sum(axis=2, keepdims=True)
    return Costs(
        _mean(costs.durations, there, count, 2),
        _mean(costs.transfers, there, count, 2),
        costs.evidence,
        costs.pair_scale,
    )


def present(schedule: Schedule) -> NDArray[np.bool_]:
    """Which ops a schedule has, bool[kinds, stages, units]."""
    there = np.zeros((KINDS, schedule.stages, schedule.units), np.bool_)
    there[schedule.kind, schedule.stage, schedule.unit] = True
    return there


def free_transfers(costs: Costs) -> Costs:
    """The same durations, and no delay between ranks."""
    return Costs(costs.durations, np.zeros_like(costs.transfers), costs.evidence, costs.pair_scale)


def _mean(
    table: NDArray[np.int64], there: NDArray[np.bool_], count: NDArray[np.int64], axis: int | tuple[int, ...]
) -> NDArray[np.int64]:
    """Mean over what is there, rounded half to even; 0 where nothing is."""
    total = np.where(there, table, 0).sum(axis=axis, keepdims=True)
    mean: NDArray[np.int64] = np.rint(total / np.maximum(count, 1)).astype(np.int64)
    return mean


def stage_costs(summary: Summary) -> Costs:
    """Durations and delays of a whole micro-batch, evidence ``measured``; medians, so that no hiccup counts.

    Where ops ran together in pairs, what one of them takes alone is not known: forward and backward then each have half
    of all that the stage did for a micro-batch, and a pair of two stages is shared out evenly between them.

    Returns:
        durations and transfers int64[kinds, stages, 1], nanoseconds; 0 for kinds that a stage does not have.
    """
    several = [window.timeline for window in summary.windows]
    paired = any(timeline.program.schedule.joined is not None for timeline in several)
    own = _halves if paired else _medians
    durations = [own(spent(timeline), timeline.program.schedule) for timeline in several]
    delays = [_medians(hops(timeline), timeline.program.schedule) for timeline in several]
    # Ops of a slice are shorter than those of a micro-batch; ``_halves`` has added them up already.
    slices = several[0].program.schedule.slices
    return Costs(_over_windows(durations) * (1 if paired else slices), _over_windows(delays), "measured")


def _over_windows(tables: list[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Over windows, int64[kinds, stages, 1]."""
    return np.rint(np.median(tables, axis=0)).astype(np.int64)[:, :, None]


def _medians(values: NDArray[np.int64], schedule: Schedule) -> NDArray[np.float64]:
    """Of each kind and stage over its units, float64[kinds, stages]; 0 where there is none."""
    table = np.full((KINDS, schedule.stages, schedule.units), np.nan)
    table[schedule.kind, schedule.stage, schedule.unit] = values
    found = np.zeros(table.shape[:2])
    there = present(schedule).any(axis=2)
    found[there] = np.nanmedian(table[there], axis=1)
    return found


def _halves(values: NDArray[np.int64], schedule: Schedule) -> NDArray[np.float64]:
    """Forward and backward of equal length that together are all work of a stage for one micro-batch."""
    found = np.zeros((KINDS, schedule.stages))
    work = np.bincount(schedule.stage, values, schedule.stages) / schedule.microbatches
    found[[Kind.F, Kind.B]] = work / 2
    return found


TRUSTED = 0.1  # no change is tried where simulating a window again misses it by more than this share

REMEDIES = {
    "schedule": "more micro-batches, or a schedule with less idle time",
    "imbalance": "move layers off the heavy rank",
    "variation": "batch samples of like length",
    "transfer": "overlap the transfers, or put neighbours on a faster link",
    "engine": "a faster link, another order under this engine, or an engine that receives early on lanes of its own",
    "unexplained": "look at the host: launches, data loading, garbage collection",
}
ORDER = ("ideal", "schedule", "imbalance", "variation", "transfer", "engine", "unexplained")
ALWAYS_MEASURED = ("ideal", "unexplained")  # of a measured window; the others are differences of simulations


@dataclass(frozen=True, slots=True)
class Causes:
    """The parts of one window, nanoseconds; a part may be negative. They sum to ``window``.

    Args:
        ideal: the mean work of a rank: the window if all were even and nobody waited.
        schedule: what the order adds, with one mean duration for each kind of op and free transfers.
        imbalance: what a mean for each stage and kind adds.
        variation: what each op's own duration adds.
        transfer: what hops add, as they were measured.
        unexplained: measured less simulated with all of that.
        engine: what ranks that stand still and transfers that take turns add; 0 under ``ideal``.
    """

    ideal: int
    schedule: int
    imbalance: int
    variation: int
    transfer: int
    unexplained: int
    engine: int = 0

    @property
    def window(self) -> int:
        """The window as it was measured, nanoseconds."""
        return sum(cost for _, cost in self)

    @property
    def resimulated(self) -> int:
        """The window as simulated with all that was fitted, nanoseconds."""
        return self.window - self.unexplained

    @property
    def resim_ratio(self) -> float:
        """Re-simulated over measured: how far the answers of changes can be trusted."""
        return self.resimulated / self.window if self.window else 1.0

    @property
    def trusted(self) -> bool:
        """Whether changes may be tried on this window: simulated again it is as long as it was, but for a tenth."""
        return abs(self.resim_ratio - 1) <= TRUSTED

    @property
    def resim_without_transfer_ratio(self) -> float:
        """The same with free transfers."""
        return (self.resimulated - self.transfer - self.engine) / self.window if self.window else 1.0

    @property
    def most_busy(self) -> float:
        """Busy share of the order itself: equal stages, equal micro-batches, free transfers."""
        own = self.ideal + self.schedule
        return self.ideal / own if own else 1.0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for name in ORDER:
            if name != "engine" or self.engine:  # without one that blocks, nobody need read of it
                yield name, getattr(self, name)


@dataclass(frozen=True, slots=True)
class CauseCost:
    """A cause with what it costs a window, as results hold it.

    Args:
        cause: ``ideal``, ``schedule``, ``imbalance``, ``variation``, ``transfer``, ``engine`` or ``unexplained``.
        cost_ms: of the window; may be negative.
        cost_share: of the window.
        evidence: of the figure.
        claimed: whether it is larger than clocks are uncertain.
        remedy: what would help, or empty.
    """

    cause: str
    cost_ms: float
    cost_share: float
    evidence: str
    claimed: bool
    remedy: str


def cause_costs(found: Causes, evidence: str, uncertainty_ns: float = 0) -> tuple[CauseCost, ...]:
    """The causes of a window, a line each.

    Args:
        found: the causes.
        evidence: of the window.
        uncertainty_ns: by which clocks of two ranks may disagree: no smaller cause is claimed.
    """
    window = found.window
    return tuple(
        CauseCost(
            cause=name,
            cost_ms=cost / MILLISECOND,
            cost_share=cost / window if window else 0.0,
            evidence=evidence if name in ALWAYS_MEASURED else "simulated",
            claimed=abs(cost) > uncertainty_ns,
            remedy=REMEDIES.get(name, ""),
        )
        for name, cost in found
    )


def causes(timeline: Timeline, engine: Engine | None = None) -> Causes:
    """Split the window of a timeline, measured or simulated, into its causes.

    Args:
        timeline: what is split.
        engine: that ran it; None for the one that it was simulated under, and for a measured one for nobody.
    """
    program, ran = asynchronous(timeline.program), engine or timeline.program.engine
    schedule, blocks = program.schedule, ran.meets and ran.occupies is Occupies.NOBODY
    # A hop that was fitted op by op holds the waiting for its engine, too: under one that blocks it would count twice.
    costs = least_hops(timeline) if blocks else fitted(timeline)
    steps = [
        # Each line changes one thing of the line above it. Over ranks, not stages: a rank works on all of its chunks.
        int(spent(timeline).sum()) // schedule.ranks,
        simulate(program, kind_means(costs, schedule)).makespan,
        simulate(program, free_transfers(stage_means(costs, schedule))).makespan,
        simulate(program, free_transfers(costs)).makespan,
        simulate(program, costs).makespan,
    ]
    blocked = 0
    if blocks:
        under = timeline.makespan  # as it was simulated, senders that were taken up included
        if timeline.evidence != "simulated":
            # A measured one holds what nothing explains as well, which is no engine's doing.
            under = simulate(lower(schedule, ran), costs).makespan
        blocked = under - steps[-1]
    steps.append(timeline.makespan - blocked)
    filling, imbalance, variation, transfer, unexplained = (after - before for before, after in pairwise(steps))
    return Causes(steps[0], filling, imbalance, variation, transfer, unexplained, blocked)


def asynchronous(program: Program) -> Program:
    """The program without explicit transfers: a hop is a delay, which is how it was fitted."""
    return lower(program.schedule) if len(program.producer) else program
