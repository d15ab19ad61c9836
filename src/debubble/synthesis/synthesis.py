"""The answer of a search: the order, its proof or its gap, what it holds, what each engine makes of it; layers with it.

*Layers with the schedule*: which stage holds which layers, and in which order ranks work, searched together.
All contiguous splits are ordered by a cheap bound (the work of the heaviest rank, the way there and back); the first
few are solved, and of splits with the same heaviest stage the schedule decides. With more splits than can be listed,
only those next to the lightest heaviest stage are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import combinations, pairwise, product
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.account import Account, RankTime, account, rank_times
from ..core.bounds import lower_bound
from ..core.engine import Engine
from ..core.errors import Fault, InputError, Refusal
from ..core.lower import lower
from ..core.program import Timeline
from ..core.results import HIDDEN, SPARSE, Result
from ..core.schedule import KINDS, Kind, Release, Schedule, peak_activations
from ..core.simulate import makespan, simulate
from ..core.units import MILLISECOND
from .orders import best_seed, seeds
from .problem import WRONG, Problem
from .search import BOUND, INTERRUPTED, PROVED, Best, Budget, Jitter, Robustness, Search, most_robust
from .solver import has_solver

OPTIMAL, BEST_FOUND, INFEASIBLE = "optimal", "best_found", "infeasible"
OWN = "the order that was measured"
_FUSED_SHARE = 0.25  # of the budget, for orders of full backwards, where an engine may take those better

Engines = Mapping[str, Callable[[Schedule], Engine]]
Progress = Callable[[float, int, int], None]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Synthesis(Result):
    """A schedule that was searched for.

    Args:
        title: a line.
        ranks: of the pipeline.
        stages: of the model.
        microbatches: per step.
        engine: whose communication it was searched for.
        objective: ``makespan``, or ``span``, the longest rank's own time.
        status: ``optimal`` (proved), ``best_found`` or ``infeasible``.
        makespan_ms: of the step; None where nothing fits.
        span_ms: of the longest rank, from its first op to its last.
        lower_bound_ms: that no order of these ops is below, under any cap that was given and this engine.
        gap_share: how far the objective is above that.
        stopped: what ended the search: ``proved``, ``bound reached``, ``budget``, ``interrupted``.
        method: what found it.
        peak_activations: micro-batches that each rank holds at most.
        caps: how many it may hold; None for no limit.
        least_cap: the least cap, in micro-batches, with which there is any order.
        best_known: the best legal schedule of the catalog under the same engine and cap.
        best_known_ms: its objective; None if none is legal.
        gain_ratio: that over the one found.
        per_engine_ms: the found order under each engine; None for one that cannot run it.
        search_s: seconds that were searched.
        evaluations: orders that were simulated.
        notes: what else there is to know, a sentence each.
        on_megatron: whether Megatron-LM's options launch the order, and which, a sentence; empty where nothing fits.
        robust: how it does if ops vary; None if that was not asked.
        measured_ms: of the run whose costs these are; None if they were given.
        measured_again_ms: of that run's own order, simulated with these costs under the same engine.
        torch_csv: the order in PyTorch's format.
        evidence: ``simulated``.
    """

    schema: ClassVar[str] = "synth/1"

    title: str
    ranks: int
    stages: int
    microbatches: int
    engine: str
    objective: str
    status: str
    makespan_ms: float | None
    span_ms: float | None
    lower_bound_ms: float | None
    gap_share: float | None
    stopped: str
    method: str
    peak_activations: tuple[float, ...]
    caps: tuple[float, ...] | None
    least_cap: float
    best_known: str
    best_known_ms: float | None
    gain_ratio: float | None
    per_engine_ms: dict[str, float | None]
    search_s: float
    evaluations: int
    notes: tuple[str, ...]
    on_megatron: str = ""
    robust: Robustness | None = field(default=None, metadata=SPARSE)
    measured_ms: float | None = field(default=None, metadata=SPARSE)
    measured_again_ms: float | None = field(default=None, metadata=SPARSE)
    torch_csv: str
    evidence: str = "simulated"
    per_rank: tuple[RankTime, ...] = ()
    order: Schedule | None = field(default=None, metadata=HIDDEN)
    timeline: Timeline | None = field(default=None, metadata=HIDDEN)
    account: Account | None = field(default=None, metadata=HIDDEN)
    release: Release = field(default=Release.W, metadata=HIDDEN)  # for the curve of memory on a page

    @property
    def exit_status(self) -> int:
        """1 where nothing fits."""
        return int(self.status == INFEASIBLE)

    @property
    def refused(self) -> str:
        """The cap that would do."""
        if self.status != INFEASIBLE:
            return ""
        return f"no order fits: the least cap is {self.least_cap:g} micro-batches"


def synthesised(
    problem: Problem,
    budget: Budget,
    engines: Engines,
    *,
    jitter: Jitter | None = None,
    own: Schedule | None = None,
    progress: Progress | None = None,
) -> Synthesis:
    """Search a schedule, and say how good it is.

    Args:
        problem: what for.
        budget: how long.
        engines: by name, how each executes an order, for ``per_engine_ms``.
        jitter: how much ops vary; the order is then chosen by its 95th percentile.
        own: the order of the run whose costs these are: the search begins with it too, and ends no worse.
        progress: told of the search, see ``Search``.
    """
    instance = problem.instance
    least = 1.0  # one micro-batch after the other holds v chunks on each rank, and no order holds less
    if (instance.room < 2 * instance.chunks).any():
        return _infeasible(problem, least)
    named = list(seeds(problem))  # listed once: they are the yardstick, the start, and a source of the engine's bound
    known, known_value = best_seed(problem, iter(named))
    if own is not None:
        named.append((OWN, own))
    outer = _bound_of_engine(problem, named)
    search = Search(problem, _shared(problem, budget, fused=False), bound=outer, progress=progress)
    best = search.run(named)
    seconds, evaluations, stopped = search.seconds, best.evaluations, search.stopped
    elite = search.elite
    if _asks_fused(problem) and stopped not in (PROVED, BOUND, INTERRUPTED):
        fused = Search(Problem(instance.but(split=False), span=problem.span), _shared(problem, budget, fused=True))
        other = fused.run([(name, schedule) for name, schedule in named if not schedule.splits])
        seconds, evaluations, stopped = seconds + fused.seconds, evaluations + other.evaluations, fused.stopped
        elite += fused.elite
        if other.value < best.value:
            # The bound of split backwards holds for full ones too, not the other way round.
            other.bound, other.proved = best.bound, False
            best = other
    robust = None
    if jitter is not None:
        robust = most_robust(problem, elite, jitter)
        best.schedule, best.value = robust.schedule, problem.measured(robust.schedule)
        best.proved = best.proved and best.value <= best.bound
    return _answer(problem, best, (stopped, seconds, evaluations), (known, known_value), engines, robust=robust)


def _asks_fused(problem: Problem) -> bool:
    """Under an engine that waits, a full backward may communicate less often than its two halves."""
    return problem.instance.split and problem.instance.engine.meets


def _shared(problem: Problem, budget: Budget, *, fused: bool) -> Budget:
    """The part of a budget that one of the two searches has."""
    if not _asks_fused(problem):
        return budget
    share = _FUSED_SHARE if fused else 1 - _FUSED_SHARE
    evaluations = None if budget.evaluations is None else max(1, int(share * budget.evaluations))
    return Budget(share * budget.seconds, evaluations, budget.solver)


def _bound_of_engine(problem: Problem, named: list[tuple[str, Schedule]]) -> int:
    """What an engine's lanes and standing still cost whatever the order; 0 where nothing tells the transfers."""
    instance = problem.instance
    whole = [schedule for _, schedule in named if schedule.splits == instance.split]
    if problem.span or not whole:
        return 0
    return lower_bound(whole[0], instance.costs, instance.engine)


