"""The search: screen every legal layout by closed forms, simulate the most promising exactly, rank what fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..config.config import Layout
from ..config.plan import Layouts, Plan, Question
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from ..estimate.setting import Calibration
from ..frameworks.catalog import framework_of
from ..frameworks.framework import Framework
from .judge import UNSAID, Wiring, judge_all
from .launch import Rejected
from .screen import Screened, screen
from .space import Space, space
from .verdict import OWN, SAME, Found, Interval, by_rank, nearest, published, traits, weighed

SIMULATED = 200  # layouts: nearly all the time of a search
NEAR = 1.1  # the screen's bytes over the device's, up to which a layout is judged exactly before it is ruled out
AT_ONCE = 20_000  # layouts a screen takes in one go: some 100 columns of them stay in a few hundred megabytes


def search(
    model: Model,
    cluster: Cluster,
    question: Question,
    calibration: Calibration | None = None,
    *,
    simulated: int = SIMULATED,
    wiring: Wiring = UNSAID,
) -> Found:
    """Find the fastest layouts that fit.

    Args:
        model: what is trained.
        cluster: on what.
        question: what is fixed and what may be chosen.
        calibration: of the cost model; None for the generic one.
        simulated: how many layouts to simulate.
        wiring: under which engine, and with which hops. The screen before takes hops from the estimate.

    Raises:
        InputError: nothing can be enumerated (see ``space``).
    """
    named = question.config.framework
    framework = framework_of(named) if named else None
    legal = space(model, cluster, question)
    seen = _screened(model, cluster, legal, calibration)
    memory = cluster.device.usable
    # The closed form errs by some per cent, and the exact order is what is asked for: many are simulated, not the best.
    chosen = promising(legal, seen, memory, simulated)
    judged = judge_all(model, cluster, [legal.layout(row) for row in chosen], calibration, wiring)
    judged = [_remarked(plan, framework) for plan in judged]
    if judged:  # by the step to expect, not by the one on a cluster that does not stall
        judged = weighed(judged, _rows(legal, chosen), model, cluster, calibration)
    fitting = sorted((plan for plan in judged if plan.fits), key=lambda plan: by_rank(plan, memory))
    plans = tuple(sorted(without_twins(fitting), key=lambda plan: by_rank(plan, memory)))
    refused = [*legal.rejected, *_ruled_out(seen, chosen, memory, (len(judged), len(fitting), len(plans)))]
    return Found(
        plans=plans,
        legal=len(legal),
        simulated=len(judged),
        rejected=_together(refused),
        interval=_interval(model, cluster, plans[0].layout if plans else question.base, framework, calibration),
        memory=memory,
        closest=float(seen.peak_bytes.min()) if len(legal) else 0.0,
    )


def _interval(
    model: Model, cluster: Cluster, layout: Layout, framework: Framework | None, calibration: Calibration | None
) -> Interval:
    """How far off a prediction may be: by the user's own rows where there are any, else by published runs."""
    if calibration is not None and calibration.rows:
        return Interval({OWN: calibration.source or "the user"}, calibration.rows, calibration.band, 1.0)
    return nearest(traits(model, cluster, layout, framework.name if framework else ""), published())


def _ruled_out(
    seen: Screened, chosen: NDArray[np.int64], memory: float, left: tuple[int, int, int]
) -> Iterator[Rejected]:
    """Why each legal layout that is no plan is none: with the plans, their counts sum to the legal layouts.

    Args:
        seen: the screen of all.
        chosen: rows that were simulated.
        memory: bytes of a device.
        left: how many were simulated, of them fit, and of them are no twins.
    """
    judged, fitting, plans = left
    others = np.delete(seen.peak_bytes, chosen) > memory
    reasons = (
        ("memory", f"the fullest rank needs more than {memory / 1e9:.0f} GB", int(others.sum()) + judged - fitting),
        (
            "behind",
            f"slower than the {judged} simulated by the closed form, or by the lower bound where none holds, or "
            "recomputes needlessly",
            int((~others).sum()),
        ),
        ("twin", "the same work as another: so many samples a device, in a context group or without", fitting - plans),
    )
    yield from (Rejected(cause, reason, {}, count) for cause, reason, count in reasons if count)


def _remarked(plan: Plan, backend: Framework | None) -> Plan:
    """With what the framework that is to launch it does by itself."""
    if backend is None or backend.remark is None:
        return plan
    return replace(plan, reasons=(*plan.reasons, backend.remark(plan.layout)))


def _screened(model: Model, cluster: Cluster, legal: Space, calibration: Calibration | None) -> Screened:
    parts = [
        screen(model, cluster, _rows(legal, slice(start, start + AT_ONCE)), calibration)
        for start in range(0, len(legal), AT_ONCE)
    ]
    if not parts:
        return Screened(np.zeros(0), np.zeros(0))
    return Screened(np.concatenate([p.step for p in parts]), np.concatenate([p.peak_bytes for p in parts]))


def _rows(legal: Space, which: slice | NDArray[np.int64]) -> Layouts:
    columns = {name: getattr(legal.layouts, name)[which] for name in type(legal.layouts).__slots__}
    return replace(legal.layouts, **columns)


def promising(legal: Space, seen: Screened, memory: float, many: int) -> NDArray[np.int64]:
    """Rows to simulate, fastest first: of each family those near the limit, and the two that recompute least below it.

    Args:
        legal: the space.
        seen: its screen.
        memory: bytes of a device.
        many: rows at most.
    """
    near = np.flatnonzero(seen.peak_bytes <= NEAR * memory)
    family, below = legal.family[near], (seen.peak_bytes[near] <= memory).astype(np.int64)
    # Less recomputation is always faster: behind two rows of a family that surely fit, no third can win.
    first = np.searchsorted(family, family)  # the rows of a family lie together
    before = np.cumsum(below) - below
    short = near[before - before[first] < 2]
    fastest = short[np.argsort(seen.step[short], kind="stable")]
    is_doubtful = seen.peak_bytes[fastest] > memory  # by the screen too large, at most half of what is simulated
    doubtful = np.flatnonzero(is_doubtful)[: many // 2]
    safe = np.flatnonzero(~is_doubtful)[: many - len(doubtful)]
    return fastest[np.sort(np.concatenate((doubtful, safe)))]


def without_twins(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """One of each set of layouts that the estimate cannot tell apart, the one with the fewest devices a sequence.

    A micro-batch of two samples on two devices of a context group, and of one sample on one, are the same work.

    Args:
        plans: best first.
    """
    kept: dict[tuple[object, ...], Plan] = {}
    for plan in plans:
        alone = replace(plan.layout, context=1, data=1, micro_batch=1)
        share = plan.layout.micro_batch / plan.layout.context
        key = (alone, share)
        other = kept.get(key)
        # The first that comes is the fastest; one within what could be measured replaces it if it is plainer.
        near = other is not None and plan.expected_step <= other.expected_step * (1 + SAME)
        if other is None or (near and plan.layout.context < other.layout.context):
            kept[key] = plan
    return tuple(kept.values())


def _together(refused: list[Rejected]) -> tuple[Rejected, ...]:
    """Equal reasons counted, the most frequent first."""
    counts: dict[tuple[str, str], int] = {}
    for one in refused:
        counts[one.cause, one.reason] = counts.get((one.cause, one.reason), 0) + one.count
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(Rejected(cause, reason, {}, count) for (cause, reason), count in ranked)
