"""What a schedule's file says about it: names, needs, bubble and memory as formulas; the catalog collects these.

Formulas are text, as on paper, in the grammar of ``closed_form.py``, which is the only reader:

    p ranks, m micro-batches, v chunks a rank, s slices, r the rank (0 holds the input)
    N micro-batches in a group (p where none is given), cap micro-batches that a search may hold (p where none is given)
    F, I, W, B  times of a micro-batch on a rank, B = I + W;  F&B  time of an overlapped pair
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..core.costs import Costs, Rates
from ..core.memory import Release
from ..core.schedule import Schedule, Shape
from .auto.caps import Cap


class Search(Protocol):
    """How a schedule that is searched is made: it needs costs and a memory cap beside the shape."""

    def __call__(self, shape: Shape, speed: Rates | Costs, *, cap: Cap, release: Release) -> Schedule:
        """The schedule that the search finds; see ``auto/zb_auto.py``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the catalog.

    Args:
        name: as typed; lower case.
        build: makes the schedule for a shape; where it is searched, for the default costs and cap.
        search: makes it for given costs and a given cap; None where the shape alone decides.
        other_names: what papers and other tools call it, beside its name and its class in PyTorch.
        torch: its class in ``torch.distributed.pipelining``, without the word ``Schedule``; empty where it has none.
        not_on_torch: why PyTorch cannot run its order at all; empty where it can, as a class or as a file.
        paper: where it was published; empty for what needs no paper.
        placement: where stages live, in a word or two.
        chunks: chunks on each rank where none are asked for.
        any_chunks: whether another number may be asked for.
        needs: what a shape must satisfy, or an empty string.
        splits: whether it splits each backward into I and W.
        trains: whether it has backwards.
        hides_hops: whether ranks run so far ahead that a hop costs a micro-batch nothing in the steady state.
        bubble: time that each rank idles (the idlest, where pairs save time), with the barrier that ends a step, for
            even stages and free transfers; with ``<=`` in front it is no more than a bound.
        bubble_holds: the further condition under which ``bubble`` is exact, or an empty string.
        activations: most micro-batches that rank r holds from F to W; without r that of the fullest rank.
    """

    name: str
    build: Callable[[Shape], Schedule]
    search: Search | None = None
    other_names: tuple[str, ...] = ()
    torch: str = ""
    not_on_torch: str = ""
    paper: str = ""
    placement: str
    chunks: int = 1
    any_chunks: bool = False
    needs: str = ""
    splits: bool = False
    trains: bool = True
    hides_hops: bool = False
    bubble: str
    bubble_holds: str = ""
    activations: str

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it is called."""
        return (self.name, *filter(None, [self.torch]), *self.other_names)

    def shape(self, asked: Shape) -> Shape:
        """The shape with this schedule's own chunks, where one chunk a rank (nothing) was asked for."""
        if asked.chunks != 1:
            return asked
        return replace(asked, chunks=self.chunks)
