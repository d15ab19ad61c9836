"""The schedules that are known by name, with what each needs, idles and holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.results import Result
from .catalog import CATALOG


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """A schedule of the catalog.

    Args:
        name: as typed.
        other_names: what papers and other tools call it.
        torch: its class in ``torch.distributed.pipelining``, without the word ``Schedule``, or empty.
        placement: where stages live, in a word or two.
        needs: what a shape must satisfy, or empty.
        bubble: idle time of a rank beyond its work, as a formula.
        bubble_holds: the condition under which ``bubble`` is exact, or empty.
        activations: peak on rank r, without r on the fullest one, in micro-batches of a rank.
        paper: where it was published.
        chunks: stages on a rank if none are asked for.
        not_on_torch: why ``torch.distributed.pipelining`` cannot run it, or empty.
    """

    name: str
    other_names: tuple[str, ...]
    torch: str
    placement: str
    needs: str
    bubble: str
    bubble_holds: str
    activations: str
    paper: str
    chunks: int
    not_on_torch: str


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Catalog(Result):
    """The schedules that are known by name."""

    schema: ClassVar[str] = "catalog/1"

    schedules: tuple[CatalogRow, ...]


def catalog() -> Catalog:
    """The schedules that are known by name."""
    return Catalog(
        schedules=tuple(
            CatalogRow(
                name=entry.name,
                other_names=entry.other_names,
                torch=entry.torch,
                placement=entry.placement,
                needs=entry.needs,
                bubble=entry.bubble,
                bubble_holds=entry.bubble_holds,
                activations=entry.activations,
                paper=entry.paper,
                chunks=entry.chunks,
                not_on_torch=entry.not_on_torch,
            )
            for entry in CATALOG.values()
        )
    )
