"""Validation: how far the planner is from tables of measured runs, as it is and calibrated, beside a constant MFU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..config.config import Layout
from ..core.results import SPARSE, Result
from ..estimate.model import Model, flops_per_token
from ..estimate.setting import Calibration
from .batch import unsuited
from .calibrate import calibrate, predict
from .judge import judge_all
from .runs import Run, RunTable
from .verdict import Traits, expected, if_stalled, intervals, nearest, published, traits

Column = NDArray[np.float64]

DRAWS = 20
DRAWN = 5  # runs that each draw calibrates on
SEED = 0
FOLDS = 5  # parts of a table, each held against intervals from the others
SMALLEST_GROUP = 5  # runs that a group needs to be ranked
CONSTANT_MFU = 0.45  # of the line that a planner must beat
SURE = 0.98  # precision at which the recall of failures is printed too

# From what costs nothing to what leaves least: parts of a layer that are cheap to run again, those with products, all.
CHEAP = ("layernorm", "moe_act", "mla_up_proj")
LADDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("none", ()),
    ("selective", CHEAP),
    ("selective", (*CHEAP, "mlp", "shared_experts")),
    ("full", ()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScore:
    """One table of measured runs held against the planner; None if it cannot say.

    Args:
        name: of the set.
        rows: with a step time that is to be trusted.
        mape_percent: mean of |predicted / measured - 1|.
        mape_after_scale_percent: the same after the best single factor for the set.
        bias_ratio: median of predicted / measured.
        spearman: mean rank correlation within groups.
        top1_regret_percent: measured step of the layout ranked first over the best of its group, mean over groups.
        interval_coverage_share: of the rows, how many lie in the 68 % interval that other rows of their kind give.
        calibrated_mape_percent: like the figures above, the mean over 20 draws of 5 rows, tested on the others.
        calibrated_mape_after_scale_percent: likewise.
        calibrated_bias_ratio: likewise.
        calibrated_spearman: likewise.
        calibrated_top1_regret_percent: likewise.
        constant_mfu_mape_percent: like the figures above, of steps at one utilisation for all.
        constant_mfu_mape_after_scale_percent: likewise.
        constant_mfu_bias_ratio: likewise.
        constant_mfu_spearman: likewise.
        constant_mfu_top1_regret_percent: likewise.
        ran_rows: that ran, whatever is said of their time.
        ran_called_too_large_share: of them, how many the planner gives more bytes than their device has.
        out_of_memory_rows: that failed or ran out of memory.
        out_of_memory_recall_share: of them, how many are called too large; layouts that both ran and failed left out.
        out_of_memory_precision_share: of what is called too large, how many failed.
        memory_rows: that print a peak.
        memory_median_error_percent: median of |predicted / printed - 1|.
        memory_mape_percent: mean of it.
        memory_mape_after_scale_percent: the same after one factor, the median ratio.
        memory_median_ratio: predicted over printed after a factor from 5 other rows, mean over draws.
        calibrated_out_of_memory_recall_share: after that factor.
        calibrated_out_of_memory_precision_share: after that factor.
        recall_at_98_percent_precision_share: the largest recall of any one limit beyond which 98 % failed.
        kinds: the error of each framework, device, width of numbers and feed-forward.
        left_out: rows that cannot be predicted, by reason; and those whose time is not to be trusted.
        taken_as_usual: columns that are unknown in so many rows.
        unknown_columns: that mean nothing here.
    """

    name: str
    rows: int
    mape_percent: float | None
    mape_after_scale_percent: float | None
    bias_ratio: float | None
    spearman: float | None
    top1_regret_percent: float | None
    interval_coverage_share: float | None
    calibrated_mape_percent: float | None
    calibrated_mape_after_scale_percent: float | None
    calibrated_bias_ratio: float | None
    calibrated_spearman: float | None
    calibrated_top1_regret_percent: float | None
    constant_mfu_mape_percent: float | None
    constant_mfu_mape_after_scale_percent: float | None
    constant_mfu_bias_ratio: float | None
    constant_mfu_spearman: float | None
    constant_mfu_top1_regret_percent: float | None
    ran_rows: int
    ran_called_too_large_share: float | None
    out_of_memory_rows: int
    out_of_memory_recall_share: float | None
    out_of_memory_precision_share: float | None
    memory_rows: int
    memory_median_error_percent: float | None
    memory_mape_percent: float | None = field(metadata=SPARSE)
    memory_mape_after_scale_percent: float | None = field(metadata=SPARSE)
    memory_median_ratio: float | None = field(metadata=SPARSE)
    calibrated_out_of_memory_recall_share: float | None = field(metadata=SPARSE)
    calibrated_out_of_memory_precision_share: float | None = field(metadata=SPARSE)
    recall_at_98_percent_precision_share: float | None = field(metadata=SPARSE)
    kinds: tuple[KindScore, ...]
    left_out: tuple[LeftOut, ...]
    taken_as_usual: tuple[TakenAsUsual, ...]
    unknown_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KindScore:
    """The error of one kind of run in a table: predicted beside measured steps, and the median of their ratio."""

    framework: str
    device: str
    numbers: str
    experts: str
    rows: int
    mape_percent: float
    bias_ratio: float


_TOLD_APART = ("framework", "device", "numbers", "experts")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many rows that are left out for a reason."""

    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class TakenAsUsual:
    """A column that is unknown in so many rows, and was taken as it usually is."""

    column: str
    rows: int


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run, predicted beside measured; 0 for what was not measured.

    Args:
        set: its table.
        run: what was measured.
        step_seconds: predicted.
        peak_bytes: predicted.
    """

    set: str
    run: Run
    step_seconds: float
    peak_bytes: float


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Validation(Result):
    """Tables of measured runs held against the planner.

    Args:
        sets: one a table.
        evidence: ``estimated``.
    """

    schema: ClassVar[str] = "validate/2"

    sets: tuple[SetScore, ...]
    evidence: str = "estimated"


def validate(tables: Sequence[RunTable]) -> tuple[Validation, list[ScoredRun]]:
    """Score each table by itself, and every run of all. Nothing is fitted on rows that are tested."""
    scored: list[ScoredRun] = []
    sets = []
    for table in tables:
        settled = replace(table, runs=as_they_fit(table.runs))
        seconds, peaks = simulated_steps(settled.runs)
        rows = zip(settled.runs, seconds.tolist(), peaks.tolist(), strict=True)
        scored += [ScoredRun(table.name, run, step, peak) for run, step, peak in rows]
        sets.append(_scored(settled, seconds, peaks))
    return Validation(sets=tuple(sets)), scored


def simulated_steps(runs: Sequence[Run]) -> tuple[Column, Column]:
    """Seconds of a step and peak bytes as ``plan`` prints them: simulated, the closed form where there is no pipeline.

    A schedule that does not suit its shape here, though it ran, is left to the closed form.
    """
    seconds, peaks = predict(runs)
    alike = defaultdict(list)
    for place, run in enumerate(runs):
        layout = run.layout
        if layout.pipeline > 1 and not unsuited(layout.schedule, layout.pipeline, layout.microbatches, layout.chunks):
            alike[run.model, run.cluster.device.name, run.cluster.gpus_per_node, run.cluster.nic].append(place)
    for places in alike.values():
        first = runs[places[0]]
        plans = judge_all(first.model, first.cluster, [runs[each].layout for each in places])
        seconds[places] = [plan.step / 1e9 for plan in plans]
        peaks[places] = [max(plan.peak_bytes) for plan in plans]
    return seconds, peaks


def as_they_fit(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs, those that finished and do not say how they recompute with the least that fits.

    If nothing fits, everything is recomputed. A run that failed says nothing: it stays as it is.
    """
    settled = list(runs)
    left = [place for place, run in enumerate(runs) if run.status == "ok" and "recompute" in run.unknown]
    for mode, modules in LADDER:
        for place in left:
            settled[place] = _with(settled[place], mode, modules)
        peaks = predict([settled[place] for place in left])[1].tolist()
        too_large = []
        for place, peak in zip(left, peaks, strict=True):
            if peak > settled[place].cluster.device.usable:
                too_large.append(place)
        left = too_large
    return tuple(settled)


