"""The table of ranks: where the time of each goes, in the unit and with the digits that suit all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.rank_time import PARTS, RankTime
from ..core.units import percent
from .figures import decimals
from .sections import Ranks

MOST_RANKS = 32  # with a line of their own in a terminal
UNDER_A_MILLISECOND = 1.0


def ranks_table(section: Ranks, most: int = MOST_RANKS) -> tuple[list[str], list[list[str]], str]:
    """Headers, rows, and a note on the ranks that are left out.

    Args:
        section: the ranks of a window.
        most: lines; of more ranks every n-th has one, and the busiest and the idlest.
    """
    unit, size = ("us", 1e-3) if section.window_ms < UNDER_A_MILLISECOND else ("ms", 1.0)
    chosen = _chosen(section.ranks, most)
    times = [[getattr(rank, f"{part}_ms") / size for part in PARTS] for rank in chosen]
    digits = decimals([time for line in times for time in line])
    rows = [
        [str(rank.rank), *(f"{time:,.{digits}f}" for time in line), percent(rank.busy_share)]
        for rank, line in zip(chosen, times, strict=True)
    ]
    headers = [f"{unit} of rank", *(part.replace("_", "-") for part in PARTS), "busy"]
    if section.peaks:
        headers.append("peak")
        for row, rank in zip(rows, chosen, strict=True):
            row.append(f"{rank.peak_activations:.3g}")
    left_out = len(chosen) < len(section.ranks)
    note = f"{len(chosen)} of {len(section.ranks)} ranks, the busiest and the idlest among them; all with --json"
    return headers, rows, note if left_out else ""


def _chosen(ranks: Sequence[RankTime], most: int) -> list[RankTime]:
    """All ranks, or evenly spaced ones and those that stand out."""
    step = -(-len(ranks) // most)
    if step <= 1:
        return list(ranks)
    busy = [rank.busy_share for rank in ranks]
    numbers = {*range(0, len(ranks), step), len(ranks) - 1, busy.index(max(busy)), busy.index(min(busy))}
    return [ranks[number] for number in sorted(numbers)]
