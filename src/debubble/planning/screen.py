"""The screen: step and memory of many thousand layouts a second, by closed forms over first, inner and last rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.plan import Layouts
from ..estimate.hardware import Cluster
from ..estimate.layer import StageTime, data_time, model_time, optimizer_time, stage_time, tied_time
from ..estimate.memory import StageLayers, activation_bytes, logits_bytes, passing_bytes, rank_bytes, stage_parameters
from ..estimate.model import Model
from ..estimate.setting import CONSTANTS, GENERIC, Calibration, Constants, Setting
from ..estimate.times import stage_hop_time
from ..schedules.catalog import CATALOG
from .idle import SCHEDULES, bubbles, in_flight

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
