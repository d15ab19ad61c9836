"""The catalog: every schedule that has a name, made by one ``build``, whether its shape decides it or a search.

Each ``Entry`` at the top of a module of this package is a schedule. To add one, add its file, or put it into the file
of its family. They are listed in the order in which their papers came out, those of one paper by name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import ClassVar

from ..core.costs import Costs, Rates
from ..core.errors import Fault, InputError
from ..core.results import Result
from ..core.schedule import Release, Schedule, Shape
from .entry import USUAL, Cap, Entry


def _entries() -> Iterator[Entry]:
    """Each ``Entry`` that stands at the top of a module of this package, whatever its name there."""
    for found in pkgutil.iter_modules(import_module(__package__).__path__):
        if found.name == "catalog":  # this one is still being imported
            continue
        module = import_module(f"{__package__}.{found.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Entry))


def _by_paper(entry: Entry) -> tuple[bool, str, str]:
    """An arXiv number begins with year and month; what has no paper comes last."""
    return not entry.paper, entry.paper, entry.name


CATALOG = {entry.name: entry for entry in sorted(_entries(), key=_by_paper)}

GENERATED = tuple(name for name, entry in CATALOG.items() if entry.search is None)  # their shape decides them
TRAINING = tuple(name for name, entry in CATALOG.items() if entry.trains)


def _plain(name: str) -> str:
    """A name without case, hyphens and the word with which PyTorch's classes begin."""
    letters = "".join(filter(str.isalnum, name.lower()))
    return letters.removeprefix("schedule") or letters


_CALLED = {_plain(name): entry for entry in CATALOG.values() for name in entry.names}


def called(name: str) -> Entry | None:
    """The schedule that goes by a name: ours, PyTorch's or a paper's, in any case; None where none does."""
    return _CALLED.get(_plain(name))


def entry_of(name: str) -> Entry:
    """The schedule that goes by a name, as ``called``.

    Raises:
        InputError: none does, with the nearest names.
    """
    entry = called(name)
    if entry is None:
        raise InputError(unknown(name, CATALOG.values()))
    return entry


def unknown(name: str, entries: Iterable[Entry], kind: str = "schedule") -> Fault:
    """The fault of a name that no schedule has, with the nearest names of those that would do."""
    known = list(entries)
    spelled = {other.lower(): (entry.name, other) for entry in reversed(known) for other in reversed(entry.names)}
    close = get_close_matches(name.lower(), spelled, n=8, cutoff=0.5)
    nearest: dict[str, str] = {}  # of each schedule our own name, if that is close too
    for lower in close:
        ours, other = spelled[lower]
        nearest.setdefault(ours, ours if ours in close else other)
    if nearest:
        remedy = f"did you mean {' or '.join([*nearest.values()][:3])}?"
    else:
        remedy = f"known: {', '.join(entry.name for entry in known)}"
    return Fault(f"{kind} = {name!r}", f"no {kind} has this name", remedy)


def build(
    name: str,
    shape: Shape,
    speed: Rates | Costs | None = None,
    *,
    cap: Cap | None = None,
    release: Release = Release.HALF,
) -> Schedule:
    """The schedule of this name for this shape.

    Args:
        name: ours, PyTorch's or a paper's, in any case.
        shape: of the pipeline; one chunk a rank counts as not asked for where the schedule usually has more.
        speed: how long ops take, for a schedule that is searched; None for the default rates.
        cap: micro-batches that each rank may hold, for a search; None for its default.
        release: when activations are freed, by which a cap is judged; published searches go by halves.

    Raises:
        InputError: no schedule has this name, or the shape does not suit it, or a cap that is too small or that the
            schedule does not take.
    """
    entry = entry_of(name)
    wanted = entry.shape(shape)
    if entry.search is not None:
        if cap is None:
            cap = USUAL
        return entry.search(wanted, speed or Rates(), cap=cap, release=release)
    if cap is not None:
        searched = " or ".join(each.name for each in CATALOG.values() if each.search is not None)
        rule = f"{entry.name} holds what its order holds and takes no cap"
        raise InputError(Fault(f"cap = {cap}", rule, f"leave it out, or take {searched}"))
    return entry.build(wanted)


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
