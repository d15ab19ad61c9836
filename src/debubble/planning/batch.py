"""Batch arithmetic: what devices, degrees and batch say without a model, and which shapes can be launched at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import Any, ClassVar

from ..config.config import Config, Layout
from ..config.plan import Question
from ..core.errors import Fault, InputError
from ..core.results import SPARSE, Result
from ..core.schedule import Shape
from ..estimate.model import Model
from ..frameworks.catalog import FRAMEWORKS
from ..schedules.catalog import CATALOG, build, entry_of
from ..schedules.closed_form import Even, takes
from .idle import enough, evidence, idle_share

LEGAL = ("memory", "behind", "twin")  # causes that rule legal layouts out; others say what is not legal


@dataclass(frozen=True, slots=True)
class Rejected:
    """A layout, or many alike, that cannot be launched.

    Args:
        cause: in a word: devices, batch, layers, heads, experts, sequence, schedule, framework; or, of legal layouts,
            memory, behind (slower by the closed form), twin.
        reason: as a clause.
        sizes: what they have in common.
        count: how many there are.
    """

    cause: str
    reason: str
    sizes: dict[str, Any] = field(default_factory=dict)
    count: int = 1


def sizes_of(model: Model, sequence: int) -> Config:
    """What a framework must know of a model."""
    return Config(
        layers=model.layers,
        sequence=sequence,
        experts=model.experts.count if model.experts else None,
        next_layers=model.next_heads or None,
        heads=model.heads,
        kv_heads=model.kv_heads,
        hidden=model.hidden,
        ffn=model.ffn,
        vocab=model.vocab,
        pattern=model.letters or None,
    )


# A space asks for the same few thousand shapes under every choice of tensor, context and micro-batch.
@lru_cache(maxsize=1 << 16)
def unsuited(schedule: str, ranks: int, microbatches: int, chunks: int) -> str:
    """Why a schedule of the catalog does not take a shape; empty where it does.

    Nothing is built for the answer yes: a space has thousands of shapes.
    """
    entry = CATALOG[schedule]
    shape = entry.shape(Shape(ranks, microbatches, chunks))
    if takes(entry, Even(ranks, microbatches, shape.chunks)):
        return ""
    try:
        build(schedule, shape)
    except InputError as error:
        return f"{error.faults[0].rule} ({error.faults[0].value})"
    return f"{schedule} needs {entry.needs}"


@lru_cache(maxsize=1 << 16)
def unlaunchable(backend: str, schedule: str, ranks: int, microbatches: int, chunks: int, *, zero: int) -> str:
    """Why a framework refuses a schedule of this shape; empty where it runs it.

    Args:
        backend: name of the framework.
        schedule: a name of the catalog that it has.
        ranks: p.
        microbatches: m.
        chunks: v.
        zero: what replicas share out, 0 to 3.
    """
    framework = FRAMEWORKS[backend]
    config = Config(pipeline=ranks, microbatches=microbatches, chunks=chunks if chunks > 1 else None, zero=zero)
    # Asked without model and devices: rules that need what is not said here are left for the whole layout.
    breaches = framework.broken(framework.with_schedule(config, schedule)).breaches
    return f"{framework.title}: {framework.worded(breaches[0][0].rule)}" if breaches else ""


def chunks_of(schedule: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Of the chunks that are wanted, those that a schedule has on each rank; its own number where none are named."""
    if CATALOG[schedule].any_chunks:
        return wanted
    own = CATALOG[schedule].chunks
    return (own,) if not wanted or own in wanted else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """A layout.

    Args:
        gpus: devices of the whole job.
        tensor: devices that share each layer.
        pipeline: ranks.
        data: replicas.
        context: devices that share each sequence.
        expert: devices over which experts are spread.
        chunks: stages on a rank.
        micro_batch: samples in a micro-batch.
        microbatches: per pipeline and step.
        global_batch: samples of all replicas in a step.
        schedule: by name.
    """

    gpus: int
    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    chunks: int
    micro_batch: int
    microbatches: int
    global_batch: int
    schedule: str


SIZES = tuple(LayoutRow.__dataclass_fields__)


