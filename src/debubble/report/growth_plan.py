"""What ``plan --rampup`` says without a model: the idle share of each size, and of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.units import percent
from .figures import Unit
from .sections import Column, Report, Table

if TYPE_CHECKING:
    from ..planning.batch_plan import GrowthPlan


def report(found: GrowthPlan, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of a batch that grows."""
    columns = [
        Column("batch", left=True),
        Column("samples", Unit.COUNT),
        Column("m"),
        Column("idle", Unit.SHARE),
        Column("", left=True),
    ]
    rows = [(str(row.global_batch), row.samples, row.microbatches, row.idle_share, row.reason) for row in found.sizes]
    notes = []
    if found.idle_share_of_growth is not None:
        notes.append(f"Over all steps while the batch grows: {percent(found.idle_share_of_growth)} idle.")
    return Report("", (), [Table("A batch that grows", columns, rows, notes=notes, untitled=True)])
