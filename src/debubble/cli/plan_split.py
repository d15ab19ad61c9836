"""``plan --weights``: the best split of uneven blocks over ranks, each simulated exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import Fault, InputError
from ..verbs.needs import needed, unused
from .console import say

if TYPE_CHECKING:
    from ..planning.splits import Split

SHOWN = 10
MOST_OPS = 100_000  # of one split
_OTHERS = ("model", "gpu", "gpus", "global_batch", "rampup", "emit", "calibrate", "tensor", "data", "chunks", "nodes")


def plan_split(said: dict[str, Any], *, as_json: bool) -> int:
    """Print splits of weighted blocks, shortest first, for each number of micro-batches."""
    from ..planning.splits import best_splits, judged, lightest
    from ..schedules.catalog import entry_of

    needed(said, "pipeline", "microbatches")
    unused(said, *_OTHERS, why="blocks and their weights are all that a split is made of")
    weights, (ranks, *_) = said["weights"], said["pipeline"]
    _possible(weights, ranks, said)
    name = entry_of(said["schedule"] or "1f1b").name
    tables = {}
    for many in said["microbatches"]:
        given = [judged(split, weights, many, name) for split in said["split"]]
        tables[many] = sorted([*given, *best_splits(weights, ranks, many, name)], key=lambda one: one.makespan)
    least = lightest(weights, ranks)
    if as_json:
        from .report import emit

        emit(_document(tables, ranks, name, least, said["split"]))
    else:
        say(_text(tables, weights, ranks, least, said["split"]))
    return 0


def _possible(weights: tuple[float, ...], ranks: int, said: dict[str, Any]) -> None:
    faults = []
    if ranks > len(weights):
        faults.append(
            Fault(f"pipeline = {ranks}", f"{len(weights)} blocks cannot fill it", f"give {len(weights)} or less")
        )
    for split in said["split"]:
        if len(split) != ranks or sum(split) != len(weights):
            rule = f"it shares {len(weights)} blocks out over {ranks} ranks"
            faults.append(Fault(f"split = {','.join(map(str, split))}", rule, "correct it"))
    most = MOST_OPS // (2 * ranks)
    for many in said["microbatches"]:
        if many > most:
            rule = "each split is simulated; beyond that a step grows by the heaviest stage for each micro-batch"
            faults.append(Fault(f"microbatches = {many}", rule, f"give at most {most:,}"))
    if faults:
        raise InputError(*faults)


def _row(split: Split) -> dict[str, Any]:
    return {
        "split": split.blocks,
        "weights": split.weights,
        "heaviest": split.heaviest,
        "balance": split.balance,
        "makespan": split.makespan,
        "idle_share": split.idle_share,
        "empty_stage": 0 in split.blocks,
    }


def _document(
    tables: dict[int, list[Split]], ranks: int, name: str, least: float, asked: tuple[tuple[int, ...], ...]
) -> dict[str, Any]:
    candidates = [
        {"pipeline": ranks, "microbatches": many, "schedule": name, **_row(split)}
        for many, found in tables.items()
        for split in _unique(found)
        if split.blocks in asked or split in _unique(found)[:SHOWN]
    ]
    document = {"candidates": candidates, "rejected": [], "heaviest_at_least": least}
    return document | {"verdict": _verdict(tables), "evidence": "simulated"}


def _verdict(tables: dict[int, list[Split]]) -> list[str]:
    """For each number of micro-batches the best split, and whether its heaviest stage alone would have told it."""
    sentences = []
    for many, found in tables.items():
        best = found[0]
        alike = [split for split in _unique(found) if split.heaviest <= best.heaviest * (1 + 1e-9)]
        said = f"{many} micro-batches: {','.join(map(str, best.blocks))} is best, {best.makespan:.4g}"
        if len(alike) > 1:
            said += f"; {len(alike)} splits have the same heaviest stage, up to {max(s.makespan for s in alike):.4g}"
        sentences.append(said)
    return sentences


def _unique(found: list[Split]) -> list[Split]:
    return list({split.blocks: split for split in found}.values())


def _text(
    tables: dict[int, list[Split]],
    weights: tuple[float, ...],
    ranks: int,
    least: float,
    asked: tuple[tuple[int, ...], ...],
) -> str:
    from ..drawing.tables import table

    lines = [f"{len(weights)} blocks on {ranks} ranks: no split has a heaviest stage below {least:.4g}."]
    lines += [f"  {sentence}" for sentence in _verdict(tables)]
    for many, found in tables.items():
        splits = [s for n, s in enumerate(_unique(found)) if n < SHOWN or s.blocks in asked]
        rows = [
            [
                ",".join(map(str, split.blocks)),
                f"{split.heaviest:.4g}",
                f"{split.makespan:.4g}",
                f"{100 * split.idle_share:.1f} %",
                "empty stage" if 0 in split.blocks else "",
            ]
            for split in splits
        ]
        lines += [f"{many} micro-batches, times of a weight of 1 (simulated)"]
        lines.append(table(("split", "heaviest", "makespan", "idle", ""), rows))
    return "\n".join(lines)