def _with(run: Run, mode: str, modules: tuple[str, ...]) -> Run:
    return replace(run, layout=replace(run.layout, recompute=mode, recompute_modules=modules))


def _scored(table: RunTable, seconds: Column, peaks: Column) -> SetScore:
    is_timed = np.fromiter(map(is_to_be_trusted, table.runs), np.bool_, len(table.runs))
    timed = list(filter(is_to_be_trusted, table.runs))
    doubts: dict[str, int] = dict(table.left_out)
    for run in table.runs:
        if run.time_doubt and run.status == "ok":
            doubts[run.time_doubt] = doubts.get(run.time_doubt, 0) + 1
    figures: dict[str, float | None] = dict.fromkeys(_FIGURES)
    calibrated, line = dict(figures), dict(figures)
    # Without a timed row a set may still speak of memory.
    covered: float | None = None
    kinds: tuple[KindScore, ...] = ()
    if timed:
        predicted = seconds[is_timed]
        figures = asdict(errors(timed, predicted, expected_steps(timed, predicted, None)))
        line = asdict(errors(timed, constant_mfu(timed)))
        covered = coverage(timed, predicted)
        kinds = kinds_of(timed, predicted)
    if len(timed) > 2 * DRAWN:
        calibrated = asdict(calibrated_errors(timed, predicted))
    return SetScore(
        name=table.name,
        rows=len(timed),
        interval_coverage_share=covered,
        **figures,  # type: ignore[arg-type]  # the figures of ``Errors`` by their names
        **{f"calibrated_{name}": value for name, value in calibrated.items()},  # type: ignore[arg-type]
        **{f"constant_mfu_{name}": value for name, value in line.items()},  # type: ignore[arg-type]
        **asdict(memory_errors(table.runs, peaks)),
        kinds=kinds,
        left_out=tuple(LeftOut(*each) for each in doubts.items()),
        taken_as_usual=tuple(TakenAsUsual(*each) for each in table.taken_as_usual),
        unknown_columns=table.unknown_columns,
    )


