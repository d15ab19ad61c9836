"""Calibration by one layer: its forward and backward, timed on one device, become ``kernels`` and ``floor``.

Two sizes tell the two apart, by forward and backward together: the layer as it is, which the device's kernels take up,
and one so narrow that only the host's issuing of it takes time. A layer timed alone says nothing of links: the other
factors keep their priors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..config.layout import Layout
from ..config.plan import columns
from ..estimate.constants import GENERIC, Calibration, Factor
from ..estimate.hardware import Cluster
from ..estimate.layer import layer_time
from ..estimate.model import Attention, Experts, FeedForward, Kind, LatentAttention, Mixer, Model
from ..estimate.setting import Setting
from ..estimate.stages import embedding_time, head_time
from .calibrate import MEMORY_PRIOR, PRIOR, corrected
from .posterior import one_by_one, posterior

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
    alone = replace(factors, tensor=Factor(0.0))
    return Setting(run.model, run.cluster, columns([run.layout], run.model.layers), factors=alone)
