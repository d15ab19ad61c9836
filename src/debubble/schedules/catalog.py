"""The catalog: every schedule by the name that the command line knows it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import nearest
from ..schedule import Schedule, Shape
from .gpipe import gpipe
from .interleaved import interleaved
from .one_f_one_b import one_f_one_b


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the catalog.

    Args:
        name: as typed.
        build: makes the schedule for a shape.
        placement: where stages live, in a word.
        needs: what a shape must satisfy, or an empty string.
        bubble: idle time beyond the work of a rank, for even stages and free transfers, as a formula.
        activations: peak on the worst rank, in micro-batches, as a formula.
        paper: where it was published.
    """

    name: str
    build: Callable[[Shape], Schedule]
    placement: str
    needs: str
    bubble: str
    activations: str
    paper: str


CATALOG = {
    entry.name: entry
    for entry in (
        Entry("gpipe", gpipe, "linear", "", "(p-1)(F+B)", "m", "arXiv:1811.06965"),
        Entry("1f1b", one_f_one_b, "linear", "", "(p-1)(F+B)", "min(p-r, m)", "arXiv:2006.09503"),
        Entry("interleaved", interleaved, "loop", "m % p = 0", "(p-1)(F+B)/v", "((v+1)p-1)/v", "arXiv:2104.04473"),
    )
}


def build(name: str, shape: Shape) -> Schedule:
    """The schedule of this name for this shape.

    Raises:
        InputError: no schedule has this name, or the shape does not suit it.
    """
    if name not in CATALOG:
        raise nearest(name, CATALOG, "schedule")
    return CATALOG[name].build(shape)
