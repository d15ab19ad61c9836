"""Judgement of layouts: many thousand a second by closed forms, or one simulated with its own stage costs, as a plan.

The screen takes step and memory from first, inner and last rank alone; it says which layouts are worth simulating.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from ..config.config import Config, Layout
from ..config.plan import Layouts, Parts, Plan
from ..core.costs import Costs, Rates, link_table
from ..core.engine import IDEAL, Engine
from ..core.errors import Fault, InputError
from ..core.lower import lower
from ..core.packing import Rows, Samples, TimeByLength, UnequalSamples, unequal_samples
from ..core.program import Program, Timeline
from ..core.schedule import KINDS, Kind, Schedule, Shape, peak_activations
from ..core.simulate import simulate, simulate_many
from ..core.units import Hops
from ..estimate.hardware import Cluster, Hardware
from ..estimate.layer import ModelTime, StageTime, data_time, model_time, optimizer_time, stage_time, tied_time
from ..estimate.memory import (
    StageLayers,
    activation_bytes,
    beside_bytes,
    logits_bytes,
    passing_bytes,
    rank_bytes,
    stage_parameters,
)
from ..estimate.model import Model, flops_per_token
from ..estimate.setting import CONSTANTS, GENERIC, Calibration, Constants, Setting
from ..estimate.times import stage_hop_time
from ..frameworks.engines import engine_named, executing, implied_engine
from ..schedules.catalog import CATALOG, build
from .idle import SCHEDULES, bubbles, columns, in_flight

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """What the closed form says of many layouts.

    Args:
        step: nanoseconds, float64[n].
        peak_bytes: of the fullest rank, float64[n].
    """

    step: Column
    peak_bytes: Column


@dataclass(frozen=True, slots=True, eq=False)
class RankTime:
    """Seconds of one micro-batch on a rank, all its chunks: F, B (I + W) and W, float64[n] each."""

    forward: Column
    backward: Column
    weight: Column

    @property
    def slot(self) -> Column:
        """One micro-batch forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """A rank of each layout: the stage that makes it special, and all its stages together."""

    stage: StageLayers
    whole: StageLayers


@dataclass(frozen=True, slots=True, eq=False)
class _Ranks:
    """First, inner and last rank of each layout, and how many inner ones there are."""

    first: _Rank
    inner: _Rank
    last: _Rank
    inner_count: Column


def screen(
    model: Model,
    cluster: Cluster,
    layouts: Layouts,
    calibration: Calibration | None = None,
    *,
    constants: Constants = CONSTANTS,
) -> Screened:
    """Closed form, all layouts at once, evidence ``estimated``.

    Stages are as even as each layout says for its first, its last and the fullest in between; micro-batches pass every
    stage once and the slowest rank for all but one of them.
    """
    setting = Setting(model, cluster, layouts, constants, calibration or GENERIC)
    ranks = _ranks(setting)
    return Screened(1e9 * _step(setting, ranks), _peak_bytes(setting, ranks))


def _ranks(setting: Setting) -> _Ranks:
    """What each rank holds; kinds of layer are mixed on every stage as in the whole model."""
    layouts, model = setting.layouts, setting.model
    shares = [count / model.layers for count in model.counts]
    stages = layouts.pipeline * layouts.chunks
    # Without inner stages the larger end stands for them: chunks of a rank beyond its end are taken from here.
    inner = np.where(stages <= 2, np.maximum(layouts.first, layouts.last), layouts.most)
    none, one, more = np.zeros_like(inner), np.ones_like(inner), (layouts.chunks - 1) * inner
    # The embedding and the head share a stage if there is but one, and a rank if there is but one.
    only_stage, only_rank = np.where(stages > 1, 0.0, 1.0), np.where(layouts.pipeline > 1, 0.0, 1.0)

    def rank(layers: Column, first: tuple[Column, Column], last: tuple[Column, Column]) -> _Rank:
        """Of the end's own layers, and whether its stage and its other stages hold embedding and head."""
        limit, away = layouts.recompute_layers, layouts.offload_layers
        stage = StageLayers(tuple(layers * share for share in shares), limit, away, first[0], last[0])
        everything = tuple((layers + more) * share for share in shares)
        limit, away = limit * layouts.chunks, away * layouts.chunks
        return _Rank(stage, StageLayers(everything, limit, away, first[1], last[1]))

    return _Ranks(
        rank(layouts.first, (one, one), (only_stage, only_rank)),
        rank(inner, (none, none), (none, none)),
        rank(layouts.last, (only_stage, only_rank), (one, one)),
        np.maximum(layouts.pipeline - 2, 0),
    )


