"""Clocks of ranks, put on one by cause and effect: nothing that an op needs can have ended after it started.

For an op on rank b that needs one of rank a, offsets o (to be added to each rank's times) must satisfy
``o[b] - o[a] >= end(a) - start(b)``. F runs down the pipeline and B back up, so each hop is bounded from both sides;
the distance of the bounds is what two round trips leave unknown, and it is printed as the clocks' uncertainty. Messages
bound a hop more closely, if there are any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.laws import needs_of
from ..core.observation import Window
from ..core.program import Program, Timeline
from .clocks import TOLERANCE
from .device_ops import Clock, Floats, Ints

_NONE = -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """What cause and effect say about the clocks of ranks.

    Args:
        offsets: nanoseconds to add to each rank's times, int64[ranks].
        width: how far the least certain hop's offset can move without breaking cause and effect, nanoseconds.
        violation: how much too early an op started on the clocks as they were, nanoseconds; 0 if none did.
        consistent: whether any offsets satisfy all ops.
    """

    offsets: Ints
    width: int
    violation: int
    consistent: bool


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Windows on one clock each.

    Args:
        windows: the same that were given, shifted rank by rank.
        uncertainty_ns: by how much the clocks of two neighbours may disagree.
        remarks: what was shifted and why, a sentence each.
    """

    windows: list[Window]
    uncertainty_ns: int
    remarks: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Windows whose ranks' offsets are the same, and what cause and effect say about them."""

    windows: list[Window]
    alignment: Alignment


def aligned(windows: Sequence[Window], clock: Clock, bounds: Mapping[int, Floats]) -> Aligned:
    """Put the ranks of each window on one clock.

    Args:
        windows: each rank still on its own clock.
        clock: what their zeros are worth.
        bounds: by replica, the least offset of one position's clock against another's that messages leave possible,
            float64[ranks, ranks], nanoseconds, as ``lags`` has them; a replica without messages is not there.
    """
    groups: list[_Group] = []
    remarks: list[str] = []
    for some in _sharing(windows, clock):
        shared = _group(some, clock, bounds)
        if shared.alignment.consistent or len(some) == 1:
            groups.append(shared)
            continue
        alone = [_group([window], clock, {}) for window in some]
        if not all(group.alignment.consistent for group in alone):  # then it is not the clocks that are to blame
            groups.append(shared)
            continue
        groups += alone
        if not remarks:
            remarks.append("offsets of clocks change from step to step: each step was aligned on its own")
    broken = max(group.alignment.violation for group in groups)
    if broken and clock is Clock.SHARED:
        remarks.append(
            f"ranks disagree by {broken / 1e6:.3f} ms or more: their clocks were aligned by cause and effect"
        )
    if clock is not Clock.SHARED:
        remarks.append("ranks have no common clock; they were aligned by cause and effect")
    if not all(group.alignment.consistent for group in groups):
        remarks.append("no clock offsets satisfy cause and effect: some ops' times are wrong; clocks were left alone")
    moved: list[Window] = []
    for group in groups:
        moved += [_shift(window, group.alignment) for window in group.windows]
    return Aligned(moved, round(float(np.median([group.alignment.width for group in groups]))), remarks)


def _sharing(windows: Sequence[Window], clock: Clock) -> Iterator[list[Window]]:
    """Windows of which all have the same offsets: of one replica, or single ones if clocks begin anew each step."""
    sharing: dict[int, list[Window]] = {}
    for i, window in enumerate(windows):
        sharing.setdefault(i if clock is Clock.STEP else window.replica, []).append(window)
    for _, some in sorted(sharing.items()):
        yield some


def _group(windows: list[Window], clock: Clock, bounds: Mapping[int, Floats]) -> _Group:
    """Align by F and B, and more closely by messages, as long as the two do not contradict each other."""
    least = np.full((1, 1), _NONE)
    for window in windows:
        least = np.maximum(least, lags(window.timeline.program, window.timeline.start, window.timeline.end))
    trust = clock is Clock.SHARED
    # An op's receive says when its input was there; its end on the other rank only that it was not before.
    if clock is not Clock.STEP and windows[0].replica in bounds:
        closer = align(np.maximum(least, bounds[windows[0].replica]), trust=trust)
        if closer.consistent:
            return _Group(windows, closer)
    return _Group(windows, align(least, trust=trust))


def lags(program: Program, start: Ints, end: Ints) -> Floats:
    """Least offset of rank b against rank a that its ops ask for, float64[ranks, ranks], minus infinity for none.

    Args:
        program: the ops, with what each needs from other ranks.
        start: int64[ops], each on its own rank's clock, in the schedule's numbering.
        end: int64[ops].
    """
    schedule = program.schedule
    rank = schedule.rank_of()
    least = np.full((schedule.ranks, schedule.ranks), _NONE)
    for needs in needs_of(schedule):
        op = np.flatnonzero(needs >= 0)
        np.maximum.at(least, (rank[needs[op]], rank[op]), (end[needs[op]] - start[op]).astype(np.float64))
    np.fill_diagonal(least, _NONE)
    return least


def align(least: Floats, *, trust: bool) -> Alignment:
    """Offsets that put all ranks on the clock of rank 0.

    Each offset is the middle of what is possible: as if both ways between two ranks took equally long, which is how
    network time is kept (https://www.rfc-editor.org/rfc/rfc5905, section 8). The middles satisfy all bounds at once,
    because longest paths satisfy the triangle inequality.

    Args:
        least: as ``lags`` yields it; the largest over windows if offsets do not change.
        trust: keep the clocks as they are if no op contradicts them.
    """
    violation = max(0, round(float(least.max(initial=0.0))))
    agree = trust and violation <= TOLERANCE
    far = least  # hops alone bound clocks that no op contradicts
    if not agree:
        far = _longest_paths(least)
    # A rank that would have to be ahead of itself: a circle of ops each of which needs one that ended too late.
    consistent = bool((np.diagonal(far) <= TOLERANCE).all())
    hops = np.isfinite(least) & np.isfinite(far.T)
    width = max(0, round(float((-far.T - far)[hops].max(initial=0.0))))
    ranks = len(least)
    offsets = np.zeros(ranks, np.int64)
    if not agree and consistent:
        # Where one side is open, the other one is the best there is; a rank that no op joins to rank 0 stays put.
        low, high = far[0], -far[:, 0]
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
        high = np.where(np.isfinite(high), high, low)
        offsets = np.rint((low + high) / 2).astype(np.int64)
        offsets[0] = 0
    return Alignment(offsets, width, violation if violation > TOLERANCE else 0, consistent)


def _longest_paths(least: Floats) -> Floats:
    """The least offset between any two ranks that the bounds imply together (Floyd and Warshall's recursion)."""
    far = least.copy()
    np.fill_diagonal(far, np.maximum(np.diagonal(far), 0.0))
    for via in range(len(far)):
        np.maximum(far, far[:, via, None] + far[None, via, :], out=far)
    return far


def _shift(window: Window, alignment: Alignment) -> Window:
    timeline = window.timeline
    offset = alignment.offsets[timeline.program.schedule.rank_of()]
    if not offset.any():
        return window
    shifted = Timeline(timeline.program, timeline.start + offset, timeline.end + offset, "measured")
    return replace(window, timeline=shifted)
