"""A plan of layouts as scripts and reports have it: the ranking, what was ruled out, and the one to launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from ..config.config import Layout
from ..config.plan import Plan
from ..core.account import Account, RankTime, account, rank_times
from ..core.costs import Costs
from ..core.errors import DebubbleError
from ..core.packing import UnequalSamples
from ..core.program import Timeline
from ..core.results import HIDDEN, SPARSE, Result
from ..core.schedule import peak_activations
from ..core.units import MILLISECOND, duration, percent
from ..estimate.hardware import Cluster
from ..estimate.model import Model, active_parameters, parameters
from ..estimate.setting import Calibration
from ..frameworks.catalog import OFFERED
from ..frameworks.framework import Framework
from .batch import Growth, LayoutRow, RejectedRow, sizes_of, sizes_of_layout
from .calibrate import FactorValue, factor_values
from .idle import evidence, idle_share
from .judge import Wiring, simulated
from .verdict import Found, Scaled, about, more_devices, scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(LayoutRow):
    """A layout and what is predicted of it.

    Args:
        number: in the ranking of its number of devices, from 1.
        expert_tensor: devices that share an expert.
        zero: what replicas share out.
        recompute: ``none``, ``selective`` or ``full``.
        recompute_layers: how many layers are computed again; None for all.
        engine: under which it was simulated: that of the framework that was named, else ``ideal``.
        layers: of each stage; empty if they are even.
        step_ms: from one update to the next.
        expected_step_ms: the same weighed with what it would be on a cluster that stalls; layouts rank by it.
        tokens_per_second_per_gpu: of the global batch.
        mfu_share: model FLOPs over step, devices and peak.
        idle_share: of the pipeline window.
        peak_bytes: of the fullest rank, as a framework allocates them (torch.cuda.max_memory_allocated).
        device_peak_bytes: the same as the device's own tool shows them (nvidia-smi): with context and communicators.
        peak_bytes_by_rank: of each rank of the pipeline.
        memory_bytes: what the fullest rank holds, by name.
        parts: milliseconds of the step by name; they sum to it.
        parts_share: the same as shares of the step.
        reasons: what was assumed, and what to look at.
    """

    number: int
    expert_tensor: int
    zero: int
    recompute: str
    recompute_layers: int | None
    engine: str
    layers: tuple[int, ...]
    step_ms: float
    expected_step_ms: float
    tokens_per_second_per_gpu: float
    mfu_share: float
    idle_share: float
    peak_bytes: int
    device_peak_bytes: int
    peak_bytes_by_rank: tuple[int, ...]
    memory_bytes: Mapping[str, int]
    parts: Mapping[str, float]
    parts_share: Mapping[str, float]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """The best layout at one number of devices.

    Args:
        gpus: devices.
        fits: whether any layout does.
        best: the layout; None if none fits.
        tokens_per_second: of the whole job.
        speedup: over the first number of devices at which a layout fits.
        efficiency: speed-up over the growth in devices.
        cost_per_billion_tokens: in the currency of the price; None without one.
        global_batch_for_10_percent_idle: the least that keeps the idle share there.
    """

    gpus: int
    fits: bool
    best: Candidate | None
    tokens_per_second: float
    speedup: float
    efficiency: float
    cost_per_billion_tokens: float | None
    global_batch_for_10_percent_idle: int


@dataclass(frozen=True, slots=True)
class GrowthStep:
    """One size of a batch that grows, with the layout that is launched; what it does not have is None."""

    global_batch: int
    samples: float
    microbatches: int | None
    idle_share: float | None
    step_ms: float | None
    tokens_per_second_per_gpu: float | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGrowth:
    """A batch that grows.

    Args:
        sizes: in order.
        duration_ms: of all steps while it grows.
        lost_share: how much longer that is than the same samples take at the whole batch; None if it is not known.
        note: how many sizes cannot be run, and why; empty if all can.
    """

    sizes: tuple[GrowthStep, ...]
    duration_ms: float
    lost_share: float | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationValues:
    """What the cost model was calibrated on, and the factors that were learned."""

    source: str
    rows: int
    factors: Mapping[str, FactorValue]


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What was asked, and what was found.

    Args:
        model: what is trained.
        clusters: by number of devices.
        found: by number of devices.
        calibration: of the cost model, or None.
        framework: that is to launch it, or None.
        emit: whether what to paste was asked for.
        wiring: the engine and the hops under which layouts were simulated.
        price: of one device for an hour, or None.
        top: layouts of each number of devices that results hold.
        growth: sizes of a batch that grows, with the plan of each; of the layout to launch.
        unequal_samples: what the layout to launch would be with samples of unequal length; None if none were given.
        next: the command that continues from here.
    """

    model: Model
    clusters: Mapping[int, Cluster]
    found: Mapping[int, Found]
    calibration: Calibration | None
    framework: Framework | None
    emit: bool
    wiring: Wiring
    price: float | None
    top: int
    growth: Sequence[tuple[Growth, Plan | None]] = ()
    unequal_samples: UnequalSamples | None = None
    next: str = ""

    @property
    def cluster(self) -> Cluster:
        """The first: all are of the same device."""
        return next(iter(self.clusters.values()))

    @property
    def best(self) -> Found:
        """The search at the largest number of devices at which a layout fits."""
        # Who lists several numbers asks whether to grow: the answer that is detailed is that of the most devices.
        return next(self.found[gpus] for gpus in sorted(self.found, reverse=True) if self.found[gpus].plans)

    @property
    def launched(self) -> tuple[int, Framework] | None:
        """The first layout that a framework launches by name, and which; the one asked for, if any."""
        able = [self.framework] if self.framework else list(OFFERED)
        # Fastest layout first, then the frameworks in the order in which they are offered.
        for number, plan in enumerate(self.best.plans):
            for framework in able:
                if plan.layout.schedule in framework.schedules:
                    return number, framework
        return None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class LayoutPlan(Result):
    """The layouts of a model on devices, ranked, and the one to launch.

    Args:
        title: what was planned, in a line.
        model: its name.
        parameters: of the model.
        active_parameters: those that one token meets.
        gpu: the device.
        device_bytes: memory of one.
        candidates: layouts that fit, for each number of devices the best first.
        recommended: number of the layout to launch among those of the largest number of devices that works: the first.
        rejected: layouts that were ruled out, and why; those of legal layouts and all ranked ones sum to ``legal``.
        legal: layouts that were screened, by number of devices.
        simulated: of them, how many were simulated.
        ranked: of them, how many are in the ranking.
        error_band_share: relative error of a prediction, as published runs of the nearest kind had it, or as
            calibration leaves it; None if nothing like it was validated.
        error_of: whose error that is, in a sentence.
        verdict: sentences, the answer first.
        evidence: ``estimated``.
        calibration: of the cost model; None without.
        scaling: the best layout at each number of devices, if there are several.
        unequal_samples: what the layout to launch would be with samples of unequal length; None if none were given.
        growth: of the batch; None if it does not grow.
        emit: what to paste; None if that was not asked for.
        emitted: number of the layout that is emitted.
        next: the command that continues from here.
    """

    schema: ClassVar[str] = "plan/1"

    title: str
    model: str
    parameters: int
    active_parameters: int
    gpu: str
    device_bytes: float
    candidates: tuple[Candidate, ...]
    recommended: int
    rejected: tuple[RejectedRow, ...]
    legal: Mapping[str, int]
    simulated: Mapping[str, int]
    ranked: Mapping[str, int]
    error_band_share: float | None
    error_of: str
    verdict: tuple[str, ...]
    evidence: str
    calibration: CalibrationValues | None = field(metadata=SPARSE)
    scaling: tuple[ScalingRow, ...] | None = field(metadata=SPARSE)
    unequal_samples: UnequalSamples | None = field(metadata=SPARSE)
    growth: BatchGrowth | None = field(metadata=SPARSE)
    emit: str | None = field(metadata=SPARSE)
    emitted: int | None = field(metadata=SPARSE)
    next: str
    search: Search = field(metadata=HIDDEN)

    @property
    def gpus(self) -> int:
        """The largest number of devices at which a layout fits."""
        return self.search.best.plans[0].layout.gpus

    @property
    def best(self) -> Candidate:
        """The layout to launch."""
        return _candidate(self.search.best.plans[0], 1)

    @property
    def promised(self) -> tuple[float, str]:
        """What its schedule would idle with even stages and free transfers, and where that figure comes from."""
        best = self.best
        sizes = best.schedule, best.pipeline, best.microbatches, best.chunks
        share = idle_share(*sizes)
        if share is None:  # too long to simulate by itself: what this layout idles, as the search simulated it
            return best.idle_share, "simulated"
        return share, evidence(*sizes)

    @property
    def framework(self) -> str | None:
        """The title of the framework that is to launch it; None if nobody said."""
        return None if self.search.framework is None else self.search.framework.title

    @property
    def ranking(self) -> tuple[Candidate, ...]:
        """The layouts of that number of devices."""
        return tuple(each for each in self.candidates if each.gpus == self.gpus)

    @property
    def window(self) -> PlannedWindow:
        """The pipeline window of the layout to launch, op by op."""
        plan = self.search.best.plans[0]
        cluster = self.search.clusters[plan.layout.gpus]
        timeline, costs = simulated(
            self.search.model, cluster, plan.layout, self.search.calibration, self.search.wiring
        )
        spent = account(timeline)
        peaks = peak_activations(timeline.program.schedule)
        return PlannedWindow(timeline, costs, spent, rank_times(spent, peaks))

    @property
    def pastes(self) -> tuple[tuple[str, str, str], ...]:
        """Title, name of a file and text for each framework that runs the layout to launch."""
        return tuple(_pastes(self.search.model, self.search.best.plans[0].layout))


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWindow:
    """A pipeline window, op by op, its costs, where its time goes, and that of each rank."""

    timeline: Timeline
    costs: Costs
    account: Account
    per_rank: tuple[RankTime, ...]


