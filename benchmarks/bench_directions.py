"""Forward told from backward by transfers alone: 1,024 ranks whose files name no op, peer or group take 3 s of CPU.

Every rank used to be matched with every other: 23 s for 256 of them, and sixteen times as much for four times as many.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from debubble.core.costs import Rates, costs_of
from debubble.core.schedule import Shape
from debubble.core.units import MILLISECOND
from debubble.readers.kineto import read_traces
from debubble.reconstruct.device_ops import RankOps
from debubble.reconstruct.pairing import with_peers
from debubble.reconstruct.positions import Said, places_of
from debubble.reconstruct.unlabelled import directed
from debubble.schedules.catalog import build
from pour import Style, pour_rank, run_of, untold, write

RANKS, MICROBATCHES, STEPS = 16, 16, 3
UNEVEN = 0.2  # by which stages of replicas differ at most


def untold_of(folder: Path, replicas: int) -> tuple[RankOps, ...]:
    """The ranks of some replicas, poured and read again."""
    random = np.random.default_rng(20)
    schedule = build("1f1b", Shape(RANKS, MICROBATCHES))
    style = Style(kernels=1, labels=False)
    paths: list[Path] = []
    for replica in range(replicas):
        scale = tuple((1 + UNEVEN * random.random(RANKS)).tolist())
        rates = Rates(3 * MILLISECOND, 7 * MILLISECOND, transfer=0.3 * MILLISECOND, stage_scale=scale)
        runs = run_of(schedule, costs_of(rates, schedule), STEPS)
        poured = {RANKS * replica + rank: untold(pour_rank(runs, rank, style)) for rank in range(RANKS)}
        paths += write(folder, poured, packed=False)
    return tuple(sorted(read_traces(paths).devices, key=lambda device: device.rank))


def told(ranks: tuple[RankOps, ...]) -> tuple[tuple[RankOps, ...], list[str]]:
    """Neighbours, places and directions of ranks of which nothing is named."""
    devices = with_peers(ranks)
    return directed(devices, places_of(devices, Said()))


@pytest.mark.parametrize("replicas", [16, 64])
def test_directions(benchmark: Any, tmp_path: Path, replicas: int) -> None:
    ranks = untold_of(tmp_path, replicas)
    devices, remarks = benchmark.pedantic(told, args=(ranks,), rounds=1)
    print(f"\n  {len(ranks)} ranks, {sum(len(device) > 0 for device in devices)} told", *remarks[1:], sep="\n  ")
