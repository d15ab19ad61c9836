"""What Megatron-Core makes of a setup: its chunks, the layers of each stage, its schedule."""

from __future__ import annotations

from dataclasses import replace

from ..config.layout import Layout
from ..core.errors import InputError
from .layout_string import read_layout
from .setup import Setup
from .splits import ends_apart, ends_counted

# Parts of a layout that a flag turns on.
SWITCHES = {
    "zero": "--use-distributed-optimizer",
    "sequence_parallel": "--sequence-parallel",
    "overlap": "--overlap-grad-reduce",
    "overlap_gather": "--overlap-param-gather",
    "tensor_overlap": "--tp-comm-overlap",
}


def settled(setup: Setup) -> Setup:
    """With the chunks that layers per chunk or a layout imply; one chunk a rank means no interleaving."""
    chunks = setup.chunks
    if setup.chunk_layers and setup.layers:
        chunks = setup.layers // setup.ranks // setup.chunk_layers or None
    if setup.layout is not None:
        try:
            chunks = read_layout(setup.layout, setup.ranks).chunks
        except InputError:
            chunks = None
    return replace(setup, chunks=chunks)


def split(setup: Setup) -> tuple[int, ...] | None:
    """Layers of each stage, by layout, uneven ends or ends that count as layers."""
    full = settled(setup)
    if full.layout is not None:
        try:
            return tuple(stage.count("t") for stage in read_layout(full.layout, full.ranks).stages)
        except InputError:
            return None
    if full.layers is None or full.split is not None:
        return full.split
    chunks = full.chunks or 1
    if full.first is not None or full.last is not None:
        ranks = ends_apart(full.layers, full.ranks, full.first, full.last)
        return ranks and tuple(layers // chunks for layers in ranks) * chunks
    return ends_counted(full.layers, full.ranks * chunks, full.embedding_layers or 0, full.loss_layers or 0)


def schedule(setup: Setup) -> str:
    """1F1B, interleaved where a rank has several chunks."""
    return "interleaved" if (setup.chunks or 1) > 1 else "1f1b"


def recomputed(layout: Layout) -> tuple[str, int]:
    """The method of a full recomputation and its number: every layer by itself, or so many of each stage."""
    return ("uniform", 1) if layout.recompute_layers is None else ("block", layout.recompute_layers)
