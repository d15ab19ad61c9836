"""Lower bounds on the makespan: what no order of an instance, the same ops on the same ranks, can beat.

*An instance* is everything but the order: what bounds and searches take. Ops of one kind and stage take micro-batches
first in, first out. That costs nothing where micro-batches are alike: sort the starts of each (kind, stage) and deal
them out in order; every precedence and every count of memory stays.

The largest of four counts; the first two are the bounds of https://arxiv.org/abs/2401.10241, appendix H, for one
rank, with the way there and the way back added:

    rank      the way from the input to a rank + all its work
    back      the way there + F, I and B of the rank, since W may run last + the way back + one W of stage 0
    chain     one micro-batch from end to end and back
    windows   heads and tails of all ops, from rank to rank; see below

An engine adds two, whatever the order:

    lane      all transfers that have to take turns on one lane
    blocked   all work of a rank + the transfers for which it stands still, those of one way to one neighbour at least

*Windows, by propagation*: how early each op can start and how much must follow it, memory included.

*Forced before* an op on its own rank are the ops that come first in every order: by first in, first out, by the way of
a micro-batch through its chunks, and by memory. The head of an op (its earliest start) is at least

    the head of its input + duration + hop                                               (way)
    the largest, over subsets of what is forced before it, of least head + work          (rank)

The rank runs one op at a time and none of the subset starts before its least head, so all of it ends no earlier than
least head + work; the op starts after that. Only subsets {ops with head >= t} need to be looked at: any other with the
same least head has less work. Tails (what must follow an op) are the same, mirrored. On each rank the makespan is then
at least that of Jackson's preemptive schedule: one machine with heads and tails, ops that may be interrupted, always
that of the largest tail first, which is optimal (Carlier, The one-machine sequencing problem, EJOR 11, 1982).

Memory: let K be the half activations of a chunk that fit on the rank, of which an F takes 2 and I and W free f_I and
f_W (f_I + f_W = 2). When F of chunk c and micro-batch i starts, chunks 0..c have started i+1 of them (first in, first
out, and chunk by chunk), deeper chunks have freed no more than they took, so

    sum over c' <= c of (f_I #I_c' + f_W #W_c')  >=  2 (c+1) (i+1) - K  =:  need                           (cap)

Since #W_c' <= #I_c' <= #I_c <= i, that forces #I_c >= need / (2 (c+1)), #I_c' >= (need - 2 c i) / 2 and
#W_c' >= (need - (2 (c+1) - f_W) i) / f_W. With one chunk a rank and release at W this is exactly the cap: F of
micro-batch i + K/2 after W of i.

Who fills its memory with forwards stands still: what micro-batches hold that have not passed the deepest chunk v-1 is
freed by none of them before one has, and the first of them, y = #F_(v-1), needs a place in every chunk for that. When
F of chunk c and micro-batch i >= y starts, chunks 0..c hold i+1-y each of these micro-batches, so

    2 (c+1) (i+1-y) + 2 (v-1-c)  <=  K                                                                     (way out)

which forces #F_(v-1) >= i + 1 - floor((K/2 - (v-1-c)) / (c+1)). All that is forced has a lower micro-batch, so one pass
over micro-batches finds every head; no iteration is needed.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .costs import Costs
from .engine import IDEAL, Engine, Lane
from .laws import transfers
from .schedule import FREED, Kind, Release, Schedule

SPLIT = (Kind.F, Kind.I, Kind.W)
FUSED = (Kind.F, Kind.B)


def searchable(schedule: Schedule) -> bool:
    """Whether orders of these ops can be searched: whole micro-batches, one copy, with backwards, one op at a time."""
    one_copy = schedule.placement.shape[0] == 1
    return one_copy and schedule.slices == 1 and schedule.joined is None and not schedule.forward_only


class Instance:
    """Ops, ranks, durations, memory and engine of a step, without an order.

    Columns are made when they are first asked for.

    Args:
        placement: rank of each stage, int32[stages].
        microbatches: per step, m.
        costs: how long ops and transfers take.
        room: half activations of a chunk that each rank may hold, int64[ranks]; ``no_limit`` where memory does not
            count.
        split: whether each backward is an I and a W; else it is one B.
        release: when a split backward frees what its forward has kept.
        engine: how ranks communicate.
    """

    def __init__(
        self,
        placement: NDArray[np.int32],
        microbatches: int,
        costs: Costs,
        room: NDArray[np.int64],
        *,
        split: bool = True,
        release: Release = Release.W,
        engine: Engine = IDEAL,
    ) -> None:
        self.placement, self.microbatches, self.costs, self.room = placement, microbatches, costs, room
        self.split, self.release, self.engine = split, release, engine

    def but(self, **changes: Any) -> Instance:
        """The same with other arguments, by name."""
        names = ("placement", "microbatches", "costs", "room", "split", "release", "engine")
        return Instance(**{**{name: getattr(self, name) for name in names}, **changes})

    @property
    def ranks(self) -> int:
        """Positions in the pipeline."""
        return len(self.room)

    @property
    def stages(self) -> int:
        """Stages of the model."""
        return len(self.placement)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of ops: F, I, W or F, B."""
        if self.split:
            return SPLIT
        return FUSED

    @property
    def ops(self) -> int:
        """Ops of a step."""
        return len(self.kinds) * self.stages * self.microbatches

    @cached_property
    def chunk(self) -> NDArray[np.int32]:
        """Which of its rank's stages each stage is, in the order of the model, int32[stages]."""
        earlier = np.tril(self.placement[:, None] == self.placement[None, :], -1)
        chunk: NDArray[np.int32] = earlier.sum(axis=1).astype(np.int32)
        return chunk

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """Stages that each rank holds, int64[ranks]."""
        return np.bincount(self.placement, minlength=self.ranks)

    @cached_property
    def frees(self) -> NDArray[np.int64]:
        """Half activations that an op of each kind adds, int64[kinds]."""
        if not self.split:
            return np.array([2, -2], np.int64)
        return np.array([2, *FREED[self.release]], np.int64)

    @cached_property
    def spent(self) -> NDArray[np.int64]:
        """Duration of each op, int64[kinds, stages, microbatches], nanoseconds."""
        shape = (len(self.kinds), self.stages, self.microbatches)
        # A copy: numba compiles once more for arrays that may not be written, as those of costs are.
        return np.array(np.broadcast_to(self.costs.durations[list(self.kinds)], shape))

    @cached_property
    def hop(self) -> NDArray[np.int64]:
        """How long the input of an F and of a gradient of each stage is on its way, int64[2, stages, microbatches].

        0 between stages of one rank, at the first F and at the last gradient.
        """
        total = self.costs.hops() + self.costs.sender_side()
        found = np.zeros((2, self.stages, self.microbatches), np.int64)
        crosses = self.placement[1:] != self.placement[:-1]  # what stays on its rank is there at once
        found[0, 1:] = np.where(crosses[:, None], total[Kind.F, 1:], 0)
        found[1, :-1] = np.where(crosses[:, None], total[self.kinds[1], :-1], 0)
        return found

    @cached_property
    def alike(self) -> bool:
        """Whether all micro-batches take the same time."""
        return bool((self.spent == self.spent[:, :, :1]).all() and (self.hop == self.hop[:, :, :1]).all())