def sizes_of_layout(layout: Layout) -> dict[str, int | str]:
    """The fields of a ``LayoutRow``."""
    return {name: getattr(layout, name) for name in SIZES}


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """Layouts that were ruled out.

    Args:
        gpus: devices of the job; None if it is no matter of them.
        cause: in a word.
        reason: as a clause.
        count: how many.
        tensor: what they have in common, if that is one value; so too the other degrees.
    """

    cause: str
    reason: str
    count: int
    gpus: int | None = field(default=None, metadata=SPARSE)
    tensor: int | None = field(default=None, metadata=SPARSE)
    pipeline: int | None = field(default=None, metadata=SPARSE)
    data: int | None = field(default=None, metadata=SPARSE)
    context: int | None = field(default=None, metadata=SPARSE)
    expert: int | None = field(default=None, metadata=SPARSE)
    chunks: int | None = field(default=None, metadata=SPARSE)
    micro_batch: int | None = field(default=None, metadata=SPARSE)
    microbatches: int | None = field(default=None, metadata=SPARSE)
    global_batch: int | None = field(default=None, metadata=SPARSE)
    schedule: str | None = field(default=None, metadata=SPARSE)


MOST_ROWS = 20_000  # of one table: more is read by nobody, and takes seconds
MOST_RANKS = 256  # of a pipeline that is not asked for by number
MOST_GROWTH = 1000  # sizes of a batch that grows: BLOOM's had 117 (192 to 2,048 by 16)


@dataclass(frozen=True, slots=True)
class Bubbled:
    """A layout and its bubble, even stages, B = 2 F, free transfers.

    Args:
        layout: degrees, micro-batches and schedule.
        idle_share: 0 to 1.
        evidence: ``exact`` (closed form) or ``simulated``.
    """

    layout: Layout
    idle_share: float
    evidence: str

    @property
    def busy_share(self) -> float:
        """What is not idle."""
        return 1 - self.idle_share

    @property
    def bubble_ratio(self) -> float:
        """Idle over busy."""
        return self.idle_share / self.busy_share

    @property
    def effective_gpus(self) -> float:
        """How many devices without a bubble would do the same work."""
        return self.layout.gpus * self.busy_share

    @property
    def full_batch(self) -> int:
        """Samples of a step from which on every rank is busy at the same moment: m >= p."""
        return self.layout.pipeline * self.layout.micro_batch * self.layout.data

    @property
    def slots(self) -> float:
        """Duration of a step, in times of one micro-batch on a rank: m + p - 1 for 1F1B."""
        return self.layout.microbatches / self.busy_share

    def enough(self, share: float) -> int | None:
        """Micro-batches that keep the idle share of this schedule at ``share`` or below; None where none is known."""
        return enough(self.layout.schedule, self.layout.pipeline, share, self.layout.chunks)


def batch_table(question: Question) -> tuple[list[Bubbled], list[Rejected]]:
    """Every combination of what may be chosen that comes out whole, in the order asked; and what does not, and why.

    Raises:
        InputError: nothing says how many micro-batches there are, or how many devices; no schedule has this name.
    """
    _enough_said(question)
    if question.config.schedule is not None:
        known = entry_of(question.config.schedule).name
        question = replace(question, config=question.config.changed(schedule=known))
    amounts = question.values("global_batch") or question.values("microbatches")
    ranks = question.values("pipeline") or tuple(_divisors(question))
    found: list[Bubbled] = []
    refused: list[Rejected] = []
    for pipeline, *others in product(ranks, question.values("chunks"), question.values("micro_batch"), amounts):
        one = _combined(question, pipeline, *others)
        if isinstance(one, Bubbled):
            found.append(one)
        else:
            refused.append(one)
    return found, refused


def _enough_said(question: Question) -> None:
    fixed = question.config
    batches, counts = question.values("global_batch"), question.values("microbatches")
    faults = []
    if not batches and not counts:
        faults.append(
            Fault("batch", "it says how many micro-batches there are", "give --global-batch or --microbatches")
        )
    if fixed.gpus is None and (fixed.data is None or not question.values("pipeline")):
        faults.append(Fault("gpus", "devices are missing", "give --gpus, or both --data and --pipeline"))
    lists = [question.values(name) for name in ("chunks", "micro_batch")]
    rows = (len(question.values("pipeline")) or MOST_RANKS) * prod(map(len, lists)) * len(batches or counts)
    if rows > MOST_ROWS:
        faults.append(
            Fault("plan", f"this asks for {rows:,} rows", f"shorten the lists: at most {MOST_ROWS:,} come out")
        )
    if batches and counts:
        both = f"global-batch = {batches[0]}, microbatches = {counts[0]}"
        faults.append(Fault(both, "one follows from the other", "give one of them"))
    if faults:
        raise InputError(*faults)


