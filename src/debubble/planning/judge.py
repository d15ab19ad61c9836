"""Judgement: a layout of a model on a cluster becomes a plan, and many layouts become columns of times and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..estimate.constants import CONSTANTS, Constants
from ..estimate.factors import GENERIC, Calibration
from ..estimate.hardware import Cluster
from ..estimate.layer import Setting
from ..estimate.memory import input_bytes, layer_bytes, logits_bytes, state_bytes
from ..estimate.model import Model
from ..estimate.network import hop_time
from ..estimate.outside import data_time, optimizer_time, tied_time
from ..estimate.stages import Blocks, Slice, StageTime, blocks, stage_parameters, stage_time
from ..plan import Layouts
from .closed_form import RankTime, bubble, hops, in_flight

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
    parts: dict[str, Column]


def screen(
    model: Model, cluster: Cluster, layouts: Layouts, calibration: Calibration | None = None,
    constants: Constants = CONSTANTS,
) -> Screened:
    """Closed form, all layouts at once: even stages but for the ends, the catalog's bubble, evidence ``estimated``."""
    at = Setting(model, cluster, layouts, constants, calibration or GENERIC)
    made_of = blocks(at)
    moe = model.expert_layers / model.layers
    v, p = layouts.chunks, layouts.pipeline
    many = layouts.pipeline * v > 1

    def held(layers, first, last, chunks) -> Slice:
        del chunks
        return Slice(layers * (1 - moe), layers * moe, layouts.recompute_layers, first, last)

    zero, one = np.zeros_like(p), np.ones_like(p)
    inner = np.where(p * v > 2, layouts.most, np.maximum(layouts.first, layouts.last))
    first = stage_time(at, made_of, held(layouts.first, one, np.where(many, 0.0, 1.0), 1))
    last = stage_time(at, made_of, held(layouts.last, np.where(many, 0.0, 1.0), one, 1))
    mid = stage_time(at, made_of, held(inner, zero, zero, 1))
    def rank(one_chunk):
        return RankTime(*(getattr(one_chunk, n) + (v - 1) * getattr(mid, n) for n in ("forward", "backward", "weight")))
    ranks = [rank(first), rank(mid), rank(last)]
    slowest = np.maximum(np.maximum(ranks[0].slot, ranks[2].slot), np.where(p > 2, ranks[1].slot, 0))
    total = RankTime(*(getattr(ranks[0], n) + np.where(p > 1, getattr(ranks[2], n), 0) + np.maximum(p - 2, 0) * getattr(ranks[1], n) for n in ("forward", "backward", "weight")))
    mean = RankTime(total.forward / p, total.backward / p, total.weight / p)
    hop = hop_of(at) * at.factors.transfer.value
    m = layouts.microbatches
    window = m * slowest + bubble(layouts, mean) - np.where(p > 1, slowest - mean.slot, 0) * 1.0 + hops(layouts) * hop
    sh = [stage_parameters(at, h) for h in (held(layouts.first + (v-1)*inner, one, np.where(many, 0.0, 1.0), 1), held(layouts.last + (v-1)*inner, np.where(many, 0.0, 1.0), one, 1))]
    shared = np.maximum(sh[0][0], sh[1][0]); routed = np.maximum(sh[0][1], sh[1][1])
    data = data_time(at, shared, routed, slowest) * at.factors.data.value + tied_time(at)
    opt = optimizer_time(at, shared, routed)
    step = window + data + opt + constants.step
    peak = None
    return Screened(1e9 * step, peak, {"window": window, "data": data, "opt": opt, "slowest": slowest, "mean": mean.slot, "hop": hop, 'first':first,'mid':mid,'last':last})


def hop_of(at: Setting) -> Column:
    """Seconds of a hop between neighbouring ranks: the residual of a micro-batch, over t with sequence parallelism."""
    layouts = at.layouts
    stride = layouts.tensor * layouts.context * layouts.data
    apart = (stride * layouts.pipeline > at.cluster.gpus_per_node).astype(np.float64)
    return hop_time(at.cluster, at.constants, apart, 2 * at.tokens * at.model.hidden / at.spread)