def _step(setting: Setting, ranks: _Ranks) -> Column:
    """Seconds of a step: the steady state, once through the pipeline, the bubble, hops, and what lies outside."""
    layouts, p, chunks = setting.layouts, setting.layouts.pipeline, setting.layouts.chunks
    times = model_time(setting)
    inner_stage = stage_time(setting, times, ranks.inner.stage)
    # Some hop leaves the node of a job that does, and the others wait for it.
    crosses = (layouts.gpus > setting.cluster.gpus_per_node).astype(np.float64)
    hop = stage_hop_time(setting, crosses)
    # A blocking send or receive is work of its rank: two hops each way for each stage, but for the ends of the model.
    occupied = np.where(layouts.blocking_sends > 0, hop, 0.0)
    first = _rank_time(stage_time(setting, times, ranks.first.stage), inner_stage, chunks)
    last = _rank_time(stage_time(setting, times, ranks.last.stage), inner_stage, chunks)
    inner = _longer_by(_rank_time(inner_stage, inner_stage, chunks), 4 * chunks * occupied)
    first, last = _longer_by(first, (4 * chunks - 2) * occupied), _longer_by(last, (4 * chunks - 2) * occupied)
    delay = hop - occupied

    several = np.where(p > 1, 1.0, 0.0)
    mean = _mean(first, last, inner, several, ranks.inner_count)
    slowest = np.maximum(first.slot, several * last.slot)
    slowest = np.maximum(slowest, np.where(ranks.inner_count > 0, inner.slot, 0.0))
    # All micro-batches but one at the pace of the steady state; that one passes a mean rank; then what the schedule
    # idles beyond, and a hop each way for each rank.
    window = (layouts.microbatches - several) * period(layouts, mean.slot, slowest, delay)
    bubble = bubbles(layouts, mean.forward, mean.backward, mean.weight)
    window = window + several * mean.slot + bubble + 2 * (p - 1) * delay

    first_shared, first_routed = stage_parameters(setting, ranks.first.whole)
    last_shared, last_routed = stage_parameters(setting, ranks.last.whole)
    # Replicas of a rank reduce by themselves, all ranks at once: the step waits for the rank that holds most.
    shared, routed = np.maximum(first_shared, last_shared), np.maximum(first_routed, last_routed)
    data = setting.factors.data.value * data_time(setting, shared, routed, (mean.forward, mean.backward))
    outside = data + tied_time(setting) + optimizer_time(setting, shared, routed) + setting.constants.step
    return window + outside


def _rank_time(stage: StageTime, inner: StageTime, chunks: Column) -> RankTime:
    """One stage of an end, and the rank's other chunks from the middle of the model."""
    others = chunks - 1
    # The end's own layers stand in one of the rank's chunks; its others are like those of an inner rank.
    return RankTime(
        stage.forward + others * inner.forward,
        stage.backward + others * inner.backward,
        stage.weight + others * inner.weight,
    )


def _longer_by(rank: RankTime, seconds: Column) -> RankTime:
    """A rank whose forward and backward together take so much longer."""
    times = np.where(
        rank.slot > 0, 1 + seconds / np.maximum(rank.slot, 1e-30), 1.0
    )  # a stage without layers stays empty
    return RankTime(rank.forward * times, rank.backward * times, rank.weight * times)


def _mean(first: RankTime, last: RankTime, inner: RankTime, lasts: Column, inners: Column) -> RankTime:
    """The mean rank, of one first, so many last and so many inner ones."""
    ranks = 1 + lasts + inners
    return RankTime(
        (first.forward + lasts * last.forward + inners * inner.forward) / ranks,
        (first.backward + lasts * last.backward + inners * inner.backward) / ranks,
        (first.weight + lasts * last.weight + inners * inner.weight) / ranks,
    )


