"""What ``show --list`` says: the schedules that are known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sections import Column, Report, Table

if TYPE_CHECKING:
    from ..schedules.listing import Catalog

TITLES = ("schedule", "placement", "needs", "idle time of a rank", "holds for", "peak activations", "paper")
LEGEND = (
    "p ranks, r one of them from 0, m micro-batches, v chunks a rank, s slices; N micro-batches in a group, cap those "
    "that a search may hold (both p if none is given); F, I, W, B: times of a micro-batch on a rank, F&B of an "
    "overlapped pair. Formulas hold for even stages and free transfers."
)


def report(found: Catalog, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of the catalog."""
    rows = [
        (
            each.name,
            each.placement,
            each.needs or "-",
            each.bubble or "-",
            each.bubble_holds or "even stages",
            each.activations,
            each.paper or "-",
        )
        for each in found.schedules
    ]
    columns = [Column(title, left=True) for title in TITLES]
    return Report("", (), [Table("", columns, rows, notes=[LEGEND], folds=(3, 5))])
