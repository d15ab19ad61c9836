"""A layer timed on one device becomes ``kernels`` and ``floor``, beside what the model says before and after.

Two sizes tell the two apart, by forward and backward together: the layer as it is, which the device's kernels take up,
and one so narrow that only the host's issuing of it takes time. A layer timed alone says nothing of links: the other
factors keep their priors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..config.layout import Layout
from ..config.plan import columns
from ..core.results import SPARSE, Result
from ..estimate.hardware import Cluster
from ..estimate.layer import embedding_time, head_time, layer_time
from ..estimate.model import Attention, Experts, FeedForward, Kind, LatentAttention, Mixer, Model
from ..estimate.setting import GENERIC, MEMORY_PRIOR, PRIOR, Calibration, Factor, Setting
from .calibrate import FactorValue, corrected, factor_values, one_by_one, posterior

Column = NDArray[np.float64]

FITTED = ("kernels", "floor")
SURE = 0.02  # noise of a layer's time beside its own spread, in e-folds: clocks, temperature. Assumed
WIDE = 2.0  # prior of both, in e-folds: what a user's own file says of a device may be any guess
TINY = 64  # width and tokens of the narrow layer


@dataclass(frozen=True, slots=True, eq=False)
class LayerRun:
    """One layer as it was timed.

    Args:
        model: of which it is.
        cluster: one device of it.
        layout: tensor degree, micro-batch, sequence and so on of the layer.
        forward: seconds, without collectives; ``backward`` likewise.
        backward: see ``forward``.
        spread: relative standard error of their sum.
    """

    model: Model
    cluster: Cluster
    layout: Layout
    forward: float
    backward: float
    spread: float = 0.0


def tiny(model: Model) -> Model:
    """A model of the same kind of layer, so narrow that a device is done with it before its host has issued it."""
    last = model.whole_kind
    mixer: Mixer = Attention(1, 1, TINY)
    if isinstance(last.mixer, LatentAttention):
        query = TINY if last.mixer.query else 0
        mixer = LatentAttention(1, TINY, query, TINY, TINY // 2, TINY)
    feed_forward: FeedForward | Experts = FeedForward(4 * TINY, last.is_gated)
    if last.experts:
        feed_forward = replace(last.experts, width=TINY, shared=TINY if last.experts.shared else 0)
    narrow = Kind(mixer, feed_forward)
    return replace(model, hidden=TINY, vocab=TINY, kinds=(narrow,), pattern=(0,) * model.layers)


def calibrate_layer(runs: tuple[LayerRun, ...], source: str = "") -> Calibration:
    """Fit ``kernels`` and ``floor`` to the layer, and to a narrow one beside it.

    Args:
        runs: what was timed.
        source: for reports.

    Returns:
        A calibration whose band is that of the generic model: one layer does not vouch for a whole step.
    """
    measured = np.log([run.forward + run.backward for run in runs])
    noise = np.array([np.hypot(SURE, run.spread) for run in runs])

    def predicted(at: Column) -> Column:
        return np.log([sum(layer_pass(run, corrected(at, names=FITTED))) for run in runs])

    found = posterior(one_by_one(predicted), (measured, noise), np.full(len(FITTED), WIDE), robust=False)
    silent = {name: Factor(1.0, error) for name, error in (PRIOR | {"memory": MEMORY_PRIOR}).items()}
    fitted = corrected(found.at, found.errors, FITTED).factors()
    told = {name: fitted[name] for name in FITTED}
    return replace(GENERIC, **silent | told, source=source)  # type: ignore[arg-type]


def layer_pass(run: LayerRun, factors: Calibration) -> tuple[float, float]:
    """Seconds that the model gives the forward and the backward of a layer whose collectives are left out."""
    total = layer_time(_setting(run, factors), run.model.whole_kind).total
    return float(total.forward[0]), float(total.backward[0])


def ends_pass(run: LayerRun, factors: Calibration) -> dict[str, tuple[float, float]]:
    """Seconds that the model gives the embedding, and the head with the loss."""
    setting, scale = _setting(run, factors), float(factors.kernels.value)
    times = {}
    for name, end in (("embedding", embedding_time(setting)), ("head", head_time(setting)[0])):
        times[name] = scale * float(end.forward[0]), scale * float(end.backward[0])
    return times


def _setting(run: LayerRun, factors: Calibration) -> Setting:
    # One device sends nothing: collectives of the tensor group are left out of what it is held against.
    alone = replace(factors, tensor=Factor(0.0))
    return Setting(run.model, run.cluster, columns([run.layout], run.model.layers), factors=alone)


PER_MS = 1e3  # milliseconds in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Forward and backward of one part of a model.

    Args:
        forward_ms: as timed; so too ``backward_ms``.
        error_share: relative standard error of their sum.
        estimated_forward_ms: by the generic cost model; so too ``estimated_backward_ms``.
        calibrated_forward_ms: with the factors that were fitted; so too ``calibrated_backward_ms``.
    """

    forward_ms: float
    backward_ms: float
    error_share: float
    estimated_forward_ms: float
    estimated_backward_ms: float
    calibrated_forward_ms: float
    calibrated_backward_ms: float


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class LayerProfile(Result):
    """A layer that was timed.

    Args:
        model: of which it is.
        gpu: against which device it is held.
        device: as the device here calls itself.
        tensor: devices that share it.
        expert: devices over which its experts are spread.
        micro_batch: samples.
        sequence: tokens in each.
        layer: as it is.
        narrow_layer: so narrow that only its launches take time.
        embedding: None if there was no room for logits; so too ``head``.
        source: what was timed.
        rows: measured rows, none.
        factors: of the calibration.
        calibration: the file that holds them.
        evidence: ``measured``.
    """

    schema: ClassVar[str] = "profile/1"

    model: str
    gpu: str
    device: str
    tensor: int
    expert: int
    micro_batch: int
    sequence: int
    layer: PassTimes
    narrow_layer: PassTimes
    embedding: PassTimes | None = field(metadata=SPARSE)
    head: PassTimes | None = field(metadata=SPARSE)
    source: str
    rows: int
    factors: Mapping[str, FactorValue]
    calibration: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a forward and a backward, and the relative standard error of their sum."""

    forward: float
    backward: float
    spread: float


def layer_profile(
    calibration: Calibration,
    runs: tuple[LayerRun, LayerRun],
    ends: Mapping[str, Timed],
    *,
    device: str,
    out: str,
) -> LayerProfile:
    """What was timed, beside the estimates.

    Args:
        calibration: that was fitted.
        runs: the layer, and the narrow one.
        ends: embedding and head, if they were timed; they are held against the factors and are no part of them.
        device: its name.
        out: where the factors were written.
    """
    whole, narrow = runs
    layout = whole.layout

    def row(timed: LayerRun | Timed, before: tuple[float, float], after: tuple[float, float]) -> PassTimes:
        return PassTimes(
            forward_ms=PER_MS * timed.forward,
            backward_ms=PER_MS * timed.backward,
            error_share=timed.spread,
            estimated_forward_ms=PER_MS * before[0],
            estimated_backward_ms=PER_MS * before[1],
            calibrated_forward_ms=PER_MS * after[0],
            calibrated_backward_ms=PER_MS * after[1],
        )

    before, after = ends_pass(whole, GENERIC), ends_pass(whole, calibration)
    timed_ends = {name: row(timed, before[name], after[name]) for name, timed in ends.items()}
    return LayerProfile(
        model=whole.model.name,
        gpu=whole.cluster.device.name,
        device=device,
        tensor=layout.tensor,
        expert=layout.expert,
        micro_batch=layout.micro_batch,
        sequence=layout.sequence,
        layer=row(whole, layer_pass(whole, GENERIC), layer_pass(whole, calibration)),
        narrow_layer=row(narrow, layer_pass(narrow, GENERIC), layer_pass(narrow, calibration)),
        embedding=timed_ends.get("embedding"),
        head=timed_ends.get("head"),
        source=calibration.source,
        rows=calibration.rows,
        factors=factor_values(calibration),
        calibration=out,
        evidence="measured",
    )
