"""Runs of work whose direction nothing in their own file tells, and which send and receive belongs to each of them.

    launches   k k k    k k k    k k k k k k    k k k      cut where a rank posts a send or a receive
    transfers        s        r              s r     s     a send belongs to the run before, a receive to the next
    runs       ----- s  r -----  ?  ????????? ..

A run with a receive before it and a send behind it is one op of a middle rank, but on the last rank it is a forward
and its backward, on the first a backward and the next forward. Where such a run could be cut is found here: between
its only two kernels, where the thread that launches changes once, or where the count of kernels says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...reconstruct.device_ops import Transfers, Undirected
from .names import Way
from .p2p import moves_of
from .pieces import Pieces
from .posts import posts_of
from .steps import Steps
from .tables import Ints, Tables

NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Untold:
    """What one file holds of work without directions, before it is cut into runs.

    Args:
        step: of each kernel, in the order of their launch, int64[kernels].
        launched: int64[kernels], nanoseconds, as all times.
        start: int64[kernels].
        end: int64[kernels].
        lane: the thread that launched each, int32[kernels]; -1 where it is not known.
        posts: when sends and receives were posted, int64[posts], ascending.
        transfers: sends and receives, their directions unknown.
        moment: when each of them was launched, int64[transfers].
        stream: of each that may be a send or a receive, int64[transfers]; -1 where it is known which.
        lengths: nanoseconds of each whole step by its number.
    """

    step: Ints
    launched: Ints
    start: Ints
    end: Ints
    lane: NDArray[np.int32]
    posts: Ints
    transfers: Transfers
    moment: Ints
    stream: Ints
    lengths: dict[int, int]

    def __len__(self) -> int:
        return len(self.step)

    def later(self, by: int) -> Untold:
        """The same on a clock that is ahead by some nanoseconds."""
        columns = ("launched", "start", "end", "posts", "moment")
        moved = {name: getattr(self, name) + by for name in columns}
        return replace(self, **moved, transfers=self.transfers.later(by))


def undirected(tables: Tables, pieces: Pieces, steps: Steps) -> Undirected | None:
    """The runs of a file in which work is on a device and has no direction; None where it has one, or no transfers."""
    work = untold_work(tables, pieces, steps)
    return None if work is None or (work.stream != NONE).any() else runs_of(work)


def untold_work(tables: Tables, pieces: Pieces, steps: Steps) -> Untold | None:
    """The kernels of a file in which they have no direction; None where they have one, or there are no transfers."""
    use = pieces.way == Way.UNTOLD
    told = (pieces.way == Way.FORWARD) | (pieces.way == Way.BACKWARD)
    found = moves_of(tables, steps) if pieces.device and use.any() and not told.any() else None
    if found is None:
        return None
    transfers, moment, stream = found
    step = steps.of(pieces.launched)
    use &= (step >= 0) | (not len(steps.number))
    launched, step = pieces.launched[use], step[use]
    if not len(launched):
        return None
    return Untold(
        step=step,
        launched=launched,
        start=pieces.start[use],
        end=pieces.end[use],
        lane=_lanes(tables, launched),
        posts=posts_of(tables),
        transfers=transfers,
        moment=moment,
        stream=stream,
        lengths=steps.lengths(),
    )


def runs_of(work: Untold) -> Undirected:
    """The runs of one file, cut where it posts sends and receives; which of the two each is must be known."""
    part = np.searchsorted(work.posts, work.launched, side="right")
    first = np.flatnonzero(np.concatenate([[True], (np.diff(part) != 0) | (np.diff(work.step) != 0)]))
    launched, step = work.launched[first], work.step[first]
    run = _owner(launched, step, work.transfers, work.moment)
    count = np.diff(np.append(first, len(work.launched)))
    cut = _cuts(count, _turns(work.lane, first, count), work.transfers.send, run)
    sure = cut > 0
    behind = np.where(sure, first + cut, first)
    upto, from_ = np.maximum.accumulate(work.end), np.minimum.accumulate(work.start[::-1])[::-1]
    return Undirected(
        step=step,
        start=np.minimum.reduceat(work.start, first),
        end=np.maximum.reduceat(work.end, first),
        first_end=np.where(sure, upto[np.maximum(behind - 1, 0)], NONE),
        second_start=np.where(sure, from_[behind], NONE),
        transfers=work.transfers,
        run=run,
        lengths=work.lengths,
    )


def _owner(launched: Ints, step: Ints, transfers: Transfers, moment: Ints) -> Ints:
    """The run before each send and behind each receive, in the same step, int64[transfers]."""
    at = np.searchsorted(launched, moment, side="right") - transfers.send
    inside = (at >= 0) & (at < len(launched))
    at = np.clip(at, 0, len(launched) - 1)
    return np.where(inside & (step[at] == transfers.step), at, NONE)


def _lanes(tables: Tables, launched: Ints) -> NDArray[np.int32]:
    """The thread of each launch, int32[launches]; -1 where its moment is no launch of the file's."""
    table = tables.columns["launches"]
    if not len(table["start"]):
        return np.full(len(launched), NONE, np.int32)
    order = np.argsort(table["start"], kind="stable")
    at = np.minimum(np.searchsorted(table["start"][order], launched), len(order) - 1)
    lane = table["lane"][order[at]]
    return np.where(table["start"][order[at]] == launched, lane, NONE).astype(np.int32)


def _turns(lane: NDArray[np.int32], first: Ints, count: Ints) -> Ints:
    """How many launches of each run come before its thread changes, where it does so once; else 0, int64[runs]."""
    change = np.concatenate([[False], np.diff(lane) != 0])
    change[first] = False
    times = np.add.reduceat(change.astype(np.int64), first)
    at = np.flatnonzero(change)
    run = np.repeat(np.arange(len(first)), count)[at]
    turns = np.zeros(len(first), np.int64)
    turns[run] = at - first[run]
    return np.where(times == 1, turns, 0)


def _cuts(count: Ints, turns: Ints, send: NDArray[np.bool_], run: Ints) -> Ints:
    """How many launches belong to the first op of each run, if it is two; 0 where nothing tells, int64[runs].

    Runs with only a receive and runs with only a send are the two ops alone (warm-up and cool-down); where all of each
    kind launch equally many kernels and a run launches the sum, it is one of each.
    """
    sends, receives = (np.bincount(run[(run >= 0) & (send == way)], minlength=len(count)) > 0 for way in (True, False))
    cut = np.where(count == 2, 1, turns)
    lone = [np.unique(count[one & ~other]) for one, other in ((receives, sends), (sends, receives))]
    if all(len(counts) == 1 for counts in lone):
        both = (cut == 0) & (count == int(lone[0][0] + lone[1][0]))
        cut[both] = int(lone[0][0])
    return np.where(receives & sends, cut, 0)
