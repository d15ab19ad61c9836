"""A layer timed on one device, beside what the cost model says of it before and after; and the factors that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..core.results import SPARSE, Result
from ..estimate.constants import GENERIC, Calibration
from .calibrate_layer import LayerRun, ends_pass, layer_pass
from .calibration_file import FactorValue, factor_values

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