def layout_plan(asked: Search) -> LayoutPlan:
    """What a search found, under the keys of its JSON."""
    best = asked.best
    plan = best.plans[0]
    rows = scaled(dict(asked.found), asked.price)
    several = len(rows) > 1
    more = more_devices(rows) if several else []
    return LayoutPlan(
        title=_title(asked),
        model=asked.model.name,
        parameters=parameters(asked.model),
        active_parameters=active_parameters(asked.model),
        gpu=asked.cluster.device.name,
        device_bytes=float(best.memory),
        candidates=tuple(_candidates(asked)),
        recommended=1,
        rejected=tuple(
            RejectedRow(gpus=gpus, cause=each.cause, reason=each.reason, count=each.count)
            for gpus, one in asked.found.items()
            for each in one.rejected
        ),
        legal={str(gpus): one.legal for gpus, one in asked.found.items()},
        simulated={str(gpus): one.simulated for gpus, one in asked.found.items()},
        ranked={str(gpus): len(one.plans) for gpus, one in asked.found.items()},
        error_band_share=best.band if best.interval.kind else None,
        error_of=best.interval.said,
        verdict=(*_sentences(asked, plan), *map(_sentence, (*about(asked.model, best), *more))),
        evidence="estimated",
        calibration=_calibration(asked.calibration),
        scaling=tuple(_scaling(row) for row in rows) if several else None,
        unequal_samples=asked.unequal_samples,
        growth=_growth(asked.growth),
        emit=_emitted(asked, plan),
        emitted=1 if asked.emit and asked.framework else None,
        next=asked.next,
        search=asked,
    )