def _divisors(question: Question) -> Iterator[int]:
    """Ranks that the devices leave room for."""
    fixed = question.config
    whole = fixed.number("gpus") // (fixed.number("tensor") * fixed.number("context"))
    for ranks in range(1, min(whole, MOST_RANKS) + 1):
        if whole % ranks == 0:
            yield ranks


def _combined(question: Question, pipeline: int, chunks: int, size: int, amount: int) -> Bubbled | Rejected:
    fixed, whole_batch = question.config, bool(question.values("global_batch"))
    sizes = {"pipeline": pipeline, "chunks": chunks, "micro_batch": size}
    replica = fixed.number("tensor") * fixed.number("context") * pipeline
    data = fixed.data or fixed.number("gpus") // replica
    # Devices that are left over would idle for the whole job: no framework starts that.
    if fixed.gpus is not None and data * replica != fixed.gpus:
        near = _near(fixed.gpus, replica * (fixed.data or 1))
        rule = f"{replica} devices a replica do not divide {fixed.gpus} GPUs; nearest {near} GPUs"
        return Rejected("devices", rule + _other_ranks(fixed, pipeline), sizes)
    if whole_batch and amount % (size * data):
        near = _near(amount, size * data)
        rule = f"micro-batch {size} x data {data} does not divide a global batch of {amount}; nearest {near}"
        return Rejected("batch", rule, sizes | {"data": data, "global_batch": amount})
    many = amount  # micro-batches, if those were asked for
    if whole_batch:
        many = amount // (size * data)
    if chunks > 1 and pipeline == 1:
        return Rejected("chunks", "a pipeline of one rank has nothing to interleave", sizes)
    usual = "interleaved" if chunks > 1 else "1f1b"
    name = fixed.schedule or usual
    if chunks == 1 and pipeline > 1:
        chunks = CATALOG[name].chunks  # schedules such as ZB-V have their own number
    share = idle_share(name, pipeline, many, chunks)
    if share is None:
        rule = f"{name} does not suit p={pipeline}, m={many}, v={chunks}"
        return Rejected("schedule", rule, sizes | {"data": data, "microbatches": many})
    layout = Layout(
        tensor=fixed.number("tensor"),
        context=fixed.number("context"),
        pipeline=pipeline,
        data=data,
        chunks=chunks,
        micro_batch=size,
        microbatches=many,
        schedule=name,
    )
    return Bubbled(layout, share, evidence(name, pipeline, many, chunks))


def _other_ranks(fixed: Config, pipeline: int) -> str:
    """The ranks next to those asked for that the devices leave room for."""
    gpus, group = fixed.number("gpus"), fixed.number("tensor") * fixed.number("context")
    below: list[int] = []
    above: list[int] = []
    for ranks in range(1, min(gpus, MOST_RANKS) + 1):
        if gpus % (group * ranks) or ranks == pipeline:
            continue
        if ranks < pipeline:
            below.append(ranks)
        else:
            above.append(ranks)
    near = [*below[-1:], *above[:1]]
    if not near:
        return ""
    return f", or pipeline {' or '.join(map(str, near))}"


def _near(value: int, unit: int) -> str:
    below = value // unit * unit
    return " or ".join(str(n) for n in (below, below + unit) if n)


@dataclass(frozen=True, slots=True)
class Growth:
    """One size of a batch that grows.

    Args:
        bubbled: the layout at this size, or None where it does not come out whole.
        global_batch: samples of a step.
        samples: how many are trained at this size.
        reason: why it does not come out whole, or an empty string.
    """

    bubbled: Bubbled | None
    global_batch: int
    samples: float
    reason: str = ""


