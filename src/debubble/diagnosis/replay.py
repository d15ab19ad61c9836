"""Replays: a window's order with its costs, under the engine that fits it, and each way to change it.

    window measured -> fitted costs -> Replay -> edit -> Replay -> simulate -> WhatIf

Every number that any verb or the page gives for a change comes from ``answers`` below: samples per second with the
change over without, both simulated, so that what the simulation misses of a run cancels out.

Three kinds of edit, each None if it cannot be. ``recast`` builds another order for the same work; the edits that people
know by a name (more or finer micro-batches, fewer stages, another schedule) are calls of it. The second kind leaves the
order alone and changes durations or hops. ``slide`` is both at once, for a person who moves sliders; the page computes
the same in JavaScript:

    1. Base: the order of the median window; durations D[kind][stage][unit] and hops H[kind][stage][unit], whole
       nanoseconds, 0 if the order has no such op (``Replay.tables``). H: delay of an op's input from another rank.
    2. ``recast`` to a schedule of the catalog with p' ranks, m' micro-batches, v' chunks, if any of these was moved:
       a. Micro-batches. m' a multiple of m: the m columns follow each other m'/m times (``more``: same size), or each
          column is repeated m'/m times and durations are multiplied by m/m' (``finer``: same batch). Any other m': each
          column is the mean over units, rounded half to even (and for ``finer`` multiplied likewise).
       b. Stages. Same placement: as they are. Same ranks: a rank keeps its work and shares it out evenly over its
          chunks, so that a heavy rank stays heavy. Other ranks: the model is cut anew along its depth; new stage s of
          S' gets from old stage o of S the sum of D[o] x overlap / S', overlap = the whole number
          max(0, min((o+1) S', (s+1) S) - max(o S', s S)).
       c. Kinds. F = F; I = I + B x; W = W + B (1 - x); B = B + I + W, with x the ``input_share``, a half if nobody
          stated I and W; the new order reads the rows that it has. Rounded half to even once, here.
       d. Hops. Same schedule, ranks and chunks: as in a. Otherwise one hop forward (F) and one back (I and B): the mean
          of all H above 0 in those rows, rounded half to even, 0 if there is none.
    3. Imbalance: with a share x left, D = mean + (D - mean) x, the mean over the stages that have such an op, for each
       kind and unit; rounded half to even. x = 1 leaves D untouched.
    4. Hop: if it was moved, every H is that many nanoseconds.
    5. Simulate (start = latest of rank free and input + hop). Samples per second = m'/m x (window + outside) before
       over (window' + outside) after; of a GPU: that x p/p'. Memory: peak' x p/p' over peak, in micro-batches a rank.

Which engine ran is told by the window itself: each engine simulates it again, with ops as they were measured and the
least hops seen. Nothing is fitted to the window. The hop of a link is the least time from the end of an op to the start
of the one that needs its output: no engine starts an op before its input is there, so no transfer lasts longer, and an
activation is as large as its gradient. What ranks waited beyond that is the engine's doing, and the engine that ran
starts the ops when they did start:

    MegatronApp, interleaved, 4 ranks     megatron-overlap  .995 of the window, ops start .6 % of it off
                                          megatron         1.084                          4.3 %
                                          ideal             .915                          4.6 %
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, account
from ..core.costs import Costs
from ..core.engine import IDEAL, Engine
from ..core.errors import InputError, Refusal
from ..core.lower import lower
from ..core.observation import Observation
from ..core.program import Timeline
from ..core.schedule import KINDS, Kind, Schedule, Shape, loop_placement, peak_activations
from ..core.simulate import simulate
from ..frameworks.engines import ENGINES, engine_of, executing
from ..schedules.catalog import build
from .causes import TRUSTED, Causes, Summary, causes, fitted, free_transfers, least_hops, present

# Of an order that is tried: about 60 orders are, and the verb should answer within a second or two.
MOST_OPS_TRIED = 16_384
MORE_MEMORY = 1.005  # times the activations from which an answer says that it needs room for them


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What changes are tried on, and what they have changed so far.

    Args:
        schedule: the order.
        costs: with one column for each unit, or one for all.
        name: of the order in the catalog; None if no published schedule has it.
        outside: what a step holds beside the pipeline window, nanoseconds.
        micro_batch: samples in a micro-batch; None if unknown.
        data: data-parallel replicas; None if unknown.
        batch: samples in a step, relative to the original.
        size: samples in a micro-batch, relative to the original.
        layers: layers on a rank, relative to the original.
        changes: what was changed, a clause each.
        assumes: what its answer takes for granted, a clause each.
        demands: what it asks for beyond that, which not every run can give (a larger batch, room for a second copy
            of the weights, another framework), a clause each.
        open: what of the run it rests on that nobody said, a clause each.
        bound: whether something was changed that nobody can do, to see what it costs.
        engine: who executes it; another one takes over an order that it cannot run.
    """

    schedule: Schedule
    costs: Costs
    name: str | None
    outside: int = 0
    micro_batch: int | None = None
    data: int | None = None
    batch: float = 1.0
    size: float = 1.0
    layers: float = 1.0
    changes: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    demands: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    bound: bool = False
    engine: Engine = IDEAL

    @property
    def chunks(self) -> int:
        """Stages per rank."""
        return self.schedule.stages // self.schedule.ranks

    @property
    def tables(self) -> tuple[NDArray[np.int64], ...]:
        """Durations and delays with all their columns, int64[kinds, stages, units]; 0 if there is no such op."""
        there = present(self.schedule)
        return tuple(np.where(there, table, 0) for table in (self.costs.durations, self.costs.transfers))

    @property
    def input_share(self) -> float:
        """Share of a whole backward that is the gradient of the input: as its costs state it, else a half."""
        inputs, weights = (float(self.costs.durations[kind].sum()) for kind in (Kind.I, Kind.W))
        if self.schedule.splits or inputs + weights == 0:
            return 0.5
        return inputs / (inputs + weights)

    def again(self) -> Account:
        """Where time goes when it is simulated."""
        return account(simulate(executing(self.schedule, self.engine), self.costs))


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change, and what it was simulated to bring.

    Args:
        change: what to change, a clause.
        step_ns: the step with it, nanoseconds.
        makespan_ns: the pipeline window with it, nanoseconds.
        speedup: samples per second with it over without, both simulated.
        microbatches: per pipeline and step.
        idle_share: of its pipeline window.
        peak_activations: on the worst rank, in its own micro-batches.
        activations_ratio: memory of activations on the worst rank, with over without.
        assumes: what the answer takes for granted, a clause each.
        demands: those of them that not every run can give: a larger batch, more memory, another framework.
        open: those of them that rest on what nobody said of the run: it may be so, or not.
        bound: whether nobody can do it: it only shows what something costs.
        evidence: always ``simulated``.
        replay: what was simulated; None if a bound stands for it.
    """

    change: str
    step_ns: int
    makespan_ns: int
    speedup: float
    microbatches: int
    idle_share: float
    peak_activations: float
    activations_ratio: float
    assumes: tuple[str, ...]
    demands: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    bound: bool = False
    evidence: str = "simulated"
    replay: Replay | None = field(default=None, compare=False, repr=False)

    @property
    def launchable(self) -> bool:
        """Whether it can be done with the batch, the framework and the weights there are."""
        return not self.bound and not self.demands


@dataclass(frozen=True, slots=True)
class Launcher:
    """The framework that will run what is advised.

    Args:
        title: as people call it.
        schedules: names of the catalog that it can run.
        refuses: why it would refuse a run that was changed into another, a clause; empty if it takes it.
    """

    title: str
    schedules: frozenset[str]
    refuses: Callable[[Replay, Replay], str] | None = None


@dataclass(frozen=True, slots=True)
class Remedies:
    """Changes of one run by what they ask for, each list the best first.

    Args:
        launchable: at the batch, with the framework and the weights there are; what rests on something that nobody
            said of the run comes after what rests on nothing of the kind.
        beyond: each names in ``demands`` what else it takes.
        limits: nobody can do them; they show what something costs.
    """

    launchable: tuple[WhatIf, ...] = ()
    beyond: tuple[WhatIf, ...] = ()
    limits: tuple[WhatIf, ...] = ()

    @property
    def first(self) -> WhatIf | None:
        """The first recommendation; None if nothing that can be launched is worth it."""
        return self.launchable[0] if self.launchable else None

    @property
    def every(self) -> tuple[WhatIf, ...]:
        """All of them, the best first."""
        whole = (*self.launchable, *self.beyond, *self.limits)
        return tuple(sorted(whole, key=lambda answer: -answer.speedup))

    def gain(self, change: str) -> float | None:
        """Samples per second with a change over without; None if it is not among them."""
        return next((answer.speedup for answer in self.every if answer.change == change), None)

    def and_also(self, more: Sequence[WhatIf]) -> Remedies:
        """With answers that were simulated elsewhere, as on another window of the same run."""
        return sorted_by_need([*self.every, *more])


def sorted_by_need(several: Sequence[WhatIf]) -> Remedies:
    """Changes by what they ask for, each list the best first."""
    # What rests on something nobody said may not exist: it comes after what does, however fast.
    ranked = sorted(several, key=lambda answer: (bool(answer.open), -answer.speedup))
    return Remedies(
        launchable=tuple(answer for answer in ranked if answer.launchable),
        beyond=tuple(answer for answer in ranked if answer.demands and not answer.bound),
        limits=tuple(answer for answer in ranked if answer.bound),
    )


def replay_of(run: Observation, summary: Summary, name: str | None) -> Replay:
    """The median window of a run, ready to be simulated again.

    Args:
        run: what was measured.
        summary: of its windows.
        name: of its order in the catalog.
    """
    timeline = summary.window.timeline
    schedule = timeline.program.schedule
    data = 1 + max(window.replica for window in run.windows)
    micro_batch = None
    if run.samples and run.samples % (schedule.microbatches * data) == 0:
        micro_batch = run.samples // (schedule.microbatches * data)
    return Replay(schedule, fitted(timeline), name, round(summary.outside_ns or 0), micro_batch, data)


def answers(base: Replay, changed: Sequence[Replay]) -> list[WhatIf]:
    """Simulate each change beside the replay as it is."""
    before = base.again().window + base.outside
    held = float(peak_activations(base.schedule).max())
    return [_answer(each, before, held) for each in changed]


def _answer(changed: Replay, before: int, held: float) -> WhatIf:
    again = changed.again()
    step = again.window + changed.outside
    peak = float(peak_activations(changed.schedule).max())
    memory = 1.0
    if held:
        memory = peak * changed.size * changed.layers / held
    assumes = (*changed.open, *changed.assumes, *changed.demands)
    if memory > MORE_MEMORY:
        assumes = (*assumes, "a GPU has room for the activations")
    return WhatIf(
        change=" + ".join(changed.changes),
        step_ns=step,
        makespan_ns=again.window,
        speedup=changed.batch * before / step if step else 1.0,
        microbatches=changed.schedule.microbatches,
        idle_share=again.idle_share,
        peak_activations=peak,
        activations_ratio=memory,
        assumes=assumes,
        demands=changed.demands,
        open=changed.open,
        bound=changed.bound,
        replay=changed,
    )


EFFICIENT = "ops as efficient as now, whatever their size"
SHRINKS = "its work shrinks with its size"
SPREAD = "the work of a rank spreads evenly over its chunks"
HALVES = "a backward splits into equal halves"
MOVABLE = "layers can be moved so that stages weigh the same"
PACKED = "samples can be packed so that micro-batches are equally long"
TWICE_THE_LAYERS = "a GPU has room for twice the layers"
HIDDEN_REDUCTION = "the data-parallel reduction stays hidden"
FREE = "free transfers"
BALANCED = "balanced stages"
ALIKE = "micro-batches of like length"

Table = NDArray[np.int64]  # [kinds, stages, units]


def recast(run: Replay, name: str, *, ranks: int, microbatches: int, chunks: int, finer: bool = False) -> Replay | None:
    """The same work in an order of the catalog, for sizes of its own; rule 2 above.

    Args:
        run: what is changed; its ``changes``, ``assumes`` and ``batch`` are left to the caller.
        name: of a schedule.
        ranks: of one pipeline.
        microbatches: per pipeline and step.
        chunks: stages per rank.
        finer: whether micro-batches shrink, so that the batch stays; otherwise they keep their size.

    Returns:
        None if the schedule does not take these sizes, or the order is too long to be tried.
    """
    here = run.schedule
    if 2 * ranks * chunks * microbatches * here.slices > MOST_OPS_TRIED:
        return None
    try:
        schedule = build(name, Shape(ranks, microbatches, chunks, here.slices))
    # Sizes that a schedule does not take are no fault of anybody's: there is no such change.
    except InputError:
        return None
    alike = schedule.forward_only == here.forward_only and schedule.slices == here.slices
    if not alike or schedule.stages != ranks * chunks:  # a V has two chunks, whatever is asked for
        return None
    durations, transfers = (_columns(table, here, schedule, finer=finer) for table in run.tables)
    shrunk = here.microbatches / microbatches if finer else 1.0
    # Rounded once, at the end: the page does the same, and both must agree to the nanosecond.
    work: NDArray[np.float64] = durations * np.float64(shrunk)
    same_places = schedule.placement.shape == here.placement.shape and bool(
        (schedule.placement == here.placement).all()
    )
    if not same_places:
        work = _on_stages(work, here, schedule)
    # Delays belong to links of the order that ran; another order crosses others, of which only the usual hop is known.
    if not (same_places and name == run.name):
        transfers = _usual_hops(run.tables[1], schedule)
    return replace(
        run,
        schedule=schedule,
        costs=_costs(run, _as_parts_and_whole(work, run.input_share), transfers),
        name=name,
    )


def more_microbatches(run: Replay, microbatches: int) -> Replay | None:
    """More micro-batches of the same size in a step: a larger batch."""
    changed = _resized(run, microbatches)
    if changed is None:
        return None
    ratio = microbatches / run.schedule.microbatches
    return replace(
        changed,
        batch=run.batch * ratio,
        changes=(*run.changes, f"{microbatches} micro-batches"),
        demands=(*run.demands, f"the batch is {ratio:.3g} x as large"),
    )


def finer_microbatches(run: Replay, microbatches: int) -> Replay | None:
    """The same batch in more, smaller micro-batches, each of a whole number of samples.

    None if that number would not be whole. If nobody said how many samples a micro-batch holds, it rests on as many as
    the cut needs: nobody can launch half a sample.
    """
    ratio = run.schedule.microbatches / microbatches
    if run.micro_batch is not None and run.schedule.microbatches * run.micro_batch % microbatches:
        return None
    changed = _resized(run, microbatches, finer=True)
    if changed is None:
        return None
    size = f"1/{1 / ratio:g}" if microbatches % run.schedule.microbatches == 0 else f"{ratio:.2g}"
    label, open_ = f"micro-batches {size} the size", [*run.open]
    if run.micro_batch is not None:
        samples = run.schedule.microbatches * run.micro_batch // microbatches
        label = f"{microbatches} micro-batches of {samples} instead of {run.micro_batch}"
    else:
        open_.append(f"a micro-batch holds {math.ceil(1 / ratio)} samples or more")
    return replace(
        changed,
        micro_batch=run.micro_batch and round(run.micro_batch * ratio),
        size=run.size * ratio,
        changes=(*run.changes, label),
        assumes=(*run.assumes, SHRINKS, EFFICIENT),
        open=tuple(open_),
    )


def fewer_stages(run: Replay) -> Replay | None:
    """Half as many stages, each of two that are neighbours now, and twice the replicas; the same batch."""
    p, m = run.schedule.ranks, run.schedule.microbatches
    # Neighbours can be joined only where stages lie along the ranks in order.
    linear = run.schedule.stages == p and np.array_equal(run.schedule.placement, loop_placement(p, 1))
    if run.name is None or not linear or p % 2 or m % 2 or run.schedule.slices > 1:
        return None
    changed = recast(run, run.name, ranks=p // 2, microbatches=m // 2, chunks=1)
    if changed is None:
        return None
    replicas = f"PP={p // 2} with DP={2 * run.data}" if run.data else f"PP={p // 2} with twice the replicas"
    return replace(
        changed,
        layers=run.layers * 2,
        data=2 * run.data if run.data else None,
        changes=(*run.changes, replicas),
        assumes=(*run.assumes, TWICE_THE_LAYERS, HIDDEN_REDUCTION),
    )


def other_schedule(run: Replay, name: str, chunks: int) -> Replay | None:
    """Another published schedule for the same ranks and micro-batches."""
    p, m = run.schedule.ranks, run.schedule.microbatches
    changed = recast(run, name, ranks=p, microbatches=m, chunks=chunks)
    if changed is None or changed.schedule.same_order(run.schedule):
        return None
    schedule = changed.schedule
    assumes, demands = list(run.assumes), list(run.demands)
    if changed.chunks != run.chunks:
        assumes.append(SPREAD)
    # Nobody measured the halves of a whole backward; 0.5 is what stands for that, and it is said.
    if schedule.splits and not run.schedule.splits and run.input_share == 0.5:
        assumes.append(HALVES)
    # Chimera and DualPipe run the model in both directions, each rank a stage of either.
    if schedule.placement.shape[0] > run.schedule.placement.shape[0]:
        demands.append("a GPU holds two copies of its weights")
    label = f"{name} with {changed.chunks} chunks" if changed.chunks > 1 else name
    return replace(
        changed,
        changes=(*run.changes, label),
        assumes=tuple(assumes),
        demands=tuple(demands),
    )


def balanced_stages(run: Replay, left: float = 0.0) -> Replay:
    """Every stage with the mean work of all: work is moved, none is removed.

    Args:
        run: what is changed.
        left: share of each stage's distance from the mean that stays.
    """
    return _evened(run, 1, BALANCED, MOVABLE, left)


def like_lengths(run: Replay) -> Replay:
    """Every micro-batch as long as the mean of its stage: work is moved between micro-batches, none is removed."""
    return _evened(run, 2, ALIKE, PACKED)


def cured_rank(run: Replay, rank: int) -> Replay | None:
    """One rank as fast as the mean of the others: work is removed, so nobody can do it."""
    durations = run.tables[0].copy()
    home = run.schedule.placement[0]
    mine, others = home == rank, home != rank
    if not others.any() or run.schedule.placement.shape[0] > 1:
        return None
    durations[:, mine] = np.rint(durations[:, others].mean(axis=1, keepdims=True))
    return replace(
        run,
        costs=_costs(run, durations, run.costs.transfers),
        changes=(*run.changes, f"rank {rank} as fast as the others' mean"),
        bound=True,
    )


def faster_rank(run: Replay, rank: int, factor: float) -> Replay:
    """One rank that is slow as fast as it should be: its times over ``factor``."""
    durations = run.tables[0].copy()
    mine = run.schedule.placement[0] == rank
    durations[:, mine] = np.rint(durations[:, mine] / factor)
    return replace(
        run,
        costs=_costs(run, durations, run.costs.transfers),
        changes=(*run.changes, f"rank {rank} cured, {factor:.2f} times as fast"),
    )


def without_transfer(run: Replay) -> Replay:
    """Every hop in no time: it only shows what hops cost."""
    return replace(run, costs=free_transfers(run.costs), changes=(*run.changes, FREE), bound=True)


def without_hop(run: Replay, sender: int, receiver: int, *, forward: bool) -> Replay:
    """What one rank sends another, activations or gradients, in no time."""
    home, stages = run.schedule.placement[0], np.arange(run.schedule.stages)
    before = stages - 1 if forward else stages + 1
    # Nothing is before the first stage or behind the last: the remainder keeps indices legal, then both are dropped.
    mine = (home == receiver) & (home[before % len(home)] == sender) & (before >= 0) & (before < len(home))
    transfers = run.tables[1].copy()
    for kind in (Kind.F,) if forward else (Kind.I, Kind.B):
        transfers[kind, mine] = 0
    costs = _costs(run, run.costs.durations, transfers)
    return replace(run, costs=costs, changes=(*run.changes, f"free from rank {sender} to {receiver}"), bound=True)


def slide(
    run: Replay,
    *,
    schedule: str | None = None,
    ranks: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    transfer: int | None = None,
    imbalance: float = 1.0,
) -> Replay | None:
    """What the sliders of the page ask, by the rules at the head of this file.

    Args:
        run: where the sliders start.
        schedule: of the catalog; None for the order as it is (then sizes are as they are, too).
        ranks: the same model cut into as many; None for as many as there are.
        microbatches: of the same size; None for as many as there are.
        chunks: stages per rank; None for as many as there are.
        transfer: every hop, nanoseconds; None for hops as they are.
        imbalance: share of each stage's distance from the mean that is left.

    Returns:
        None if the schedule does not take these sizes.
    """
    here = run.schedule
    p, m, v = ranks or here.ranks, microbatches or here.microbatches, chunks or run.chunks
    moved = (p, m, v) != (here.ranks, here.microbatches, run.chunks)
    changed: Replay | None = run
    if schedule is not None and (schedule != run.name or moved):
        changed = recast(run, schedule, ranks=p, microbatches=m, chunks=v)
    if changed is None:
        return None
    changed = replace(
        changed, batch=m / here.microbatches, layers=here.ranks / changed.schedule.ranks, changes=("as asked",)
    )
    if imbalance != 1:
        changed = balanced_stages(changed, imbalance)
    if transfer is not None:
        hops = np.full((KINDS, changed.schedule.stages, 1), transfer, np.int64)
        changed = replace(changed, costs=_costs(changed, changed.costs.durations, hops))
    return changed


def _resized(run: Replay, microbatches: int, *, finer: bool = False) -> Replay | None:
    """The same published schedule with another number of micro-batches; None if the order has no name."""
    if run.name is None:
        return None
    ranks, chunks = run.schedule.ranks, run.chunks
    return recast(run, run.name, ranks=ranks, microbatches=microbatches, chunks=chunks, finer=finer)


def _evened(run: Replay, axis: int, change: str, assumption: str, left: float = 0.0) -> Replay:
    """Durations evened out along an axis of their table, [kinds, stages, units]: the work stays the same."""
    durations, _ = run.tables
    there = present(run.schedule)
    mean = durations.sum(axis=axis, keepdims=True, where=there) / np.maximum(there.sum(axis=axis, keepdims=True), 1)
    return replace(
        run,
        costs=_costs(run, mean + (durations - mean) * left, run.costs.transfers),
        changes=(*run.changes, change),
        assumes=(*run.assumes, assumption),
    )


def _costs(run: Replay, durations: Table | NDArray[np.float64], transfers: Table) -> Costs:
    # Half to even, as JavaScript's copy of these rules does.
    whole = np.rint(durations).astype(np.int64)
    return Costs(whole, np.array(transfers), run.costs.evidence, run.costs.pair_scale)


def _columns(table: Table, here: Schedule, there: Schedule, *, finer: bool) -> Table:
    """A table with a column for each unit of another order; rule 2a."""
    times, rest = divmod(there.microbatches, here.microbatches)
    if rest:
        mean = np.rint(table.mean(axis=2, keepdims=True)).astype(np.int64)
        return np.repeat(mean, there.units, axis=2)
    if not finer:
        return np.tile(table, (1, 1, times))
    by_microbatch = table.reshape(*table.shape[:2], here.microbatches, here.slices)
    return np.repeat(by_microbatch, times, axis=2).reshape(*table.shape[:2], there.units)


def _on_stages(work: NDArray[np.float64], here: Schedule, there: Schedule) -> NDArray[np.float64]:
    """Durations for other stages of the same model; rule 2b."""
    if here.ranks != there.ranks:
        old, new = here.stages, there.stages
        o, s = np.arange(old)[None, :], np.arange(new)[:, None]
        # Depth of the model in units of 1/(S S'); a new stage takes of each old one as much as it covers:
        #
        #     S = 3    |     0     |     1     |     2     |
        #     S' = 4   |    0   |    1   |    2   |    3   |    stage 1 of 4: 1/4 of old 0, 1/2 of old 1
        overlap = np.minimum((o + 1) * new, (s + 1) * old) - np.maximum(o * new, s * old)
        cut: NDArray[np.float64] = np.einsum("so,kou->ksu", np.maximum(overlap, 0).astype(np.float64), work) / new
        return cut
    by_rank = np.zeros((KINDS, there.ranks, work.shape[2]))
    for stage, rank in enumerate(here.placement.T):
        by_rank[:, rank] += work[:, stage : stage + 1]
    home = there.placement[0]
    # A micro-batch passes one copy of the weights: with two, the sum over a rank's stages has counted it twice.
    share = there.chunks_of()[0][home] * here.placement.shape[0]
    spread: NDArray[np.float64] = by_rank[:, home] / share[None, :, None]
    return spread


def _as_parts_and_whole(work: NDArray[np.float64], input_share: float) -> NDArray[np.float64]:
    """Every backward both as its two parts and as a whole, whichever the order asks for; rule 2c."""
    inputs = work[Kind.I] + work[Kind.B] * input_share
    weights = work[Kind.W] + work[Kind.B] * (1 - input_share)
    return np.stack([work[Kind.F], inputs, weights, work[Kind.B] + work[Kind.I] + work[Kind.W]])


def _usual_hops(transfers: Table, there: Schedule) -> Table:
    """One delay for every hop forward and one for every hop back: the means of what the run shows; rule 2d."""
    forward, back = transfers[Kind.F], transfers[[Kind.I, Kind.B]]
    usual = [int(np.rint(table[table > 0].mean())) if (table > 0).any() else 0 for table in (forward, back)]
    # By kind: F, I, W, B. Gradients of weights stay where they are.
    return np.array([usual[0], usual[1], 0, usual[1]])[:, None, None] * np.ones((1, there.stages, 1), np.int64)


TELLING = 0.05  # share of the window that hops must cost before an engine makes a difference worth a model of its own
MOST_OPS_REPLAYED = 50_000  # of a window that every engine simulates again


@dataclass(frozen=True, slots=True)
class EngineFit:
    """A window simulated again under one engine.

    Args:
        engine: by its name.
        resim_ratio: length of the window over what was measured.
        start_error_share: how far ops start from where they did start, the mean, over the window.
    """

    engine: str
    resim_ratio: float
    start_error_share: float


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """The median window of a run, simulated again by whoever ran it.

    Args:
        replay: under that engine, with its hops.
        causes: why the window is as long as it is, under the same engine.
        fits: of every engine that was asked, the best first; empty if ranks are missing.
    """

    replay: Replay
    causes: Causes
    fits: tuple[EngineFit, ...]


def replayed(run: Observation, summary: Summary, name: str | None, asked: Engine | None = None) -> Replayed:
    """Simulate the median window again, under the engine that fits it where its hops cost enough to tell.

    Args:
        run: what was measured.
        summary: of its windows.
        name: of its order in the catalog.
        asked: the engine, if somebody said; None for the one that fits.

    Raises:
        InputError: the engine that was asked for does not run such orders.
    """
    window = summary.window.timeline
    found = causes(window)
    replay = replay_of(run, summary, name)
    if run.torn:  # what missing ranks did is not known, so nothing can be held against an engine
        return Replayed(replay, found, ())
    fits = fit_engines(window, run.engine)
    replay = engine_for(replay, window, fits, found, asked)
    if replay.engine != IDEAL:
        found = causes(window, replay.engine)
    return Replayed(replay, found, fits)


def fit_engines(timeline: Timeline, family: str | None = None) -> tuple[EngineFit, ...]:
    """Simulate a measured window again under every engine that can run its order, the best first.

    Args:
        timeline: measured.
        family: the engines to ask, by the name of the framework that is known to have run it; None for all.
    """
    schedule, ops = timeline.program.schedule, len(timeline.program.schedule)
    # Each engine simulates all of it: on long windows that would take longer than reading them.
    if ops > MOST_OPS_REPLAYED or not timeline.makespan:
        return ()
    costs = least_hops(timeline)
    # From the first op: where the window lies on the clock says nothing.
    began = timeline.start[:ops] - timeline.start[:ops].min()
    fits = []
    for name in _of_family(family):
        try:
            again = simulate(lower(schedule, engine_of(name, schedule)), costs)
        except (InputError, Refusal):
            continue
        # Starts of ops tell more than the length of the window, which several engines may meet by chance.
        away = np.abs(again.start[:ops] - again.start[:ops].min() - began).mean()
        fits.append(EngineFit(name, again.makespan / timeline.makespan, float(away) / timeline.makespan))
    return tuple(sorted(fits, key=lambda fit: fit.start_error_share))


def _of_family(family: str | None) -> list[str]:
    """The engines of one framework, as in megatron and megatron-overlap; all of them if it has none here."""
    every = list(ENGINES)
    if family is None:
        return every
    head = family.partition("-")[0]
    return [name for name in every if re.split("[:-]", name)[0] == head] or every


def engine_for(
    replay: Replay, timeline: Timeline, fits: Sequence[EngineFit], found: Causes, asked: Engine | None
) -> Replay:
    """The replay under the engine that was asked for, or that fits where hops cost enough to tell engines apart.

    It is left as it is where hops that are fitted one by one reproduce the window better.

    Args:
        replay: of the window, by hops that were fitted one by one.
        timeline: measured.
        fits: of engines, the best first.
        found: causes of the window.
        asked: by name; None if nobody said.

    Raises:
        InputError: the engine that was asked for does not run such orders.
        Deadlock: it would have got stuck in this one.
    """
    schedule = timeline.program.schedule
    if asked is not None:
        # Lowered to see whether it runs this order at all, and its refusal says why not.
        lower(schedule, engine_of(asked.name, schedule))
        return replace(replay, engine=asked, costs=least_hops(timeline))
    # Where hops cost next to nothing, every engine fits, and a name would be made up.
    hops_share = found.resim_ratio - found.resim_without_transfer_ratio
    if not fits or abs(hops_share) <= TELLING or schedule.joined is not None:
        return replay  # nobody runs overlapped pairs by these tables
    best = fits[0]
    miss = abs(best.resim_ratio - 1)
    if best.engine == IDEAL.name or miss > TRUSTED or miss > abs(found.resim_ratio - 1):
        return replay
    return replace(replay, engine=ENGINES[best.engine], costs=least_hops(timeline))
