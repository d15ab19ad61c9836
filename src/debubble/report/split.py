"""What ``split`` says: the best split for each number of micro-batches, and those that are nearly as fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figures import Unit
from .sections import Column, Report, Section, Table

if TYPE_CHECKING:
    from ..planning.split_result import Splits


def report(found: Splits, *, detail: bool = False) -> Report:  # noqa: ARG001 - there is no more to say
    """The sections of splits."""
    columns = [
        Column("split", left=True),
        Column("heaviest", Unit.NUMBER),
        Column("makespan", Unit.NUMBER),
        Column("idle", Unit.SHARE),
        Column("", left=True),
    ]
    sections: list[Section] = []
    for many in dict.fromkeys(each.microbatches for each in found.splits):
        rows = [
            (
                ",".join(map(str, each.split)),
                each.heaviest,
                each.makespan,
                each.idle_share,
                "empty stage" if each.empty_stage else "",
            )
            for each in found.splits
            if each.microbatches == many
        ]
        sections.append(Table(f"{many} micro-batches, times of a weight of 1 (simulated)", columns, rows))
    least = f"no split has a heaviest stage below {found.heaviest_at_least:.4g}"
    return Report(f"{found.blocks} blocks on {found.pipeline} ranks: {least}.", found.verdict, sections)
