"""Between a caller and a schedule: its entry of the catalog, the shapes that it takes, and memory caps for a search.

Formulas are text, as on paper, in the grammar of ``closed_form.py``, which says what they come to:

    p ranks, m micro-batches, v chunks a rank, s slices, r the rank (0 holds the input)
    N micro-batches in a group (p where none is given), cap micro-batches that a search may hold (p where none is given)
    F, I, W, B  times of a micro-batch on a rank, B = I + W;  F&B  time of an overlapped pair
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..core.costs import Costs, Rates
from ..core.errors import Fault, InputError
from ..core.schedule import Release, Schedule, Shape

Cap = str | float | Sequence[float]
USUAL: Cap = "1p"  # what 1F1B holds on its first rank: the memory that people have planned for
TWO_COPIES = "it has no place for two copies of a stage"  # why PyTorch cannot run a two-way schedule
_OPTIONS = {"group": (None, "leaves the group size no choice"), "slices": (1, "does not cut sequences into slices")}
_OPTIONS["pairs"] = (False, "runs no forward and backward as one slot unless they always are")


class Search(Protocol):
    """How a schedule that is searched is made: it needs costs and a memory cap beside the shape."""

    def __call__(self, shape: Shape, speed: Rates | Costs, *, cap: Cap, release: Release) -> Schedule:
        """The schedule that the search finds; see ``zb_auto.py``."""
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
        may_pair: whether a forward and the backward after it may run as one slot if that is asked for.
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
    may_pair: bool = False
    hides_hops: bool = False
    bubble: str
    bubble_holds: str = ""
    activations: str

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it is called."""
        return (self.name, *filter(None, [self.torch]), *self.other_names)

    @property
    def pairs(self) -> bool:
        """Whether it runs forwards and backwards as one slot, always or if that is asked for."""
        return self.may_pair or "F&B" in self.bubble

    def shape(self, asked: Shape) -> Shape:
        """The shape with this schedule's own chunks, where one chunk a rank (nothing) was asked for."""
        if asked.chunks != 1:
            return asked
        return replace(asked, chunks=self.chunks)


def check(
    name: str, shape: Shape, *faults: Fault | None, chunks: int | None = 1, takes: frozenset[str] = frozenset()
) -> None:
    """Compare a shape with what a schedule needs.

    Args:
        name: of the schedule, for the message.
        shape: what was asked for.
        *faults: what the schedule found by itself; None is no fault.
        chunks: chunks a rank that the schedule has; None where any number will do.
        takes: which of ``group``, ``slices`` and ``pairs`` it lets a shape choose.

    Raises:
        InputError: with all faults, those given and those found here.
    """
    found = [fault for fault in faults if fault is not None]
    if chunks is not None and shape.chunks != chunks:
        found.append(Fault(f"chunks = {shape.chunks}", f"{name} has {chunks} on each rank", f"give {chunks} or none"))
    for option, (unsaid, rule) in _OPTIONS.items():
        value = getattr(shape, option)
        if option not in takes and value != unsaid:
            found.append(Fault(f"{option} = {value}", f"{name} {rule}", f"leave {option} out"))
    if found:
        raise InputError(*found)


def multiple(option: str, value: int, of: int, rule: str, *, least: int = 1) -> Fault | None:
    """The fault of a value that is not a multiple or too small, with the nearest two that would do; else None."""
    if value % of == 0 and value >= least:
        return None
    lowest = -(-least // of) * of
    below = value // of * of
    near = [below, below + of] if below >= lowest else [lowest]
    return Fault(f"{option} = {value}", rule, f"nearest: {' or '.join(map(str, near))}")


def op_by_op(name: str, shape: Shape, most: int) -> Fault | None:
    """The fault of more ranks x micro-batches than a schedule made op by op gets through in a minute; else None."""
    cells = shape.ranks * shape.microbatches
    if cells <= most:
        return None
    rule = f"{name} is laid out op by op, for up to {most:,} of them"
    remedy = f"give {max(1, most // shape.ranks):,} micro-batches or less"
    return Fault(f"ranks x microbatches = {cells:,}", rule, remedy)


def caps_of(cap: Cap, ranks: int) -> tuple[float, ...]:
    """How many micro-batches of a rank's activations each rank may hold.

    Args:
        cap: a number, a list of them, or either as text: ``6``, ``1p``, ``1.5p``, ``4,6,6,4``; ``p`` is the number
            of ranks.
        ranks: p.

    Raises:
        InputError: not a number above 0, or a list of the wrong length.
    """
    words: Sequence[str | float]
    if isinstance(cap, str):
        words = cap.split(",")
    elif isinstance(cap, int | float):
        words = [cap]
    else:
        words = cap
    caps = [_number(word, ranks) for word in words]
    faults = [
        Fault(f"cap = {word}", "a cap is a number of micro-batches above 0", "give it as in 6, 1p or 4,6,6,4")
        for word, value in zip(words, caps, strict=True)
        if not 0 < value < math.inf
    ]
    if len(caps) not in (1, ranks):
        rule = f"a list of caps has one for each of the {ranks} ranks"
        faults.append(Fault(f"cap has {len(caps)} caps", rule, f"give 1 or {ranks} of them"))
    if faults:
        raise InputError(*faults)
    if len(caps) == 1:
        caps = caps * ranks
    return tuple(caps)


def _number(word: str | float, ranks: int) -> float:
    """The value of one cap; not a number where it is none."""
    if not isinstance(word, str):
        return float(word)
    digits = word.strip()
    unit = 1
    if digits.endswith("p"):
        digits, unit = digits.removesuffix("p") or "1", ranks
    try:
        return float(digits) * unit
    except ValueError:
        return math.nan