def period(layouts: Layouts, mean: Column, slowest: Column, hop: Column) -> Column:
    """Seconds from one micro-batch to the next once all ranks are busy, hops included.

    Where F and B alternate, ranks wait for their neighbours on both sides: a chain of k of them takes the mean of its
    slots and 2 (k-1)/k hops. So hops cost nothing where one rank is slower than its neighbour by more than they take.
    The chains that count: the slowest rank alone, with one other, and all. Schedules that run far ahead wait for none.
    """
    p, v = layouts.pipeline, layouts.chunks
    ahead = np.isin(layouts.schedule, [code for code, name in enumerate(SCHEDULES) if CATALOG[name].hides_hops])
    one = np.where(ahead | (p == 1), 0.0, hop * v)
    other = (p * mean - slowest) / np.maximum(p - 1, 1)
    pair = np.where(p > 1, (slowest + other) / 2 + one, 0.0)
    found: Column = np.maximum(np.maximum(slowest, pair), mean + 2 * (p - 1) / p * one)
    return found


def _peak_bytes(setting: Setting, ranks: _Ranks) -> Column:
    """Bytes of the fuller of first and last rank."""
    # The first rank keeps most activations and may hold the embedding; the last has head and logits. Inner ranks keep
    # less than the first and hold neither.
    first_kept, last_kept = in_flight(setting.layouts)
    fuller = np.maximum(
        _rank_bytes(setting, ranks.first.whole, first_kept), _rank_bytes(setting, ranks.last.whole, last_kept)
    )
    peak: Column = (fuller + setting.constants.workspace) * setting.factors.memory.value
    return peak


def _rank_bytes(setting: Setting, held: StageLayers, kept: Column) -> Column:
    """Bytes of a rank that keeps the activations of so many micro-batches."""
    state = sum(rank_bytes(setting, *stage_parameters(setting, held)))
    activations = kept * activation_bytes(setting, held) + passing_bytes(setting)
    return state + activations + held.last * logits_bytes(setting)


SECOND = 1e9  # nanoseconds
SHORTEST_SAMPLE = 128  # tokens: attention within fewer is no more than a tile of its kernel
HEAVY = 1.1  # times the mean stage: what a plan remarks on
MEMORY = ("weights", "gradients", "optimizer", "activations", "logits", "other")


@dataclass(frozen=True, slots=True)
class Wiring:
    """How ranks hand over what they make.

    Args:
        framework: that runs a layout, by name, and so the engine that posts its sends; empty for hops that keep nobody.
        said: the engine, if somebody named one; None for the framework's.
        hops: nanoseconds of each link, if somebody stated them; None for the estimate's.
    """

    framework: str = ""
    said: Engine | None = None
    hops: Hops | None = None

    def engine(self, layout: Layout) -> Engine:
        """What executes a layout; ``ideal`` where nobody said who runs it, or nothing here is known of its engine."""
        if layout.pipeline == 1:
            return IDEAL
        if self.said is not None:
            return self.said
        if not self.framework:
            return IDEAL
        chunks = layout.chunks if layout.chunks > 1 else None
        config = Config(framework=self.framework, pipeline=layout.pipeline, chunks=chunks, schedule=layout.schedule)
        return implied_engine(config) or IDEAL


UNSAID = Wiring()


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One layout ready for simulation.

    Args:
        layout: the layout.
        settings: the same as a setting of one row, on each kind of device.
        kinds: which of them each rank is of, int64[ranks].
        held: what its stages hold.
        stages: what they take.
        free: its schedule, lowered for hops that keep nobody.
        program: the same under the engine that runs it.
        engine: its name.
        durations: three sets of costs, int64[3, kinds, stages]: of stages that all take the mean with free transfers,
            of each stage's own time, and of that with hops.
        hops: the delays of the third; those of the others are 0, int64[kinds, stages, 1 or units].
        pair_scales: of each set, what an op takes beside another over what it takes alone, float64[3, kinds, stages]; 1
            if nothing runs beside anything.
    """

    layout: Layout
    settings: tuple[Setting, ...]
    kinds: NDArray[np.int64]
    held: StageLayers
    stages: StageTime
    free: Program
    program: Program
    engine: str
    durations: NDArray[np.int64]
    hops: NDArray[np.int64]
    pair_scales: Column

    @property
    def setting(self) -> Setting:
        """What does not depend on the device: the first."""
        return self.settings[0]

    def of_ranks(self, device: Callable[[Hardware], float]) -> Column:
        """A figure of each rank's device, float64[ranks]."""
        return np.array([device(setting.cluster.device) for setting in self.settings])[self.kinds]

    def costs(self) -> list[Costs]:
        """The costs of its three windows."""
        costs = []
        delays = (0 * self.hops, 0 * self.hops, self.hops)
        for spent, hops, scale in zip(self.durations, delays, self.pair_scales, strict=True):
            durations = np.broadcast_to(spent[:, :, None], hops.shape).copy()
            costs.append(Costs(durations, hops.copy(), "estimated", scale if (scale != 1).any() else 1.0))
        return costs