def instance_of(
    schedule: Schedule,
    costs: Costs,
    *,
    room: NDArray[np.int64] | None = None,
    release: Release = Release.W,
    engine: Engine = IDEAL,
) -> Instance:
    """The instance that a schedule answers: its placement, its micro-batches, its kinds of backward.

    Args:
        schedule: of one copy of the weights and whole sequences.
        costs: of its ops.
        room: as in ``Instance``; None for no limit.
        release: as in ``Instance``.
        engine: as in ``Instance``.
    """
    if room is None:
        room = no_limit(schedule.placement[0], schedule.microbatches)
    home, m = schedule.placement[0], schedule.microbatches
    return Instance(home, m, costs, room, split=schedule.splits, release=release, engine=engine)


def no_limit(placement: NDArray[np.int32], microbatches: int) -> NDArray[np.int64]:
    """Room for everything at once, int64[ranks]."""
    return 2 * microbatches * np.bincount(placement)


Times = NDArray[np.int64]

MOST_OPS = 8_000  # of a schedule whose bound is propagated unasked: a tenth of a second


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """What no order can beat.

    Args:
        head: earliest start of each op, int64[kinds, stages, microbatches], nanoseconds.
        tail: least time from its end to the end of the step, likewise.
        bound: of the makespan, nanoseconds.
    """

    head: Times
    tail: Times
    bound: int


