"""Splits: which layers or weighted blocks each stage holds, as a search tries them and as simulation ranks them.

Where layers do not divide, all splits with the same heaviest stage are not alike: with 30 layers on 4 ranks and 8
micro-batches of 1F1B, 8,8,7,7 takes 84 and 7,7,8,8 takes 86 (in times of a layer, F and B together).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb
from typing import ClassVar

import numpy as np

from ..config.config import even_split
from ..core.account import account
from ..core.costs import Costs
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.results import Result
from ..core.schedule import KINDS, Kind, Schedule, Shape
from ..core.simulate import simulate
from ..estimate.model import Model, layer_flops
from ..schedules.catalog import build, entry_of

MOST = 400  # splits to simulate, in some seconds
UNIT = 3_000_000  # nanoseconds that F and B of a weight of 1 take, F a third of it


@dataclass(frozen=True, slots=True)
class Split:
    """One split and what it costs.

    Args:
        blocks: how many blocks each stage holds.
        weights: their weight, stage by stage.
        makespan: of the step, in times that a weight of 1 takes for F and B together.
        idle_share: 0 to 1.
    """

    blocks: tuple[int, ...]
    weights: tuple[float, ...]
    makespan: float
    idle_share: float

    @property
    def heaviest(self) -> float:
        """Weight of the heaviest stage."""
        return max(self.weights)

    @property
    def balance(self) -> float:
        """Mean weight over the heaviest: the busy share that no number of micro-batches can exceed."""
        return sum(self.weights) / len(self.weights) / self.heaviest


def judged(blocks: Sequence[int], weights: Sequence[float], microbatches: int, schedule: str = "1f1b") -> Split:
    """Simulate a split of weighted blocks, one stage a rank, F : B = 1 : 2, free transfers.

    Args:
        blocks: how many of the blocks each stage holds, in order; their sum is the number of weights.
        weights: of each block.
        microbatches: per step, m.
        schedule: a name of the catalog with one stage a rank.
    """
    order = build(schedule, Shape(len(blocks), microbatches))
    return _judged(order, tuple(blocks), weights)


def _judged(order: Schedule, blocks: tuple[int, ...], weights: Sequence[float]) -> Split:
    edges = np.concatenate([[0], np.cumsum(blocks)])
    held = np.array([sum(weights[a:b]) for a, b in pairwise(edges)])
    durations = np.zeros((KINDS, len(blocks), 1), np.int64)
    # F : I : W = 1 : 1 : 1, as FLOPs of matrix products are.
    for kind, share in ((Kind.F, 1 / 3), (Kind.I, 1 / 3), (Kind.W, 1 / 3), (Kind.B, 2 / 3)):
        durations[kind, :, 0] = np.rint(held * UNIT * share)
    timeline = simulate(lower(order), Costs(durations, np.zeros_like(durations)))
    return Split(blocks, tuple(map(float, held)), timeline.makespan / UNIT, account(timeline).idle_share)


def best_splits(weights: Sequence[float], ranks: int, microbatches: int, schedule: str = "1f1b") -> list[Split]:
    """Splits with the lightest heaviest stage, shortest first; all of them where they are few.

    Args:
        weights: of each block, in order; a stage holds a run of them.
        ranks: stages, one a rank.
        microbatches: per step, m.
        schedule: a name of the catalog with one stage a rank.
    """
    order = build(schedule, Shape(ranks, microbatches))
    found = [_judged(order, blocks, weights) for blocks in _candidates(weights, ranks)]
    return sorted(found, key=lambda split: (split.makespan, split.heaviest, tuple(-n for n in split.blocks)))


def _candidates(weights: Sequence[float], ranks: int) -> list[tuple[int, ...]]:
    if comb(len(weights) - 1, ranks - 1) <= MOST:
        cuts = combinations(range(1, len(weights)), ranks - 1)
        return [tuple(np.diff([0, *cut, len(weights)]).tolist()) for cut in cuts]
    if len(set(weights)) == 1:
        return list(dict.fromkeys(_where_to_put_the_rest(len(weights), ranks)))
    # Too many to try all: the lightest heaviest stage is known exactly, and the few ways that fill stages up to it
    # are what is simulated.
    limit = lightest(weights, ranks)
    return list(
        dict.fromkeys(
            [_packed(weights, ranks, limit), _packed_from_the_end(weights, ranks, limit), *_even(weights, ranks, limit)]
        )
    )


def _where_to_put_the_rest(blocks: int, ranks: int) -> Iterator[tuple[int, ...]]:
    """Equal blocks: every choice of the stages that hold one more, or the first, last and spread ones."""
    least, over = divmod(blocks, ranks)
    choices: Iterator[tuple[int, ...]] | list[tuple[int, ...]] = combinations(range(ranks), over)
    # Too many choices: fuller stages first, last or spread, between which all others lie.
    if comb(ranks, over) > MOST:
        spread = tuple(sorted({round(n * ranks / over) for n in range(over)}))
        choices = [tuple(range(over)), tuple(range(ranks - over, ranks)), spread[:over]]
    for chosen in choices:
        if len(chosen) == over:
            yield tuple(least + (rank in chosen) for rank in range(ranks))


def lightest(weights: Sequence[float], ranks: int) -> float:
    """The least weight that the heaviest stage can have, by search over where a stage may end."""
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    found = np.full(len(sums), np.inf)
    found[0] = 0.0
    # After n rounds found[k] is the lightest heaviest stage of k blocks on n ranks: each round adds a rank.
    for _ in range(ranks):
        heavier = np.maximum(found[None, :], sums[:, None] - sums[None, :])
        found = np.where(sums[:, None] > sums[None, :], heavier, np.inf).min(axis=1)
    return float(found[-1])


def _packed(weights: Sequence[float], ranks: int, limit: float) -> tuple[int, ...]:
    """Each stage takes as many blocks as its limit allows, and leaves one for each stage behind it."""
    blocks, held = [0], 0.0
    for n, weight in enumerate(weights):
        left = len(weights) - n
        # Sums of fractions differ from the limit by rounding; and every later stage must get a block.
        full = held + weight > limit + 1e-9 or left <= ranks - len(blocks)
        if blocks[-1] and full and len(blocks) < ranks:
            blocks.append(0)
            held = 0.0
        blocks[-1] += 1
        held += weight
    return tuple(blocks)


def _packed_from_the_end(weights: Sequence[float], ranks: int, limit: float) -> tuple[int, ...]:
    return _packed(list(weights)[::-1], ranks, limit)[::-1]


def _even(weights: Sequence[float], ranks: int, limit: float) -> Iterator[tuple[int, ...]]:
    """Cuts where the running sum passes the equal shares, as far as no stage is heavier than the limit."""
    sums = np.cumsum(weights)
    cuts = [int(np.argmin(np.abs(sums - sums[-1] * (n + 1) / ranks))) + 1 for n in range(ranks - 1)]
    blocks = np.diff([0, *cuts, len(weights)])
    edges = np.concatenate([[0.0], sums])[[0, *cuts, len(weights)]]
    if (blocks > 0).all() and np.diff(edges).max() <= limit + 1e-9:
        yield tuple(blocks.tolist())


def candidate_splits(model: Model, ranks: int, chunks: int, sequence: int) -> tuple[tuple[int, ...], ...]:
    """As even as can be; with fewer layers beside the head, where that evens the work out; and both with fewer first.

    Args:
        model: what is split.
        ranks: of the pipeline.
        chunks: stages on each of them; with several, the first stage is too small a part of its rank to matter.
        sequence: tokens in a sample.
    """
    stages = ranks * chunks
    even = even_split(model.layers, stages)
    lighter = lighter_end(model.layers, stages, head_in_layers(model, sequence))
    # An even split is what frameworks do by themselves; the head makes the last stage heavier.
    found = [even, lighter]
    # The first rank keeps most activations: a layer less there may be what makes a layout fit.
    if chunks == 1:
        found += [lighter_start(even), lighter_start(lighter)]
    if model.is_hybrid:  # as many layers a stage are not as much work
        found.append(_balanced(model, stages, sequence))
    return tuple(dict.fromkeys(found))


def split_by_speed(layers: int, speeds: Sequence[float], head: float) -> tuple[int, ...]:
    """Layers of stages on unlike devices, so that the slowest stage is as fast as can be: greedy, which is optimal.

    Args:
        layers: of the model, as many as stages at least.
        speeds: of the device of each stage.
        head: layers that the head weighs, on the last stage.
    """
    held = [1] * len(speeds)
    beside = [0.0] * (len(speeds) - 1) + [head]
    for _ in range(layers - len(speeds)):
        later = [(held[n] + 1 + beside[n]) / speed for n, speed in enumerate(speeds)]
        # Of equals the last: later stages keep fewer activations.
        held[len(later) - 1 - int(np.argmin(later[::-1]))] += 1
    return tuple(held)


def _balanced(model: Model, stages: int, sequence: int) -> tuple[int, ...]:
    """Runs of layers with the lightest heaviest stage, each layer by its own FLOPs and the last with the head."""
    of_kind = [layer_flops(model, kind, float(sequence)) for kind in model.kinds]
    weights = [of_kind[place] for place in model.pattern]
    weights[-1] += 2.0 * model.hidden * model.vocab
    return _packed(weights, stages, lightest(weights, stages))


def head_in_layers(model: Model, sequence: int) -> float:
    """Work of the head and loss in times of the model's last layer: 1.1 for Llama 3 70B at 8,192 tokens."""
    layer = layer_flops(model, model.whole_kind, sequence)
    return 2.0 * model.hidden * model.vocab / layer


