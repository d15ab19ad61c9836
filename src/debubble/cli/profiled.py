"""What ``run --profile`` prints: times measured beside those estimated before and after, and the factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..drawing.tables import duration, table

if TYPE_CHECKING:
    from ..estimate.constants import Calibration
    from ..planning.calibrate_layer import LayerRun
    from ..runner.profile import Timed

SECOND, PER_MS = 1e9, 1e3
_ROWS = ("layer", "narrow_layer", "embedding", "head")


def document(calibration: Calibration, runs: Sequence[LayerRun], ends: Mapping[str, Timed]) -> dict[str, Any]:
    """What ``--json`` prints.

    Args:
        calibration: that was fitted.
        runs: the layer, and the narrow one.
        ends: embedding and head, where they were timed; they are held against the factors and are no part of them.
    """
    from ..estimate.constants import GENERIC
    from ..planning.calibrate_layer import ends_pass, layer_pass
    from .plan_text import factors_of

    layout = runs[0].layout
    estimates = [
        {"layer": layer_pass(runs[0], one), "narrow_layer": layer_pass(runs[1], one), **ends_pass(runs[0], one)}
        for one in (GENERIC, calibration)
    ]
    measured = dict(zip(_ROWS, runs, strict=False)) | dict(ends)
    return {
        "model": runs[0].model.name,
        "gpu": runs[0].cluster.device.name,
        **{name: getattr(layout, name) for name in ("tensor", "expert", "micro_batch", "sequence")},
        **{name: _row(one, *(each[name] for each in estimates)) for name, one in measured.items()},
        **factors_of(calibration),
        "evidence": "measured",
    }


def _row(timed: Timed | LayerRun, before: tuple[float, float], after: tuple[float, float]) -> dict[str, float]:
    return {
        "forward_ms": PER_MS * timed.forward,
        "backward_ms": PER_MS * timed.backward,
        "error_share": timed.spread,
        "estimated_forward_ms": PER_MS * before[0],
        "estimated_backward_ms": PER_MS * before[1],
        "calibrated_forward_ms": PER_MS * after[0],
        "calibrated_backward_ms": PER_MS * after[1],
    }


def text(found: Mapping[str, Any]) -> str:
    """What people read, from the document."""
    sizes = f"tensor {found['tensor']}, micro-batch {found['micro_batch']}, sequence {found['sequence']}"
    rows = [
        [f"  {name.replace('_', ' ')} {side}", *_cells(found[name], side)]
        for name in _ROWS
        if name in found
        for side in ("forward", "backward")
    ]
    told = [f"{name} {f['value']:.3g} ± {f['error']:.2g}" for name, f in found["factors"].items() if f["told"]]
    silent = [name for name, f in found["factors"].items() if not f["told"]]
    return "\n".join(
        [
            f"one layer of {found['model']} on {found['device']}, held against {found['gpu']}: {sizes}",
            table(("", "measured", "estimated", "calibrated"), rows),
            f"factors: {', '.join(told) or 'none'}; one layer says next to nothing of {', '.join(silent)}",
            f"Next:   debubble plan --model .. --gpu .. --calibrate {found['calibration']}",
        ]
    )


def _cells(row: Mapping[str, float], side: str) -> list[str]:
    names = (f"{side}_ms", f"estimated_{side}_ms", f"calibrated_{side}_ms")
    first, *others = (duration(row[name] / PER_MS * SECOND) for name in names)
    return [f"{first} ± {100 * row['error_share']:.1f} %", *others]
