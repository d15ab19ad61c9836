"""Unsaid: what of a layout a framework's configuration cannot express, before anything is printed to paste."""

from __future__ import annotations

from ..config.layout import Layout
from .setup import Backend, Sizes


def unsaid(backend: Backend, layout: Layout, sizes: Sizes) -> tuple[str, ...]:
    """Each part of a layout that the framework has no words for, as a clause; empty where it can say all of it."""
    found = []
    if layout.pipeline > 1 and layout.schedule not in backend.schedules:
        found.append(f"{backend.title} has no schedule {layout.schedule}")
    found += [
        f"{backend.title} has no {what} parallelism in its pipelines"
        for what in ("context", "expert")
        if what in backend.lacks and getattr(layout, what) > 1
    ]
    if sizes.experts and layout.expert_shards > 1 and "expert tensor" in backend.lacks:
        found.append(f"{backend.title} leaves each expert whole, on one device, not on {layout.expert_shards}")
    if layout.recompute_layers is not None and "some layers" in backend.lacks:
        found.append(f"{backend.title} recomputes every layer of a stage or none")
    if backend.zeros and layout.zero not in (able := backend.zeros(layout.pipeline)):
        what = " or ".join(f"ZeRO-{zero}" for zero in able)
        found.append(f"{backend.title} shares a model out as {what} does, not as ZeRO-{layout.zero}")
    if layout.zero > 1 and "zero" in backend.lacks:
        found.append(f"{backend.title} shares out the optimizer alone, not ZeRO-{layout.zero}")
    split = layout.split(sizes.layers)
    if min(split) == 0 and "bare ends" in backend.lacks:
        found.append(f"{backend.title} wants a layer on each stage")
    if backend.deals and split not in (own := backend.deals(sizes, layout.stages)):
        dealt = " or ".join(",".join(map(str, one)) for one in own) or "none that fills each stage"
        found.append(f"{backend.title} deals layers by itself ({dealt}), not {','.join(map(str, split))}")
    return tuple(found)