def _infeasible(problem: Problem, least: float) -> Synthesis:
    instance = problem.instance
    fits = instance.room / (2 * instance.chunks)
    short = ", ".join(f"rank {rank} for {fits[rank]:.3g}" for rank in np.flatnonzero(fits < least))
    return Synthesis(
        title=_title(problem),
        ranks=instance.ranks,
        stages=instance.stages,
        microbatches=instance.microbatches,
        engine=instance.engine.name,
        objective=_objective(problem),
        status=INFEASIBLE,
        makespan_ms=None,
        span_ms=None,
        lower_bound_ms=None,
        gap_share=None,
        stopped=PROVED,
        method="",
        peak_activations=(),
        caps=_caps(problem),
        least_cap=least,
        best_known="",
        best_known_ms=None,
        gain_ratio=None,
        per_engine_ms={},
        search_s=0.0,
        evaluations=0,
        notes=(f"each rank has to hold one micro-batch, the least cap is {least:g}; there is room on {short}",),
        torch_csv="",
    )


def _answer(
    problem: Problem,
    best: Best,
    spent: tuple[str, float, int],
    known: tuple[str, int],
    engines: Engines,
    *,
    robust: Robustness | None,
) -> Synthesis:
    instance, (stopped, seconds, evaluations) = problem.instance, spent
    schedule = best.schedule
    if schedule is None:
        raise Refusal(f"{instance.engine} runs no order that was found; give a longer budget")
    timeline = simulate(lower(schedule, instance.engine), instance.costs)
    accounted = account(timeline)
    first, last = schedule.offsets[:-1], schedule.offsets[1:] - 1
    peak = peak_activations(schedule, instance.release)
    optimal = best.proved or best.value <= best.bound
    known_ms = None if known[1] == WRONG else known[1] / MILLISECOND
    return Synthesis(
        title=_title(problem),
        ranks=instance.ranks,
        stages=instance.stages,
        microbatches=instance.microbatches,
        engine=instance.engine.name,
        objective=_objective(problem),
        status=OPTIMAL if optimal else BEST_FOUND,
        makespan_ms=accounted.window / MILLISECOND,
        span_ms=int((timeline.end[last] - timeline.start[first]).max()) / MILLISECOND,
        lower_bound_ms=best.bound / MILLISECOND,
        gap_share=(best.value - best.bound) / best.bound if best.bound else 0.0,
        stopped=stopped,
        method=best.method,
        peak_activations=tuple(peak.tolist()),
        caps=_caps(problem),
        least_cap=1.0,
        best_known=known[0],
        best_known_ms=known_ms,
        gain_ratio=None if known_ms is None else known[1] / best.value,
        per_engine_ms={name: _under(schedule, problem, make) for name, make in engines.items()},
        search_s=seconds,
        evaluations=evaluations,
        notes=tuple(_notes(problem, optimal)),
        robust=robust,
        torch_csv="\n".join(",".join(map(str, schedule.row(rank))) for rank in range(schedule.ranks)),
        per_rank=rank_times(accounted, peak),
        order=schedule,
        timeline=timeline,
        account=accounted,
        release=instance.release,
    )