def judge(
    model: Model, cluster: Cluster, layout: Layout, calibration: Calibration | None = None, wiring: Wiring = UNSAID
) -> Plan:
    """Exact simulation of one layout with the estimated cost of each stage, its parts, and the bytes of each rank.

    Raises:
        InputError: the schedule does not suit the shape.
    """
    return judge_all(model, cluster, [layout], calibration, wiring)[0]


def judge_all(
    model: Model,
    cluster: Cluster,
    layouts: Sequence[Layout],
    calibration: Calibration | None = None,
    wiring: Wiring = UNSAID,
) -> list[Plan]:
    """``judge`` for many layouts; those that run the same schedule on the same shape share one sweep.

    Raises:
        InputError: a schedule does not suit its shape, or has no link that hops are stated of.
    """
    same_program: dict[tuple[str, int, int, int, bool, int], list[int]] = {}
    for number, layout in enumerate(layouts):
        # Building and lowering a program takes longer than sweeping it once more with other costs.
        apart = number if CATALOG[layout.schedule].search else 0  # the order depends on the costs of each
        sizes = (layout.pipeline, layout.microbatches, layout.chunks)
        shape = (layout.schedule, *sizes, in_pairs(layout), apart)
        same_program.setdefault(shape, []).append(number)
    plans: dict[int, Plan] = {}
    times = _times(model, cluster, layouts, calibration)
    for numbers in same_program.values():
        cases = [_case(model, cluster, layouts[number], calibration, wiring, times=times[number]) for number in numbers]
        spans = _windows(cases)
        for number, case, (even, unequal, real) in zip(numbers, cases, spans.tolist(), strict=True):
            plans[number] = _plan(case, even, unequal, real)
    return [plans[number] for number in range(len(layouts))]


def _windows(cases: Sequence[_Case]) -> NDArray[np.int64]:
    """The three windows of each of some cases that run one schedule, nanoseconds, int64[cases, 3].

    Hops that are free keep nobody, whatever the engine: only the last window is under it.
    """
    first = cases[0]
    costs = [case.costs() for case in cases]
    if first.free is first.program:
        return simulate_many(first.program, list(chain(*costs))).reshape(-1, 3)
    free = simulate_many(first.free, list(chain(*(each[:2] for each in costs)))).reshape(-1, 2)
    real = simulate_many(first.program, [each[2] for each in costs])
    return np.column_stack([free, real])


def simulated(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    calibration: Calibration | None = None,
    wiring: Wiring = UNSAID,
) -> tuple[Timeline, Costs]:
    """The window that ``judge`` measures, op by op, and the costs of the stages that it comes from.

    Raises:
        InputError: the schedule does not suit the shape.
    """
    case = _alone(model, cluster, layout, calibration, wiring)
    costs = case.costs()[2]
    return simulate(case.program, costs), costs


