"""Room: whether a layout needs the recomputation that it asks for."""

from __future__ import annotations

from dataclasses import replace

from ..config.layout import Layout, columns
from ..estimate.hardware import Cluster
from ..estimate.model import Model
from .screen import screen

SPARE = 0.9  # share of a device's memory that an estimate may fill: published peaks lie within 10 % of ours


def room_without_recompute(model: Model, cluster: Cluster, layout: Layout) -> str:
    """A sentence where less recomputation would fit into the device too; empty where it would not."""
    ways = [replace(layout, recompute=mode) for mode in ("none", "selective", "full")]
    peak = screen(model, cluster, columns(ways, model.layers)).peak_bytes
    for way, need in zip(ways[:2], peak, strict=False):
        if need <= SPARE * cluster.device.memory:
            return (
                f"full recomputation with room to spare: with {way.recompute} the fullest rank needs about "
                f"{need / 1e9:.0f} of {cluster.device.memory / 1e9:.0f} GB (estimated)"
            )
    return ""
