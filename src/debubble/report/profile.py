"""What ``profile`` says: times measured beside those estimated before and after, and the factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import Cell, Unit, shown
from .sections import Column, Paste, Report, Sentences, Table

if TYPE_CHECKING:
    from ..planning.layer_profile import LayerProfile


def report(profile: LayerProfile, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a layer's profile."""
    sizes = f"tensor {profile.tensor}, micro-batch {profile.micro_batch}, sequence {profile.sequence}"
    title = f"one layer of {profile.model} on {profile.device}, held against {profile.gpu}: {sizes}"
    command = f"debubble plan --model .. --gpu .. --calibrate {profile.calibration}"
    return Report(title, (), [_times(profile), _factors(profile), Paste("Next:", command)])


def _times(profile: LayerProfile) -> Table:
    columns = [
        Column("", left=True),
        Column("measured"),
        Column("estimated", Unit.TIME),
        Column("calibrated", Unit.TIME),
    ]
    timed = {
        "layer": profile.layer,
        "narrow layer": profile.narrow_layer,
        "embedding": profile.embedding,
        "head": profile.head,
    }
    rows: list[list[Cell]] = []
    for name, times in timed.items():
        if times is None:
            continue
        error = f"± {100 * times.error_share:.1f} %"
        forward = f"{shown(times.forward_ms, Unit.TIME)} {error}"
        backward = f"{shown(times.backward_ms, Unit.TIME)} {error}"
        rows += [
            [f"{name} forward", forward, times.estimated_forward_ms, times.calibrated_forward_ms],
            [f"{name} backward", backward, times.estimated_backward_ms, times.calibrated_backward_ms],
        ]
    return Table("", columns, rows)


def _factors(profile: LayerProfile) -> Sentences:
    """Factors with their errors, and those that one layer alone does not tell."""
    told, silent = [], []
    for name, factor in profile.factors.items():
        if factor.told:
            told.append(f"{name} {factor.value:.3g} ± {factor.error:.2g}")
        else:
            silent.append(name)
    text = f"factors: {', '.join(told) or 'none'}; one layer says next to nothing of {', '.join(silent)}"
    return Sentences("", [text], plain=True)