def _under(schedule: Schedule, problem: Problem, make: Callable[[Schedule], Engine]) -> float | None:
    """The order under another engine, milliseconds; None if that cannot run it."""
    try:
        return makespan(lower(schedule, make(schedule)), problem.instance.costs) / MILLISECOND
    except (InputError, Refusal):
        return None


def _notes(problem: Problem, optimal: bool) -> list[str]:
    if optimal:
        return []
    if not has_solver():
        return ["without the extra `solve` there is no CP-SAT: it proves many steps of up to 1,000 ops optimal"]
    if problem.instance.engine.meets:
        return [
            f"the bound is of the ideal engine and of {problem.instance.engine}'s waiting alone; it may be far below"
        ]
    return []


def _title(problem: Problem) -> str:
    instance = problem.instance
    return f"synth: {instance.ranks} ranks, {instance.stages} stages, {instance.microbatches} micro-batches"


def _objective(problem: Problem) -> str:
    return "span" if problem.span else "makespan"


def _caps(problem: Problem) -> tuple[float, ...] | None:
    instance = problem.instance
    if (instance.room >= 2 * instance.microbatches * instance.chunks).all():
        return None
    return tuple(np.minimum(instance.room / (2 * instance.chunks), instance.microbatches).tolist())


SOLVED = 5  # splits that get a search of their own
MOST_SPLITS = 200_000  # that are listed one by one
_WINDOW = 2  # layers by which a boundary may lie off the even split where there are more

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Joint(Result):
    """A split of layers and a schedule, found together.

    Args:
        title: a line.
        split: how many layers each stage holds.
        weights: their weight, stage by stage.
        even_split: as even a number of layers as can be.
        makespan_ms: of the step.
        even_ms: of the even split with a schedule that was searched for it.
        even_known_ms: of the even split with the best schedule of the catalog; None if none is legal.
        split_gain_ratio: what the split gives: ``even_ms`` over ``makespan_ms``.
        schedule_gain_ratio: what the schedule gives on this split: the catalog's best over ``makespan_ms``.
        tried: splits that were solved, and what they took, ms.
        synthesis: the schedule.
        evidence: ``simulated``.
    """

    schema: ClassVar[str] = "synth-layers/1"

    title: str
    split: Blocks
    weights: tuple[float, ...]
    even_split: Blocks
    makespan_ms: float
    even_ms: float
    even_known_ms: float | None
    split_gain_ratio: float
    schedule_gain_ratio: float | None
    tried: tuple[tuple[Blocks, float], ...]
    synthesis: Synthesis
    evidence: str = "simulated"


