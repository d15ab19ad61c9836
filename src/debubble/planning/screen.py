"""The screen: step and memory of many thousand layouts a second, by closed forms over first, inner and last rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.layout import Layouts
from ..estimate.constants import CONSTANTS, Constants
from ..estimate.factors import GENERIC, Calibration
from ..estimate.hardware import Cluster
from ..estimate.memory import activation_bytes, logits_bytes, passing_bytes, state_bytes
from ..estimate.model import Model
from ..estimate.network import hop_time, ring_time
from ..estimate.outside import data_time, optimizer_time, tied_time
from ..estimate.setting import Setting
from ..estimate.stages import Slice, StageTime, blocks, stage_parameters, stage_time
from .closed_form import RankTime, bubble, in_flight, period

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
class _Ends:
    """First, inner and last rank of each layout: how many there are of each, and what their stages hold."""

    first: tuple[Slice, Slice]  # the end's own stage, and all its stages together
    inner: tuple[Slice, Slice]
    last: tuple[Slice, Slice]
    others: Column


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
    at = Setting(model, cluster, layouts, constants, calibration or GENERIC)
    ends = _ends(at)
    return Screened(1e9 * _step(at, ends), _peak(at, ends))


def _ends(at: Setting) -> _Ends:
    layouts = at.layouts
    moe = at.model.expert_layers / at.model.layers
    alone = np.where(layouts.pipeline * layouts.chunks > 1, 0.0, 1.0)
    few = layouts.pipeline * layouts.chunks <= 2
    inner = np.where(few, np.maximum(layouts.first, layouts.last), layouts.most)
    none, one, more = np.zeros_like(inner), np.ones_like(inner), (layouts.chunks - 1) * inner

    def held(layers: Column, first: Column, last: Column, stages: Column | float = 1.0) -> Slice:
        return Slice(layers * (1 - moe), layers * moe, layouts.recompute_layers * stages, first, last)

    single = np.where(layouts.pipeline > 1, 0.0, 1.0)  # one rank has both ends, if on different chunks
    return _Ends(
        (held(layouts.first, one, alone), held(layouts.first + more, one, single, layouts.chunks)),
        (held(inner, none, none), held(inner + more, none, none, layouts.chunks)),
        (held(layouts.last, alone, one), held(layouts.last + more, single, one, layouts.chunks)),
        np.maximum(layouts.pipeline - 2, 0),
    )


def _rank(stage: StageTime, inner: StageTime, chunks: Column) -> RankTime:
    """One stage of an end, and the rank's other chunks from the middle of the model."""
    names = ("forward", "backward", "weight")
    return RankTime(*(getattr(stage, n) + (chunks - 1) * getattr(inner, n) for n in names))


def _taking(rank: RankTime, seconds: Column) -> RankTime:
    """A rank whose forward and backward are longer by what its transfers take up."""
    share = np.where(rank.slot > 0, 1 + seconds / np.maximum(rank.slot, 1e-30), 1.0)
    return RankTime(rank.forward * share, rank.backward * share, rank.weight * share)


def _step(at: Setting, ends: _Ends) -> Column:
    layouts, p = at.layouts, at.layouts.pipeline
    made_of = blocks(at)
    inner = stage_time(at, made_of, ends.inner[0])
    once = hop(at)
    taken = np.where(at.blocking, once, 0.0)  # of a rank, by each of its sends and receives
    first, last = (
        _taking(_rank(stage_time(at, made_of, side[0]), inner, layouts.chunks), (4 * layouts.chunks - 2) * taken)
        for side in (ends.first, ends.last)
    )
    middle = _taking(_rank(inner, inner, layouts.chunks), 4 * layouts.chunks * taken)
    once = once - taken
    many = np.where(p > 1, 1.0, 0.0)
    names = ("forward", "backward", "weight")
    mean = RankTime(
        *(
            (getattr(first, n) + many * getattr(last, n) + ends.others * getattr(middle, n)) / (1 + many + ends.others)
            for n in names
        )
    )
    slowest = np.maximum(np.maximum(first.slot, many * last.slot), np.where(ends.others > 0, middle.slot, 0.0))
    window = (layouts.microbatches - many) * period(layouts, mean.slot, slowest, once)
    window = window + many * mean.slot + bubble(layouts, mean) + 2 * (p - 1) * once
    shared, routed = (np.maximum(a, b) for a, b in zip(*_parameters(at, ends), strict=True))
    outside = at.factors.data.value * data_time(at, shared, routed, (mean.forward, mean.backward))
    outside = outside + tied_time(at) + optimizer_time(at, shared, routed) + at.constants.step
    return window + outside


def hop(at: Setting) -> Column:
    """Seconds of a hop: the residual of a micro-batch (over t with sequence parallelism), to another node if any is.

    Scattered over the tensor group it crosses as 1/t of it on each member, and is gathered where it arrives.
    """
    layouts = at.layouts
    apart = (layouts.gpus > at.cluster.gpus_per_node).astype(np.float64)
    residual = 2 * at.tokens * at.model.hidden
    scattered = (layouts.scattered_sends > 0) & (at.spread == 1)
    sent = hop_time(at.network, apart, residual / np.where(scattered, layouts.tensor, at.spread))
    gathered = np.where(scattered, ring_time(at.network, at.ring(layouts.tensor), residual), 0.0)
    return at.factors.transfer.value * sent + at.factors.tensor.value * gathered


def _parameters(at: Setting, ends: _Ends) -> tuple[tuple[Column, Column], tuple[Column, Column]]:
    return stage_parameters(at, ends.first[1]), stage_parameters(at, ends.last[1])


def _peak(at: Setting, ends: _Ends) -> Column:
    """Bytes of the fuller of first and last rank."""
    tops = []
    for side, held, parameters in zip(
        in_flight(at.layouts), (ends.first[1], ends.last[1]), _parameters(at, ends), strict=True
    ):
        state = sum(state_bytes(at, *parameters))
        kept = side * activation_bytes(at, held) + passing_bytes(at)
        tops.append(state + kept + held.last * logits_bytes(at))
    found: Column = (np.maximum(*tops) + at.constants.workspace) * at.factors.memory.value
    return found
