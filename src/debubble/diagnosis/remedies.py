"""Remedies: the one list of changes that ``diagnose``, ``why`` and the page offer, and the first among them.

All are simulated on the run's own costs and compared per sample. What can be launched comes first: at the global batch
there is, on as many GPUs, by the framework at hand. What asks for more (a larger batch, another framework, a second
copy of the weights) stands apart with what it would take, and so does what nobody can do and only shows a cost.

The page changes it by the rules of ``replay.slide``, in JavaScript; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..core.bounds import lower_bound, searchable
from ..core.costs import Costs, Rates
from ..core.observation import Observation
from ..core.program import Timeline
from ..core.results import HIDDEN
from ..core.schedule import Kind, Schedule, peak_activations
from ..core.units import MILLISECOND
from ..schedules.catalog import CATALOG, GENERATED
from ..schedules.closed_form import enough
from .causes import Summary, causes, median_window, present, stage_means
from .evidence import Slow
from .order import recognise
from .replay import (
    Launcher,
    Remedies,
    Replay,
    WhatIf,
    answers,
    balanced_stages,
    cured_rank,
    faster_rank,
    fewer_stages,
    finer_microbatches,
    like_lengths,
    more_microbatches,
    other_schedule,
    recast,
    replay_of,
    sorted_by_need,
    without_transfer,
)

GOOD_IDLE_SHARE = 0.1  # what "enough micro-batches" means: p-1 over m+p-1, 27 at p = 4
WORTH = 1.01  # a smaller gain is within what re-simulation misses of most runs
HEAVY = 1.05  # a rank with more than this times the mean work of the others stands out
DEEPEST_CUT = 3  # halvings of a micro-batch of unknown size: more than 8 samples in one are rare in pipelines
PAIRS_SHOWN = 2
MOST_SLOW = 8  # slow ranks that are cured in simulation
OWN_ORDER = "a schedule of your own, at most"
UNBEATEN = "a search reaches the bound that no order of these ops is below"

Edit = Callable[[Replay], Replay | None]
Answered = tuple[Edit, WhatIf]


def remedies(run: Replay, slow: Sequence[tuple[int, float]] = (), launcher: Launcher | None = None) -> Remedies:
    """Every change that is worth a line, and the best of two kinds together.

    Args:
        run: what they are tried on; the caller sees to it that it can be trusted (``Causes.trusted``).
        slow: ranks that were found slow in it, each with its factor, the slowest first.
        launcher: who will run what is advised; None if nobody knows.
    """
    allowed = partial(_with_demands, run, launcher)
    kinds = [_answers(run, allowed, edits) for edits in (_repairs(run, slow), _orders(run), _recuts(run), _larger(run))]
    # Orders come in families that simulate alike: one line for each is enough.
    kinds[1] = _distinct(kinds[1])
    alone = [answer for kind in kinds for _, answer in kind]
    return sorted_by_need([*alone, *_pairs(run, allowed, kinds), *_own_order(run)])


def measured_remedies(
    run: Observation, summary: Summary, replay: Replay, slow: Sequence[Slow], launcher: Launcher | None = None
) -> tuple[Remedies, list[tuple[Slow, WhatIf | None]]]:
    """The remedies of a measured run: of its median window, and of each slow rank in a window that shows it.

    Args:
        run: what was measured.
        summary: of its windows.
        replay: of the median window.
        slow: ranks that were found to be slow, the slowest first.
        launcher: who will run what is advised; None if nobody knows.

    Returns:
        The remedies, and each slow rank with what curing it would bring; None if that was not, or cannot be, simulated.
    """
    if run.torn:
        return Remedies(), [(each, None) for each in slow]
    found = Remedies()
    here = [each for each in slow if each.replica == summary.window.replica and not each.steps]
    if causes(summary.window.timeline).trusted:
        found = remedies(replay, [(each.rank, each.factor) for each in here], launcher)
    cured = [(each, cure(run, summary, each, replay.name)) for each in slow[:MOST_SLOW]]
    elsewhere = [_elsewhere(each, answer, summary.steps) for each, answer in cured if answer and each not in here]
    return found.and_also(elsewhere), [*cured, *((each, None) for each in slow[MOST_SLOW:])]


def cure(run: Observation, summary: Summary, slow: Slow, name: str | None) -> WhatIf | None:
    """The slow rank cured in a window that shows it; None if simulating that window again misses it.

    Replicas wait for each other at the end of a step, so it gains no more than the slowest of the others leaves.

    Args:
        run: what was measured.
        summary: of its windows.
        slow: the rank.
        name: of the order in the catalog.
    """
    # Of those that show it the median one, as everywhere: the worst would promise too much.
    mine = [row for row, window in enumerate(summary.windows) if slow.shows(window.replica, window.step)]
    middle = median_window(summary, mine)
    window = summary.windows[middle]
    if not causes(window.timeline).trusted:
        return None
    replay = replay_of(run, replace(summary, middle=middle), name)
    (answer,) = answers(replay, [faster_rank(replay, slow.rank, slow.factor)])
    others = [
        summary.accounts[row].window
        for row, each in enumerate(summary.windows)
        if each.replica != slow.replica and each.step == window.step
    ]
    before = replay.again().window
    # The step ends with the slowest replica: curing one gains no more than the next slowest leaves.
    after = max(answer.makespan_ns, min(max(others, default=0), before))
    gain = (before + replay.outside) / (after + replay.outside)
    return replace(answer, step_ns=after + replay.outside, makespan_ns=after, speedup=gain)


def _elsewhere(slow: Slow, answer: WhatIf, steps: int) -> WhatIf:
    """A cure on another window than the median one, under a name that says where; in some steps it helps only those."""
    change = f"rank {slow.rank} of replica {slow.replica} cured, {slow.factor:.2f} times as fast"
    if not slow.steps:
        return replace(answer, change=change)
    # Time lost is shared out over all steps; gains themselves must not be averaged.
    lost = (1 - 1 / answer.speedup) * len(slow.steps) / steps
    which = f"{len(slow.steps)} steps"
    if len(slow.steps) == 1:
        which = f"step {slow.steps[0]}"
    return replace(answer, change=f"{change} in {which}", speedup=1 / (1 - lost))


def enough_microbatches(microbatches: int, bubble_ratio: float, idle_share: float = GOOD_IDLE_SHARE) -> int:
    """The fewest micro-batches that bring an order's idle share down to a tenth, if its bubble ratio falls as 1/m.

    ``bubble_ratio`` is idle over busy.
    """
    return enough(microbatches * bubble_ratio, idle_share)


def heaviest(run: Replay) -> tuple[int, float]:
    """The rank with most work, and its work over the mean of the others (1 if there are none)."""
    work = work_of_ranks(run)
    rank = int(work.argmax())
    others = np.delete(work, rank)
    return rank, float(work[rank] / others.mean()) if others.size and others.any() else 1.0


def work_of_ranks(run: Replay) -> NDArray[np.float64]:
    """F, I, W and B work of each rank, float64[ranks], nanoseconds."""
    spent = run.tables[0][run.schedule.kind, run.schedule.stage, run.schedule.unit]
    return np.bincount(run.schedule.rank_of(), spent, run.schedule.ranks).astype(np.float64)


def _repairs(run: Replay, slow: Sequence[tuple[int, float]]) -> Iterator[Edit]:
    """The same order with a fault of the run removed."""
    for rank, factor in slow[:1]:
        yield partial(faster_rank, rank=rank, factor=factor)
    yield balanced_stages
    yield like_lengths
    yield without_transfer
    rank, factor = heaviest(run)
    if factor > HEAVY:
        yield partial(cured_rank, rank=rank)


def _orders(run: Replay) -> Iterator[Edit]:
    """The same batch in every other order of the catalog that takes it."""
    # One rank has no bubble, whatever the order.
    if run.schedule.ranks == 1:
        return
    for name in GENERATED:
        for chunks in sorted({run.chunks, 1, 2}):
            yield partial(other_schedule, name=name, chunks=chunks)


def _recuts(run: Replay) -> Iterator[Edit]:
    """The same batch cut another way."""
    for microbatches in _finer_cuts(run):
        yield partial(finer_microbatches, microbatches=microbatches)
    yield fewer_stages


def _finer_cuts(run: Replay) -> list[int]:
    """Twice and four times as many micro-batches, and the fewest that are enough, as far as samples stay whole."""
    now = run.schedule.microbatches
    enough = enough_microbatches(now, run.again().bubble_ratio)
    if run.micro_batch is None:  # a power of two is what a micro-batch of unknown size most likely divides by
        powers = [now * 2**n for n in range(1, DEEPEST_CUT + 1)]
        return sorted({*powers[:2], next((m for m in powers if m >= enough), powers[-1])})
    samples = now * run.micro_batch
    cuts = [samples // size for size in range(run.micro_batch - 1, 0, -1) if samples % size == 0]
    # The coarsest cut that is enough: finer ones make kernels smaller for nothing.
    reaching = next((m for m in cuts if m >= enough), cuts[-1] if cuts else now)
    return [m for m in cuts if m in (2 * now, 4 * now, reaching)]


def _larger(run: Replay) -> Iterator[Edit]:
    """More micro-batches of the same size: a larger batch."""
    now = run.schedule.microbatches
    for times in (2, 4):
        yield partial(more_microbatches, microbatches=times * now)


def _own_order(run: Replay) -> Iterator[WhatIf]:
    """What the best of all orders of the same ops can bring at most, if a search for it can pay.

    The bound of ``core.bounds`` stands for that order: a search takes up to minutes, which is what ``synth`` is for.
    """
    schedule = run.schedule
    if not searchable(schedule):
        return
    bound = lower_bound(schedule, run.costs, run.engine)
    before = run.again()
    step = bound + run.outside
    if step <= 0 or before.window + run.outside < WORTH * step:
        return
    yield WhatIf(
        change=OWN_ORDER,
        step_ns=step,
        makespan_ns=bound,
        speedup=(before.window + run.outside) / step,
        microbatches=schedule.microbatches,
        idle_share=1 - int(before.compute.sum()) / (schedule.ranks * bound),
        # An order that holds no more than this one is not shorter than the bound either.
        peak_activations=float(peak_activations(schedule).max()),
        activations_ratio=1.0,
        assumes=(UNBEATEN,),
        bound=True,
    )


def _answers(run: Replay, allowed: Callable[[Replay], Replay], edits: Iterator[Edit]) -> list[Answered]:
    """Each edit that can be made and is worth it, with what it brings."""
    made = [(edit, changed) for edit in edits if (changed := edit(run)) is not None]
    found = answers(run, [allowed(changed) for _, changed in made])
    return [(edit, answer) for (edit, _), answer in zip(made, found, strict=True) if answer.speedup >= WORTH]


def _with_demands(run: Replay, launcher: Launcher | None, changed: Replay) -> Replay:
    """A changed run with what it asks of the framework."""
    name = changed.name
    demand = ""
    if launcher is not None and name is not None and name != run.name and name not in launcher.schedules:
        demand = f"another framework runs it: {launcher.title} has no {name}"
    elif launcher is not None and launcher.refuses is not None:
        demand = launcher.refuses(run, changed)
    # Nobody said who runs it: torch is what most of these orders can be launched with, so its limits are named.
    elif launcher is None and name in CATALOG and name != run.name and CATALOG[name].not_on_torch:
        demand = f"another engine than torch runs it: {CATALOG[name].not_on_torch}"
    return replace(changed, demands=(*changed.demands, demand)) if demand else changed


def _distinct(answers: Sequence[Answered]) -> list[Answered]:
    """Of orders that are equally fast and equally large only one: the first that can be launched, else the first."""
    seen: dict[tuple[float, float], Answered] = {}
    for edit, answer in sorted(answers, key=lambda each: not each[1].launchable):
        seen.setdefault((round(answer.speedup, 4), round(answer.activations_ratio, 2)), (edit, answer))
    return list(seen.values())


def _pairs(run: Replay, allowed: Callable[[Replay], Replay], kinds: Sequence[Sequence[Answered]]) -> list[WhatIf]:
    """The best launchable change of each kind, two by two; pairs that beat both of their parts."""
    can = [[each for each in kind if each[1].launchable] for kind in kinds]
    # All pairs would be over a thousand simulations; two that are good alone are nearly always the best together.
    best = [max(kind, key=lambda each: each[1].speedup) for kind in can if kind]
    found = []
    for (first, one), (second, other) in combinations(best, 2):
        changed = first(run)
        both = second(changed) if changed is not None else None
        if both is not None:
            (answer,) = answers(run, [allowed(both)])
            # A pair that hardly beats its better half is not worth doing twice as much.
            if answer.speedup > WORTH * max(one.speedup, other.speedup):
                found.append(answer)
    return sorted(found, key=lambda answer: -answer.speedup)[:PAIRS_SHOWN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change, and what it was simulated to bring (see ``WhatIf``).

    Args:
        change: what to change, a clause.
        step_ms: the step with it.
        makespan_ms: the pipeline window with it.
        speedup: samples per second with it over without.
        microbatches: per pipeline and step.
        idle_share: of its window.
        peak_activations: on the worst rank, in its own micro-batches.
        activations_ratio: memory of activations on the worst rank, with over without.
        assumes: what it takes for granted, a clause each.
        demands: those of them that not every run can give.
        bound: whether nobody can do it: it shows what something costs.
        evidence: always ``simulated``.
    """

    change: str
    step_ms: float
    makespan_ms: float
    speedup: float
    microbatches: int
    idle_share: float
    peak_activations: float
    activations_ratio: float
    assumes: tuple[str, ...]
    demands: tuple[str, ...]
    bound: bool
    evidence: str