def lighter_end(layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Fewer layers on the last stage, so that with a head of ``head`` layers the heaviest stage is lightest."""
    if stages == 1:
        return (layers,)

    # Of equally heavy choices the last stage takes most, so that the others keep fewer activations.
    def heaviest(last: int) -> tuple[float, int]:
        return max(-(-(layers - last) // (stages - 1)), last + head), -last

    last = min(range(layers // stages + 1), key=heaviest)
    return (*even_split(layers - last, stages - 1), last)


def lighter_start(split: tuple[int, ...]) -> tuple[int, ...]:
    """One of the smaller stages in between changes places with the first, whose rank holds most activations.

    No stage becomes heavier by that. Where those in between are alike, the split stays as it is.
    """
    inner = split[1:-1]
    if not inner or min(inner) >= split[0]:
        return split
    place = 1 + inner.index(min(inner))
    return (split[place], *split[1:place], split[0], *split[place + 1 :])


SHOWN = 10  # splits of each number of micro-batches, beside those that were asked for
MOST_OPS = 40_000  # of one split: some hundred are simulated, in ten seconds
SAME = 1e-9  # relative, of the heaviest stage

Blocks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCost:
    """One split and what it costs.

    Args:
        pipeline: ranks.
        microbatches: per step.
        schedule: by name.
        split: how many blocks each stage holds.
        weights: their weight, stage by stage.
        heaviest: weight of the heaviest stage.
        balance: mean weight over that.
        makespan: of the step, in times that a weight of 1 takes for F and B together.
        step_ms: the same if weights are milliseconds.
        idle_share: of the step.
        empty_stage: whether a stage holds nothing.
    """

    pipeline: int
    microbatches: int
    schedule: str
    split: Blocks
    weights: tuple[float, ...]
    heaviest: float
    balance: float
    makespan: float
    step_ms: float
    idle_share: float
    empty_stage: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Splits(Result):
    """The best splits of weighted blocks over ranks.

    Args:
        blocks: how many there are.
        pipeline: ranks.
        splits: for each number of micro-batches, the shortest first.
        candidates: the same, under the key that ``plan`` has for them.
        rejected: none.
        heaviest_at_least: no split has a lighter heaviest stage.
        verdict: for each number of micro-batches the best split.
        evidence: ``simulated``.
    """

    schema: ClassVar[str] = "split/1"

    blocks: int
    pipeline: int
    splits: tuple[SplitCost, ...]
    candidates: tuple[SplitCost, ...]
    rejected: tuple[str, ...]
    heaviest_at_least: float
    verdict: tuple[str, ...]
    evidence: str


def splits_of(
    weights: tuple[float, ...], ranks: int, microbatches: Sequence[int], asked: Sequence[Blocks], schedule: str
) -> Splits:
    """Simulate splits of weighted blocks, for each number of micro-batches.

    Args:
        weights: of the blocks, in order.
        ranks: over which they are split.
        microbatches: per step, each of which is answered.
        asked: splits to compare with the best.
        schedule: by name.

    Raises:
        InputError: blocks that cannot fill the ranks, a split of other blocks, more ops than can be simulated.
    """
    _possible(len(weights), ranks, microbatches, asked, schedule)
    tables = {}
    for many in microbatches:
        given = [judged(split, weights, many, schedule) for split in asked]
        found = sorted([*given, *best_splits(weights, ranks, many, schedule)], key=lambda one: one.makespan)
        tables[many] = list({split.blocks: split for split in found}.values())
    rows = tuple(
        _row(split, ranks, many, schedule)
        for many, found in tables.items()
        for place, split in enumerate(found)
        if place < SHOWN or split.blocks in asked
    )
    return Splits(
        blocks=len(weights),
        pipeline=ranks,
        splits=rows,
        candidates=rows,
        rejected=(),
        heaviest_at_least=lightest(weights, ranks),
        verdict=tuple(_verdict(tables)),
        evidence="simulated",
    )


def _possible(blocks: int, ranks: int, microbatches: Sequence[int], asked: Sequence[Blocks], schedule: str) -> None:
    faults = []
    if (held := entry_of(schedule).chunks) > 1:
        rule = f"blocks are split into one stage a rank, and it has {held}"
        faults.append(Fault(f"schedule = {schedule}", rule, "give 1f1b or another of one stage a rank"))
    if ranks > blocks:
        faults.append(Fault(f"pipeline = {ranks}", f"{blocks} blocks cannot fill it", f"give {blocks} or less"))
    for split in asked:
        if len(split) != ranks or sum(split) != blocks:
            rule = f"it shares {blocks} blocks out over {ranks} ranks"
            faults.append(Fault(f"split = {','.join(map(str, split))}", rule, "correct it"))
    most = MOST_OPS // (2 * ranks)
    for many in microbatches:
        if many > most:
            rule = "each split is simulated; beyond that a step grows by the heaviest stage for each micro-batch"
            faults.append(Fault(f"microbatches = {many}", rule, f"give at most {most:,}"))
    if faults:
        raise InputError(*faults)


def _row(split: Split, ranks: int, microbatches: int, schedule: str) -> SplitCost:
    return SplitCost(
        pipeline=ranks,
        microbatches=microbatches,
        schedule=schedule,
        split=tuple(split.blocks),
        weights=tuple(split.weights),
        heaviest=split.heaviest,
        balance=split.balance,
        makespan=split.makespan,
        step_ms=split.makespan,
        idle_share=split.idle_share,
        empty_stage=0 in split.blocks,
    )


def _verdict(tables: Mapping[int, Sequence[Split]]) -> Iterator[str]:
    """For each number of micro-batches the best split, and whether its heaviest stage alone would have told it."""
    for many, found in tables.items():
        best = found[0]
        alike = [split for split in found if split.heaviest <= best.heaviest * (1 + SAME)]
        said = f"{many} micro-batches: {','.join(map(str, best.blocks))} is best, {best.makespan:.4g}"
        if len(alike) > 1:
            most = max(split.makespan for split in alike)
            said += f"; {len(alike)} splits have the same heaviest stage, up to {most:.4g}"
        yield said
