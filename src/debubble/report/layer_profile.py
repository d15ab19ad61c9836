"""What ``profile`` says: times measured beside those estimated before and after, and the factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import Cell, Unit, shown
from .sections import Column, Paste, Report, Section, Sentences, Table

if TYPE_CHECKING:
    from ..planning.layer_profile import LayerProfile, PassTimes

PARTS = ("layer", "narrow_layer", "embedding", "head")


def report(found: LayerProfile, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a layer's profile."""
    sizes = f"tensor {found.tensor}, micro-batch {found.micro_batch}, sequence {found.sequence}"
    columns = [
        Column("", left=True),
        Column("measured"),
        Column("estimated", Unit.TIME),
        Column("calibrated", Unit.TIME),
    ]
    rows = [
        row
        for name in PARTS
        if (times := getattr(found, name)) is not None
        for row in _rows(name.replace("_", " "), times)
    ]
    told = [f"{name} {each.value:.3g} ± {each.error:.2g}" for name, each in found.factors.items() if each.told]
    silent = [name for name, each in found.factors.items() if not each.told]
    sentences = [
        f"factors: {', '.join(told) or 'none'}; one layer says next to nothing of {', '.join(silent)}",
    ]
    command = f"debubble plan --model .. --gpu .. --calibrate {found.calibration}"
    title = f"one layer of {found.model} on {found.device}, held against {found.gpu}: {sizes}"
    sections: list[Section] = [Table("", columns, rows), Sentences("", sentences, plain=True), Paste("Next:", command)]
    return Report(title, (), sections)


def _rows(name: str, times: PassTimes) -> list[list[Cell]]:
    error = f"{100 * times.error_share:.1f} %"
    forward, backward = (shown(time, Unit.TIME) for time in (times.forward_ms, times.backward_ms))
    return [
        [f"{name} forward", f"{forward} ± {error}", times.estimated_forward_ms, times.calibrated_forward_ms],
        [f"{name} backward", f"{backward} ± {error}", times.estimated_backward_ms, times.calibrated_backward_ms],
    ]