def _candidates(asked: Search) -> Iterator[Candidate]:
    """The first of each number of devices."""
    for one in asked.found.values():
        for number, plan in enumerate(one.plans[: asked.top], start=1):
            yield _candidate(plan, number)


def _candidate(plan: Plan, number: int) -> Candidate:
    layout = plan.layout
    costs = asdict(plan.parts)
    return Candidate(
        **sizes_of_layout(layout),  # type: ignore[arg-type]  # fields by name
        number=number,
        expert_tensor=layout.expert_shards,
        zero=layout.zero,
        recompute=layout.recompute,
        recompute_layers=layout.recompute_layers,
        engine=plan.engine,
        layers=tuple(layout.layers),
        step_ms=plan.step / MILLISECOND,
        expected_step_ms=plan.expected_step / MILLISECOND,
        tokens_per_second_per_gpu=plan.tokens_per_second_per_gpu,
        mfu_share=plan.mfu,
        idle_share=plan.idle_share,
        peak_bytes=max(plan.peak_bytes),
        device_peak_bytes=max(plan.peak_bytes) + plan.beside,
        peak_bytes_by_rank=tuple(plan.peak_bytes),
        memory_bytes=plan.memory,
        parts={f"{name}_ms": cost / MILLISECOND for name, cost in costs.items()},
        parts_share={name: cost / plan.step for name, cost in costs.items()},
        reasons=tuple(plan.reasons),
    )


def _title(asked: Search) -> str:
    model, cluster = asked.model, asked.cluster
    counts = ", ".join(map(str, asked.clusters))
    interval, band = asked.best.interval, "nothing like it was validated"
    if interval.kind:
        band = f"±{100 * interval.band:.0f} %"
    name = f"{model.name}  {model.layers} layers, {parameters(model) / 1e9:.1f} B parameters"
    device = cluster.device
    size = f"{counts} x {device.name} {device.memory / 1e9:.0f} GB, {cluster.gpus_per_node} a node"
    return f"{name}, {size} (estimated {band})"


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."


def _launch(asked: Search, plan: Plan) -> str:
    layout = plan.layout
    degrees = {"tensor": layout.tensor, "pipeline": layout.pipeline, "data": layout.data, "context": layout.context}
    said = ", ".join(f"{name} {many}" for name, many in degrees.items() if many > 1) or "one device"
    chunks = f" with {layout.chunks} chunks" if layout.chunks > 1 else ""
    again = f"{layout.recompute} recomputation".replace("none", "no")
    return (
        f"Launch {said}: {layout.microbatches} micro-batches of {layout.micro_batch} on {layout.schedule}{chunks}, "
        f"{again}. A step takes {duration(plan.step)} (estimated {_off(asked.best)}), "
        f"{plan.tokens_per_second_per_gpu:,.0f} tokens per second and GPU."
    )


