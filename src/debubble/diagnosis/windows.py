"""Windows: from every measured step and replica to one summary, with the median window in front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low

from ..core.account import Account, account
from ..core.errors import Fault, InputError
from ..core.observation import Observation, Window

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
        return _mean(self.idle_shares)

    @property
    def bubble_ratio(self) -> float:
        """Mean of idle over busy."""
        return _mean(self.bubble_ratios)

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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
