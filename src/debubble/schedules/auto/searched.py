"""The catalog of searched schedules, which need costs and a memory cap, beside those that a shape decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ...core.costs import Costs, Rates
from ...core.errors import Fault, InputError, nearest
from ...core.memory import Release
from ...core.schedule import Schedule, Shape
from ..catalog import CATALOG, Entry
from .caps import Cap
from .zb_auto import zb_auto
from .zb_v_auto import zb_v_auto


class Search(Protocol):
    """How a searched schedule is called."""

    def __call__(self, shape: Shape, speed: Rates | Costs, *, cap: Cap, release: Release) -> Schedule:
        """The schedule that the search finds for a shape and costs, under a cap; see ``zb_auto``."""
        ...


@dataclass(frozen=True, slots=True)
class Searched:
    """One line of the catalog.

    Args:
        entry: the same line as for generated schedules; its formulas hold for the cap below, its ``build`` searches
            with default costs.
        search: makes the schedule for given costs.
        cap: memory cap where none is given.
    """

    entry: Entry
    search: Search
    cap: str = "1p"


def _by_default(search: Search) -> partial[Schedule]:
    return partial(search, speed=Rates(), cap="1p", release=Release.HALF)


SEARCHED = {
    line.entry.name: line
    for line in (
        Searched(
            Entry(
                "zb-auto",
                _by_default(zb_auto),
                "linear",
                "cap >= 1",
                "(p-1)(F+I-W)",
                "min(p, m)",
                "arXiv:2401.10241",
                "W <= F <= I, m >= p",
            ),
            zb_auto,
        ),
        Searched(
            Entry(
                "zb-v-auto",
                _by_default(zb_v_auto),
                "V",
                "v = 2; cap >= p",
                "(p-1)F/2",
                "min(p, m)",
                "arXiv:2401.10241",
                "F = I = W, m >= p",
                2,
            ),
            zb_v_auto,
        ),
    )
}


# Every schedule that has a name, generated and searched.
ENTRIES = CATALOG | {name: line.entry for name, line in SEARCHED.items()}


def build(
    name: str,
    shape: Shape,
    speed: Rates | Costs | None = None,
    *,
    cap: Cap | None = None,
    release: Release = Release.HALF,
) -> Schedule:
    """The schedule of this name, generated or searched.

    Args:
        name: as in either catalog.
        shape: of the pipeline; one chunk a rank counts as not asked for where the schedule has more.
        speed: how long ops take, for a search; None for the default rates.
        cap: micro-batches that each rank may hold, for a search; None for its default.
        release: when activations are freed, by which a cap is judged; published searches go by halves.

    Raises:
        InputError: no schedule has this name, the shape does not suit it, or a cap that is too small or that the
            schedule does not take.
    """
    if name in SEARCHED:
        line = SEARCHED[name]
        wanted = replace(shape, chunks=line.entry.chunks) if shape.chunks == 1 else shape
        return line.search(wanted, speed or Rates(), cap=line.cap if cap is None else cap, release=release)
    if name not in CATALOG:
        raise nearest(name, ENTRIES, "schedule")
    if cap is not None:
        rule = f"{name} holds what its order holds and takes no cap"
        raise InputError(Fault(f"memory = {cap}", rule, f"leave it out, or take {' or '.join(SEARCHED)}"))
    entry = CATALOG[name]
    return entry.build(replace(shape, chunks=entry.chunks) if shape.chunks == 1 else shape)
