"""Splits of weighted blocks over ranks, each simulated, as scripts and reports have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import Fault, InputError
from ..core.results import Result
from ..schedules.catalog import entry_of
from .splits import Split, best_splits, judged, lightest

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