def jointly(
    layers: tuple[float, ...],
    of_a_layer: tuple[float, float, float],
    shape: Schedule,
    problem: Callable[[NDArray[np.int64]], Problem],
    asked: tuple[Budget, Engines, Progress | None],
) -> Synthesis | Joint:
    """Search a split and a schedule.

    Args:
        layers: their weights, in order.
        of_a_layer: F, I and W of weight 1, nanoseconds.
        shape: placement and micro-batches.
        problem: the problem of durations of each kind and stage.
        asked: budget for all splits together, engines by name, and who is told of progress.

    Returns:
        Both; the refusal of the search where no order fits.

    Raises:
        InputError: fewer layers than stages.
    """
    stages, (budget, engines, progress) = shape.stages, asked
    if len(layers) < stages:
        rule = f"{stages} stages hold one at least"
        raise InputError(Fault(f"split-layers has {len(layers)} layers", rule, "give more, or fewer ranks"))
    even = _even(len(layers), stages)
    # The even split is always solved too: it is what both contributions are counted from.
    first = nsmallest(SOLVED, _splits(len(layers), stages), key=lambda split: _bound(split, layers, of_a_layer, shape))
    solved = list(dict.fromkeys([*first, even]))
    share = None if budget.evaluations is None else max(1, budget.evaluations // len(solved))
    each = Budget(budget.seconds / len(solved), share, budget.solver)
    found: dict[Blocks, Synthesis] = {}
    for split in solved:
        answer = synthesised(problem(_durations(split, layers, of_a_layer)), each, engines, progress=progress)
        if answer.makespan_ms is None:
            return answer
        found[split] = answer
    best = min(first, key=lambda split: found[split].makespan_ms or 0.0)
    synthesis, base = found[best], found[even]
    spent, even_spent = synthesis.makespan_ms or 0.0, base.makespan_ms or 0.0
    if even_spent < spent:  # the cheap bound may mislead; what was solved decides
        best, synthesis, spent = even, base, even_spent
    return Joint(
        title=f"{len(layers)} layers on {stages} stages, with the schedule",
        split=best,
        weights=tuple(_weights(best, layers)),
        even_split=even,
        makespan_ms=spent,
        even_ms=even_spent,
        even_known_ms=base.best_known_ms,
        split_gain_ratio=even_spent / spent,
        schedule_gain_ratio=None if synthesis.best_known_ms is None else synthesis.best_known_ms / spent,
        tried=tuple((split, answer.makespan_ms or 0.0) for split, answer in found.items()),
        synthesis=synthesis,
    )


def _even(layers: int, stages: int) -> Blocks:
    """As even as can be, the larger stages in the middle, where neither embedding nor head is."""
    small, more = divmod(layers, stages)
    first = (stages - more) // 2
    return tuple(small + (first <= stage < first + more) for stage in range(stages))


def _splits(layers: int, stages: int) -> Iterator[Blocks]:
    """Every contiguous split; of too many to list those near the even one."""
    if comb(layers - 1, stages - 1) <= MOST_SPLITS:
        for cuts in combinations(range(1, layers), stages - 1):
            edges = (0, *cuts, layers)
            yield tuple(stop - start for start, stop in pairwise(edges))
        return
    even = _even(layers, stages)
    for source, target, many in product(range(stages), range(stages), range(1, _WINDOW + 1)):
        moved = list(even)
        moved[source] -= many
        moved[target] += many
        if min(moved) > 0:
            yield tuple(moved)


def _weights(split: Blocks, layers: tuple[float, ...]) -> list[float]:
    edges = np.cumsum([0, *split])
    return [float(sum(layers[start:stop])) for start, stop in pairwise(edges)]


def _bound(split: Blocks, layers: tuple[float, ...], of_a_layer: tuple[float, float, float], shape: Schedule) -> float:
    """Way there + all work of a rank + a way back, the largest over ranks; of equals the lighter sum of squares."""
    forward, gradient, weight = of_a_layer
    weights = np.array(_weights(split, layers))
    home = shape.placement[0]
    way = np.cumsum(weights) - weights
    work = np.bincount(home, weights) * (forward + gradient + weight) * shape.microbatches
    there = np.full(shape.ranks, np.inf)
    np.minimum.at(there, home, way * forward)
    # The way back carries gradients alone; only the first stage's W must follow the last I.
    without_w = work - np.bincount(home, weights) * weight * shape.microbatches
    back = np.full(shape.ranks, np.inf)
    np.minimum.at(back, home, way * gradient + weights[0] * weight)
    longest = max((there + work).max(), (there + without_w + back).max())
    # The tie-break is about a billionth of the bound: it decides between equal ones alone.
    return float(longest * (1 + 1e-9 * float(weights @ weights)))


def _durations(split: Blocks, layers: tuple[float, ...], of_a_layer: tuple[float, float, float]) -> NDArray[np.int64]:
    """Nanoseconds of each kind and stage, int64[kinds, stages, 1]."""
    table = np.zeros((KINDS, len(split), 1), np.int64)
    weights = np.array(_weights(split, layers))
    for kind, spent in zip((Kind.F, Kind.I, Kind.W), of_a_layer, strict=True):
        table[kind, :, 0] = np.rint(weights * spent)
    table[Kind.B] = table[Kind.I] + table[Kind.W]
    return table