def windows(instance: Instance) -> Windows:
    """Heads, tails and the bound that they give, for the ideal engine; other engines are no faster.

    Where micro-batches differ, each kind and stage counts with its shortest: then first in, first out costs nothing.

    Args:
        instance: every rank has room for one micro-batch at least.
    """
    spent, hop = instance.spent.min(axis=2), instance.hop.min(axis=2)
    before = {int(rank): forced(instance, int(rank)) for rank in np.unique(instance.placement)}
    head = _heads(instance, spent, hop, before)
    tail = _tails(instance, spent, hop, before)
    bound = int((head + spent[:, :, None] + tail).max(initial=0))
    for rank in before:
        mine = np.flatnonzero(instance.placement == rank)
        work = np.broadcast_to(spent[:, mine, None], head[:, mine].shape)
        bound = max(bound, jackson(head[:, mine].ravel(), work.ravel(), tail[:, mine].ravel()))
    return Windows(head, tail, bound)


def span_bound(instance: Instance) -> int:
    """What the longest rank's own time, from its first op to its last, cannot be below, nanoseconds.

    A rank works all its ops in it. With one stage a rank also (https://arxiv.org/abs/2401.10241, eq. 2): its first
    gradient comes no earlier than its first forward has gone through all later stages and back,

        way = sum of F over its stage and later ones + sum of I over later ones + their hops, there and back

    and before it the rank runs nothing but the forwards for which there is room, K of them; all else comes after:

        span >= all its work + max(0, way - K F)
    """
    spent, hop = instance.spent.min(axis=2), instance.hop.min(axis=2)
    work = np.bincount(instance.placement, instance.spent.sum(axis=(0, 2)), instance.ranks).astype(np.int64)
    if not (instance.chunks == 1).all():
        return int(work.max())
    later = (spent[0] + spent[1])[::-1].cumsum()[::-1] - spent[1]  # F of the stage and later ones, I of later ones
    there_and_back = np.append(hop[0, 1:] + hop[1, :-1], 0)[::-1].cumsum()[::-1]
    fits = np.minimum(instance.room[instance.placement] // 2, instance.microbatches)
    waits = np.maximum(later + there_and_back - fits * instance.spent[0].max(axis=1), 0)
    return int((work[instance.placement] + waits).max())


def propagated(schedule: Schedule, costs: Costs) -> int:
    """The bound of a schedule's placement, costs and kind of backward, without a limit of memory, nanoseconds.

    0, which is always true, of what the bound is not made for: several copies of the weights, slices, overlapped pairs,
    forwards alone, a backward that is split here and fused there; and of more ops than a tenth of a second takes.
    """
    plain = schedule.placement.shape[0] == 1 and schedule.slices == 1 and schedule.joined is None
    mixed = schedule.splits and bool((schedule.kind == Kind.B).any())
    if not plain or mixed or schedule.forward_only or not len(schedule) <= MOST_OPS:
        return 0
    return windows(instance_of(schedule, costs)).bound


def forced(instance: Instance, rank: int) -> NDArray[np.int64]:
    """How many ops of each kind and chunk of a rank come before each op of it, in every order.

    Returns:
        int64[kinds, chunks, microbatches, kinds, chunks]: the last two axes are those of the ops that come before.
    """
    kinds, chunks, m = len(instance.kinds), int(instance.chunks[rank]), instance.microbatches
    found = np.zeros((kinds, chunks, m, kinds, chunks), np.int64)
    i = np.arange(m)
    for kind in range(kinds):
        for chunk in range(chunks):
            found[kind, chunk, :, kind, chunk] = i  # first in, first out
    for chunk in range(chunks):
        found[0, chunk, :, 0, :chunk] = i[:, None] + 1
        found[1, chunk, :, 0, :] = i[:, None] + 1
        found[1, chunk, :, 1, chunk + 1 :] = i[:, None] + 1
        if kinds > 2:
            found[2, chunk, :, 1, chunk] = i + 1
        _forced_by_memory(instance, rank, found[0, chunk], chunk)
    return _closed(found)


def _forced_by_memory(instance: Instance, rank: int, found: NDArray[np.int64], chunk: int) -> None:
    """What must have freed room before each F of a chunk, or be about to: see (cap) and (way out)."""
    i = np.arange(instance.microbatches)
    frees, deeper = -instance.frees[1:], int(instance.chunks[rank]) - 1 - chunk
    if deeper:
        ahead = (instance.room[rank] - 2 * deeper) // (2 * (chunk + 1))
        found[:, 0, -1] = np.maximum(found[:, 0, -1], i + 1 - ahead)
    need = 2 * (chunk + 1) * (i + 1) - instance.room[rank]
    deepest = -(-need // (2 * (chunk + 1)))
    found[:, 1, chunk] = np.maximum(found[:, 1, chunk], deepest)
    for other in range(chunk + 1):
        gradients = -(-(need - 2 * chunk * i) // 2)
        found[:, 1, other] = np.maximum(found[:, 1, other], gradients)
        if len(frees) > 1 and frees[1]:
            weights = -(-(need - (2 * (chunk + 1) - frees[1]) * i) // frees[1])
            found[:, 2, other] = np.maximum(found[:, 2, other], weights)
    np.clip(found, 0, None, out=found)


def _closed(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """What is forced before what is forced before an op is forced before it."""
    kinds, chunks, m = found.shape[:3]
    while True:
        grown = found.copy()
        for kind in range(kinds):
            for chunk in range(chunks):
                last = found[:, :, :, kind, chunk] - 1
                of_last = found[kind, chunk][np.clip(last, 0, m - 1)]
                np.maximum(grown, np.where(last[..., None, None] >= 0, of_last, 0), out=grown)
        if (grown == found).all():
            return found
        found = grown


def _heads(instance: Instance, spent: Times, hop: Times, before: dict[int, NDArray[np.int64]]) -> Times:
    stages, m = instance.stages, instance.microbatches
    head = np.zeros((len(instance.kinds), stages, m), np.int64)
    mine = {rank: np.flatnonzero(instance.placement == rank) for rank in before}
    steps = [(0, stage) for stage in range(stages)]
    steps += [(kind, stage) for kind in range(1, len(instance.kinds)) for stage in reversed(range(stages))]
    for i in range(m):
        for kind, stage in steps:
            rank = int(instance.placement[stage])
            count = before[rank][kind, instance.chunk[stage], i]
            behind = (np.arange(m) < count[:, :, None]).nonzero()
            earliest = 0
            if (source := _source(kind, stage, stages)) is not None:
                earliest = head[*source, i] + spent[source] + _way(hop, kind, stage)
            own = mine[rank][behind[1]]
            head[kind, stage, i] = max(earliest, _no_earlier(head[behind[0], own, behind[2]], spent[behind[0], own]))
    return head


def _tails(instance: Instance, spent: Times, hop: Times, before: dict[int, NDArray[np.int64]]) -> Times:
    stages, m, kinds = instance.stages, instance.microbatches, len(instance.kinds)
    tail = np.zeros((kinds, stages, m), np.int64)
    mine = {rank: np.flatnonzero(instance.placement == rank) for rank in before}
    steps = [(kind, stage) for kind in range(kinds - 1, 0, -1) for stage in range(stages)]
    steps += [(0, stage) for stage in reversed(range(stages))]
    for i in reversed(range(m)):
        for kind, stage in steps:
            rank = int(instance.placement[stage])
            behind = (before[rank][:, :, :, kind, instance.chunk[stage]] > i).nonzero()
            own = mine[rank][behind[1]]
            least = _no_earlier(tail[behind[0], own, behind[2]], spent[behind[0], own])
            for sink in _sinks(kind, stage, stages, kinds):
                least = max(least, tail[*sink, i] + spent[sink] + _way(hop, *sink))
            tail[kind, stage, i] = least
    return tail


def _source(kind: int, stage: int, stages: int) -> tuple[int, int] | None:
    """Kind and stage of what makes the input of an op; None at the start of the pipeline."""
    # Here 1 is the gradient, I or B: of an instance that splits nothing, the second of two kinds.
    if kind == Kind.W:
        return 1, stage
    if kind == Kind.F and stage == 0:
        return None
    if kind == Kind.F:
        return 0, stage - 1
    if stage + 1 == stages:  # the loss: the last stage's gradient follows its own forward
        return 0, stage
    return 1, stage + 1


def _sinks(kind: int, stage: int, stages: int, kinds: int) -> list[tuple[int, int]]:
    """Kind and stage of what takes in the output of an op."""
    if kind == Kind.W:
        return []
    if kind == Kind.F and stage + 1 < stages:
        return [(0, stage + 1)]
    if kind == Kind.F:
        return [(1, stage)]
    sinks = []
    if kinds > Kind.W:
        sinks.append((2, stage))
    if stage:
        sinks.append((1, stage - 1))
    return sinks


def _way(hop: Times, kind: int, stage: int) -> int:
    """How long the input of an op is on its way; that of W is on its rank already."""
    if kind == Kind.W:
        return 0
    return int(hop[min(kind, 1), stage])


def _no_earlier(head: Times, work: Times) -> int:
    """The largest, over subsets, of least head + work: when a rank can have done all of it."""
    if not len(head):
        return 0
    order = np.argsort(head, kind="stable")
    onward = np.cumsum(work[order][::-1])[::-1]
    return int((head[order] + onward).max())


def jackson(head: Times, work: Times, tail: Times) -> int:
    """The makespan of one machine with heads and tails whose ops may be interrupted: no order is shorter.

    Args:
        head: earliest start of each op, int64[ops].
        work: its duration, int64[ops].
        tail: what must follow it, int64[ops].
    """
    waiting: list[tuple[int, int]] = []  # (- tail, work left)
    now, latest = 0, 0
    order = np.argsort(head, kind="stable")
    arrivals = zip(head[order].tolist(), work[order].tolist(), tail[order].tolist(), strict=True)
    never = int(head.max(initial=0) + work.sum()) + 1  # by then all is done
    following = [*head[order].tolist()[1:], never]
    for (start, length, after), until in zip(arrivals, following, strict=True):
        now = max(now, start)
        heapq.heappush(waiting, (-after, length))
        while waiting and now < until:  # until the next arrival, which may have a larger tail
            least, left = heapq.heappop(waiting)
            ran = min(left, until - now)
            now += ran
            if ran < left:
                heapq.heappush(waiting, (least, left - ran))
            else:
                latest = max(latest, now - least)
    return latest


_FAR = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class _Ways:
    """Shortest ways through one copy of the pipeline, int64[stages], nanoseconds."""

    there: NDArray[np.int64]  # until the first op of a stage can start
    back: NDArray[np.int64]  # from the end of a gradient there (of F without any) to the end of the step
    chain: int


def lower_bound(schedule: Schedule, costs: Costs, engine: Engine = IDEAL) -> int:
    """Nanoseconds that no schedule of the same placement, costs and split of the backward can go below.

    Args:
        schedule: for its placement, and for what it computes.
        costs: how long that takes.
        engine: who executes it.
    """
    return max(counted_bound(schedule, costs, engine), propagated(schedule, costs))


def counted_bound(schedule: Schedule, costs: Costs, engine: Engine = IDEAL) -> int:
    """The largest of the counts alone, without windows: the closed forms of even stages, and fast at every size.

    Args:
        schedule: as in ``lower_bound``.
        costs: likewise.
        engine: likewise.
    """
    spent = _least(schedule, costs)
    rank = schedule.rank_of()
    work = np.bincount(rank, spent, schedule.ranks)
    weight = schedule.kind == Kind.W
    without_w = work - np.bincount(rank[weight], spent[weight], schedule.ranks)
    there, back = np.full(schedule.ranks, _FAR), np.full(schedule.ranks, _FAR)
    chain = 0
    for copy in np.unique(schedule.copy_of(schedule.unit)).tolist():  # a copy that nobody passes bounds nothing
        home = schedule.placement[copy]
        ways = _ways(schedule, costs, spent, copy)
        np.minimum.at(there, home, ways.there)
        np.minimum.at(back, home, ways.back)
        chain = max(chain, ways.chain)
    by_rank = there + work
    by_return = there + without_w + back  # of a rank without W all its work
    used = work > 0
    bounds = [chain, by_rank[used].max(initial=0), by_return[used].max(initial=0)]
    if engine.meets:
        bounds += _of_engine(schedule, costs, engine, work)
    return int(max(bounds))


def _of_engine(schedule: Schedule, costs: Costs, engine: Engine, work: NDArray[np.int64]) -> list[int]:
    producer, consumer = transfers(schedule)
    hop = costs.hops() + costs.sender_side()
    lasts = _by_op(hop, schedule)[consumer]
    rank, ranks = schedule.rank_of().astype(np.int64), schedule.ranks
    sender, receiver = rank[producer], rank[consumer]
    bounds = []
    if engine.lane is Lane.PAIR and not engine.coalesced and not (engine.two_ways and ranks == 2):
        _, pair = np.unique(np.minimum(sender, receiver) * ranks + np.maximum(sender, receiver), return_inverse=True)
        bounds.append(np.bincount(pair, lasts).max(initial=0))
    each = np.bincount(sender, lasts, ranks) + np.bincount(receiver, lasts, ranks)
    if engine.lane is Lane.GROUP and not engine.coalesced:
        bounds.append(each.max(initial=0))
    if engine.one_by_one:
        bounds.append((work + each).max(initial=0))
    elif engine.stands_still:
        ways, way = np.unique(sender * ranks + receiver, return_inverse=True)
        total = np.bincount(way, lasts, len(ways))
        for end in (ways // ranks, ways % ranks):
            bounds.append((work[end] + total).max(initial=0))
    return [int(bound) for bound in bounds]


def _least(schedule: Schedule, costs: Costs) -> NDArray[np.int64]:
    """The least time that each op can take, int64[ops]: its own, or its share of a pair that runs faster together."""
    alone = _by_op(costs.durations, schedule)
    if schedule.joined is not None:
        shorter = np.minimum(costs.pair_scales(), 1.0)[schedule.kind, schedule.stage]
        alone = np.floor(alone * shorter).astype(np.int64)
    return alone


def _by_op(table: NDArray[np.int64], schedule: Schedule) -> NDArray[np.int64]:
    """The cell of each op in a table by kind, stage and, where it has more than one, unit, int64[ops]."""
    unit: NDArray[np.int32] | int = 0
    if table.shape[2] > 1:
        unit = schedule.unit
    cell: NDArray[np.int64] = table[schedule.kind, schedule.stage, unit]
    return cell


def _ways(schedule: Schedule, costs: Costs, spent: NDArray[np.int64], copy: int) -> _Ways:
    mine = schedule.copy_of(schedule.unit) == copy
    forward = _per_stage(schedule, spent, mine & (schedule.kind == Kind.F))
    gradient = _per_stage(schedule, spent, mine & ((schedule.kind == Kind.I) | (schedule.kind == Kind.B)))
    home = schedule.placement[copy]
    hops = np.concatenate([[False], home[1:] != home[:-1]])  # between stage s-1 and s
    reach = costs.hops() + costs.sender_side()
    down = np.where(hops, reach[Kind.F].min(axis=1), 0)
    gradients = [kind for kind in (Kind.I, Kind.B) if (schedule.kind == kind).any()]  # a table may leave the other at 0
    backward = reach[gradients].min(axis=(0, 2), initial=_FAR) % _FAR
    up = np.where(hops, np.roll(backward, 1), 0)
    there = np.cumsum(down) + np.cumsum(forward) - forward
    last = _last_w(schedule, spent, mine)
    back = np.cumsum(up) + np.cumsum(gradient) - gradient + last
    whole = int(there[-1] + forward[-1])
    if schedule.forward_only:  # the end of the step is that of the last F
        return _Ways(there, whole - (there + forward), whole)
    return _Ways(there, back, whole + int(gradient[-1] + back[-1]))


def _per_stage(schedule: Schedule, spent: NDArray[np.int64], rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    least = np.full(schedule.stages, _FAR)
    np.minimum.at(least, schedule.stage[rows], spent[rows])
    return np.where(least == _FAR, 0, least)


def _last_w(schedule: Schedule, spent: NDArray[np.int64], mine: NDArray[np.bool_]) -> int:
    """W of stage 0, which follows the last I; 0 where a full backward may end the step."""
    at_first = mine & (schedule.stage == 0)
    if (at_first & (schedule.kind == Kind.B)).any():
        return 0
    return int(spent[at_first & (schedule.kind == Kind.W)].min(initial=_FAR)) % _FAR
