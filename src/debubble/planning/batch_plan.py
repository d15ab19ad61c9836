"""Batch arithmetic as scripts and reports have it: micro-batches, bubbles, and how many GPUs' worth of work is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..core.results import SPARSE, Result
from .arithmetic import Bubbled, Growth, Placed
from .launch import Rejected
from .layout_row import LayoutRow, RejectedRow, sizes_of_layout

ENOUGH = 0.1  # idle share that counts as small
MOST_SENTENCES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCandidate(LayoutRow):
    """A layout and its bubble: even stages, B = 2 F, free transfers; what needs a model is None.

    Args:
        idle_share: idle / (ranks x window).
        busy_share: what is not idle.
        bubble_ratio: idle / busy.
        effective_gpus: devices without a bubble that would do the same work.
        slots: of a step, in times of one micro-batch on a rank.
        full_from_global_batch: samples of a step from which on every rank is busy at the same moment.
        microbatches_for_10_percent: the fewest that idle no more; None if none is known.
        samples: trained at this size, of a batch that grows.
        evidence: ``exact`` or ``simulated``.
    """

    recompute: str | None = None
    step_ms: float | None = None
    tokens_per_second_per_gpu: float | None = None
    idle_share: float
    busy_share: float
    bubble_ratio: float
    effective_gpus: float
    slots: float
    full_from_global_batch: int
    microbatches_for_10_percent: int | None
    peak_bytes: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    samples: float | None = field(default=None, metadata=SPARSE)
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOrder:
    """One order of axes over devices, outermost first.

    Args:
        order: of the axes.
        cross_node: axes of which a group has members on different nodes.
        first_groups: devices of the first group of each axis.
    """

    order: tuple[str, ...]
    cross_node: tuple[str, ...]
    first_groups: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class BatchPlan(Result):
    """Layouts of a batch, by arithmetic alone.

    Args:
        candidates: that come out whole.
        rejected: the others, and why.
        placement: which axes cross nodes, if hosts are given.
        verdict: sentences.
        evidence: ``exact`` if all candidates are.
    """

    schema: ClassVar[str] = "plan-batch/1"

    candidates: tuple[BatchCandidate, ...]
    rejected: tuple[RejectedRow, ...]
    placement: tuple[PlacementOrder, ...] | None = field(default=None, metadata=SPARSE)
    verdict: tuple[str, ...]
    evidence: str

    @property
    def status(self) -> int:
        """Exit status: 1 if no combination comes out whole."""
        return 0 if self.candidates else 1


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class GrowthPlan(Result):
    """A batch that grows, by arithmetic alone.

    Args:
        candidates: its sizes that come out whole.
        rejected: the others, and why.
        idle_share_of_growth: over all samples while it grows; None if none is trained meanwhile.
        sizes: all of them in order: global batch, samples, and why it does not come out whole, or empty.
        evidence: ``exact``.
    """

    schema: ClassVar[str] = "plan-growth/1"

    candidates: tuple[BatchCandidate, ...]
    rejected: tuple[RejectedRow, ...]
    idle_share_of_growth: float | None
    sizes: tuple[GrowthSize, ...]
    evidence: str

    @property
    def status(self) -> int:
        """Exit status: 1 if a size does not come out whole."""
        return 1 if self.rejected else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthSize:
    """One size of a batch that grows, by arithmetic."""

    global_batch: int
    samples: float
    microbatches: int | None
    idle_share: float | None
    reason: str


def batch_plan(found: Sequence[Bubbled], refused: Sequence[Rejected], orders: Sequence[Placed]) -> BatchPlan:
    """What a table of a batch says, under the keys of its JSON."""
    placement = tuple(
        PlacementOrder(order=one.order, cross_node=one.crossing, first_groups=one.first_groups) for one in orders
    )
    return BatchPlan(
        candidates=tuple(_candidate(one) for one in found),
        rejected=tuple(
            RejectedRow(cause=one.cause, reason=one.reason, count=one.count, **one.sizes) for one in refused
        ),
        placement=placement or None,
        verdict=tuple(_verdict(found))[:MOST_SENTENCES],
        evidence="exact" if all(one.evidence == "exact" for one in found) else "simulated",
    )


def growth_plan(rows: Sequence[Growth]) -> GrowthPlan:
    """What a growing batch says, under the keys of its JSON."""
    return GrowthPlan(
        candidates=tuple(_candidate(row.bubbled, row.samples) for row in rows if row.bubbled),
        rejected=tuple(
            RejectedRow(cause="batch", reason=row.reason, count=1, global_batch=row.global_batch)
            for row in rows
            if not row.bubbled
        ),
        idle_share_of_growth=mean_idle(rows),
        sizes=tuple(
            GrowthSize(
                global_batch=row.global_batch,
                samples=row.samples,
                microbatches=row.bubbled.layout.microbatches if row.bubbled else None,
                idle_share=row.bubbled.idle_share if row.bubbled else None,
                reason=row.reason,
            )
            for row in rows
        ),
        evidence="exact",
    )


def mean_idle(rows: Sequence[Growth]) -> float | None:
    """Idle share over all samples while the batch grows: time is in steps, so small batches weigh most."""
    whole = [(row.samples / row.global_batch, row.bubbled) for row in rows if row.bubbled and row.samples]
    slots = sum(steps * one.slots for steps, one in whole)
    return 1 - sum(steps * one.layout.microbatches for steps, one in whole) / slots if slots else None


def _candidate(one: Bubbled, samples: float | None = None) -> BatchCandidate:
    return BatchCandidate(
        **sizes_of_layout(one.layout),  # type: ignore[arg-type]  # fields by name
        idle_share=one.idle_share,
        busy_share=one.busy_share,
        bubble_ratio=one.bubble_ratio,
        effective_gpus=one.effective_gpus,
        slots=one.slots,
        full_from_global_batch=one.full_batch,
        microbatches_for_10_percent=one.enough(ENOUGH),
        samples=samples,
        evidence=one.evidence,
    )


def _verdict(found: Sequence[Bubbled]) -> Iterator[str]:
    """What the table says, in sentences."""
    sizes = sorted({(one.layout.pipeline, one.layout.micro_batch, one.layout.data, one.full_batch) for one in found})
    if len(sizes) == 1 and sizes[0][0] > 1:
        p, b, d, full = sizes[0]
        twice = f" ({full * b} would count the micro-batch twice)" if b > 1 else ""
        yield f"the pipe is first full at a global batch of {full} = p {p} x micro-batch {b} x data {d}{twice}"
    batches = {(one.layout.gpus, one.layout.global_batch, one.layout.pipeline, one.layout.chunks) for one in found}
    if len(batches) == 1 and len({one.layout.micro_batch for one in found}) > 1:
        yield "a larger micro-batch at the same global batch enlarges the bubble"
    for one in found:
        layout = one.layout
        if layout.pipeline > 1 and layout.microbatches == 1:
            yield (
                f"at m = 1 a step takes as long as on one rank that holds all stages, and trains {layout.data} "
                "micro-batches instead of one"
            )
        if layout.pipeline > 1 and layout.microbatches < layout.pipeline:
            many = one.enough(ENOUGH)
            cure = f", {many} micro-batches idle for 10 % or less" if many else ""
            yield (
                f"{layout.gpus} GPUs do the work of {one.effective_gpus:.4g} at m = {layout.microbatches}: "
                f"raise accumulation{cure}"
            )
