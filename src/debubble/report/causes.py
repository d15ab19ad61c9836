"""Causes of a window as a section: what each is, what it costs, and what would help if it costs anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .sections import Part, Parts

WORTH = 0.01  # share of a window from which a cause is worth a remedy
WHAT = {
    "ideal": "the mean work of a rank: even, no bubble",
    "schedule": "fill and drain in this order",
    "imbalance": "stages of unequal work",
    "variation": "ops of one stage that differ",
    "transfer": "hops between ranks",
    "unexplained": "late hosts, and all else",
}


class Cost(Protocol):
    """A cause as results hold it (``diagnosis.causes.CauseCost``)."""

    @property
    def cause(self) -> str:
        """Its name."""

    @property
    def cost_ms(self) -> float:
        """Of the window."""

    @property
    def cost_share(self) -> float:
        """Of the window."""

    @property
    def evidence(self) -> str:
        """Of the figure."""

    @property
    def remedy(self) -> str:
        """What would help."""


def causes_section(costs: Sequence[Cost], window_ms: float, *, note: str = "", name: str = "") -> Parts:
    """The causes of a window; they sum to it.

    Args:
        costs: of each cause.
        window_ms: how long it is.
        note: on the window, a clause.
        name: of the run, if a report holds several.
    """
    parts = [
        Part(
            each.cause,
            each.cost_ms,
            each.cost_share,
            each.evidence,
            WHAT[each.cause],
            each.remedy if each.cost_share > WORTH else "",
        )
        for each in costs
    ]
    title = "Why (by re-simulation, one change at a time)"
    return Parts(title, parts, "window", window_ms, note, name)