def _off(found: Found) -> str:
    """The error of a step, or that it is not known."""
    return f"±{percent(found.band)}" if found.interval.kind else "by a model that was never held against such runs"


def _sentences(asked: Search, plan: Plan) -> Iterator[str]:
    """The answer first, then what it rests on."""
    yield _launch(asked, plan)
    yield from _stated(asked, plan)
    yield from _unable(asked)


def _stated(asked: Search, plan: Plan) -> Iterator[str]:
    """Whose hops were simulated and who waits for them, where somebody said so."""
    wiring = asked.wiring
    if plan.layout.pipeline == 1 or (wiring.hops is None and wiring.said is None):
        return
    hops = "as estimated" if wiring.hops is None else f"as stated, {wiring.hops}"
    yield f"Hops are {hops}, and ranks wait for them as under the engine {plan.engine}."
    if wiring.said is not None and plan.engine != wiring.said.name:
        yield f"The engine {wiring.said} cannot run {plan.layout.schedule}: {plan.engine} would be used instead."


def _unable(asked: Search) -> Iterator[str]:
    """If no framework has the schedule to launch by name: how to run it all the same, and what comes next."""
    found, plan = asked.launched, asked.best.plans[0]
    if found is None or found[0] == 0:
        return
    number, framework = found
    behind = asked.best.plans[number].step / plan.step - 1
    yield (
        f"No framework has {plan.layout.schedule} by name (PyTorch takes its order as a CSV file); the fastest layout "
        f"that {framework.title} launches as it is, is number {number + 1}, {percent(behind)} slower."
    )


def _calibration(found: Calibration | None) -> CalibrationValues | None:
    if found is None:
        return None
    return CalibrationValues(source=found.source, rows=found.rows, factors=factor_values(found))


def _scaling(row: Scaled) -> ScalingRow:
    return ScalingRow(
        gpus=row.gpus,
        fits=row.plan is not None,
        best=None if row.plan is None else _candidate(row.plan, 1),
        tokens_per_second=row.tokens_per_second,
        speedup=row.speedup,
        efficiency=row.efficiency,
        cost_per_billion_tokens=row.cost,
        global_batch_for_10_percent_idle=row.efficient_batch,
    )


def _emitted(asked: Search, plan: Plan) -> str | None:
    if asked.framework is None or not asked.emit:
        return None
    return asked.framework.emit(plan.layout, sizes_of(asked.model, plan.layout.sequence))


def _pastes(model: Model, layout: Layout) -> Iterator[tuple[str, str, str]]:
    """What to paste, for each framework that runs the schedule."""
    sizes = sizes_of(model, layout.sequence)
    for framework in OFFERED:
        if framework.lacking(layout, sizes):
            continue
        # A framework may have no words for a split or a schedule; the others still have.
        try:
            text = framework.emit(layout, sizes)
        except DebubbleError:  # the framework cannot say this layout
            continue
        yield f"Launch it on {framework.title}", f"{framework.name}.txt", text


def _growth(rows: Sequence[tuple[Growth, Plan | None]]) -> BatchGrowth | None:
    if not rows:
        return None
    whole = samples = 0.0
    for row, plan in rows:
        if plan is not None:
            whole += plan.step * row.samples / row.global_batch
            samples += row.samples
    last = rows[-1][1]
    lost = None
    if last is not None and samples:
        lost = whole / (last.step * samples / last.layout.global_batch) - 1
    sizes = tuple(_growth_step(row, plan) for row, plan in rows)
    return BatchGrowth(sizes=sizes, duration_ms=whole / MILLISECOND, lost_share=lost, note=_refused(rows))


def _growth_step(row: Growth, plan: Plan | None) -> GrowthStep:
    if plan is None:
        return GrowthStep(row.global_batch, row.samples, None, None, None, None, row.reason or None)
    return GrowthStep(
        row.global_batch,
        row.samples,
        plan.layout.microbatches,
        plan.idle_share,
        plan.step / MILLISECOND,
        plan.tokens_per_second_per_gpu,
        row.reason or None,
    )


def _refused(rows: Sequence[tuple[Growth, Plan | None]]) -> str:
    """How many sizes cannot be run, for which reason the first of them, and steps that all can."""
    refused = [row for row, plan in rows if plan is None]
    if not refused:
        return ""
    said = f"{len(refused)} of {len(rows)} sizes cannot be run, and count nowhere; the first: {refused[0].reason}"
    for _, plan in rows:
        if plan is None:
            continue
        unit = plan.layout.micro_batch * plan.layout.data  # of a batch that every replica can share in
        if all(one.global_batch % unit for one in refused):
            said += f"; start and grow by a multiple of {unit}, or try --micro-batch 1"
        break
    return said