def steps_measured(runs: Sequence[Run]) -> Column:
    """Seconds of a step of each run, float64[runs]."""
    return np.fromiter((run.seconds for run in runs), np.float64, len(runs))


def is_to_be_trusted(run: Run) -> bool:
    """Whether a run finished with a step time that its source stands by."""
    return run.status == "ok" and run.seconds > 0 and not run.time_doubt


@dataclass(frozen=True, slots=True)
class Errors:
    """How predictions of steps compare with what was measured: see ``SetScore``."""

    mape_percent: float
    mape_after_scale_percent: float
    bias_ratio: float
    spearman: float | None
    top1_regret_percent: float | None


_FIGURES = tuple(each.name for each in fields(Errors))


def expected_steps(runs: Sequence[Run], predicted: Column, calibration: Calibration | None) -> Column:
    """The steps by which a plan would rank these runs."""
    stalled = predict(runs, if_stalled(calibration))[0]
    return expected(predicted, stalled, calibration)


def errors(runs: Sequence[Run], predicted: Column, ranked: Column | None = None) -> Errors:
    """Compare predicted seconds with measured ones.

    Args:
        runs: measured.
        predicted: seconds.
        ranked: by which the first of a group is chosen; None for ``predicted``.
    """
    chosen = predicted if ranked is None else ranked
    measured = steps_measured(runs)
    ratio = predicted / measured
    groups = _groups(runs)
    spearman = regret = None
    if groups:
        spearman = float(np.mean([_spearman(predicted[group], measured[group]) for group in groups]))
        regret = 100 * float(np.mean([_regret(chosen[group], measured[group]) for group in groups]))
    return Errors(
        100 * float(np.abs(ratio - 1).mean()),
        100 * _after_scale(ratio),
        float(np.median(ratio)),
        spearman,
        regret,
    )


def _groups(runs: Sequence[Run]) -> list[NDArray[np.int64]]:
    """Positions of the runs of each group that is large enough to be ranked."""
    groups = defaultdict(list)
    for position, run in enumerate(runs):
        groups[run.group].append(position)
    large = filter(lambda group: len(group) >= SMALLEST_GROUP, groups.values())
    return list(map(np.array, large))


def _after_scale(ratio: Column) -> float:
    """Smallest mean of |s x ratio - 1| over all factors s: it lies at one that makes some row exact."""
    # The mean of |s r - 1| is convex and piecewise linear in s: a kink is where some s r = 1.
    return float(min(np.abs(ratio / exact - 1).mean() for exact in ratio))


