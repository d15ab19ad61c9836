"""Validation: how far the planner is from measured tables, without and with calibration, beside a constant MFU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .calibrate import calibrate
from .predict import constant_mfu, predict
from .rows import Row

Column = NDArray[np.float64]

DRAWS = 20
ROWS = 5  # that each draw calibrates on
SEED = 0
SMALLEST_GROUP = 5  # rows that a group needs to be ranked


@dataclass(frozen=True, slots=True)
class Errors:
    """How predictions of a set compare with what was measured; None where the set cannot say.

    Args:
        mape_percent: mean of |predicted / measured - 1|.
        mape_after_scale_percent: the same after the best single factor for the set.
        bias_ratio: median of predicted / measured.
        spearman: mean rank correlation within groups of equal model, devices and batch.
        top1_regret_percent: measured step of the layout ranked first over the best of its group, mean over groups.
    """

    mape_percent: float
    mape_after_scale_percent: float
    bias_ratio: float
    spearman: float | None
    top1_regret_percent: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """How predicted peaks compare, and whether failures are told apart.

    Args:
        rows: with a printed peak.
        mape_percent: mean of |predicted / printed - 1|.
        mape_after_scale_percent: after one factor, the median ratio.
        median_ratio: predicted over printed, after a factor from ``ROWS`` other rows, mean over draws.
        failures: rows that failed, layouts that both failed and ran left out.
        recall: of the failures, how many are predicted beyond the device's memory, after that factor; mean over draws.
        precision: of the rows predicted beyond it, how many failed.
        recall_at_98: the largest recall of any one limit at which 98 % of what lies beyond it failed.
    """

    rows: int
    mape_percent: float
    mape_after_scale_percent: float
    median_ratio: float
    failures: int
    recall: float | None
    precision: float | None
    recall_at_98: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """One set: errors of the generic model, of the calibrated one on unseen rows, and of a constant MFU."""

    name: str
    rows: int
    generic: Errors
    calibrated: Errors | None
    constant_mfu: Errors
    memory: Memory | None


def validate(name: str, rows: Sequence[Row]) -> Score:
    """Score one set."""
    timed = [row for row in rows if row.status == "ok" and row.seconds > 0]
    return Score(
        name,
        len(timed),
        errors(timed, predict(timed)[0]),
        _calibrated(timed) if len(timed) > 2 * ROWS else None,
        errors(timed, constant_mfu(timed)),
        memory_errors(rows),
    )


def errors(rows: Sequence[Row], predicted: Column) -> Errors:
    """Compare predicted seconds with measured ones."""
    measured = np.array([row.seconds for row in rows])
    ratio = predicted / measured
    groups = _groups(rows)
    ranked = [_spearman(predicted[group], measured[group]) for group in groups]
    regret = [_regret(predicted[group], measured[group]) for group in groups]
    return Errors(
        100 * float(np.abs(ratio - 1).mean()),
        100 * _after_scale(ratio),
        float(np.median(ratio)),
        float(np.mean(ranked)) if groups else None,
        100 * float(np.mean(regret)) if groups else None,
    )


def _groups(rows: Sequence[Row]) -> list[NDArray[np.int64]]:
    found = defaultdict(list)
    for position, row in enumerate(rows):
        found[row.group].append(position)
    return [np.array(group) for group in found.values() if len(group) >= SMALLEST_GROUP]


def _after_scale(ratio: Column) -> float:
    """Smallest mean of |s x ratio - 1| over all factors s: it lies where some row becomes exact."""
    return float(min(np.abs(ratio / one - 1).mean() for one in ratio))


def _ranks(values: Column) -> Column:
    """Ranks from 0, ties averaged."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    middle: Column = (last - (count + 1) / 2)[place]
    return middle


def _spearman(predicted: Column, measured: Column) -> float:
    a, b = _ranks(predicted), _ranks(measured)
    if not a.std() or not b.std():
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _regret(predicted: Column, measured: Column) -> float:
    """Measured step of what is ranked first, ties averaged, over the best, less 1."""
    first = np.isclose(predicted, predicted.min(), rtol=1e-9)
    return float(measured[first].mean() / measured.min() - 1)


def _calibrated(rows: Sequence[Row]) -> Errors:
    """Mean errors over draws: each calibrates on some rows and is tested on the rest."""
    random = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWS):
        chosen = set(random.choice(len(rows), ROWS, replace=False).tolist())
        known = [rows[i] for i in sorted(chosen)]
        rest = [row for i, row in enumerate(rows) if i not in chosen]
        found.append(errors(rest, predict(rest, calibrate(known))[0]))
    return Errors(*(_mean([getattr(e, f.name) for e in found]) for f in fields(Errors)))  # type: ignore[arg-type]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def memory_errors(rows: Sequence[Row]) -> Memory | None:
    """Compare predicted peaks with printed ones, and failures with layouts that ran; None without printed peaks."""
    ran = [row for row in rows if row.memory > 0 and row.status in ("ok", "suspect")]
    if len(ran) <= 2 * ROWS:
        return None
    ratio = predict(ran)[1] / np.array([row.memory for row in ran])
    labelled, failed = _failures(rows)
    peak = predict(labelled)[1] if failed.any() else np.zeros(0)
    room = np.array([row.cluster.device.memory for row in labelled])
    random = np.random.default_rng(SEED)
    found = []
    for _ in range(DRAWS):
        chosen = random.choice(len(ran), ROWS, replace=False)
        factor = 1 / np.median(ratio[chosen])
        rest = np.delete(ratio, chosen)
        beyond = peak * factor > room if failed.any() else np.zeros(0, bool)
        found.append((float(np.median(rest * factor)), *_told_apart(beyond, failed)))
    middle, recall, precision = (_mean(column) for column in zip(*found, strict=True))
    return Memory(
        len(ran),
        100 * float(np.abs(ratio - 1).mean()),
        100 * float(np.abs(ratio / np.median(ratio) - 1).mean()),
        middle or 0.0,
        int(failed.sum()),
        recall,
        precision,
        _recall_at(0.98, peak / room if failed.any() else peak, failed),
    )


def _failures(rows: Sequence[Row]) -> tuple[list[Row], NDArray[np.bool_]]:
    """One row a layout that always ran or always failed, and which of them failed."""
    seen: dict[object, tuple[Row, set[bool]]] = {}
    for row in rows:
        bare = (row.model, row.cluster.device.name, row.layout)
        seen.setdefault(bare, (row, set()))[1].add(row.status not in ("ok", "suspect"))
    certain = [(row, states == {True}) for row, states in seen.values() if len(states) == 1]
    return [row for row, _ in certain], np.array([failed for _, failed in certain], bool)


def _told_apart(beyond: NDArray[np.bool_], failed: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    if not failed.any():
        return None, None
    hits = int((beyond & failed).sum())
    return hits / int(failed.sum()), hits / max(int(beyond.sum()), 1)


def _recall_at(precision: float, fullness: Column, failed: NDArray[np.bool_]) -> float | None:
    """Largest share of the failures that lie beyond a limit at which enough of what lies beyond it failed."""
    if not failed.any():
        return None
    hits = np.cumsum(failed[np.argsort(-fullness, kind="stable")])
    enough = hits >= precision * np.arange(1, len(hits) + 1)
    return float(hits[enough].max(initial=0) / failed.sum())