def growth_table(question: Question, start: int, increment: int, samples: int) -> list[Growth]:
    """A batch that grows evenly from ``start`` to the global batch over so many samples (``--rampup-batch-size``).

    Raises:
        InputError: it does not arrive at the global batch, or there are more than a thousand sizes.
    """
    (end,) = question.values("global_batch") or (0,)
    pipeline, chunks, size = (question.values(name)[0] for name in ("pipeline", "chunks", "micro_batch"))
    steps, rest = divmod(end - start, increment)
    if rest or not 0 <= steps <= MOST_GROWTH:
        near = start + max(round((end - start) / increment), 0) * increment
        rule = f"{end} is not reached from {start} in at most 1000 steps of {increment}"
        raise InputError(Fault(f"rampup = {start},{increment},{samples}", rule, f"nearest global batch: {near}"))
    rows = []
    for number in range(steps + 1):
        batch = start + number * increment
        one = _combined(question, pipeline, chunks, size, batch)
        # Megatron-LM trains equally many samples at each size (--rampup-batch-size), none of them at the last.
        share = 0.0
        if number < steps:
            share = samples / steps
        if isinstance(one, Rejected):
            rows.append(Growth(None, batch, share, one.reason))
        else:
            rows.append(Growth(one, batch, share))
    return rows


@dataclass(frozen=True, slots=True)
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


def placed(order: tuple[str, ...], sizes: dict[str, int], per_node: int) -> PlacementOrder:
    """Lay out axes over devices numbered node by node.

    Args:
        order: outermost first.
        sizes: members of each axis.
        per_node: devices of a node.
    """
    strides = {axis: prod(sizes[inner] for inner in order[n + 1 :]) for n, axis in enumerate(order)}
    groups = {axis: tuple(k * strides[axis] for k in range(sizes[axis])) for axis in order if sizes[axis] > 1}
    crossing = tuple(axis for axis in groups if not _within_nodes(strides[axis], sizes[axis], per_node))
    return PlacementOrder(order, crossing, groups)


def _within_nodes(stride: int, size: int, per_node: int) -> bool:
    """Whether every group of an axis lies in one node: groups are aligned to stride x size devices."""
    return per_node % (stride * size) == 0


def orders(sizes: dict[str, int], per_node: int) -> list[PlacementOrder]:
    """Every order that keeps tensor innermost, those in which the pipeline crosses nodes and data does not first.

    Pipelines send the least between nodes, so they belong outermost.
    """
    # A tensor group sends in every layer, so nobody puts it anywhere but next to itself.
    outer = [axis for axis in sizes if axis != "tensor" and sizes[axis] > 1]
    inner = ["tensor"] if sizes.get("tensor", 1) > 1 else []
    found = [placed((*order, *inner), sizes, per_node) for order in permutations(outer)]
    # In the order of what they send: a hop a micro-batch, gradients a step, keys and values a layer, all a layer.
    cost = {"pipeline": 1, "data": 2, "context": 4, "tensor": 8}

    def price(one: PlacementOrder) -> int:
        return sum(cost.get(axis, 4) for axis in one.cross_node)

    return sorted(found, key=price)


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
    def exit_status(self) -> int:
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
    def exit_status(self) -> int:
        """Exit status: 1 if a size does not come out whole."""
        return 1 if self.rejected else 0


@dataclass(frozen=True, slots=True)
class GrowthSize:
    """One size of a batch that grows, by arithmetic; None where it does not come out whole."""

    global_batch: int
    samples: float
    microbatches: int | None
    idle_share: float | None
    reason: str


def batch_plan(found: Sequence[Bubbled], refused: Sequence[Rejected], orders: Sequence[PlacementOrder]) -> BatchPlan:
    """What a table of a batch says, under the keys of its JSON."""
    return BatchPlan(
        candidates=tuple(_candidate(one) for one in found),
        rejected=tuple(
            RejectedRow(cause=one.cause, reason=one.reason, count=one.count, **one.sizes) for one in refused
        ),
        placement=tuple(orders) or None,
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
        sizes=tuple(map(_size, rows)),
        evidence="exact",
    )


def _size(row: Growth) -> GrowthSize:
    if row.bubbled is None:
        return GrowthSize(row.global_batch, row.samples, None, None, row.reason)
    layout = row.bubbled.layout
    return GrowthSize(row.global_batch, row.samples, layout.microbatches, row.bubbled.idle_share, row.reason)


def mean_idle(rows: Sequence[Growth]) -> float | None:
    """Idle share over all samples while the batch grows: time is in steps, so small batches weigh most."""
    slots = busy = 0.0
    for row in rows:
        if row.bubbled is None:
            continue
        steps = row.samples / row.global_batch
        slots += steps * row.bubbled.slots
        busy += steps * row.bubbled.layout.microbatches
    return 1 - busy / slots if slots else None


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
        # A common slip: a global batch of p x b x d samples is p micro-batches a replica, not p x b.
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
