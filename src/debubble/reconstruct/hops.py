"""Hops of whole pipelines: how many transfers have both sides, and how closely those pin the clocks of neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..core.observation import Link
from .device_ops import RankOps
from .matching import match
from .partners import reach
from .positions import Places
from .receive_splits import Split, links, split


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """What transfers say about pipelines.

    Args:
        bounds: by replica, the least offset of one position's clock against another's, float64[ranks, ranks], in
            nanoseconds, as ``clocks.lags`` has them; a replica without transfers is not there.
        matched_share: share of transfers whose other side was found; 1 where there are no transfers.
        links: receives by sender and receiver, split into waiting and transfer.
        found: by index of a device, whether the other side of each of its transfers was found, bool[transfers].
    """

    bounds: dict[int, NDArray[np.float64]]
    matched_share: float
    links: tuple[Link, ...] = ()
    found: dict[int, NDArray[np.bool_]] = field(default_factory=dict)


def hops(devices: Sequence[RankOps], where: Places) -> Hops:
    """Match the transfers of all neighbours, devices of one position one by one."""
    ranks = max(where.position) + 1
    within = reach(devices)
    found = {
        i: np.zeros(len(device.transfers), bool) for i, device in enumerate(devices) if device.transfers is not None
    }
    bounds: dict[int, NDArray[np.float64]] = {}
    splits: list[Split] = []
    for q, p, one, other in _neighbours(where, ranks):
        mine, theirs = devices[one].transfers, devices[other].transfers
        if mine is None or theirs is None:
            continue
        pairs = match(mine, theirs, within)
        if not pairs.sure:
            continue
        found[one] |= pairs.mine
        found[other] |= pairs.theirs
        least = bounds.setdefault(q, np.full((ranks, ranks), -np.inf))
        down = (p + 1) % ranks
        splits += split(mine, theirs, pairs, (p, down))
        least[p, down] = max(least[p, down], -pairs.offset - pairs.spread)
        least[down, p] = max(least[down, p], pairs.offset - pairs.spread)
    total = sum(len(flags) for flags in found.values())
    share = sum(int(flags.sum()) for flags in found.values()) / total if total else 1.0
    return Hops(bounds, share, links(splits), found)


def _neighbours(where: Places, ranks: int) -> Iterator[tuple[int, int, int, int]]:
    """Replica, position, and a device there and one at the next position; the last is next to the first in a ring."""
    members = where.members()
    for (q, p), held in members.items():
        if ranks == 2 and p:  # the other way round, the same two
            continue
        following = members.get((q, (p + 1) % ranks), ())
        yield from ((q, p, one, other) for one, other in zip(held, following, strict=False) if one != other)