def unequal(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    samples: Samples,
    *,
    calibration: Calibration | None = None,
    wiring: Wiring = UNSAID,
) -> UnequalSamples:
    """What the window of a layout is with samples of unequal length, packed into rows of its sequence.

    Raises:
        InputError: the schedule does not suit the shape.
    """
    full = _alone(model, cluster, layout, calibration, wiring)
    tokens: list[float] = []
    durations: list[NDArray[np.int64]] = []
    # As many tokens in ever shorter samples: products stay as they are, and attention shrinks as the model has it.
    length = layout.sequence
    while length >= SHORTEST_SAMPLE or not tokens:
        shorter = replace(layout, sequence=length, micro_batch=layout.micro_batch * (layout.sequence // length))
        tokens.append(float(length))
        durations.append(_alone(model, cluster, shorter, calibration, wiring).durations[2])
        if length % 2:
            break
        length //= 2
    times = TimeByLength(np.array(tokens[::-1]), np.stack(durations[::-1])[:, :, :, None].astype(np.float64))
    rows = Rows(layout.microbatches, layout.micro_batch, layout.data)
    return unequal_samples(full.program, full.costs()[2], times, rows, samples)


def _alone(model: Model, cluster: Cluster, layout: Layout, calibration: Calibration | None, wiring: Wiring) -> _Case:
    """The case of one layout by itself."""
    times = _times(model, cluster, [layout], calibration)[0]
    return _case(model, cluster, layout, calibration, wiring, times=times)


def _times(
    model: Model, cluster: Cluster, layouts: Sequence[Layout], calibration: Calibration | None
) -> list[tuple[ModelTime, ...]]:
    """What a layer and the ends of each layout take on each kind of device, all layouts at once."""
    of_part = []
    for setting in _settings(model, cluster, list(map(_outside_pairs, layouts)), calibration):
        times = model_time(setting)
        of_part.append([times.of(number) for number in range(len(layouts))])
    return list(zip(*of_part, strict=True))


def _overlaps(layout: Layout) -> bool:
    """Whether tokens travel beside the other half of a pair of ops; beside an op by itself nothing runs."""
    return layout.expert_overlap and layout.pipeline > 1 and bool(CATALOG[layout.schedule].pairs)


def _outside_pairs(layout: Layout) -> Layout:
    """How ops by themselves run; where a schedule has no pairs, whoever says overlap is taken at his word."""
    return replace(layout, expert_overlap=layout.expert_overlap and not _overlaps(layout))


def _case(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    calibration: Calibration | None,
    wiring: Wiring,
    *,
    times: Sequence[ModelTime],
) -> _Case:
    settings = _settings(model, cluster, [_outside_pairs(layout)], calibration)
    kinds = np.array(cluster.kinds_of_ranks(layout.pipeline) or layout.pipeline * [0])
    held = stage_layers(model, layout)
    of_kind = [stage_time(setting, time, held) for setting, time in zip(settings, times, strict=True)]
    free = _program(layout, _durations(of_kind[0]))
    stages = of_kind[0]
    if len(settings) > 1:
        stages = _chosen(of_kind, _kinds_of_stages(layout, kinds, free))
        free = _program(layout, _durations(stages))
    own = _durations(stages)
    paired = own
    if _overlaps(layout):
        beside = [stage_time(each, model_time(each), held) for each in _settings(model, cluster, [layout], calibration)]
        together = beside[0]
        if len(settings) > 1:
            together = _chosen(beside, _kinds_of_stages(layout, kinds, free))
        paired, stages = _durations(together), _partly(stages, together, _paired_share(free.schedule))
    # Three windows, so that what each step adds has a name: the bubble of even stages, unequal stages, hops.
    mean = np.rint(own.mean(axis=1, keepdims=True)).astype(np.int64)
    even = np.broadcast_to(mean, own.shape)
    hops = _transfers(settings, kinds, free)[:, :, None]
    if wiring.hops is not None:
        hops = np.rint(link_table(wiring.hops, free.schedule)).astype(np.int64)
    real, program, engine = own, free, wiring.engine(layout)
    if layout.blocking_sends and wiring.hops is None and wiring.said is None:
        # Hops that are estimated are taken for work of their ranks: of the 24 runs of vTrain on several nodes that is
        # 3.3 % off, DeepSpeed's engine over the same estimates 4.6 %.
        real, hops = own + _occupied(hops[:, :, 0]), np.zeros_like(hops)
    elif engine != IDEAL:
        program = _under(free.schedule, engine.name)
        engine = program.engine
    scales = np.stack(
        [paired.mean(axis=1, keepdims=True) / np.maximum(mean, 1) + 0.0 * own, paired / np.maximum(own, 1)]
    )
    pair_scales = np.where(np.stack([even, own, real]) > 0, scales[[0, 1, 1]], 1.0)
    durations = np.stack([even, own, real])
    return _Case(layout, settings, kinds, held, stages, free, program, engine.name, durations, hops, pair_scales)


def in_pairs(layout: Layout) -> bool:
    """Whether forwards and backwards of a layout run in pairs because somebody asked for it."""
    return layout.expert_overlap and layout.pipeline > 1 and CATALOG[layout.schedule].may_pair


def _settings(
    model: Model, cluster: Cluster, layouts: Sequence[Layout], calibration: Calibration | None
) -> tuple[Setting, ...]:
    """Layouts as a setting on each kind of device, a row each."""
    column, factors = columns(layouts, model.layers), calibration or GENERIC
    return tuple(Setting(model, part, column, factors=factors) for part in cluster.parts or (cluster,))


def _kinds_of_stages(layout: Layout, kinds: NDArray[np.int64], program: Program) -> NDArray[np.int64]:
    """Which kind of device each stage is on.

    Raises:
        InputError: a stage is on two ranks of unlike devices.
    """
    found: NDArray[np.int64] = kinds[program.schedule.placement]
    if (found != found[0]).any():
        rule = "it keeps each stage on two ranks, and they are of two kinds"
        raise InputError(Fault(f"schedule = {layout.schedule}", rule, "give 1f1b, interleaved, zb-h1 or zb-v"))
    first: NDArray[np.int64] = found[0]
    return first


def _paired_share(schedule: Schedule) -> Column:
    """Of each stage's forwards and backwards, how many run as a half of a pair, float64[stages]."""
    half = np.zeros(len(schedule), np.bool_)
    if schedule.joined is not None:
        second = np.flatnonzero(schedule.joined)
        half[second] = half[second - 1] = True
    found: Column = np.bincount(schedule.stage[half], minlength=schedule.stages) / (2 * schedule.units)
    return found


def _partly(alone: StageTime, together: StageTime, share: Column) -> StageTime:
    """The mean time of a stage's micro-batches, a share of which runs beside others."""
    mixed = {}
    for name in StageTime.__slots__:
        mixed[name] = (1 - share) * getattr(alone, name) + share * getattr(together, name)
    return StageTime(**mixed)


def stage_layers(model: Model, layout: Layout) -> StageLayers:
    """What each stage of a layout holds, one entry a stage."""
    split = layout.split(model.layers)
    edges = np.concatenate([[0], np.cumsum(split)]).tolist()
    counts = np.array([model.counts_between(first, last) for first, last in pairwise(edges)], np.float64)
    stage = np.arange(len(split))
    limit = np.inf if layout.recompute_layers is None else layout.recompute_layers
    return StageLayers(
        counts=tuple(counts.T),
        recomputed=np.full(len(split), limit),
        offloaded=np.full(len(split), float(layout.offload_layers)),
        first=(stage == 0).astype(float),
        last=(stage == len(split) - 1).astype(float),
    )


# Layouts of a search differ in degrees and splits more than in shape: some dozens of shapes are met again and again.
@lru_cache(maxsize=64)
def _lowered(schedule: str, ranks: int, microbatches: int, chunks: int, *, pairs: bool) -> Program:
    return lower(build(schedule, Shape(ranks, microbatches, chunks, pairs=pairs)))


def _program(layout: Layout, table: NDArray[np.int64]) -> Program:
    """The order, lowered; one that is searched is searched for the mean costs of its stages."""
    shape = (layout.pipeline, layout.microbatches, layout.chunks)
    if CATALOG[layout.schedule].search is None:
        return _lowered(layout.schedule, *shape, pairs=in_pairs(layout))
    of_rank = (table.mean(axis=1) * layout.chunks).tolist()
    speed = Rates(of_rank[Kind.F], input=of_rank[Kind.I], weight=of_rank[Kind.W])
    return lower(build(layout.schedule, Shape(*shape), speed))


@lru_cache(maxsize=64)
def _under(schedule: Schedule, engine: str) -> Program:
    """A schedule as its engine posts sends and receives, or the nearest one of the same framework that can run it."""
    return executing(schedule, engine_named(engine))


def _durations(stages: StageTime) -> NDArray[np.int64]:
    """Of each kind of op and stage, nanoseconds."""
    table = np.zeros((KINDS, len(stages.forward)))
    # W runs products alone; where the host is slower than them, what it adds stays with I.
    weight = np.minimum(stages.weight, stages.backward)
    table[Kind.F], table[Kind.B] = stages.forward, stages.backward
    table[Kind.I], table[Kind.W] = stages.backward - weight, weight
    return np.rint(SECOND * table).astype(np.int64)


def _chosen(of_kind: Sequence[StageTime], kinds: NDArray[np.int64]) -> StageTime:
    """The time of each stage on the kind of device that it lies on."""
    stage = np.arange(len(kinds))
    chosen = {}
    for name in StageTime.__slots__:
        chosen[name] = np.stack([np.broadcast_to(getattr(one, name), kinds.shape) for one in of_kind])[kinds, stage]
    return StageTime(**chosen)


def _transfers(settings: Sequence[Setting], kinds: NDArray[np.int64], program: Program) -> NDArray[np.int64]:
    """Delay of each stage's input, nanoseconds: forward from the stage before, backward from the one after."""
    layouts = settings[0].layouts
    # Devices are numbered as Megatron-LM does, tensor innermost and pipeline outermost: the next rank is all devices
    # of a stage away.
    rank = program.schedule.placement[0].astype(np.int64)
    stride = int(layouts.gpus[0] / layouts.pipeline[0])  # devices from one rank to the next
    # Between devices of two kinds, which are in two nodes, a hop takes as long as the slower card does.
    border = kinds[rank[1:]] != kinds[rank[:-1]]
    between = np.zeros(len(rank) - 1)
    for kind, setting in enumerate(settings):
        per_node = setting.cluster.gpus_per_node
        node = rank * stride // per_node
        crosses = (node[1:] != node[:-1]) | (stride >= per_node) | border
        touches = (kinds[rank[1:]] == kind) | (kinds[rank[:-1]] == kind)
        taken = np.where(touches, stage_hop_time(setting, crosses.astype(float)), 0.0)
        between = np.maximum(between, taken)
    between = np.where(rank[1:] == rank[:-1], 0.0, between)
    table = np.zeros((KINDS, len(rank)))
    table[Kind.F, 1:] = between
    table[Kind.B, :-1] = table[Kind.I, :-1] = between
    return np.rint(SECOND * table).astype(np.int64)


def _occupied(hops: NDArray[np.int64]) -> NDArray[np.int64]:
    """What blocking transfers add to each op: receiving its input and sending its output, nanoseconds."""
    sent = np.zeros_like(hops)
    sent[Kind.F, :-1] = hops[Kind.F, 1:]
    for kind in (Kind.B, Kind.I):
        sent[kind, 1:] = hops[kind, :-1]
    return hops + sent


def _plan(case: _Case, even: float, unequal: float, real: float) -> Plan:
    """The plan of a case from its three windows, nanoseconds: see ``_Case``."""
    layout, setting, model = case.layout, case.setting, case.setting.model
    memory = _memory(setting, case.program, case.held)
    peak, usable = memory.sum(axis=0), case.of_ranks(lambda device: device.usable)
    fullest = int((peak / usable).argmax())
    parts, work = _parts(case, even, unequal, real)
    tokens = layout.global_batch * layout.sequence
    device_seconds = parts.step / SECOND * layout.gpus
    rate = float(case.of_ranks(lambda device: device.peak(layout.precision)).mean())
    return Plan(
        layout=layout,
        step=parts.step,
        expected_step=parts.step,
        parts=parts,
        idle_share=max(0.0, 1 - work / real),
        peak_bytes=tuple(int(rank) for rank in peak),
        memory=dict(zip(MEMORY, memory[:, fullest].astype(int).tolist(), strict=True)),
        tokens_per_second_per_gpu=tokens / device_seconds,
        mfu=flops_per_token(model, layout.sequence) * tokens / device_seconds / rate,
        fits=bool((peak <= usable).all()),
        engine=case.engine,
        beside=int(beside_bytes(setting)[0]),
        reasons=_reasons(model, layout, case.stages),
    )


def _parts(case: _Case, even: float, unequal: float, real: float) -> tuple[Parts, float]:
    """Where the step goes, and the mean work of a rank in its window, nanoseconds."""
    stages, layout, own = case.stages, case.layout, case.durations[1]
    each = layout.microbatches / layout.pipeline  # micro-batches, a rank's share of the pipeline
    # Every stage runs each micro-batch once forward and once backward, whatever the schedule splits B into.
    busy = float(own[Kind.F].sum() + own[Kind.B].sum()) * each
    data, update = _outside(case)

    def spent(seconds: Column) -> float:
        return each * SECOND * float(seconds.sum())

    work = spent(stages.forward + stages.backward)
    if (case.pair_scales != 1).any():
        busy = work  # which knows how many run beside others
    named = {name: spent(getattr(stages, name)) for name in ("ideal", "recompute", "tensor", "context", "expert")}
    gathered = spent(stages.data)  # ZeRO-3 inside the window
    parts = Parts(
        **named,
        kernels=work - sum(named.values()) - gathered,  # the rest, so that parts sum to the step
        bubble=even - busy,
        imbalance=unequal - even,
        transfer=real - unequal,
        data=gathered + data,
        optimizer=update,
        fixed=case.setting.constants.step * SECOND,
    )
    return parts, work


def _outside(case: _Case) -> tuple[float, float]:
    """Data-parallel traffic that shows, and the update, of the rank that has most of it, nanoseconds."""
    program, stages = case.program, case.stages
    shared, routed = _rank_parameters(case.setting, program, case.held)
    beside = (_by_rank(program, stages.forward), _by_rank(program, stages.backward))
    traffic = update = 0.0
    for kind, setting in enumerate(case.settings):
        here = case.kinds == kind
        # The last micro-batch's backward hides gradients, the first one's forward the weights that are gathered.
        data = setting.factors.data.value * data_time(setting, shared, routed, beside) + tied_time(setting)
        traffic = max(traffic, float(data[here].max()))
        update = max(update, float(optimizer_time(setting, shared, routed)[here].max()))
    return SECOND * traffic, SECOND * update


def _memory(setting: Setting, program: Program, held: StageLayers) -> Column:
    """Bytes of each rank by what they are for, float64[names of ``MEMORY``, ranks]."""
    ranks, copies = program.schedule.ranks, len(program.schedule.placement)
    state = rank_bytes(setting, *_rank_parameters(setting, program, held))
    # Activations of a micro-batch are on one of the copies of its stage, where a schedule has two.
    kept = _by_rank(program, activation_bytes(setting, held)) / copies * peak_activations(program.schedule)
    logits = _by_rank(program, held.last) * logits_bytes(setting)
    # What is there for a moment, and what libraries hold for themselves.
    other = passing_bytes(setting) + setting.constants.workspace
    rows = [np.broadcast_to(row, (ranks,)) for row in (*state, kept, logits, other)]
    return np.stack(rows) * setting.factors.memory.value


def _rank_parameters(setting: Setting, program: Program, held: StageLayers) -> tuple[Column, Column]:
    """Parameters of each rank on one device: what all replicas share, and its experts."""
    shared, routed = stage_parameters(setting, held)
    stages = held.first.shape
    return _by_rank(program, np.broadcast_to(shared, stages)), _by_rank(program, np.broadcast_to(routed, stages))


def _by_rank(program: Program, stage: Column) -> Column:
    """Sums over the stages that each rank holds (both copies if there are two)."""
    placement, ranks = program.schedule.placement, program.schedule.ranks
    summed: Column = np.sum([np.bincount(copy, stage, ranks) for copy in placement], axis=0)
    return summed


def _reasons(model: Model, layout: Layout, stages: StageTime) -> tuple[str, ...]:
    """What to look at, in sentences."""
    reasons = []
    slot = stages.forward + stages.backward
    worst = int(slot.argmax())
    if len(slot) > 1 and slot[worst] > HEAVY * slot.mean():
        ends = {0: " with the embedding", len(slot) - 1: " with the head and the loss"}.get(worst, "")
        layers = layout.split(model.layers)[worst]
        times = slot[worst] / slot.mean()
        reasons.append(f"stage {worst}{ends} ({layers} layers) takes {times:.2f} times the mean stage")
    if layout.pipeline > 1 and layout.microbatches < layout.pipeline:
        many = f"{layout.microbatches} micro-batch{'es' if layout.microbatches > 1 else ''}"
        reasons.append(f"{many} cannot keep {layout.pipeline} ranks busy")
    return (*reasons, *model.warnings)
