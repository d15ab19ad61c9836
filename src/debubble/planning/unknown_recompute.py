"""Unknown recomputation: who finished had room for it, so a run is taken to recompute as little as fits its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .calibrate import predict
from .runs import Run

# From what costs nothing to what leaves least: parts of a layer that are cheap to run again, those with products, all.
CHEAP = ("layernorm", "moe_act", "mla_up_proj")
LADDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("none", ()),
    ("selective", CHEAP),
    ("selective", (*CHEAP, "mlp", "shared_experts")),
    ("full", ()),
)


def as_they_fit(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs, those that finished and do not say how they recompute with the least that fits.

    If nothing fits, everything is recomputed. A run that failed says nothing: it stays as it is.
    """
    settled = list(runs)
    left = [place for place, run in enumerate(runs) if run.status == "ok" and "recompute" in run.unknown]
    for mode, modules in LADDER:
        tried = [_with(settled[place], mode, modules) for place in left]
        peaks = predict(tried)[1].tolist() if tried else []
        for place, run in zip(left, tried, strict=True):
            settled[place] = run
        fits = [peak <= run.cluster.device.usable for peak, run in zip(peaks, tried, strict=True)]
        left = [place for place, enough in zip(left, fits, strict=True) if not enough]
    return tuple(settled)


def _with(run: Run, mode: str, modules: tuple[str, ...]) -> Run:
    return replace(run, layout=replace(run.layout, recompute=mode, recompute_modules=modules))