def change_of(answer: WhatIf) -> Change:
    """A change with its durations in milliseconds."""
    return Change(
        change=answer.change,
        step_ms=answer.step_ns / MILLISECOND,
        makespan_ms=answer.makespan_ns / MILLISECOND,
        speedup=answer.speedup,
        microbatches=answer.microbatches,
        idle_share=answer.idle_share,
        peak_activations=answer.peak_activations,
        activations_ratio=answer.activations_ratio,
        assumes=answer.assumes,
        demands=answer.demands,
        bound=answer.bound,
        evidence=answer.evidence,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """A change of b: at the global batch that it has, or with what it demands.

    Args:
        change: what to change, a clause.
        predicted_ratio: throughput with it over without.
        against_a_ratio: over that of a; None if no throughput was stated.
        microbatches: per pipeline and step.
        peak_activations: on the worst rank, in its own micro-batches.
        idle_share: of its window.
        activations_ratio: memory of activations, with over without.
        assumes: what it takes for granted, a clause each.
        demands: those of them that not every run can give; empty for what can be launched.
        evidence: always ``simulated``.
    """

    change: str
    predicted_ratio: float
    against_a_ratio: float | None
    microbatches: int
    peak_activations: float
    idle_share: float
    activations_ratio: float
    assumes: tuple[str, ...]
    demands: tuple[str, ...]
    evidence: str


def way_out_of(answer: WhatIf, against: float | None) -> WayOut:
    """A change under the keys of its JSON; ``against`` is the ratio to the run that this one is compared with."""
    against_a = None
    if against is not None:
        against_a = against * answer.speedup
    return WayOut(
        change=answer.change,
        predicted_ratio=answer.speedup,
        against_a_ratio=against_a,
        microbatches=answer.microbatches,
        peak_activations=answer.peak_activations,
        idle_share=answer.idle_share,
        activations_ratio=answer.activations_ratio,
        assumes=answer.assumes,
        demands=answer.demands,
        evidence=answer.evidence,
    )


def next_sentences(found: Remedies) -> Iterator[str]:
    """The first recommendation; what brings more is named with what it asks for, or rests on."""
    first, gained = found.first, WORTH
    if first is not None:
        rests = ""
        if first.open:
            rests = f", if {' and '.join(first.open)}"
        yield f"Next: {first.change}, {first.speedup:.2f} times the samples per second (simulated){rests}."
        gained = first.speedup
    more = [answer for answer in (*found.launchable, *found.beyond) if answer.speedup > gained]
    if more:
        best, word = max(more, key=lambda answer: answer.speedup), "More"
        if first is None:
            word = "Next"
        gain = f"{best.speedup:.2f} times the samples per second (simulated)"
        yield f"{word}: {best.change}, {gain}, if {' and '.join((*best.open, *best.demands))}."


MOST_SLID_OPS = 200_000  # that a page simulates at once
_HALVES = "A schedule that splits the backward takes half of it for each part: state or measure I and W to know better."


@dataclass(frozen=True, slots=True, eq=False)
class Sliders:
    """What a page simulates from.

    Args:
        run: number of the run on the page.
        replay: its order and costs.
        orders: other schedules of the catalog that its ranks, micro-batches and slices allow, each built.
        note: where the durations come from, a sentence.
    """

    run: int
    replay: Replay = field(metadata=HIDDEN)
    orders: tuple[Schedule, ...]
    note: str


def sliders(replay: Replay, note: str, run: int = 0) -> Sliders | None:
    """Where the sliders start; None if the run has too many ops for a page to simulate.

    Args:
        replay: of the run.
        note: on where the durations come from.
        run: its number on the page.
    """
    schedule = replay.schedule
    if len(schedule) > MOST_SLID_OPS:
        return None
    halves = not schedule.splits and not schedule.forward_only and replay.input_share == 0.5
    return Sliders(run, replay, _orders_of(replay), f"{note} {_HALVES}" if halves else note)


def simulated_sliders(timeline: Timeline, costs: Costs, note: str, run: int = 0) -> Sliders | None:
    """Those of a timeline that was simulated with these costs."""
    schedule = timeline.program.schedule
    return sliders(Replay(schedule, costs, recognise(schedule).name), note, run)


def measured_sliders(replay: Replay, resim_ratio: float, run: int = 0) -> Sliders | None:
    """Those of a measured window.

    Args:
        replay: of the window.
        resim_ratio: simulated again over measured.
        run: its number on the page.
    """
    fit = f"the run simulated again takes {100 * resim_ratio:.1f} % of its window"
    return sliders(replay, f"Simulated from the time of each op and hop; {fit}.", run)


def _orders_of(replay: Replay) -> tuple[Schedule, ...]:
    """Every schedule of the catalog, with one chunk, two, or as many as there are."""
    ranks, microbatches = replay.schedule.ranks, replay.schedule.microbatches
    found: dict[tuple[str, int], Schedule] = {}
    for name in CATALOG:
        # One and two are what most frameworks run; more than the run has now are for the planner.
        for chunks in sorted({1, 2, replay.chunks}):
            changed = recast(replay, name, ranks=ranks, microbatches=microbatches, chunks=chunks)
            if changed is not None and not changed.schedule.same_order(replay.schedule):
                found.setdefault((name, changed.chunks), changed.schedule)
    return tuple(found.values())


def mean_rates(run: Replay) -> Rates:
    """The mean duration of each kind, per micro-batch and rank, and the mean hop: what ``show`` takes."""
    schedule = run.schedule
    there = present(schedule).any(axis=2)
    means = stage_means(run.costs, schedule).durations[:, :, 0]
    by_kind = np.where(there, means, 0).sum(axis=1) / schedule.ranks  # a kind that has no op has no mean either
    spent = {"forward": by_kind[Kind.F]}
    if schedule.splits:
        spent |= {"input": by_kind[Kind.I], "weight": by_kind[Kind.W]}
    else:
        spent |= {"backward": by_kind[Kind.B]}
    hops = run.tables[1]
    if hops.any():
        spent["transfer"] = hops[hops > 0].mean()
    # Four digits: a command line is read, and no op is measured better.
    return Rates(**{name: float(f"{value:.4g}") for name, value in spent.items()})  # type: ignore[arg-type]