def _ranks(values: Column) -> Column:
    """Ranks from 0, ties averaged."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    middle: Column = (last - (count + 1) / 2)[place]
    return middle


def _spearman(predicted: Column, measured: Column) -> float:
    """Correlation of ranks; 0 if either ranks nothing."""
    a, b = _ranks(predicted), _ranks(measured)
    if not a.std() or not b.std():
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _regret(predicted: Column, measured: Column) -> float:
    """Measured step of what is ranked first, ties averaged, over the best, less 1."""
    first = np.isclose(predicted, predicted.min(), rtol=1e-9)  # ties as a user meets them: any of them is picked
    return float(measured[first].mean() / measured.min() - 1)


def kind_of(run: Run) -> Traits:
    """What the error of a run depends on."""
    return traits(run.model, run.cluster, run.layout, run.framework)


def coverage(runs: Sequence[Run], predicted: Column) -> float:
    """Share of the runs whose measured step lies in an interval from runs that are not among them.

    The runs are dealt out to ``FOLDS`` parts at random; the interval of each part comes from all other parts of the
    same table, by kind; where too few are of a kind, from the published runs of the nearest one.
    """
    kinds = [kind_of(run) for run in runs]
    ratios = predicted / steps_measured(runs)
    # At random, since neighbours in a table are runs of one job: an interval from them would hold them all too well.
    part = np.random.default_rng(SEED).permutation(len(runs)) % FOLDS
    within = []
    for number in range(FOLDS):
        others = np.flatnonzero(part != number)
        known = [*intervals([kinds[place] for place in others], ratios[others]), *published()]
        for place in np.flatnonzero(part == number):
            within.append(abs(1 / ratios[place] - 1) <= nearest(kinds[place], known).band)
    return float(np.mean(within))


def kinds_of(runs: Sequence[Run], predicted: Column) -> tuple[KindScore, ...]:
    """The error for each framework, device, precision of numbers and feed-forward in a table."""
    members: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        kind = kind_of(run)
        members[tuple(kind.get(name, "") for name in _TOLD_APART)].append(place)
    ratios = predicted / steps_measured(runs)
    found = []
    for (framework, device, numbers, experts), places in sorted(members.items()):
        of_kind = ratios[places]
        mape, bias = 100 * float(np.abs(of_kind - 1).mean()), float(np.median(of_kind))
        found.append(KindScore(framework, device, numbers, experts, len(places), mape, bias))
    return tuple(found)


def calibrated_errors(runs: Sequence[Run], simulated: Column | None = None, *, seed: int = SEED) -> Errors:
    """Mean errors over draws: each calibrates on some runs and is tested on the others.

    Args:
        runs: with step times.
        simulated: their steps as the generic model simulates them, seconds: what simulation adds to the closed form, by
            which factors are fitted, is taken to be the same under every calibration. None for the closed form alone.
        seed: of the draws.
    """
    # Simulating under each of 20 calibrations would take minutes; the schedule's share hardly depends on the factors.
    beyond = np.ones(len(runs)) if simulated is None else simulated / predict(runs)[0]
    random = np.random.default_rng(seed)
    draws = []
    for _ in range(DRAWS):
        chosen = set(random.choice(len(runs), DRAWN, replace=False).tolist())
        known = [runs[i] for i in sorted(chosen)]
        others = [run for i, run in enumerate(runs) if i not in chosen]
        calibration = calibrate(known)
        predicted = predict(others, calibration)[0] * np.delete(beyond, sorted(chosen))
        draws.append(errors(others, predicted, expected_steps(others, predicted, calibration)))
    means = {name: _mean([getattr(draw, name) for draw in draws]) for name in _FIGURES}
    return Errors(**means)  # type: ignore[arg-type]  # by the same names


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def constant_mfu(runs: Sequence[Run]) -> Column:
    """Seconds of a step at one model FLOP utilisation for all, full recomputation counted as a third more work."""
    steps = []
    for run in runs:
        layout = run.layout
        work = flops_per_token(run.model, layout.sequence) * layout.sequence * layout.global_batch
        again = 1.0
        if layout.recompute == "full":  # a forward more, beside one forward and a backward of two
            again = 4 / 3
        peak = run.cluster.device.peak(layout.precision)
        steps.append(work * again / (layout.gpus * peak * CONSTANT_MFU))
    return np.array(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """How predicted peaks compare with printed ones, and whether failures are told apart: see ``SetScore``."""

    ran_rows: int
    ran_called_too_large_share: float | None
    out_of_memory_rows: int
    out_of_memory_recall_share: float | None
    out_of_memory_precision_share: float | None
    memory_rows: int
    memory_median_error_percent: float | None = None
    memory_mape_percent: float | None = None
    memory_mape_after_scale_percent: float | None = None
    memory_median_ratio: float | None = None
    calibrated_out_of_memory_recall_share: float | None = None
    calibrated_out_of_memory_precision_share: float | None = None
    recall_at_98_percent_precision_share: float | None = None


def memory_errors(runs: Sequence[Run], peaks: Column) -> MemoryErrors:
    """Compare predicted peaks with printed ones, and with who ran and who ran out."""
    room = np.array([run.cluster.device.usable for run in runs])
    ran = np.array([run.status == "ok" for run in runs], np.bool_)
    certain, failed = _certain(runs)
    fullness = peaks[certain] / room[certain]
    recall, precision = _told_apart(fullness > 1, failed)
    printed = np.array([run.memory for run in runs])
    # A run that failed prints what it had when it failed, which is no peak of the layout.
    sized = (printed > 0) & ran
    scores = {
        "ran_rows": int(ran.sum()),
        "ran_called_too_large_share": float((peaks[ran] > room[ran]).mean()) if ran.any() else None,
        "out_of_memory_rows": int(failed.sum()),
        "out_of_memory_recall_share": recall,
        "out_of_memory_precision_share": precision,
        "memory_rows": int(sized.sum()),
    }
    if sized.any():
        scores |= _peak_errors(peaks[sized] / printed[sized])
    if sized.sum() > 2 * DRAWN:
        scores |= _after_a_factor(peaks[sized] / printed[sized], fullness, failed)
    return MemoryErrors(**scores)  # type: ignore[arg-type]  # by the same names


def _peak_errors(ratio: Column) -> dict[str, float | None]:
    """Errors of predicted over printed peaks."""
    return {
        "memory_median_error_percent": 100 * float(np.median(np.abs(ratio - 1))),
        "memory_mape_percent": 100 * float(np.abs(ratio - 1).mean()),
        "memory_mape_after_scale_percent": 100 * float(np.abs(ratio / np.median(ratio) - 1).mean()),
    }


def _after_a_factor(ratio: Column, fullness: Column, failed: NDArray[np.bool_]) -> dict[str, float | None]:
    """Means over draws of a factor on memory from a few printed peaks."""
    random = np.random.default_rng(SEED)
    medians, recalls, precisions = [], [], []
    for _ in range(DRAWS):
        chosen = random.choice(len(ratio), DRAWN, replace=False)
        # One factor for a whole cluster: what its software keeps beside the model, as a share.
        factor = 1 / np.median(ratio[chosen])
        medians.append(float(np.median(np.delete(ratio, chosen) * factor)))
        recall, precision = _told_apart(fullness * factor > 1, failed)
        recalls.append(recall)
        precisions.append(precision)
    return {
        "memory_median_ratio": _mean(medians),
        "calibrated_out_of_memory_recall_share": _mean(recalls),
        "calibrated_out_of_memory_precision_share": _mean(precisions),
        "recall_at_98_percent_precision_share": _recall_at(SURE, fullness, failed),
    }


def _certain(runs: Sequence[Run]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Positions of one run for each layout that always ran or always failed, and which of them failed."""
    first: dict[tuple[Model, str, Layout], int] = {}
    states: dict[tuple[Model, str, Layout], set[bool]] = defaultdict(set)
    for position, run in enumerate(runs):
        bare = (run.model, run.cluster.device.name, run.layout)
        first.setdefault(bare, position)
        states[bare].add(run.status != "ok")
    positions, failed = [], []
    for bare, position in first.items():
        if len(states[bare]) == 1:  # a layout that both ran and failed says nothing of its memory
            positions.append(position)
            failed.append(True in states[bare])
    return np.array(positions, np.int64), np.array(failed, np.bool_)


def _told_apart(beyond: NDArray[np.bool_], failed: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    """Recall and precision of failures; None if nothing failed."""
    if not failed.any():
        return None, None
    hits = int((beyond & failed).sum())
    return hits / int(failed.sum()), hits / max(int(beyond.sum()), 1)


def _recall_at(precision: float, fullness: Column, failed: NDArray[np.bool_]) -> float | None:
    """Largest share of the failures that lie beyond a limit at which enough of what lies beyond it failed."""
    if not failed.any():
        return None
    # Fullest first: after k of them, how many failed; the longest prefix that is precise enough.
    hits = np.cumsum(failed[np.argsort(-fullness, kind="stable")])
    enough = hits >= precision * np.arange(1, len(hits) + 1)
    return float(hits[enough].max(initial=0) / failed.sum())
